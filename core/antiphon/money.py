"""Budgets that reserve before a call and settle after it, so that concurrent calls cannot overshoot."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from antiphon.errors import BudgetExceeded, ConfigError

if TYPE_CHECKING:
    from antiphon.descriptor import Price
    from antiphon.types import Usage


def per_token(usage: Usage, price: Price) -> float:
    """USD: input (cached part at its own price) plus output, at USD per million tokens.

    An absent input price counts as nothing; pricing functions that need it refuse the descriptor at load.
    """
    cached = min(usage.cached_input_tokens, usage.input_tokens)
    fresh_price = price.input or 0.0
    cached_price = fresh_price if price.cached_input is None else price.cached_input
    fresh = (usage.input_tokens - cached) * fresh_price
    return (fresh + cached * cached_price + usage.output_tokens * price.output) / 1e6


@dataclass(slots=True)
class Reservation:
    """USD set aside for one attempt. Settle it once; a second time does nothing."""

    usd: float
    open: bool = True


class Budget:
    """A limit on spending; safe across threads.

    Args:
        limit_usd: None: no limit, only a count.
        parent: a wider budget (of the process, of a tenant) that this one also draws on.
    """

    def __init__(self, limit_usd: float | None = None, parent: Budget | None = None) -> None:
        if limit_usd is not None and not (math.isfinite(limit_usd) and limit_usd >= 0):
            raise ConfigError(f"a budget is a finite number of USD of at least 0, got {limit_usd!r}")
        self.limit_usd = limit_usd
        self.parent = parent
        self._spent = 0.0
        self._reserved = 0.0
        self._lock = threading.Lock()

    @property
    def spent_usd(self) -> float:
        return self._spent

    @property
    def reserved_usd(self) -> float:
        return self._reserved

    @property
    def left_usd(self) -> float:
        """What may still be reserved; infinite without a limit."""
        own = math.inf if self.limit_usd is None else self.limit_usd - self._spent - self._reserved
        return min(own, self.parent.left_usd) if self.parent is not None else own

    def reserve(self, usd: float) -> Reservation:
        """Set `usd` aside.

        Raises:
            BudgetExceeded: it does not fit into what is left here or in a parent.
        """
        if not (math.isfinite(usd) and usd >= 0):
            raise BudgetExceeded(
                f"a reservation of {usd!r} USD is no amount; the pricing function's upper bound is wrong"
            )
        with self._lock:
            if self.limit_usd is not None and self._spent + self._reserved + usd > self.limit_usd * (1 + 1e-9):
                left = max(0.0, self.limit_usd - self._spent - self._reserved)
                raise BudgetExceeded(f"needs up to ${usd:.6f}, ${left:.6f} of ${self.limit_usd:.6f} is left")
            if self.parent is not None:
                self.parent.reserve(usd)
            self._reserved += usd
        return Reservation(usd)

    def settle(self, reservation: Reservation, usd: float) -> None:
        """Replace a reservation by what was really spent (0 to release it)."""
        with self._lock:
            if not reservation.open:
                return
            reservation.open = False
            self._close(reservation.usd, usd)

    def _close(self, reserved: float, spent: float) -> None:
        self._reserved = max(0.0, self._reserved - reserved)
        self._spent += spent
        if self.parent is not None:
            with self.parent._lock:
                self.parent._close(reserved, spent)
