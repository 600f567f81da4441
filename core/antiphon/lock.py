"""The lock file: what each pool was made of when it was locked, so that a change can be told in words."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphon.descriptor import Descriptor, content_hash
from antiphon.errors import ConfigError

if TYPE_CHECKING:
    from antiphon.catalogue import Catalogue

FILE_NAME = "antiphon.lock"
VERSION = 1


def locked(catalogue: Catalogue, name: str | None = None) -> dict[str, Any]:
    """A pool as the lock file holds it: its hash, and its members in order with source, hash and every field.

    The same on every machine: variables in paths are not expanded, and paths below the configuration's directory are
    relative to it.
    """
    name = name or catalogue.config.defaults.pool
    members = []
    for entry in catalogue.pool_entries(name):
        descriptor = _portable(entry.descriptor.model_dump(mode="json"), catalogue.config.directory)
        members.append(
            {
                "name": entry.name,
                "source": entry.source,
                "version": entry.version,
                "hash": content_hash(descriptor),
                "descriptor": descriptor,
            }
        )
    allow_unpriced = catalogue.config.pool(name).allow_unpriced
    return {
        "hash": content_hash([allow_unpriced, [member["hash"] for member in members]]),
        "allow_unpriced": allow_unpriced,
        "members": members,
    }


def write(catalogue: Catalogue, names: Iterable[str] = (), path: Path | None = None) -> Path:
    """Lock pools by name (default: every pool of the configuration); other pools of the file stay as they are.

    Returns:
        The file written: `path`, else antiphon.lock beside antiphon.toml.
    """
    path = path or catalogue.config.directory / FILE_NAME
    pools = _read(path)
    for name in list(names) or list(catalogue.config.pools):
        pools[name] = locked(catalogue, name)
    text = json.dumps({"antiphon_lock": VERSION, "pools": pools}, indent=1, sort_keys=True, ensure_ascii=False)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        scratch.write_text(text + "\n", encoding="utf-8")
        scratch.replace(path)  # whole or not at all
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
    return path


def check(catalogue: Catalogue, name: str | None = None, path: Path | None = None) -> tuple[str, ...]:
    """How a pool differs from what was locked, one sentence for each difference.

    Returns:
        Nothing where it does not differ, or where it was never locked.

    Raises:
        ConfigError: the lock file does not hold; or the pool cannot be made.
    """
    name = name or catalogue.config.defaults.pool
    path = path or catalogue.config.directory / FILE_NAME
    pools = _read(path)
    if name not in pools:
        return ()
    now = locked(catalogue, name)
    then = pools[name]
    try:
        before = {member["name"]: member for member in then["members"]}
        return tuple(_differences(then, before, now))
    except (KeyError, TypeError, ConfigError):
        raise _broken(path) from None


def _differences(then: Mapping[str, Any], before: dict[str, Any], now: Mapping[str, Any]) -> Iterable[str]:
    after = {member["name"]: member for member in now["members"]}
    yield from (f"{member} was removed" for member in before if member not in after)
    yield from (f"{member} was added" for member in after if member not in before)
    kept = [member for member in after if member in before]
    for member in kept:
        # Read anew, so that fields which this release knows and the file does not count as their defaults.
        old = Descriptor.of(before[member]["descriptor"]).model_dump(mode="json")
        for field, was, is_ in _changes(old, after[member]["descriptor"]):
            yield f"{member}: {field} {_shown(was)} -> {_shown(is_)}"
        if before[member]["source"] != after[member]["source"]:
            yield f"{member}: comes from {after[member]['source']}, was from {before[member]['source']}"
    if kept != [member for member in before if member in after]:
        yield "the order of the members changed, and the prompt shows them in order"
    if then["allow_unpriced"] != now["allow_unpriced"]:
        yield f"allow_unpriced {_shown(then['allow_unpriced'])} -> {_shown(now['allow_unpriced'])}"


def _changes(old: Any, new: Any, field: str = "") -> Iterable[tuple[str, Any, Any]]:
    """(dotted field, before, after) for each value that differs."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            yield from _changes(old.get(key), new.get(key), f"{field}.{key}" if field else str(key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (was, is_) in enumerate(zip(old, new, strict=True)):
            yield from _changes(was, is_, f"{field}[{index}]")
    elif old != new:
        yield field, old, new


def _shown(value: Any) -> str:
    """A value in a sentence: short."""
    if value is None or value in ({}, [], ""):
        return "none"
    if isinstance(value, list) and all(isinstance(item, dict) and "adapter" in item for item in value):
        return ", ".join(f"{item['adapter']}:{item['model']}" for item in value)
    text = f"{value:g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:79] + "…"


def _portable(value: Any, directory: Path) -> Any:
    """JSON data with paths below `directory` written relative to it."""
    if isinstance(value, dict):
        return {key: _portable(inner, directory) for key, inner in value.items()}
    if isinstance(value, list):
        return [_portable(inner, directory) for inner in value]
    if isinstance(value, str) and os.path.isabs(value):
        path = Path(value)
        root = directory.resolve()
        return path.relative_to(root).as_posix() if path.is_relative_to(root) else value
    return value


def _read(path: Path) -> dict[str, Any]:
    """The pools of a lock file; none where there is no file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise _broken(path) from None
    if not isinstance(data, dict) or not isinstance(data.get("pools"), dict):
        raise _broken(path)
    if data.get("antiphon_lock") != VERSION:
        raise ConfigError(f"{path} is of another version of lock files; lock again: antiphon pool lock")
    return dict(data["pools"])


def _broken(path: Path) -> ConfigError:
    return ConfigError(f"{path} is not a lock file that can be read; remove it and lock again: antiphon pool lock")
