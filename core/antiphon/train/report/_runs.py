"""A run as its folder has it: rows by step, rollouts, card, and how it stands."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from antiphon import card
from antiphon.errors import ConfigError
from antiphon.train.collapse import CollapseSettings, collapse
from antiphon.train.spending import Spending
from antiphon.train.writers import numbers, read_rows, rollout_files
from antiphon.types import Trajectory

MOST_AVERAGED = 10
"""Values at the start and at the end of a run whose means are compared: so many, and no more than a fifth of all."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run.

    Attributes:
        name: of its folder, told apart where two are the same.
        spec: what was run; empty where the folder does not say.
        rows: step -> its numbers, by step; step 0 is before the first update.
        files: step -> the file of its rollouts.
        card: of its last checkpoint that has one.
        planned: steps that it was to take; None: not known, or it went on beyond them.
        collapsed: why it stopped itself, in words; None: it did not.
    """

    name: str
    folder: Path
    spec: Mapping[str, Any]
    rows: Mapping[int, Mapping[str, float]]
    files: Mapping[int, Path]
    card: card.Card | None
    planned: int | None
    collapsed: str | None

    @property
    def steps(self) -> int:
        """Steps taken."""
        return max(self.rows, default=0)

    def series(self, key: str) -> list[tuple[int, float]]:
        """(step, value) of one metric, where it was measured."""
        return [(step, row[key]) for step, row in self.rows.items() if key in row]

    @property
    def terms(self) -> list[str]:
        """The reward's terms."""
        keys = dict.fromkeys(key for row in self.rows.values() for key in row)
        return [key.removeprefix("reward_") for key in keys if key.startswith("reward_")]

    @property
    def hours(self) -> float:
        return math.fsum(row.get("step_s", 0.0) + row.get("val_s", 0.0) for row in self.rows.values()) / 3600

    def trajectories(self, step: int) -> Iterator[Trajectory]:
        """The rollouts kept of a step.

        Raises:
            ConfigError: a line is no trajectory; names it.
        """
        with self.files[step].open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    yield Trajectory.from_json(line)
                except ConfigError as error:
                    raise ConfigError(f"{self.files[step]}, line {number}: {error}") from None

    def summary(self) -> dict[str, Any]:
        """JSON data: how far it is, what it took, and each metric's first, last and mean values."""
        keys = sorted({key for row in self.rows.values() for key in row})
        return {
            "name": self.name,
            "steps": self.steps,
            "planned": self.planned,
            "hours": self.hours,
            "spent_usd": Spending(self.folder).usd,
            "collapsed": self.collapsed,
            "metrics": {key: _described([value for _, value in self.series(key)]) for key in keys},
        }


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Raises: ConfigError: a folder holds no run, or a file of it is damaged."""
    names = [folder.resolve().name for folder in folders]
    named = [str(folder) if names.count(name) > 1 else name for folder, name in zip(folders, names, strict=True)]
    return [_read(folder, name) for folder, name in zip(folders, named, strict=True)]


def _read(folder: Path, name: str) -> Run:
    kept: dict[int, dict[str, Any]] = {}
    for row in read_rows(folder):
        kept.setdefault(row["step"], {}).update(row)
    kept = dict(sorted(kept.items()))
    made = _made_of(folder)
    spec = made.get("spec", {})
    return Run(
        name,
        folder,
        spec,
        {step: numbers(row) for step, row in kept.items()},
        rollout_files(folder),
        _card(folder),
        _planned(made, max(kept, default=0)),
        _collapsed(spec, [row for step, row in kept.items() if step]),
    )


def _made_of(folder: Path) -> Mapping[str, Any]:
    path = folder / "spec.json"
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON ({error})") from None
    return data if isinstance(data, dict) and isinstance(data.get("spec"), dict) else {}


def _planned(made: Mapping[str, Any], steps: int) -> int | None:
    if "sft" in made.get("identity", {}):  # its steps are as many as its demonstrations make
        return None
    planned = made.get("spec", {}).get("train", {}).get("steps")
    return planned if isinstance(planned, int) and planned >= steps else None


def _collapsed(spec: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str | None:
    settings = spec.get("collapse")
    if not isinstance(settings, Mapping):
        return None
    try:
        return collapse(rows, CollapseSettings.model_validate(settings))
    except ValidationError:  # of another version: nothing is known then
        return None


def _card(folder: Path) -> card.Card | None:
    found = list((folder / "checkpoints").glob(f"step-*/**/{card.FILE}"))
    return card.read(max(found).parent) if found else None


def _described(values: Sequence[float]) -> dict[str, float]:
    count = max(1, min(MOST_AVERAGED, len(values) // 5))
    start, end = values[:count], values[-count:]
    return {
        "first": values[0],
        "last": values[-1],
        "start": math.fsum(start) / len(start),
        "end": math.fsum(end) / len(end),
        "lowest": min(values),
        "highest": max(values),
    }
