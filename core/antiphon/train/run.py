"""The training loop: rollouts of a step all at once, rewards, one update, a row of metrics, a checkpoint."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from antiphon.errors import GeneratorError
from antiphon.money import Budget
from antiphon.train import card
from antiphon.train.checkpoint import CHECKPOINTS, Checkpoints, load_state, random_states, save_state, set_random_states
from antiphon.train.collapse import collapse, warn_of_inert
from antiphon.train.collect import Collector, PoolFor, Rolled, no_more, over_budget, too_many_failed
from antiphon.train.environment import Environment
from antiphon.train.estimate import validations
from antiphon.train.folder import compare_cards, open_folder
from antiphon.train.learner import Scored
from antiphon.train.local import Trainee
from antiphon.train.memo import MemoPool
from antiphon.train.metrics import RESULTS, last_val_s, pace, prefixed, summary
from antiphon.train.samples import sample_of
from antiphon.train.signals import run_cancellable
from antiphon.train.spending import Spending
from antiphon.train.start import check_start
from antiphon.train.writers import Writers, open_writers, read_rows

if TYPE_CHECKING:
    from antiphon._setup import Setup
    from antiphon.card import Card
    from antiphon.train.prepare import Prepared
    from antiphon.types import Task

End = Literal["done", "interrupted", "budget", "collapse"]


class Listener(Protocol):
    """Told how a run goes; must not block."""

    def note(self, text: str) -> None:
        """Something worth knowing before it begins."""

    async def ready(self, setup: Setup, done: int | None) -> None:
        """Everything is loaded and nobody has been asked; `done` steps were taken before, None: it is a new run."""

    def rolled(self, done: int, total: int) -> None:
        """So many of the rollouts under way have ended."""

    def step(self, row: Mapping[str, Any]) -> None:
        """A step has ended."""

    def stopping(self) -> None:
        """The run has been asked to stop, and will after the step under way."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended, after which step, in words why, where it stopped itself, and what all its parts have spent."""

    end: End
    step: int
    why: str = ""
    spent_usd: float = 0.0


@dataclass(slots=True)
class Stopping:
    """Whether the run has been asked to stop."""

    asked: bool = False


@dataclass(slots=True)
class Progress:
    """Where a run stands, beside weights, optimiser, rewards and random numbers."""

    step: int = 0
    best: float = -math.inf


def train(prepared: Prepared, folder: Path, *, resume: bool, listener: Listener) -> Ended:
    """Train in a folder until the run ends; what it did is in the folder, whatever happens.

    Raises:
        ConfigError, PluginError, MissingExtra: the set-up does not hold, or the folder belongs to another run.
        GeneratorError: too many rollouts of a step failed; says why the first did.
        KeyboardInterrupt: by a second signal; the first lets the step under way end.
    """
    stopping = Stopping()

    def gently() -> None:
        stopping.asked = True
        listener.stopping()

    with open_folder(folder, prepared, resume=resume) as was_cut_off:
        trainee = Trainee.load(prepared.spec)
        run = _train(prepared, folder, trainee, listener, stopping, resume, was_cut_off)
        return run_cancellable(run, gently=gently)


async def _train(
    prepared: Prepared,
    folder: Path,
    trainee: Trainee,
    listener: Listener,
    stopping: Stopping,
    resume: bool,
    was_cut_off: bool,
) -> Ended:
    async with AsyncExitStack() as resources:
        resources.push_async_callback(trainee.generator.aclose)
        setup = prepared.setup(trainee.generator, resources)
        check_start(prepared.spec.model, setup)
        warn_of_inert(prepared.spec.collapse, prepared.spec.algorithm)
        run = Run(prepared, setup, trainee, folder, listener, stopping, Spending(folder, was_cut_off=was_cut_off))
        done = run.restore() if resume else None
        last = -1 if resume and done is None else done  # killed before its first checkpoint: all comes again
        config = prepared.spec.model_dump(mode="json")
        writers = open_writers(folder, prepared.spec.train.writers, last=last, config=config)
        resources.callback(writers.close)
        await listener.ready(setup, done)
        return await run.run(writers)


class Run:
    """One run: what changes from step to step."""

    def __init__(
        self,
        prepared: Prepared,
        setup: Setup,
        trainee: Trainee,
        folder: Path,
        listener: Listener,
        stopping: Stopping,
        spending: Spending,
    ) -> None:
        self._spec, self._prepared, self._setup, self._trainee = prepared.spec, prepared, setup, trainee
        self._listener, self._stopping, self._folder = listener, stopping, folder
        self._progress, self._rows = Progress(), list[dict[str, Any]]()
        self._spending, self._budget = spending, Budget(self._spec.train.max_cost_usd)
        self._budget.charge(spending.usd)
        self._val_s = 0.0  # that the last validation took
        settings = self._spec.checkpoints
        self._checkpoints = Checkpoints(folder / CHECKPOINTS, settings.keep, settings.keep_every)
        self._saved: int | None = None
        self._before: Card | None = None
        self._em = prepared.registry.metric("em")
        self._rewards = {split: prepared.reward(setup, self._budget) for split in ("train", "validation")}

    def restore(self) -> int | None:
        """Go on from the latest checkpoint; the step after which it was made. None: there is none.

        Raises:
            ConfigError: what the run is made of has changed since.
        """
        latest = self._checkpoints.latest
        if latest is None:
            return None
        self._before = compare_cards(latest, self._card({}), self._setup.pool.members)
        state = load_state(latest)
        self._trainee.load_state_dict(state["trainee"])
        for split, reward in self._rewards.items():
            reward.reward.load_state_dict(state["rewards"][split])
        set_random_states(state["random"])
        self._progress = Progress(state["progress"]["step"], state["progress"]["best"])
        self._saved = self._progress.step
        rows = [row for row in read_rows(self._folder) if row["step"] <= self._saved]
        self._rows, self._val_s = [row for row in rows if row["step"] > 0], last_val_s(rows)
        return self._saved

    async def run(self, writers: Writers) -> Ended:
        """Step by step to the end.

        Raises:
            GeneratorError: too many rollouts of a step failed.
        """
        self._spent()
        try:
            return await self._run(writers)
        finally:
            self._spending.keep(self._budget.spent_usd)

    async def _run(self, writers: Writers) -> Ended:
        train, progress, budget = self._spec.train, self._progress, self._budget
        pool = self._setup.pool
        if self._spec.environment.memo:
            pool = MemoPool(pool, self._setup.registry.replays)
        environment = Environment(pool, self._spec.environment.randomise, seed=train.seed)
        training = self._collector("train", environment.pool, {"temperature": train.temperature})
        validation = self._collector("validation", lambda task, step, sample: pool, {"temperature": 0})
        if self._saved is None:
            measured = await self._validate(0, validation)
            if measured is None:
                return self._end("budget", no_more(budget))
            if measured:
                first = {"step": 0, **measured, "spent_usd": self._spent()}
                writers.step(first)
                self._listener.step(first)
            self._save(best=self._is_best(measured))
        while progress.step < train.steps:
            if self._stopping.asked:
                return self._end("interrupted")
            if budget.overspent:
                return self._end("budget", no_more(budget))
            step, began = progress.step + 1, time.monotonic()
            tasks = self._prepared.tasks.step(step, train.tasks, train.seed)
            rolled = await self._collect(training, step, tasks, train.samples)
            if rolled is None:
                return self._end("budget", no_more(budget))
            rollout_s = time.monotonic() - began
            row = {"step": step, **summary(rolled, self._em), **self._learn(rolled)}
            val_s = validations(self._spec, step) * self._val_s
            row |= pace(rolled, rollout_s, time.monotonic() - began, self._rows, train.steps - step, val_s)
            progress.step = step
            measured = {}
            if self._spec.validation is not None and (step % self._spec.validation.every == 0 or step == train.steps):
                measured = await self._validate(step, validation)
            is_best = self._is_best(measured or {})
            row |= {**(measured or {}), "spent_usd": self._spent()}
            self._keep(row, rolled, writers)
            if is_best or step % self._spec.checkpoints.every == 0:
                self._save(best=is_best)
            if measured is None:
                return self._end("budget", no_more(budget))
            if self._spec.collapse is not None and (why := collapse(self._rows, self._spec.collapse)):
                return self._end("collapse", why)
        return self._end("done")

    # ---- a step -----------------------------------------------------------------------------------------------------

    def _collector(self, split: str, pool_for: PoolFor, sampling: Mapping[str, Any]) -> Collector:
        seed, generator = self._spec.train.seed, self._trainee.generator
        return Collector(self._setup, generator, pool_for, self._rewards[split], sampling, seed, self._budget)

    async def _collect(
        self, collector: Collector, step: int, tasks: Sequence[Task], samples: int
    ) -> list[Rolled] | None:
        """The rollouts of a step; None where the run's budget ended some: they enter no window then, and nothing is
        made of them. More failures than are allowed end the run."""
        done, total = 0, len(tasks) * samples

        def count() -> None:
            nonlocal done
            done += 1
            self._listener.rolled(done, total)

        rolled = await collector.step(step, tasks, samples, on_done=count)
        failed = [each.error for each in rolled if each.error is not None]
        if why := too_many_failed(step, failed, total, self._spec.train.max_failed):
            raise GeneratorError(why)
        if over_budget(rolled, self._budget, self._setup.limits.max_cost_usd):
            collector.reward.drop()
            return None
        collector.reward.commit()
        return rolled

    def _learn(self, rolled: Sequence[Rolled]) -> dict[str, float]:
        """Update the weights by what did not fail; where the policy said nothing, it counts in its group's mean."""
        batch = [
            Scored(sample_of(each.trajectory), each.result.total, str(each.place))
            for each in rolled
            if each.result is not None
        ]
        return self._trainee.update(batch) if batch else {}

    async def _validate(self, step: int, collector: Collector) -> dict[str, float] | None:
        """What is measured, nothing where there is no validation; None where the run's budget ended it."""
        tasks = self._prepared.validation
        if tasks is None:
            return {}
        began = time.monotonic()
        rolled = await self._collect(collector, step, tasks.tasks, 1)
        if rolled is None:
            return None
        self._val_s = time.monotonic() - began
        return {**prefixed(summary(rolled, self._em), "val_"), "val_s": self._val_s}

    def _spent(self) -> float:
        """USD spent by now, and on disk."""
        self._spending.keep(self._budget.spent_usd)
        return self._budget.spent_usd

    def _is_best(self, measured: Mapping[str, float]) -> bool:
        if self._spec.validation is None:
            return False
        value = measured.get(f"val_{self._spec.validation.best}", -math.inf)
        best, self._progress.best = self._progress.best, max(self._progress.best, value)
        return value > best

    def _keep(self, row: dict[str, Any], rolled: Sequence[Rolled], writers: Writers) -> None:
        self._rows.append(row)
        writers.step(row)
        if row["step"] == 1 or row["step"] % self._spec.train.rollouts_every == 0:
            writers.rollouts(row["step"], [each.trajectory for each in rolled])
        self._listener.step(row)

    # ---- checkpoints ------------------------------------------------------------------------------------------------

    def _save(self, *, best: bool = False) -> None:
        state = {
            "trainee": self._trainee.state_dict(),
            "rewards": {split: reward.reward.state_dict() for split, reward in self._rewards.items()},
            "random": random_states(),
            "progress": asdict(self._progress),
        }

        made = self._card({key: value for row in self._rows[-1:] for key, value in row.items() if key in RESULTS})

        def fill(folder: Path) -> None:
            self._trainee.save(folder)
            save_state(folder, state)
            card.write(folder, made)

        self._checkpoints.save(self._progress.step, fill, best=best)
        self._saved = self._progress.step

    def _card(self, results: Mapping[str, float]) -> Card:
        """That of the weights as they are."""
        name, step = self._folder.name, self._progress.step
        return self._prepared.card(self._setup, name, steps=step, results=results, before=self._before)

    def _end(self, end: End, why: str = "") -> Ended:
        if self._saved != self._progress.step:
            self._save()
        return Ended(end, self._progress.step, why, self._budget.spent_usd)
