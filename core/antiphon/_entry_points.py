"""Finds the entry points of plugins and loads each on its own, so that a broken one is named and takes nobody down."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from importlib import import_module, metadata
from pathlib import Path
from traceback import extract_tb
from typing import Any, Literal

from antiphon.errors import ConfigError, did_you_mean
from antiphon.redact import redact

HOOKS = "antiphon"
DESCRIPTORS = "antiphon.descriptors"
BUILT_IN = "antiphon"  # the distribution whose plugins always load
LOCAL = "(this process)"  # stands for the distribution of plugins that were handed over as objects

Door = Literal["hooks", "descriptors"]


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """One entry point of a distribution, not loaded.

    Attributes:
        fault: why it cannot even be tried, in full; None: it can.
    """

    name: str
    group: str
    value: str
    distribution: str
    version: str
    fault: str | None = None

    @property
    def door(self) -> Door:
        return "descriptors" if self.group == DESCRIPTORS else "hooks"

    def __str__(self) -> str:
        return f"plugin {self.name!r} of {self.distribution} {self.version}"

    def says(self, what: str, remedy: str) -> str:
        """The one error text: who, what happened, what to do."""
        return f"{self}: {what}; {remedy}"


class Fault(Exception):
    """A plugin cannot be used. Carries what happened and the remedy; never leaves the registry."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy


def said(error: BaseException) -> str:
    """An exception of a plugin in one line: type, first line of its message (no keys), file and line it came from."""
    try:
        lines = redact(str(error)).strip().splitlines()
    except Exception:  # an exception of a plugin's own class that cannot even say what it is
        lines = []
    text = f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
    frames = extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) or not frames or frames[-1].filename.startswith("<"):
        return text
    return f"{text} (at {Path(frames[-1].filename).name}:{frames[-1].lineno})"


@contextmanager
def attributed(what: str) -> Iterator[None]:
    """Whatever a plugin's code raises in here, `SystemExit` included, becomes a `Fault`: `what` and what it raised."""
    try:
        yield
    except (KeyboardInterrupt, Fault):
        raise
    except BaseException as error:
        raise Fault(f"{what} {said(error)}", "repair or uninstall the package") from error


def normalized(name: str) -> str:
    """A distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def find() -> tuple[EntryPoint, ...]:
    """Every entry point of both groups on `sys.path`, built-ins first, then by distribution and name."""
    found: dict[tuple[str, str, str, str, str], EntryPoint] = {}
    for distribution in metadata.distributions():
        for point in _points(distribution):
            key = (normalized(point.distribution), point.version, point.group, point.name, point.value)
            found.setdefault(key, point)  # one distribution seen twice (dist-info and egg-info) is one
    return tuple(sorted(found.values(), key=_order))


def _order(point: EntryPoint) -> tuple[bool, str, str, str]:
    return normalized(point.distribution) != BUILT_IN, normalized(point.distribution), point.group, point.name


def _points(distribution: metadata.Distribution) -> Iterable[EntryPoint]:
    try:
        declared = _declared(distribution)
        if not declared:
            return
        name, version = str(distribution.metadata["Name"]), str(distribution.version)
        first = metadata.distribution(name)
    except Exception as error:  # files of any package on the machine: whatever is wrong, it is theirs
        if "[antiphon" in _text(distribution):
            where = Path(str(distribution.locate_file("")))
            fault = (
                f"a package in {where} declares Antiphon plugins, but its metadata cannot be read ({said(error)}); "
                f"reinstall it"
            )
            yield EntryPoint("?", HOOKS, "", "unknown", "unknown", fault=fault)
        return
    for group, key, value in declared:
        here = EntryPoint(key, group, value, name, version)
        if str(first.version) != version:
            # Python would import the first on the path; the other one's entry points describe code that is not run.
            what = f"version {first.version} of the same distribution comes before it on sys.path"
            here = replace(here, fault=here.says(what, f"uninstall one of the two (pip uninstall {name})"))
        yield here


def _declared(distribution: metadata.Distribution) -> list[tuple[str, str, str]]:
    """Group, name and value of each entry point of ours, as written.

    `distribution.entry_points` may be that of a backport, which many packages import and which refuses all of a
    distribution's where one of them has a wrong form.
    """
    group, found = "", []
    for line in map(str.strip, (distribution.read_text("entry_points.txt") or "").splitlines()):
        if line.startswith("["):
            group = line.strip("[]")
        elif group in (HOOKS, DESCRIPTORS) and line and not line.startswith("#"):
            name, value = line.split("=", 1)
            found.append((group, name.strip(), value.strip()))
    return found


def _text(distribution: metadata.Distribution) -> str:
    try:
        return distribution.read_text("entry_points.txt") or ""
    except ValueError:  # not UTF-8: nobody can say whose it is
        return ""


def select(points: Sequence[EntryPoint], only: Sequence[str] | None, *, where: str) -> frozenset[EntryPoint]:
    """The entry points to load: all, or the built-ins and those that `only` names by plugin or by distribution.

    Raises:
        ConfigError: a name in `only` is nobody's.
    """
    if only is None:
        return frozenset(points)
    known = {point.name for point in points} | {normalized(point.distribution) for point in points}
    for name in only:
        if name not in known and normalized(name) not in known:
            hint = did_you_mean(name, known) or "; install it or take it out"
            raise ConfigError(f"{where} names {name!r}, and no plugin or distribution is called that{hint}")
    wanted = {normalized(name) for name in only}
    return frozenset(
        point for point in points if normalized(point.distribution) in {BUILT_IN, *wanted} or point.name in only
    )


def clashes(points: Iterable[EntryPoint]) -> Mapping[EntryPoint, str]:
    """Why a plugin cannot load: its name is taken, by another distribution or within its own; built-ins keep theirs."""
    by_name: dict[str, list[EntryPoint]] = defaultdict(list)
    for point in points:
        if point.fault is None:
            by_name[point.name].append(point)
    reasons: dict[EntryPoint, str] = {}
    for same in by_name.values():
        for point in same:
            rival = next((other for other in same if other is not point and _rivals(point, other)), None)
            if rival is not None and normalized(point.distribution) != BUILT_IN:
                what = (
                    f"the entry point name {point.name!r} in group {point.group} is also taken by "
                    f"{rival.distribution} {rival.version} ({rival.group}: {rival.value}), and neither wins silently"
                )
                remedy = "uninstall one of them, or name the distribution that you want in ANTIPHON_PLUGINS"
                reasons[point] = point.says(what, remedy)
    return reasons


def _rivals(one: EntryPoint, other: EntryPoint) -> bool:
    return normalized(one.distribution) != normalized(other.distribution) or one.group == other.group


def load(point: EntryPoint) -> tuple[Any, Path | None]:
    """The object an entry point names, and the folder of its module (where relative paths start).

    Raises:
        Fault: whatever went wrong, `SystemExit` included.
    """
    where = f"entry point {point.group}: {point.name} = {point.value}"
    module_name, _, attr = point.value.partition(":")
    module_name, attr = module_name.strip(), attr.partition("[")[0].strip()
    try:
        module = import_module(module_name)
        value = reduce(getattr, attr.split("."), module) if attr else module
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _load_fault(where, module_name, attr, error) from error
    file = getattr(module, "__file__", None)
    return value, Path(file).parent if file else None


def _load_fault(where: str, module: str, attr: str, error: BaseException) -> Fault:
    missing = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
    if missing and (module == missing or module.startswith(f"{missing}.")):
        return Fault(f"{where}: there is no module {missing!r}", "correct the entry point or reinstall the package")
    if missing:
        return Fault(f"{where}: it needs the module {missing!r}", f"install what provides {missing!r}, or uninstall it")
    if isinstance(error, AttributeError) and attr and module in sys.modules:
        return Fault(f"{where}: module {module!r} has no {attr!r}", "correct the entry point or reinstall the package")
    if isinstance(error, SystemExit):
        return Fault(f"{where}: it called sys.exit while it was imported", "a plugin must only define things at import")
    return Fault(f"{where}: importing it raised {said(error)}", "repair or uninstall the package")
