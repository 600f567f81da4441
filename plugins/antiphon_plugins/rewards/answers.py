"""Format and outcome: whether a trajectory is well-formed, and whether its answer is right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antiphon.contracts import Metric
from antiphon.errors import ConfigError

if TYPE_CHECKING:
    from antiphon.types import Trajectory


class Format:
    """0 for a well-formed trajectory, -1 where its grammar found a format problem."""

    name = "format"
    range = (-1.0, 0.0)
    priority = 0

    def __call__(self, trajectory: Trajectory) -> float:
        return -1.0 if trajectory.format_problems else 0.0


class Outcome:
    """How right the answer is, by a metric; 0 without an answer.

    Args:
        metric: name of a metric, or one itself.
    """

    name = "outcome"
    range = (0.0, 1.0)
    priority = 10

    def __init__(self, metric: str | Metric = "em") -> None:
        if isinstance(metric, str):
            from antiphon.registry import default_registry

            metric = default_registry().metric(metric)
        self._metric = metric

    def __call__(self, trajectory: Trajectory) -> float:
        """Grade the answer.

        Raises:
            ConfigError: the task has no golden answers.
        """
        golden = trajectory.task.golden_answers
        if not golden:
            raise ConfigError(
                f"task {trajectory.task.id!r} has no golden answers, which the outcome reward is measured against; "
                "give some, or leave the outcome out of the reward"
            )
        return 0.0 if trajectory.answer is None else self._metric(trajectory.answer, golden)
