"""Judges a plugin, from its source folder or as installed, in a process of its own: `check_plugin`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from antiphon._entry_points import DESCRIPTORS, HOOKS, EntryPoint, find, normalized, select
from antiphon.errors import ConfigError
from antiphon.redact import redact


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that `check_plugin` found. Errors keep the plugin, or part of it, from being used; warnings do not."""

    severity: Literal["error", "warning"]
    message: str


def check_plugin(target: str | Path, *, timeout_s: float = 120.0) -> list[Problem]:
    """Judge a plugin: entry points, hooks, factories, descriptors, prices, names, keys left in the data.

    Args:
        target: a source folder, of which nothing is installed (its pyproject.toml says what to import, and from it
            alone); or the name of an installed plugin or distribution.
        timeout_s: seconds after which the process that imports the plugin is ended.

    Returns:
        What is wrong, errors first; empty: nothing.

    Raises:
        ConfigError: no such folder, plugin or distribution.
    """
    folder = Path(target)
    folder = folder.parent if folder.name == "pyproject.toml" else folder
    if isinstance(target, Path) or folder.is_dir() or os.sep in target:
        if not folder.is_dir():
            raise ConfigError(
                f"there is no folder {folder}; give a plugin's source folder or an installed plugin's name"
            )
        problems, points, roots = _declared(folder)
    else:
        problems, roots = [], []
        points = _installed(target)
    if points:
        problems += _judged(points, roots, timeout_s)
    return sorted(dict.fromkeys(problems), key=lambda problem: problem.severity)


def _installed(name: str) -> list[EntryPoint]:
    found = find()
    chosen = select(found, [name], where="the check")
    return [point for point in found if point in chosen and name in (point.name, point.distribution)] or [
        point for point in found if normalized(point.distribution) == normalized(name)
    ]


def _declared(folder: Path) -> tuple[list[Problem], list[EntryPoint], list[str]]:
    """What the folder's pyproject.toml declares: problems, or entry points and where their modules may lie."""
    file = folder / "pyproject.toml"
    try:
        data = tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        return (
            [_error(f"{file} cannot be read ({error.strerror}); a plugin is a package with a pyproject.toml")],
            [],
            [],
        )
    except ValueError as error:
        return [_error(f"{file} is not TOML: {error}")], [], []
    project = _table(data, "project")
    name = project.get("name")
    if not isinstance(name, str):
        return [_error(f"{file} has no [project] table with a name; entry points are read from it")], [], []
    groups = _table(project, "entry-points")
    version = str(project.get("version", "0"))
    points = [
        EntryPoint(point, group, value, name, version)
        for group in (HOOKS, DESCRIPTORS)
        for point, value in _table(groups, group).items()
        if isinstance(value, str)
    ]
    if not points:
        remedy = f'add [project.entry-points.{HOOKS}] or [project.entry-points."{DESCRIPTORS}"]'
        return [_error(f"{file} declares no plugin; {remedy}")], [], []
    return [], points, _roots(folder, data)


def _table(data: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    for key in keys:
        value = data.get(key)
        data = value if isinstance(value, Mapping) else {}
    return data


def _roots(folder: Path, data: Mapping[str, Any]) -> list[str]:
    """Where the folder's modules may lie: as hatchling and setuptools are told, in src, or at its top."""
    packages = _table(data, "tool", "hatch", "build", "targets", "wheel").get("packages", [])
    where = _table(data, "tool", "setuptools", "packages", "find").get("where", [])
    told = [*(Path(str(package)).parent for package in _listed(packages)), *(Path(str(w)) for w in _listed(where))]
    roots = dict.fromkeys((folder / root).resolve() for root in (*told, Path("src"), Path()))
    return [str(root) for root in roots if root.is_dir()]


def _listed(value: object) -> Iterable[object]:
    return value if isinstance(value, list) else []


def _judged(points: list[EntryPoint], roots: list[str], timeout_s: float) -> list[Problem]:
    """What a fresh process finds: a plugin that ends it, hangs or prints does no harm here."""
    with tempfile.TemporaryDirectory() as scratch:
        verdict = Path(scratch) / "verdict.json"
        task = {"points": [asdict(point) for point in points], "roots": roots, "verdict": str(verdict)}
        command = [sys.executable, "-P", "-m", "antiphon.testing._judge"]
        try:
            done = subprocess.run(command, input=json.dumps(task), capture_output=True, text=True, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return [_error(f"{points[0]}: importing and checking it took over {timeout_s:g} s; import less at the top")]
        if not verdict.exists():
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            return [
                _error(f"{points[0]}: it ended the process that checked it (exit {done.returncode}: {redact(last)})")
            ]
        return [Problem(**problem) for problem in json.loads(verdict.read_text("utf-8"))]


def _error(message: str) -> Problem:
    return Problem("error", message)
