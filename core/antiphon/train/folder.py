"""The folder of a run: held by one process at a time, and of one spec for all its life."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphon import __version__
from antiphon.errors import ConfigError
from antiphon.evaluate.files import locked, make_directory
from antiphon.evaluate.spec import differences
from antiphon.train.checkpoint import CHECKPOINTS, Checkpoints
from antiphon.train.writers import METRICS

if TYPE_CHECKING:
    from antiphon.train.prepare import Prepared

SPEC, LOCK, UNDER_WAY = "spec.json", ".lock", ".under-way"


@contextmanager
def open_folder(folder: Path, prepared: Prepared, *, resume: bool) -> Iterator[bool]:
    """Hold the folder of a new run, or of one that goes on; whether its last part was killed or failed in a step.

    Raises:
        ConfigError: another process holds it; it holds a run that has begun and `resume` was not asked for, or none and
            it was; or the run in it was made of something else.
    """
    path = folder / SPEC
    if resume and not path.is_file():
        raise ConfigError(f"{folder} holds no run to resume; leave --resume out to start one")
    make_directory(folder)
    with locked(folder / LOCK):
        if path.is_file() and not resume and _has_begun(folder):
            raise ConfigError(f"{folder} holds a run; go on with it (--resume), or choose another folder (--out)")
        now = {**prepared.spec.identity(), "hashes": {"tasks": prepared.tasks.hash}}
        if resume:
            _compare(path, now)
        _write(path, {"identity": now, "spec": prepared.spec.model_dump(mode="json"), "antiphon": __version__})
        under_way = folder / UNDER_WAY
        was_cut_off = under_way.exists()
        under_way.touch()
        yield was_cut_off
        under_way.unlink()


def _has_begun(folder: Path) -> bool:
    """Whether there is anything to go on from: a run may end before, by a model that cannot be loaded."""
    metrics = folder / METRICS
    return (metrics.is_file() and metrics.stat().st_size > 0) or Checkpoints(folder / CHECKPOINTS).latest is not None


def _compare(path: Path, now: Mapping[str, Any]) -> None:
    try:
        before = json.loads(path.read_bytes())["identity"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); start a new run in another folder (--out)") from None
    changes = differences(before, now)
    if changes:
        raise ConfigError(
            f"the run in {path.parent} was made of something else: {'; '.join(changes)}; resume it with what it was "
            "made of, or start a new run in another folder (--out)"
        )


def _write(path: Path, data: Mapping[str, Any]) -> None:
    part = path.with_name(f"{path.name}.part")
    with part.open("w", encoding="utf-8") as file:
        json.dump(data, file, ensure_ascii=False, indent=1)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
