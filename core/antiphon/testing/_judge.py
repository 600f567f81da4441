"""The process that `check_plugin` starts: imports one plugin, tries what it offers, writes down what is wrong."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from antiphon._entry_points import BUILT_IN, EntryPoint, find, normalized, said
from antiphon._factories import wrong_options
from antiphon._offers import FACTORY_HOOKS
from antiphon.errors import AntiphonError, ConfigError, MissingExtra, PluginError, did_you_mean
from antiphon.redact import MARK, redact
from antiphon.registry import Registry
from antiphon.testing.plugins import Problem

if TYPE_CHECKING:
    from antiphon.descriptor import Descriptor, Price

# Cheap to make, by contract: these are tried where they need no options. Adapters are tried with the plugin's members.
TRIED = ("grammar", "policy", "reward_term", "pricing", "metric")


def judge(points: list[EntryPoint]) -> Iterator[Problem]:
    """Everything that is wrong with these entry points of one distribution."""
    distribution = points[0].distribution
    mine = Registry.of(points)
    rest = Registry.of([point for point in find() if normalized(point.distribution) != normalized(distribution)])
    yield from _names(points, rest)
    for text in (*mine.problems, *mine.import_problems()):
        yield Problem("error", text)
    for info in mine.plugins:
        if info.state == "loaded" and not info.offers:
            yield Problem("warning", f"plugin {info.name!r} of {distribution} offers nothing; mark its hooks @hookimpl")
    for kind in FACTORY_HOOKS:
        for name in mine.names(kind):
            yield from _factory(mine, rest, kind, name)
    for contribution in mine.descriptors:
        yield from _member(contribution.descriptor, mine, rest)


def _names(points: list[EntryPoint], rest: Registry) -> Iterator[Problem]:
    distribution = points[0].distribution
    if normalized(distribution) == BUILT_IN:
        return
    if not re.fullmatch(r"antiphon-[a-z0-9]+(-[a-z0-9]+)*", normalized(distribution)):
        yield Problem("warning", f"distribution {distribution!r}: plugins are called antiphon-VENDOR")
    vendor = normalized(distribution).removeprefix("antiphon-")
    for point in points:
        module = point.value.partition(":")[0].strip().partition(".")[0]
        if not module.startswith("antiphon_"):
            yield Problem("warning", f"{point}: module {module!r}: a plugin's module is called antiphon_VENDOR")
        if vendor not in normalized(point.name):
            what = f"its name {point.name!r} may be another vendor's too, and then neither loads"
            yield Problem("warning", point.says(what, f"call the entry point {vendor.replace('-', '_')!r}"))
        for other in rest.plugins:
            if other.name == point.name:
                what = f"the plugin name {point.name!r} is taken by {other.distribution} {other.version}"
                yield Problem("error", point.says(what, "choose another name for the entry point"))


def _factory(mine: Registry, rest: Registry, kind: str, name: str) -> Iterator[Problem]:
    for other in rest.plugins:
        if name in other.offers.get(kind, ()):
            owner = f"{other.distribution} {other.version}"
            yield Problem("error", f"{kind} {name!r} is also offered by {owner}; choose another name")
    try:
        factory = mine.factory(kind, name)
    except AntiphonError:
        return  # reported by import_problems or as contested
    if kind == "adapter":
        wrong = wrong_options(factory, {"endpoint": None, "descriptor": None})
        if wrong:
            yield Problem("error", f"adapter {name!r} {wrong}; its factory is called with endpoint=… and descriptor=…")
    if kind in TRIED and wrong_options(factory, {}) is None:
        try:
            getattr(mine, kind)(name)
        except PluginError as error:
            yield Problem("error", str(error))
        except MissingExtra as error:
            yield Problem("warning", f"{kind} {name!r} could not be tried: {error}")
        except ConfigError:
            return  # it asks for an option in its own way


def _member(member: Descriptor, mine: Registry, rest: Registry) -> Iterator[Problem]:
    who = f"member {member.name!r}"
    # The descriptor itself refuses keys by name (api_key = …); these are ones that stand in some other text.
    for where, value in _strings(member.model_dump(mode="json")):
        if MARK in redact(value[:500]):
            yield Problem("error", f"{who}: {where} holds what looks like a key; name an environment variable instead")
    for endpoint in member.endpoints:
        if endpoint.price is not None:
            yield from _price(f"{who}: endpoint {endpoint.label}", endpoint.price)
        options = {"endpoint": endpoint, "descriptor": member}
        yield from _made(who, "adapter", endpoint.adapter, options, mine, rest)
    if member.price is not None:
        yield from _price(who, member.price)
    elif member.pricing == "per_token":
        yield Problem("warning", f"{who} has no price; it is refused wherever cost matters")
        return
    yield from _made(who, "pricing", member.pricing, member.pricing_args, mine, rest, quote_for=member)


def _made(
    who: str,
    kind: str,
    name: str,
    options: Mapping[str, Any],
    mine: Registry,
    rest: Registry,
    *,
    quote_for: Descriptor | None = None,
) -> Iterator[Problem]:
    """Whether what the member names can be made for it, and, of a pricing function, whether it quotes a price."""
    home = mine if name in mine.names(kind) else rest
    if name not in home.names(kind):
        known = (*mine.names(kind), *rest.names(kind))
        what = f"{who} names the {kind} {name!r}, which neither this plugin nor this environment has"
        yield Problem("warning", f"{what}{did_you_mean(name, known)}")
        return
    try:
        made = getattr(home, kind)(name, **options)
        if quote_for is not None:
            made.quote(quote_for)
    except MissingExtra as error:
        yield Problem("warning", f"{who}: {kind} {name!r} could not be tried: {error}")
    except AntiphonError as error:
        # Another distribution's fault is no judgement of this one.
        severity: Literal["error", "warning"] = (
            "warning" if isinstance(error, PluginError) and home is rest else "error"
        )
        yield Problem(severity, f"{who}: {error}")
    except Exception as error:
        yield Problem("error", f"{who}: pricing {name!r} raised {said(error)} from quote")


def _price(who: str, price: Price) -> Iterator[Problem]:
    if price.input is not None and price.output < price.input:
        yield Problem("warning", f"{who}: output costs less than input, which is rare; check that they are not swapped")
    if price.cached_input is not None and price.cached_input > (price.input or 0.0):
        yield Problem("warning", f"{who}: cached input costs more than input; check the price")
    if price.as_of is not None and price.as_of > date.today():
        yield Problem("warning", f"{who}: its price was looked up on {price.as_of}, in the future; correct as_of")


def _strings(value: object, where: str = "") -> Iterator[tuple[str, str]]:
    """Every string in plain data, and where it stands."""
    if isinstance(value, str):
        yield where, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(item, f"{where}.{key}".lstrip("."))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _strings(item, f"{where}.{number}".lstrip("."))


def main() -> None:
    """Read the task from standard input, write the verdict to the file it names."""
    task = json.load(sys.stdin)
    sys.path[:0] = task["roots"]
    points = [EntryPoint(**point) for point in task["points"]]
    with contextlib.redirect_stdout(sys.stderr):
        verdict = [asdict(problem) for problem in judge(points)]
    Path(task["verdict"]).write_text(json.dumps(verdict), "utf-8")


if __name__ == "__main__":
    main()
