"""Runs an evaluation: many rollouts at once, each committed as it finishes, and goes on where a run was stopped."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from antiphon import __version__
from antiphon._setup import registry_for
from antiphon.catalogue import Catalogue
from antiphon.config import Config, load_config
from antiphon.descriptor import content_hash
from antiphon.errors import ConfigError
from antiphon.evaluate import stats
from antiphon.evaluate.memo import remembering
from antiphon.evaluate.questions import Questions
from antiphon.evaluate.rows import Judge, Key
from antiphon.evaluate.spec import short_hash
from antiphon.evaluate.store import SPEC, SUMMARY, Store, read_json, rows, write_json
from antiphon.evaluate.summary import summarise
from antiphon.money import Budget
from antiphon.orchestrator import Orchestrator
from antiphon.types import Task, Trajectory

if TYPE_CHECKING:
    from antiphon.contracts import MemberView
    from antiphon.evaluate.questions import Survey
    from antiphon.evaluate.spec import PolicyEntry, Spec
    from antiphon.registry import Registry

ROUNDING = 1e-9
"""USD: sums of the same amounts in another order differ by less."""

End = Literal["done", "budget", "interrupted"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an evaluation is; `to_come_usd` goes by the mean so far, None where nothing is known yet."""

    done: int
    total: int
    spent_usd: float
    to_come_usd: float | None


@dataclass(frozen=True, slots=True)
class _Unit:
    """One policy on one pool, ready to run."""

    policy: PolicyEntry
    pool: str
    config: Config
    orchestrator: Orchestrator
    judge: Judge
    members: tuple[MemberView, ...]

    @property
    def most_usd(self) -> float:
        """What a question can about cost: every round at the dearest member, at full length."""
        limits = self.config.limits
        quotes = [view.quote for view in self.members if view.quote is not None]
        call = max(
            ((q.output * limits.member_tokens + (q.input or 0.0) * limits.turn_tokens) / 1e6 for q in quotes),
            default=0.0,
        )
        return call * limits.rounds


class Evaluation:
    """An evaluation, ready to run in its directory; everything that can be wrong with its set-up is found here.

    It is a context manager: until it is closed, no other process runs in the directory.

    Args:
        config_file, data: as for every command.
        max_cost_usd: USD for the whole evaluation, what earlier runs in the directory spent included.

    Attributes:
        total, done: rollouts; `done` are committed.
        spent_usd: by committed rollouts and by those that a budget, a kill or a second Ctrl-C cut off (after a kill, a
            guess).
        most_usd: a rough upper bound of what members can cost in the rest; `unpriced` ones count as free in it.

    Raises:
        ConfigError, PluginError, MissingExtra: the set-up does not hold; nothing was asked.
    """

    def __init__(
        self,
        spec: Spec,
        directory: Path,
        *,
        config_file: Path | None = None,
        data: Path | None = None,
        max_cost_usd: float | None = None,
        registry: Registry | None = None,
    ) -> None:
        stats.numpy()
        self.spec, self.directory = spec, directory
        self._config_file, self._data = config_file, data and str(data)
        config = self._config()
        self._registry = remembering(registry or registry_for(config))
        self._metrics = {name: self._registry.metric(name) for name in spec.evaluate.metrics}
        self._questions = Questions(spec, config, self._registry)
        self._resources = ExitStack()
        self._stopping = False
        try:
            self._units = [self._unit(policy, pool) for policy, pool in spec.units(config.defaults.pool)]
            surveys = {entry.label: self._questions.survey(entry) for entry in spec.datasets}
            self._store = self._resources.enter_context(Store(directory, self._resolved(config, surveys)))
            self._judge_the_rest()
            self._spent_before = self._spent_so_far()
        except BaseException:
            self._resources.close()
            raise
        self._budget = Budget(None if max_cost_usd is None else max(0.0, max_cost_usd - self._spent_before))
        self._kept = 0.0
        for unit in self._units:
            unit.orchestrator.budget.parent = self._budget
        questions = sum(survey.count for survey in surveys.values())
        self.total = len(self._units) * questions * len(spec.evaluate.seeds)
        shares = [(self.total - self.done) / len(self._units) * unit.most_usd for unit in self._units]
        self.most_usd = sum(shares)
        views = [view for unit in self._units for view in unit.members]
        self.unpriced = tuple(dict.fromkeys(view.name for view in views if view.quote is None))

    @property
    def done(self) -> int:
        return self._store.done.count

    @property
    def spent_usd(self) -> float:
        return self._spent_before + self._budget.spent_usd

    def run(
        self,
        on_progress: Callable[[Progress], None] = lambda progress: None,
        on_stopping: Callable[[], None] = lambda: None,
    ) -> End:
        """Run what is not done yet, in the calling thread.

        The first Ctrl-C lets what is under way finish and asks nothing more; the second drops it, as a termination
        signal does at once.

        Args:
            on_progress: called in this thread after each rollout.
            on_stopping: called in this thread after the first Ctrl-C.

        Returns:
            `budget`: the next question could cost more than is left.

        Raises:
            ConfigError, MissingExtra: a policy's model cannot be made, or the disk is full. What was done is kept.
        """
        try:
            for unit in self._units:
                end = asyncio.run(self._run(unit, on_progress, on_stopping))
                if end != "done":
                    return end
        except asyncio.CancelledError:
            return "interrupted"
        finally:
            self._store.discard(self._budget.spent_usd - self._kept - ROUNDING, "dropped while under way")
            self._store.sync()
        return "done"

    def summarise(self, *, command: str = "", note: str | None = None) -> dict[str, Any]:
        """Make the summary of what is there, write it into the directory and return it."""
        spec = read_json(self.directory / SPEC)
        summary = summarise(rows(self.directory), spec, command=command, note=note)
        write_json(self.directory / SUMMARY, summary)
        return summary

    def close(self) -> None:
        """Close what was opened and let the directory go."""
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- setting up -----------------------------------------------------------------------------------------------

    def _config(self, **defaults: str | None) -> Config:
        flags = {"defaults": {"data": self._data, **defaults}, "limits": self.spec.limits}
        return load_config(self._config_file, overrides=flags)

    def _unit(self, policy: PolicyEntry, pool: str) -> _Unit:
        config = self._config(policy=policy.name, pool=pool, model=policy.model)
        own = {policy.name: {**config.policies.get(policy.name, {}), **self.spec.anchored(policy.all_options)}}
        config = config.model_copy(update={"policies": {**config.policies, **own}})
        with _named(policy.label):
            orchestrator = self._resources.enter_context(
                Orchestrator(
                    config=config,
                    registry=self._registry,
                    grammar=policy.grammar,
                    sampling=policy.sampling,
                    allow_unpriced=self.spec.evaluate.allow_unpriced,
                )
            )
            members = orchestrator.members
        prices = [(view.descriptor, None if view.quote is None else view.quote.output) for view in members]
        replayed = [view.name for view in members if self._registry.replays(view.descriptor)]
        return _Unit(policy, pool, config, orchestrator, Judge(self._metrics, prices, replayed), members)

    def _resolved(self, config: Config, surveys: Mapping[str, Survey]) -> dict[str, Any]:
        """What the directory's `spec.json` says: the spec with everything that it leaves to others, and hashes."""
        resolved = self.spec.identity()
        resolved["limits"] = config.limits.model_dump(mode="json")
        by_label = {policy.label: self.spec.pools(policy, config.defaults.pool) for policy in self.spec.policies}
        models = {unit.policy.label: unit.config.defaults.model for unit in self._units}
        for policy, entry in zip(resolved["policies"], self.spec.policies, strict=True):
            policy["pools"] = list(by_label[entry.label])
            policy["model"] = models[entry.label]
            policy["options"] = {**config.policies.get(entry.name, {}), **entry.all_options}
            del policy["pool"]
        for dataset in resolved["datasets"]:
            survey = surveys[dataset["label"]]
            dataset.update(questions=survey.count, hash=survey.hash)
        catalogue = Catalogue.of(self._registry, config)
        pools = {unit.pool: unit.members for unit in self._units}
        resolved["pools"] = [_pool(name, members, catalogue) for name, members in pools.items()]
        used = sorted(set(models.values()))
        known = {name: config.models[name].model_dump(mode="json") for name in used if name in config.models}
        resolved["models"] = {name: short_hash(model) for name, model in known.items()}
        resolved["antiphon"] = __version__
        return resolved

    def _judge_the_rest(self) -> None:
        """Make the rows that a kill kept from being written."""
        judges = {(unit.policy.label, unit.pool): unit.judge for unit in self._units}
        for key, trajectory, file, line in self._store.unjudged():
            self._store.add_row(judges[key.policy, key.pool].row(key, trajectory, file, line))
        self._store.sync()

    def _spent_so_far(self) -> float:
        """USD of earlier runs here. What was under way when one was killed is guessed, and counted once."""
        spent, count = 0.0, 0
        for row in rows(self.directory):
            spent, count = spent + row.cost_usd, count + 1
        if self._store.was_killed and count:
            flying = self.spec.evaluate.concurrency
            self._store.discard(flying * spent / count, f"a kill: as {flying} rollouts at the mean so far")
        return spent + self._store.discarded_usd()

    # ---- running --------------------------------------------------------------------------------------------------

    def _pending(self, unit: _Unit) -> Iterator[tuple[Key, Task]]:
        for entry in self.spec.datasets:
            for seed in self.spec.evaluate.seeds:
                for index, task in self._questions(entry):
                    key = Key(unit.policy.label, unit.pool, entry.label, task.id, seed, index)
                    if key not in self._store.done:
                        yield key, task

    async def _run(self, unit: _Unit, on_progress: Callable[[Progress], None], on_stopping: Callable[[], None]) -> End:
        """One policy on one pool, to its end; a budget that runs out lets what is under way finish."""
        pending, refused = self._pending(unit), list[tuple[Key, Task]]()
        flying, broke = 0, False

        async def work() -> None:
            nonlocal flying, broke
            while not (self._stopping or broke):
                item = refused.pop() if refused else next(pending, None)
                if item is None:
                    return
                flying += 1
                try:
                    trajectory = await self._ask(unit, *item)
                finally:
                    flying -= 1
                self._kept += trajectory.cost_usd
                if self._is_refused(unit, trajectory):
                    self._store.discard(trajectory.cost_usd, "cut off by the budget")
                    refused.append(item)
                    broke = flying == 0  # else what others set aside may be free soon: one of them tries again
                    return
                self._store.commit(item[0], trajectory, unit.judge.row)
                on_progress(self._progress())

        with self._signals(on_stopping):
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(self.spec.evaluate.concurrency):
                        group.create_task(work())
            except BaseExceptionGroup as faults:
                raise _first(faults) from None
        return "interrupted" if self._stopping else "budget" if broke else "done"

    async def _ask(self, unit: _Unit, key: Key, task: Task) -> Trajectory:
        sampling = {"seed": key.seed, **unit.policy.sampling}
        with _named(unit.policy.label):
            return await unit.orchestrator.aask(task, sample=key.seed, sampling=sampling)

    def _is_refused(self, unit: _Unit, trajectory: Trajectory) -> bool:
        """Whether the evaluation's budget ended it: then it is no result, and is asked again where there is more."""
        if trajectory.stop != "budget" or self._budget.limit_usd is None:
            return False
        own = unit.config.limits.max_cost_usd
        return own is None or self._budget.left_usd < own - trajectory.cost_usd

    def _progress(self) -> Progress:
        spent = self.spent_usd
        to_come = spent / self.done * (self.total - self.done) if self.done else None
        return Progress(self.done, self.total, spent, to_come)

    @contextmanager
    def _signals(self, on_stopping: Callable[[], None]) -> Iterator[None]:
        """Ctrl-C stops gently, twice at once; a termination signal at once. Only the main thread is sent any."""
        if threading.current_thread() is not threading.main_thread() or sys.platform == "win32":
            yield
            return
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None  # a coroutine runs in a task

        def gently() -> None:
            if self._stopping:
                task.cancel()
            else:
                on_stopping()
            self._stopping = True

        before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
        loop.add_signal_handler(signal.SIGINT, gently)
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
        try:
            yield
        finally:
            for each, handler in before.items():
                loop.remove_signal_handler(each)
                signal.signal(each, handler)


def _pool(name: str, members: tuple[MemberView, ...], catalogue: Catalogue) -> dict[str, Any]:
    """A pool as `spec.json` holds it; its hash is the same on every machine."""
    entries = catalogue.pool_entries(name)
    return {
        "name": name,
        "hash": content_hash([entry.descriptor.hash for entry in entries])[:16],
        "members": [
            {
                "name": view.name,
                "output_price": None if view.quote is None else view.quote.output,
                "parameters_b": view.descriptor.parameters_b,
                "active_parameters_b": view.descriptor.active_parameters_b,
            }
            for view in members
        ],
    }


@contextmanager
def _named(label: str) -> Iterator[None]:
    """Say which policy a fault of the set-up belongs to."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"policy {label!r}: {error}") from error


def _first(faults: BaseExceptionGroup[BaseException]) -> BaseException:
    first = faults.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
