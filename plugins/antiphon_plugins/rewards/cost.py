"""The cost term: what the members' replies cost, by the prices that the policy was shown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, get_args

from antiphon.contracts import MemberView
from antiphon.errors import ConfigError
from antiphon.money import raw_cost
from antiphon_plugins.rewards.window import Kind, Windowed

if TYPE_CHECKING:
    from antiphon.types import Call, Trajectory

Unit = Literal["quote", "charged"]


class Cost(Windowed):
    """R_cost = 1 - clip((sqrt(raw) - q05) / (q95 - q05), 0, 1): 1 is cheap, 0 dear; see `Windowed`.

    raw = sum over calls of m(P) * T_out, with m(P) the member's quoted output price in USD per million tokens and T_out
    the output tokens of the served reply. Where the pool was drawn for the rollout, prices are those that it showed,
    and raw is divided by the scale of that draw: the window compares rollouts of differently priced pools.

    Args:
        unit: `quote`: as above; a member without a known price counts what its served reply was charged, in
            millionths of a USD (the same unit). `charged`: all attempts, input and failed ones too, in millionths of
            a USD.
        prices: member -> USD per million output tokens; `bind` takes them from the pool.
        window, size, low, high, eps, neutral: see `Windowed`.
    """

    name = "cost"
    priority = 20

    def __init__(
        self,
        window: Kind = "past",
        unit: Unit = "quote",
        prices: Mapping[str, float] | None = None,
        size: int = 1000,
        low: float = 5.0,
        high: float = 95.0,
        eps: float = 1e-6,
        neutral: float = 0.5,
    ) -> None:
        super().__init__(window, size, low, high, eps, neutral)
        if unit not in get_args(Unit):
            raise ConfigError(f"cost reward: unit is one of {', '.join(get_args(Unit))}, got {unit!r}")
        self._unit, self._prices = unit, dict(prices or {})

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
        if shown is None:
            return math.fsum(self._raw(call, self._prices) for call in trajectory.calls)
        own = {name: self._prices[real] for name, real in shown.members.items() if real in self._prices}
        prices = {**{name: price * shown.price_scale for name, price in own.items()}, **shown.prices}
        return math.fsum(self._raw(call, prices) for call in trajectory.calls) / shown.price_scale

    def _raw(self, call: Call, prices: Mapping[str, float]) -> float:
        return call.cost_usd * 1e6 if self._unit == "charged" else raw_cost(call, prices)
