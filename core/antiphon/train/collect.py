"""The rollouts of a step: all at once, each a task of its own, scored as they finish."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from antiphon.errors import PluginError
from antiphon.rollout import Rollout
from antiphon.train.tasks import sampling_seed

if TYPE_CHECKING:
    from antiphon._setup import Setup
    from antiphon.contracts import AsksMembers, Generator, MemberView
    from antiphon.money import Budget
    from antiphon.reward import RewardResult
    from antiphon.train.stepped import SteppedReward
    from antiphon.types import Task, Trajectory

PoolFor = Callable[["Task", int, int], "AsksMembers"]
"""Task, step and sample -> who can be asked."""


@dataclass(frozen=True, slots=True)
class Rolled:
    """One rollout, scored.

    Attributes:
        result: None where it failed.
        place: of its task in the step: what groups the samples of a task.
        members: who could be asked.
        error: it, or its reward, ended by an error, ours or a plugin's: nothing can be learnt from it.
    """

    trajectory: Trajectory
    result: RewardResult | None
    place: int
    members: tuple[MemberView, ...]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Collector:
    """Runs the rollouts of one split.

    Attributes:
        pool_for: who can be asked by a sample of a task, at a step.
        sampling: of the policy, but for the seed.
        budget: of the run.
    """

    setup: Setup
    generator: Generator
    pool_for: PoolFor
    reward: SteppedReward
    sampling: Mapping[str, Any]
    seed: int
    budget: Budget
    versions: Mapping[str, str] = field(default_factory=dict)

    async def step(
        self, step: int, tasks: Sequence[Task], samples: int, *, on_done: Callable[[], None] = lambda: None
    ) -> list[Rolled]:
        """`samples` rollouts of each task, in this order. What they draw is decided by seed, step, place and sample.

        One that fails is handed on as failed, whatever went wrong. The reward's step is the caller's to commit or drop.
        """
        try:
            async with asyncio.TaskGroup() as group:
                running = [
                    group.create_task(self._one(step, place, task, sample, on_done))
                    for place, task in enumerate(tasks)
                    for sample in range(samples)
                ]
        except BaseExceptionGroup as faults:  # of the set-up: a rollout's own are in its trajectory
            raise faults.exceptions[0] from None
        return [task.result() for task in running]

    async def _one(self, step: int, place: int, task: Task, sample: int, on_done: Callable[[], None]) -> Rolled:
        pool = self.pool_for(task, step, sample)
        seed = sampling_seed(self.seed, step, place, task.id, sample)
        rollout = Rollout(
            task,
            pool,
            self.generator,
            limits=self.setup.limits,
            budget=self.budget,
            policy_price=self.setup.policy_price,
            sampling={**self.sampling, "seed": seed},
            sample=sample,
            seed=seed,
            versions={**self.setup.versions, **self.versions},
            id=f"{step}-{place}-{sample}",
        )
        trajectory = await rollout.run(self.setup.policy)
        self.setup.registry.on_trajectory(trajectory)
        result, error = None, trajectory.error or "an error" if trajectory.stop == "error" else None
        if error is None:
            try:
                result = await self.reward.score(trajectory, step=step, order=(place, sample))
            except PluginError as fault:  # a judge that could not be reached
                error = str(fault)
        on_done()
        return Rolled(trajectory, result, place, tuple(pool.members), error)


def over_budget(rolled: Sequence[Rolled], budget: Budget, own_usd: float | None) -> bool:
    """Whether the run's budget ended some of these, and not their own of `own_usd`."""
    stopped = [each.trajectory for each in rolled if each.trajectory.stop == "budget"]
    return budget.limit_usd is not None and any(
        own_usd is None or budget.left_usd < own_usd - trajectory.cost_usd for trajectory in stopped
    )


def no_more(budget: Budget) -> str:
    """Why a run's budget ends it, in words."""
    if budget.overspent:
        return f"${budget.spent_usd:.4g} is spent, more than the ${budget.limit_usd:g} of train.max_cost_usd"
    return f"the next rollouts could cost more than is left of ${budget.limit_usd:g}"


def too_many_failed(step: int, errors: Sequence[str], total: int, most: float) -> str | None:
    """Why a step's failures end the run, in words; None: they are no more than the share `most` of all its rollouts."""
    if len(errors) <= most * total:
        return None
    return (
        f"step {step}: {len(errors)} of {total} rollouts failed, more than train.max_failed = {most:g} allows; the "
        f"first: {errors[0]}"
    )
