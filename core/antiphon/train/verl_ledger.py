"""The hub of an `antiphon train` run: it keeps each step's rollouts too, and says when the run is over, and why."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from antiphon.errors import GeneratorError
from antiphon.train.collapse import collapse
from antiphon.train.collect import Rolled, no_more, over_budget, too_many_failed
from antiphon.train.estimate import validations
from antiphon.train.metrics import RESULTS, last_val_s, pace, prefixed, summary
from antiphon.train.verl_hub import Hub, Options

if TYPE_CHECKING:
    from antiphon.contracts import AsksMembers
    from antiphon.reward import RewardResult
    from antiphon.train.environment import Environment
    from antiphon.train.spec import TrainSpec
    from antiphon.train.stepped import Order
    from antiphon.types import Trajectory

TRAIN, VALIDATION = "train", "validation"

Over = tuple[Literal["interrupted", "budget", "collapse"], str]
"""How a run ends before its last step, and in words why."""


@dataclass(frozen=True, slots=True)
class News:
    """What has happened in a run.

    Attributes:
        rows: metrics of steps that have ended, each with the trajectories to keep of it.
        rolled: how many of how many rollouts under way have ended.
    """

    rows: list[tuple[dict[str, Any], list[Trajectory]]]
    rolled: tuple[int, int]


class RunHub(Hub):
    """A hub that the trainer tells how each step goes: sampled, learnt, validated, kept.

    Args:
        rows: metrics of the steps before, oldest first, that of step 0 too.
        best: the validation that was best so far.
        spent_usd: by the parts of the run before.
    """

    def __init__(
        self,
        options: Options,
        spec: TrainSpec,
        *,
        rows: Sequence[Mapping[str, Any]] = (),
        best: float = -math.inf,
        spent_usd: float = 0.0,
    ) -> None:
        super().__init__(options, spent_usd=spent_usd)
        self._spec = spec
        self._rows = [dict(row) for row in rows if row["step"] > 0]
        self._val_s = last_val_s(rows)
        self._out_of_money = False
        self._best = best
        self._rolled: dict[str, list[tuple[Order, Rolled]]] = defaultdict(list)
        self._lost: dict[str, list[str]] = defaultdict(list)
        self._row: dict[str, Any] = {}
        self._trajectories: list[Trajectory] = []
        self._stopping = False
        self._unwritten: list[tuple[dict[str, Any], list[Trajectory]]] = []
        self._happened, self._written = asyncio.Event(), asyncio.Event()
        self._total = 0

    # ---- what the loop workers tell -------------------------------------------------------------------------------

    async def score(self, trajectory: Trajectory, split: str, step: int | None, order: Order) -> RewardResult:
        result = await super().score(trajectory, split, step, order)
        error = trajectory.error or "an error" if trajectory.stop == "error" else None
        pool: AsksMembers = self._pool
        if split == TRAIN:
            pool = self._environment.pool(trajectory.task, step or 0, trajectory.sample)
        rolled = Rolled(trajectory, None if error else result, order[0], tuple(pool.members), error)
        self._rolled[split].append((order, rolled))
        self._count(split)
        return result

    async def failed(self, rollout_id: str, split: str, step: int | None, error: str) -> None:
        await super().failed(rollout_id, split, step, error)
        self._lost[split].append(error)
        self._count(split)

    # ---- what the trainer tells and asks --------------------------------------------------------------------------

    async def sampled(self, step: int) -> Over | None:
        """All rollouts of a step have ended, and enter the reward's window. Not None: the run is over; they enter none,
        and nothing is to be learnt from them.

        Raises:
            GeneratorError: too many of them failed.
        """
        whole = self._settle(TRAIN, step, self._spec.train.tasks * self._spec.train.samples)
        return None if whole else ("budget", no_more(self._budget))

    async def learnt(self, step: int, figures: Mapping[str, float], rollout_s: float, step_s: float) -> None:
        """The weights have been updated by the rollouts of a step.

        Args:
            figures: of the update.
            rollout_s, step_s: seconds that the rollouts took, and the whole step.
        """
        rolled, left = self._take(TRAIN), self._spec.train.steps - step
        self._row = {"step": step, **self._summary(TRAIN, rolled), **figures}
        self._row |= pace(rolled, rollout_s, step_s, self._rows, left, validations(self._spec, step) * self._val_s)
        kept = step == 1 or step % self._spec.train.rollouts_every == 0
        self._trajectories = [each.trajectory for each in rolled] if kept else []

    async def validated(self, step: int, seconds: float, tasks: int) -> bool:
        """A validation has ended; whether it was the best so far. One that the run's budget ended is not recorded.

        Raises:
            GeneratorError: too many of its rollouts failed.
        """
        self._out_of_money = not self._settle(VALIDATION, step, tasks)
        measured = prefixed(self._summary(VALIDATION, self._take(VALIDATION)), "val_")
        self._row = self._row or {"step": step}
        if self._out_of_money:
            return False
        self._row |= {**measured, "val_s": seconds}
        self._val_s = seconds
        assert self._spec.validation is not None  # it has just been done
        value = measured.get(f"val_{self._spec.validation.best}", -math.inf)
        best, self._best = self._best, max(self._best, value)
        return value > best

    async def kept(self) -> Over | None:
        """A step is over; its row is on disk when this returns. Not None: the run ends here, with a checkpoint."""
        row, self._row = {**self._row, "spent_usd": await self.spent_usd()}, {}
        if row["step"] > 0:
            self._rows.append(row)
        self._unwritten.append((row, self._trajectories))
        self._trajectories = []
        self._written.clear()
        self._happened.set()
        await self._written.wait()
        is_last = row["step"] == self._spec.train.steps
        if self._out_of_money or (self._budget.overspent and not is_last):
            return "budget", no_more(self._budget)
        if self._spec.collapse is not None and (why := collapse(self._rows, self._spec.collapse)):
            return "collapse", why
        return ("interrupted", "") if self._stopping and not is_last else None

    async def state(self) -> dict[str, Any]:
        """What resuming needs beside weights, and beside what is in the rows."""
        return {"rewards": await self.state_dict(), "best": self._best}

    async def results(self) -> dict[str, float]:
        """The metrics of the last step."""
        return {key: value for row in self._rows[-1:] for key, value in row.items() if key in RESULTS}

    # ---- what the driver asks -------------------------------------------------------------------------------------

    async def news(self) -> News:
        """What has happened since the last call; waits for something to happen.

        By asking again the caller says that the rows it was given are on disk.
        """
        if not self._unwritten:
            self._written.set()
        await self._happened.wait()
        self._happened.clear()
        rows, self._unwritten = self._unwritten, []
        done = sum(len(self._rolled[split]) + len(self._lost[split]) for split in (TRAIN, VALIDATION))
        return News(rows, (min(done, self._total), self._total))

    async def stop(self) -> None:
        """Let the step under way end, and then the run."""
        self._stopping = True

    # ---- inside ---------------------------------------------------------------------------------------------------

    @cached_property
    def _environment(self) -> Environment:
        return self._options.drawn(self._pool)

    def _count(self, split: str) -> None:
        train, validation = self._spec.train, self._spec.validation
        tasks = 0 if validation is None else validation.tasks
        self._total = train.tasks * train.samples if split == TRAIN else tasks
        self._happened.set()

    def _settle(self, split: str, step: int, total: int) -> bool:
        """Commit what a step has scored, or drop it where the run's budget ended some of it, and whether it is whole.
        More failures than are allowed end the run."""
        rolled, lost = [each for _, each in self._rolled[split]], self._lost[split]
        errors = [*(each.error for each in rolled if each.error is not None), *lost]
        errors += ["verl gave no reason; its own log may"] * (total - len(rolled) - len(lost))
        if why := too_many_failed(step, errors, total, self._spec.train.max_failed):
            raise GeneratorError(why)
        whole = not over_budget(rolled, self._budget, self._setup.limits.max_cost_usd)
        if split in self._rewards:
            self._rewards[split].commit() if whole else self._rewards[split].drop()
        return whole

    def _take(self, split: str) -> list[Rolled]:
        """The rollouts of a split since they were taken last, in sample order."""
        return [rolled for _, rolled in sorted(self._rolled.pop(split, []), key=lambda each: each[0])]

    def _summary(self, split: str, rolled: Sequence[Rolled]) -> dict[str, float]:
        row = summary(rolled, self._setup.registry.metric("em"))
        row["failed"] += len(self._lost.pop(split, []))
        return row
