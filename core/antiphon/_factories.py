"""Turns a plugin's factory into what it makes, checked against its contract."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from antiphon._entry_points import EntryPoint, said
from antiphon._offers import FACTORY_HOOKS
from antiphon.contracts import Adapter, Factory, Generator, Metric, Policy, Pricing, RewardTerm, TagGrammar
from antiphon.errors import AntiphonError, ConfigError, PluginError, did_you_mean

PROTOCOLS: dict[str, type] = {
    "adapter": Adapter,
    "generator": Generator,
    "grammar": TagGrammar,
    "policy": Policy,
    "reward_term": RewardTerm,
    "pricing": Pricing,
    "metric": Metric,
    "dataset": Iterable,
}
"""Kind of factory -> what it must make."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A plugin's factory, by name."""

    point: EntryPoint
    kind: str
    name: str
    factory: Factory

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}"

    def failed(self, what: str, remedy: str) -> PluginError:
        return PluginError(self.point.says(f"hook {FACTORY_HOOKS[self.kind]}: {self} {what}", remedy))

    def load(self) -> Callable[..., Any]:
        """The factory, imported.

        Raises:
            PluginError: it cannot be imported, or is no function.
        """
        if not isinstance(self.factory, str):
            return self.factory
        module, _, attr = self.factory.partition(":")
        try:
            value: Any = import_module(module)
            for part in attr.split("."):
                value = getattr(value, part)
        except AntiphonError:
            raise
        except (Exception, SystemExit) as error:
            raise self.failed(f"({self.factory}) cannot be imported: {said(error)}", "repair the package") from error
        if not callable(value):
            raise self.failed(
                f"({self.factory}) is a {type(value).__name__}, not callable", "name a class or a function"
            )
        return value  # type: ignore[no-any-return]

    def make(self, options: Mapping[str, Any]) -> Any:
        """Call the factory and check what it makes.

        Raises:
            ConfigError: the factory takes no such options.
            PluginError: it cannot be imported, fails, or makes the wrong thing.
        """
        factory, kind = self.load(), self.kind
        wrong = wrong_options(factory, options)
        if wrong:
            if kind == "adapter":  # the pool gives the options, not the user
                raise self.failed(wrong, "an adapter's factory takes endpoint and descriptor, by keyword")
            raise ConfigError(f"{self} of {self.point.distribution} {self.point.version} {wrong}")
        try:
            made = factory(**options)
            missing = [] if kind == "dataset" else [part for part in _parts(PROTOCOLS[kind]) if not hasattr(made, part)]
        except AntiphonError:
            raise
        except (Exception, SystemExit) as error:
            raise self.failed(f"raised {said(error)} when it was made", "check its options, or report it") from error
        if inspect.iscoroutine(made):
            made.close()
        contract = PROTOCOLS[kind].__name__
        if isinstance(made, type):
            raise self.failed(f"gave the class {made.__name__!r}, not an instance", f"return a {contract}")
        if missing or not isinstance(made, PROTOCOLS[kind]):
            lacks = f", which has no {' and no '.join(map(repr, missing))}" if missing else ""
            raise self.failed(f"gave a {type(made).__name__}{lacks}", f"see antiphon.contracts.{contract}")
        return made


def contested(offer: Offer, rivals: Sequence[Offer]) -> str:
    """The error of a name that more than one plugin offers."""
    owners = " and ".join(f"{rival.point} ({rival.point.value})" for rival in rivals)
    return (
        f"{offer} is offered by {owners}, hook {FACTORY_HOOKS[offer.kind]}; neither wins silently: "
        f"uninstall one, or leave it out with ANTIPHON_PLUGINS"
    )


def wrong_options(factory: Callable[..., Any], options: Mapping[str, Any]) -> str | None:
    """What is wrong with the options by the factory's own signature, where it has one."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return None
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    known = [p.name for p in named]
    if not any(p.kind == p.VAR_KEYWORD for p in parameters):
        for option in options:
            if option not in known:
                return f"takes no option {option!r}{did_you_mean(option, known)}"
    missing = [p.name for p in named if p.default is p.empty and p.name not in options]
    return f"needs the option {missing[0]!r}" if missing else None


def _parts(protocol: type) -> list[str]:
    """The attributes a protocol asks for."""
    methods = [name for name, value in vars(protocol).items() if callable(value) or isinstance(value, property)]
    public = [name for name in methods if name == "__call__" or not name.startswith("_")]
    return [*inspect.get_annotations(protocol), *public]
