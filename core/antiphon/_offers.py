"""Reads what one plugin offers: calls its hooks, or reads its descriptors, and checks every item."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

from antiphon import hookspecs
from antiphon._entry_points import EntryPoint, Fault, attributed, said
from antiphon.contracts import Factory
from antiphon.errors import AntiphonError, ConfigError, did_you_mean

if TYPE_CHECKING:
    from antiphon.descriptor import Descriptor

FACTORY_HOOKS = {
    "adapter": "antiphon_adapters",
    "generator": "antiphon_generators",
    "grammar": "antiphon_grammars",
    "policy": "antiphon_policies",
    "reward_term": "antiphon_reward_terms",
    "pricing": "antiphon_pricing",
    "metric": "antiphon_metrics",
    "dataset": "antiphon_datasets",
}
"""Kind of factory -> the hook that offers it."""

MOST_DESCRIPTORS = 10_000
LARGEST_TOML = 4 * 1024 * 1024
_SEE = "compare it with docs/reference/hooks.md, or leave the plugin out with ANTIPHON_PLUGINS"


@dataclass(slots=True)
class Offers:
    """What one plugin offers. `problems`: contributions that do not hold; the others do."""

    factories: dict[tuple[str, str], Factory] = field(default_factory=dict)
    descriptors: list[Descriptor] = field(default_factory=list)
    observers: list[Callable[..., object]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def of_hooks(point: EntryPoint, plugin: object, folder: Path | None) -> Offers:
    """Check a plugin against the hook specifications, then call its hooks.

    Raises:
        Fault: a hook that does not hold; the plugin as a whole is not used then.
    """
    if plugin is None or isinstance(plugin, type):
        what = "None" if plugin is None else f"the class {plugin.__name__!r}"
        raise Fault(f"entry point {point.value} is {what}", "name a module or an instance with @hookimpl functions")
    offers, implemented = Offers(), set()
    for name, implementation in _implementations(point, plugin):
        implemented.add(name)
        if name == "antiphon_on_trajectory":
            # Bound to what the implementation asks for: the specification lets it leave arguments out.
            offers.observers.append(_observer(implementation))
            continue
        value = _call(name, implementation)
        if name == "antiphon_descriptors":
            _add_descriptors(offers, point, f"hook {name}", value, folder)
        else:
            _add_factories(offers, point, name, value)
    for name in sorted(_known_hooks().intersection(dir(plugin)) - implemented):
        what = f"{name} is no function marked @hookimpl and so not called"
        offers.problems.append(point.says(what, "decorate it with @hookimpl, or rename it"))
    return offers


def of_descriptors(point: EntryPoint, value: object, folder: Path | None) -> Offers:
    """Read the descriptors that an entry point of the group `antiphon.descriptors` names.

    Raises:
        Fault: it is none of the forms a descriptor may take.
    """
    offers = Offers()
    _add_descriptors(offers, point, f"entry point {point.group}: {point.name} = {point.value}", value, folder)
    return offers


def is_reference(value: str) -> bool:
    """Whether a string has the form `module:attr`."""
    module, colon, attr = value.partition(":")
    return bool(colon) and all(part.isidentifier() for text in (module, attr) for part in text.split("."))


def _known_hooks() -> frozenset[str]:
    return frozenset(name for name in vars(hookspecs) if name.startswith("antiphon_"))


def _implementations(point: EntryPoint, plugin: object) -> Iterator[tuple[str, pluggy.HookImpl]]:
    """The hooks a plugin implements, checked by pluggy; a manager of its own, so that nobody else can be in the way."""
    manager = pluggy.PluginManager("antiphon")
    manager.add_hookspecs(hookspecs)
    with attributed("looking for its hooks raised"):  # reading an attribute of a plugin runs the plugin's code
        try:
            manager.register(plugin, point.name)
            callers = manager.get_hookcallers(plugin) or []
        except pluggy.PluginValidationError as error:
            text = " ".join(str(error).split()).removeprefix(f"Plugin {point.name!r} for ")
            raise Fault(text[:400], _SEE) from None
    for caller in callers:
        for implementation in caller.get_hookimpls():
            if not caller.has_spec() and not implementation.optionalhook:
                raise Fault(
                    f"it implements an unknown hook {caller.name!r}{did_you_mean(caller.name, _known_hooks())}", _SEE
                )
            _refuse_what_cannot_be_called(caller.name, implementation)
            if caller.has_spec():
                yield caller.name, implementation


def _refuse_what_cannot_be_called(name: str, implementation: pluggy.HookImpl) -> None:
    function = implementation.function
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise Fault(f"hook {name} is async", "write it as a plain function: hooks are called where no event loop runs")
    if implementation.wrapper or implementation.hookwrapper:
        raise Fault(f"hook {name} is a wrapper", "write it as a plain function: each plugin's hooks are called alone")
    if name == "antiphon_on_trajectory" and inspect.isgeneratorfunction(function):
        raise Fault(f"hook {name} is a generator, which would do nothing", "write it as a plain function")


def _observer(implementation: pluggy.HookImpl) -> Callable[..., object]:
    function: Callable[..., object] = implementation.function
    return function if implementation.argnames else lambda _: function()


def _call(name: str, implementation: pluggy.HookImpl) -> object:
    with attributed(f"hook {name} raised"):
        value: object = implementation.function()
    if inspect.iscoroutine(value):
        value.close()
    return value


def _add_factories(offers: Offers, point: EntryPoint, hook: str, value: object) -> None:
    kind = next(kind for kind, name in FACTORY_HOOKS.items() if name == hook)
    if not isinstance(value, Mapping):
        raise Fault(f"hook {hook} returned {_described(value)}, not a mapping", 'return {"name": "module:attr"}')
    with attributed(f"hook {hook} returned a mapping that raised"):
        items = [(key, value[key]) for key in value]
    for name, factory in items:
        if not isinstance(name, str) or not name.strip() or name != name.strip():
            what = f"hook {hook}: {name!r} is no name for a {kind}"
            offers.problems.append(point.says(what, "give a non-empty string without spaces around it"))
        elif not callable(factory) and not (isinstance(factory, str) and is_reference(factory)):
            shown = repr(factory) if isinstance(factory, str) else _described(factory)
            what = f"hook {hook}: the factory of {kind} {name!r} is {shown}"
            offers.problems.append(point.says(what, 'give "module:attr" or a callable'))
        else:
            offers.factories[kind, name] = factory


def _add_descriptors(offers: Offers, point: EntryPoint, where: str, value: object, folder: Path | None) -> None:
    from antiphon.descriptor import Descriptor

    if isinstance(value, Descriptor | Mapping | str | Path):
        value = [value]
    if not isinstance(value, Iterable) or isinstance(value, bytes):
        remedy = "give a Descriptor, a dict, the path of a TOML file, or a list of them"
        raise Fault(f"{where} gives {_described(value)}, not descriptors", remedy)
    with attributed(f"{where} raised"):
        items = list(islice(value, MOST_DESCRIPTORS + 1))
    if len(items) > MOST_DESCRIPTORS:
        raise Fault(f"{where} gives more than {MOST_DESCRIPTORS:,} descriptors", "split the package")
    for item in items:
        try:
            tables = _members(folder, item) if isinstance(item, str | Path) else [item]
        except ConfigError as error:
            offers.problems.append(point.says(f"{where}: {error}", "correct it; the plugin's other members are in"))
            continue
        for number, table in enumerate(tables, start=1):
            source = f"{point}: {where}" + (f": {Path(item).name}" if isinstance(item, str | Path) else "")
            try:
                if not isinstance(table, Mapping | Descriptor):
                    raise ConfigError(f"{source}: member {number} is {_described(table)}, not a descriptor or a dict")
                offers.descriptors.append(Descriptor.of(table, source=source))
            except AntiphonError as error:
                offers.problems.append(f"{error}; correct it (the plugin's other members are in)")
            except (Exception, SystemExit) as error:  # data of the strangest kinds: it is this one member's fault
                offers.problems.append(f"{source}: member {number}: {said(error)}; correct it")


def _members(folder: Path | None, given: str | Path) -> list[Any]:
    """The `[[members]]` of a TOML file.

    Raises:
        ConfigError: says what is wrong with the file.
    """
    path = Path(given)
    if not path.is_absolute():
        if folder is None:
            raise ConfigError(f"the path {str(given)!r} is relative, and the plugin's module has no folder")
        path = folder / path
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST_TOML + 1)
        if len(raw) > LARGEST_TOML:
            raise ConfigError(f"{path} is larger than {LARGEST_TOML // 2**20} MiB")
        data = tomllib.loads(raw.decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # not UTF-8, or not TOML
        raise ConfigError(f"{path} is not TOML: {error}") from None
    for key in data:
        if key != "members":
            raise ConfigError(f"{path} has an unknown key {key!r}{did_you_mean(key, ['members'])}")
    members = data.get("members")
    if not isinstance(members, list):
        raise ConfigError(f"{path} has no [[members]] tables")
    return members


def _described(value: object) -> str:
    return "None (is a `return` missing?)" if value is None else f"a {type(value).__name__}"
