"""The embedding face: `Orchestrator` asks, streams and batches, from any thread and any event loop."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypedDict, TypeVar, Unpack

from antiphon._loop import BackgroundLoop, Channel, Job
from antiphon._setup import Chosen, Setup, build
from antiphon._stream import AsyncStream, Stream, buffer
from antiphon.errors import AntiphonError, ConfigError
from antiphon.limits import Limits
from antiphon.money import Budget
from antiphon.rollout import Rollout
from antiphon.types import Event, Task, Trajectory

if TYPE_CHECKING:
    from pathlib import Path

    from antiphon.config import Config
    from antiphon.contracts import AsksMembers, Generator, MemberView, Policy
    from antiphon.descriptor import Descriptor, Price
    from antiphon.registry import Registry

T = TypeVar("T")


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during `ask` or `batch`: what was under way has been cancelled, and is here as far as it came.

    Attributes:
        trajectories: finished and cancelled ones, in the order of their tasks.
    """

    def __init__(self, trajectories: Sequence[Trajectory]) -> None:
        super().__init__("interrupted")
        self.trajectories = tuple(trajectories)


class Asked(TypedDict, total=False):
    """How one question differs from the orchestrator's own settings.

    Attributes:
        max_cost_usd: USD for this question, in place of the limits' own.
        sample: which of several answers to the same question.
    """

    limits: Limits | None
    sampling: Mapping[str, Any] | None
    max_cost_usd: float | None
    sample: int


class Orchestrator:
    """Answers questions: a policy decides, a pool is asked, every rollout is recorded as a trajectory.

    Nothing is loaded until the first question (or `prepare`). Everything runs on one event loop in a background thread,
    so that one orchestrator serves any number of threads and loops; close it, or use it as a context manager.

    Args:
        pool: the name of a configured pool, a `Pool`, or descriptors (or plain dicts of them).
        policy: a name, or any object with `name` and `async def run(self, task, rollout)`.
        model: the policy's model: a configured name, or a `Generator`. Loaded when a policy first needs it.
        grammar: the name of the grammar that the policy's model writes.
        config: an `antiphon.toml`, or a `Config`; default: `$ANTIPHON_CONFIG`, else `./antiphon.toml`, else none.
        registry: plugins; default: all that are installed.
        limits: of each rollout; default: the configuration's.
        max_cost_usd: USD for all that this orchestrator ever does.
        sampling: temperature, top_p, … of the policy's model.
        seed: makes policies that choose at random choose the same again.
        policy_price: USD per million of the policy's own tokens, where `model` is a `Generator`.
        allow_unpriced: take members without a price (their cost counts as 0).
    """

    def __init__(
        self,
        *,
        pool: str | AsksMembers | Sequence[Descriptor | Mapping[str, Any]] | None = None,
        policy: str | Policy | None = None,
        model: str | Generator | None = None,
        grammar: str | None = None,
        config: str | Path | Config | None = None,
        registry: Registry | None = None,
        limits: Limits | None = None,
        max_cost_usd: float | None = None,
        sampling: Mapping[str, Any] | None = None,
        seed: int = 0,
        policy_price: Price | None = None,
        allow_unpriced: bool | None = None,
    ) -> None:
        self.budget = Budget(max_cost_usd)
        self._chosen = Chosen(pool, policy, model, grammar, config, registry, policy_price, allow_unpriced)
        self._limits = limits
        self._sampling = dict(sampling or {})
        self._seed = seed
        self._setup: Setup | None = None
        self._loop = BackgroundLoop()
        # Runs at `close`, when the orchestrator is garbage, or at exit, whichever comes first.
        self._finalizer = weakref.finalize(self, self._loop.close)

    # ---- asking ---------------------------------------------------------------------------------------------------

    def ask(self, question: str | Task, **how: Unpack[Asked]) -> Trajectory:
        """Answer one question; blocks this thread only, and works inside a running event loop too (which it blocks).

        A rollout that fails or finds no answer is a trajectory all the same: see its `answer`, `stop` and `error`.

        Args:
            how: what is different for this question: see `Asked`.

        Raises:
            ConfigError, PluginError, MissingExtra: the set-up does not hold; nothing was asked.
            Interrupted: Ctrl-C; holds the cancelled trajectory.
        """
        kept: list[Trajectory] = []
        job = self._start(self._rollout(_task(question), kept.append, **how))
        try:
            return job.wait()
        except KeyboardInterrupt:
            raise Interrupted(kept) from None

    async def aask(self, question: str | Task, **how: Unpack[Asked]) -> Trajectory:
        """`ask`, to be awaited on any event loop. Cancelling it cancels the rollout."""
        return await self._loop.submit(self._rollout(_task(question), **how)).result()

    def stream(self, question: str | Task, **how: Unpack[Asked]) -> Stream:
        """Answer one question and yield its events: thinking at once, the answer when it is whole, `done` last.

        Closing or dropping the stream cancels the rollout.
        """
        return Stream(*self._streamed(_task(question), how))

    def astream(self, question: str | Task, **how: Unpack[Asked]) -> AsyncStream:
        """`stream`, for `async for` on any event loop."""
        return AsyncStream(*self._streamed(_task(question), how))

    def batch(
        self,
        tasks: Iterable[str | Task],
        *,
        concurrency: int = 64,
        on_result: Callable[[Trajectory], None] | None = None,
    ) -> list[Trajectory]:
        """Answer many questions, `concurrency` at a time, none waiting for another.

        Args:
            on_result: called in this thread with each trajectory as it finishes; what it raises cancels the rest.

        Returns:
            Trajectories in the order of the tasks.

        Raises:
            ConfigError: as for `ask`, or a task has no question (its place is named); nothing was asked.
            Interrupted: Ctrl-C; holds what had finished and what was cancelled.
        """
        todo, channel = _tasks(tasks), Channel[tuple[int, Trajectory]]()
        job = self._start(self._batch(todo, concurrency, channel), channel)
        results: dict[int, Trajectory] = {}
        try:
            for index, trajectory in channel:
                results[index] = trajectory
                if on_result is not None:
                    on_result(trajectory)
            job.wait()  # raises what ended it, if that was not its own end
        except KeyboardInterrupt:
            job.stop()
            channel.end()
            results.update(channel)
            raise Interrupted([results[index] for index in sorted(results)]) from None
        finally:
            job.cancel()
        return [results[index] for index in range(len(todo))]

    async def abatch(
        self,
        tasks: Iterable[str | Task],
        *,
        concurrency: int = 64,
        on_result: Callable[[Trajectory], None] | None = None,
    ) -> list[Trajectory]:
        """`batch`, to be awaited on any event loop; `on_result` is called on that loop. Cancelling it cancels all."""
        todo, channel = _tasks(tasks), Channel[tuple[int, Trajectory]]()
        job = self._loop.submit(self._batch(todo, concurrency, channel), channel)
        results: dict[int, Trajectory] = {}
        try:
            async for index, trajectory in channel:
                results[index] = trajectory
                if on_result is not None:
                    on_result(trajectory)
            await job.result()
        finally:
            job.cancel()
        return [results[index] for index in range(len(todo))]

    # ---- life -----------------------------------------------------------------------------------------------------

    def prepare(self) -> Self:
        """Build everything but the policy's model now, so that a fault of the set-up shows before any question."""
        self._start(self._ready()).wait()
        return self

    @property
    def members(self) -> tuple[MemberView, ...]:
        """Who can be asked, with the prices their pricing functions quote; prepares the orchestrator."""
        return self._start(self._ready()).wait().pool.members

    def close(self) -> None:
        """Cancel what runs and close what was opened. Safe to call again; happens by itself at exit."""
        self._finalizer()

    async def aclose(self) -> None:
        """`close`, without blocking the event loop it is called on."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # ---- on the loop ----------------------------------------------------------------------------------------------

    async def _ready(self) -> Setup:
        """Built once, on the loop that the clients live on; it does not wait in between, so needs no lock."""
        if self._setup is None:
            self._setup = build(self._chosen, self._loop.resources)
        return self._setup

    async def _rollout(
        self,
        task: Task,
        keep: Callable[[Trajectory], None] = lambda trajectory: None,
        on_event: Callable[[Event], None] | None = None,
        *,
        limits: Limits | None = None,
        sampling: Mapping[str, Any] | None = None,
        max_cost_usd: float | None = None,
        sample: int = 0,
    ) -> Trajectory:
        """One rollout to its end. `keep` is given its trajectory, whole or cancelled."""
        setup = await self._ready()
        limits = limits or self._limits or setup.limits
        if max_cost_usd is not None:
            limits = replace(limits, max_cost_usd=max_cost_usd)
        rollout = Rollout(
            task,
            setup.pool,
            setup.generator,
            limits=limits,
            budget=self.budget,
            policy_price=setup.policy_price,
            sampling={**setup.sampling, **self._sampling, **(sampling or {})},
            sample=sample,
            seed=self._seed,
            on_event=on_event,
            versions=setup.versions,
        )
        try:
            trajectory = setup.finished(await rollout.run(setup.policy))
        except asyncio.CancelledError:
            keep(setup.finished(rollout.trajectory()))
            raise
        if setup.model.error is not None:  # no rollout at all: the policy's model could not be made
            raise setup.model.error
        keep(trajectory)
        return trajectory

    async def _batch(self, tasks: Sequence[Task], concurrency: int, channel: Channel[tuple[int, Trajectory]]) -> None:
        if concurrency < 1:
            raise ConfigError(f"concurrency must be at least 1, got {concurrency!r}")
        gate = asyncio.Semaphore(concurrency)

        async def one(index: int, task: Task) -> None:
            try:
                await self._rollout(task, lambda trajectory: channel.put((index, trajectory)))
            finally:
                gate.release()

        try:
            await self._ready()
            async with asyncio.TaskGroup() as group:
                for index, task in enumerate(tasks):
                    await gate.acquire()
                    group.create_task(one(index, task))
        except BaseExceptionGroup as group_of_faults:
            raise _first(group_of_faults) from None

    def _streamed(self, task: Task, how: Asked) -> tuple[Job[Trajectory], Channel[Event], list[Trajectory]]:
        channel: Channel[Event] = Channel(buffer)
        kept: list[Trajectory] = []

        async def run() -> Trajectory:
            trajectory = await self._rollout(task, kept.append, channel.put, **how)
            channel.put(Event("done", trajectory=trajectory))
            return trajectory

        return self._loop.submit(run(), channel), channel, kept

    def _start(self, work: Coroutine[Any, Any, T], channel: Channel[Any] | None = None) -> Job[T]:
        """Submit what this thread is going to wait for."""
        if self._loop.is_current:
            work.close()
            raise AntiphonError(
                "a blocking call on Antiphon's own event loop would wait for itself; await `aask` or `abatch`"
            )
        return self._loop.submit(work, channel)


def _task(question: str | Task, id: str = "task") -> Task:
    return question if isinstance(question, Task) else Task(question, id)


def _tasks(questions: Iterable[str | Task]) -> list[Task]:
    """Tasks with ids of their own: a bare question is named by its place."""
    if isinstance(questions, str):
        raise ConfigError("batch takes a list of questions, and was given one string; use ask, or a list")
    tasks = []
    for index, question in enumerate(questions):
        try:
            tasks.append(_task(question, f"task-{index}"))
        except ConfigError as error:
            raise ConfigError(f"question {index} of the batch: {error}") from None
    return tasks


def _first(faults: BaseExceptionGroup[BaseException]) -> BaseException:
    """One fault of a group: every rollout of a batch meets the same fault of the set-up."""
    first = faults.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
