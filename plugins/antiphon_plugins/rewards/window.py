"""A sliding window of percentiles, by which cost and latency are put on a scale from 0 to 1."""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from antiphon.errors import ConfigError

if TYPE_CHECKING:
    from antiphon.types import Trajectory

Kind = Literal["past", "with_current"]


class Windowed:
    """A term whose value is 1 - clip((sqrt(raw) - q05) / (q95 - q05), 0, 1): 1 is little of it, 0 is much.

    q05 and q95 are percentiles (linear interpolation) of sqrt(raw) over the last `size` committed trajectories;
    `neutral` where q95 - q05 is below `eps`, as at the start. The window changes by `commit` alone: once a step, in
    sample order.

    Args:
        window: `past`: percentiles over committed trajectories, all of which enter the window (the paper).
            `with_current`: the trajectory's own value is among them, and only trajectories that are paid for this term
            enter the window (the released code).
        size: of the window, in trajectories.
        low, high: the two percentiles.
    """

    name: str
    range = (0.0, 1.0)

    def __init__(
        self,
        window: Kind = "past",
        size: int = 1000,
        low: float = 5.0,
        high: float = 95.0,
        eps: float = 1e-6,
        neutral: float = 0.5,
    ) -> None:
        if window not in get_args(Kind):
            raise ConfigError(f"{self.name} reward: window is one of {', '.join(get_args(Kind))}, got {window!r}")
        if size < 1 or not 0 <= low < high <= 100 or not eps > 0 or not 0 <= neutral <= 1:
            raise ConfigError(
                f"{self.name} reward: needs size >= 1, 0 <= low < high <= 100, eps > 0 and neutral in 0..1"
            )
        self._window, self._low, self._high, self._eps, self._neutral = window, low, high, eps, neutral
        self._past: deque[float] = deque(maxlen=size)
        self._sorted: list[float] = []

    def raw(self, trajectory: Trajectory) -> float:
        """What is measured, at least 0."""
        raise NotImplementedError

    def __call__(self, trajectory: Trajectory) -> float:
        value = math.sqrt(self.raw(trajectory))
        window = self._sorted
        if self._window == "with_current":
            window = list(window)
            insort(window, value)
        if not window:
            return self._neutral
        low, high = _percentile(window, self._low), _percentile(window, self._high)
        if high - low < self._eps:
            return self._neutral
        return 1.0 - min(1.0, max(0.0, (value - low) / (high - low)))

    def commit(self, scored: Sequence[tuple[Trajectory, float | None]]) -> None:
        """Let a step's trajectories, in sample order, into the window."""
        for trajectory, value in scored:
            if value is not None or self._window == "past":
                self._past.append(math.sqrt(self.raw(trajectory)))
        self._sorted = sorted(self._past)

    def state_dict(self) -> dict[str, Any]:
        """JSON data: the window, oldest first."""
        return {"window": list(self._past)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._past = deque((float(value) for value in state["window"]), maxlen=self._past.maxlen)
        self._sorted = sorted(self._past)


def _percentile(ordered: Sequence[float], percent: float) -> float:
    """Linear interpolation between the two nearest ranks of a sorted, non-empty sequence."""
    position = (len(ordered) - 1) * percent / 100
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
