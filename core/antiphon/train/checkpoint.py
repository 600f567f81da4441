"""Checkpoints that a kill cannot spoil: each is there whole or not at all, and a pointer names the latest."""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphon.errors import ConfigError, first_line

CHECKPOINTS = "checkpoints"
"""Where they are in a run's folder."""

STATE = "state.pt"
SHARDS = "global_step_"
"""What verl calls its folder of a step, the number behind it: shards of weights, and what else it needs to resume."""
LATEST, BEST = "latest", "best"
_NAME = re.compile(r"step-(\d{6,})")


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The checkpoints of one run: folders `step-000010` with the pointers `latest` and `best`, files that hold a name.

    Args:
        keep: how many of the last are kept.
        keep_every: steps; the weights of its multiples are kept for good, as are the best. None: none.
    """

    folder: Path
    keep: int = 2
    keep_every: int | None = None

    def save(self, step: int, fill: Callable[[Path], None], *, best: bool = False) -> Path:
        """Make the checkpoint of a step, and let go of those that need not be kept.

        Args:
            fill: writes its files into the folder it is given.
            best: it is the best so far.
        """
        target = self.folder / f"step-{step:06d}"
        part = self.folder / f".{target.name}.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        fill(part)
        _sync_all(part)
        shutil.rmtree(target, ignore_errors=True)  # of a run that was resumed from before it
        part.rename(target)
        _sync(self.folder)
        self._point(LATEST, target.name)
        if best:
            self._point(BEST, target.name)
        self._prune()
        return target

    @property
    def latest(self) -> Path | None:
        """The folder of the latest checkpoint; None: there is none."""
        return self._pointed(LATEST)

    @property
    def best(self) -> Path | None:
        return self._pointed(BEST)

    @property
    def all(self) -> list[Path]:
        """Every checkpoint there is, by step."""
        return [path for _, path in sorted(_steps(self.folder))]

    def _prune(self) -> None:
        latest, best = self.latest, self.best
        for step, path in sorted(_steps(self.folder))[: -self.keep]:
            if path == latest:
                continue
            if path == best or (self.keep_every is not None and step % self.keep_every == 0):
                (path / STATE).unlink(missing_ok=True)
                for shards in path.glob(f"{SHARDS}*"):
                    shutil.rmtree(shards)
            else:
                shutil.rmtree(path)

    def _point(self, pointer: str, name: str) -> None:
        part = self.folder / f".{pointer}.part"
        part.write_text(name + "\n", encoding="utf-8")
        _sync(part)
        part.replace(self.folder / pointer)
        _sync(self.folder)

    def _pointed(self, pointer: str) -> Path | None:
        try:
            name = (self.folder / pointer).read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return None
        path = self.folder / name
        if _NAME.fullmatch(name) is None or not path.is_dir():
            raise ConfigError(
                f"{self.folder / pointer} names {name!r}, which is no checkpoint here; write the name of one of "
                f"{[each.name for each in self.all]} into it"
            )
        return path


def save_state(folder: Path, state: dict[str, Any]) -> None:
    """Write what resuming needs beside the weights: tensors, numbers, texts, lists and tables of them."""
    import torch

    torch.save(state, folder / STATE)


def load_state(folder: Path) -> dict[str, Any]:
    """Read it back; no code in it is run.

    Raises:
        ConfigError: it is not there, or is no such file.
    """
    import torch

    path = folder / STATE
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever the reader of the broken part does
        raise ConfigError(f"{path}: cannot be read as a training state ({first_line(error)})") from None
    return state


def random_states() -> dict[str, Any]:
    """Where the random numbers of Python and torch stand."""
    import torch

    states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def set_random_states(states: dict[str, Any]) -> None:
    """Go on from `random_states`; another machine's GPUs are left alone."""
    import torch

    random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.device_count() == len(states["cuda"]):
        torch.cuda.set_rng_state_all(states["cuda"])


def step_of(checkpoint: Path) -> int:
    """The step after which a checkpoint was made, by its folder's name."""
    return int(checkpoint.name.removeprefix("step-"))


def _steps(folder: Path) -> list[tuple[int, Path]]:
    if not folder.is_dir():
        return []
    found = ((_NAME.fullmatch(path.name), path) for path in folder.iterdir())
    return [(int(name[1]), path) for name, path in found if name is not None and path.is_dir()]


def _sync_all(folder: Path) -> None:
    for path in folder.rglob("*"):
        _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    """Have it on the disk, a folder's entries too where the system knows that."""
    if os.name == "nt" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
