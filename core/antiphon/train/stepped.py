"""Rewards by the training step: a step's window is committed when the next step begins, in sample order."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from antiphon.reward import Reward, RewardResult
    from antiphon.types import Trajectory

Order = tuple[int, int]
"""Index of the task in its data, and which of its samples."""


class SteppedReward:
    """Scores trajectories as they finish, in whatever order; a score depends only on the steps before its own.

    Where no step is known, each trajectory is a step of its own.
    """

    def __init__(self, reward: Reward) -> None:
        self.reward = reward
        self._step: int | None = None
        self._scored: list[tuple[Order, Trajectory, RewardResult]] = []

    def __call__(self, trajectory: Trajectory, *, step: int | None, order: Order) -> RewardResult:
        """Score it; if it is the first of another step, commit the former one before.

        A straggler of a past step is scored and committed with the step under way.
        """
        self._enter(step)
        return self._keep(trajectory, self.reward(trajectory), step, order)

    async def score(self, trajectory: Trajectory, *, step: int | None, order: Order) -> RewardResult:
        """As a call; terms that must ask somebody first, a judge for one, do so."""
        self._enter(step)
        return self._keep(trajectory, await self.reward.score(trajectory), step, order)

    def commit(self) -> None:
        """End the step under way."""
        scored, self._scored = sorted(self._scored, key=lambda item: item[0]), []
        self.reward.commit((trajectory, result) for _, trajectory, result in scored)

    def drop(self) -> None:
        """Forget the step under way: it enters no window."""
        self._scored = []

    def _enter(self, step: int | None) -> None:
        if step is not None and self._step is not None and step > self._step:
            self.commit()
        if step is not None:
            self._step = step if self._step is None else max(step, self._step)

    def _keep(self, trajectory: Trajectory, result: RewardResult, step: int | None, order: Order) -> RewardResult:
        self._scored.append((order, trajectory, result))
        if step is None:
            self.commit()
        return result
