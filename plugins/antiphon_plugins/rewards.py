"""The reward terms of Router-R1 (arXiv 2506.09033, section 3): format, outcome, cost."""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from antiphon.contracts import MemberView, Metric
from antiphon.errors import ConfigError

if TYPE_CHECKING:
    from antiphon.types import Call, Trajectory

Window = Literal["past", "with_current"]
Unit = Literal["quote", "charged"]


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


class Cost:
    """R_cost = 1 - clip((sqrt(raw) - q05) / (q95 - q05), 0, 1): 1 is cheap, 0 dear.

    raw = sum over calls of m(P) * T_out, with m(P) the member's quoted output price in USD per million tokens and T_out
    the output tokens of the served reply; q05 and q95 are percentiles (linear interpolation) of sqrt(raw) over the last
    `size` committed trajectories. `neutral` where q95 - q05 is below `eps`, as at the start.

    The window changes by `commit` alone: once a step, in sample order.

    Args:
        window: `past`: percentiles over committed trajectories, all of which enter the window (the paper).
            `with_current`: the trajectory's own value is among them, and only trajectories that are paid for their
            cost enter the window (the released code).
        unit: `quote`: as above; a member without a known price counts what its served reply was charged, in
            millionths of a USD (the same unit). `charged`: all attempts, input and failed ones too, in millionths of
            a USD.
        prices: member -> USD per million output tokens; `bind` takes them from the pool.
    """

    name = "cost"
    range = (0.0, 1.0)
    priority = 20

    def __init__(
        self,
        window: Window = "past",
        unit: Unit = "quote",
        prices: Mapping[str, float] | None = None,
        size: int = 1000,
        low: float = 5.0,
        high: float = 95.0,
        eps: float = 1e-6,
        neutral: float = 0.5,
    ) -> None:
        for option, value, known in (("window", window, get_args(Window)), ("unit", unit, get_args(Unit))):
            if value not in known:
                raise ConfigError(f"cost reward: {option} is one of {', '.join(known)}, got {value!r}")
        if size < 1 or not 0 <= low < high <= 100 or not eps > 0 or not 0 <= neutral <= 1:
            raise ConfigError("cost reward: needs size >= 1, 0 <= low < high <= 100, eps > 0 and neutral in 0..1")
        self._window, self._unit, self._prices = window, unit, dict(prices or {})
        self._low, self._high, self._eps, self._neutral = low, high, eps, neutral
        self._past: deque[float] = deque(maxlen=size)
        self._sorted: list[float] = []

    def bind(self, members: Sequence[MemberView]) -> None:
        """Take the pool's quoted prices; those given at construction stay.

        Raises:
            ConfigError: a member is unpriced.
        """
        quoted = {view.name: None if view.quote is None else view.quote.output for view in members}
        unpriced = sorted(name for name, price in quoted.items() if price is None and name not in self._prices)
        if unpriced and self._unit == "quote":
            raise ConfigError(f"the cost reward needs a price of {', '.join(unpriced)}; price it, or set alpha to 0")
        self._prices = {**{name: price for name, price in quoted.items() if price is not None}, **self._prices}

    def raw(self, trajectory: Trajectory) -> float:
        """Price per million times output tokens, summed over the calls, at the scale of the real pool."""
        shown = trajectory.shown
        prices = self._prices if shown is None else shown.prices
        return math.fsum(self._raw(call, prices) for call in trajectory.calls) / (shown.price_scale if shown else 1.0)

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

    def _raw(self, call: Call, prices: Mapping[str, float]) -> float:
        if self._unit == "charged":
            return call.cost_usd * 1e6
        usage = call.usage
        if usage is None:  # a failed call has no reply; what it was charged is in `charged` and in the budget
            return 0.0
        served = call.attempts[-1]
        price = prices.get(served.priced_as or call.member, prices.get(call.member))
        return served.cost_usd * 1e6 if price is None else price * usage.output_tokens


def _percentile(ordered: Sequence[float], percent: float) -> float:
    """Linear interpolation between the two nearest ranks of a sorted, non-empty sequence."""
    position = (len(ordered) - 1) * percent / 100
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
