"""What tokens cost, and budgets that reserve before a call and settle after it: concurrent calls cannot overshoot."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from antiphon.errors import BudgetExceeded, ConfigError
from antiphon.types import Usage

if TYPE_CHECKING:
    from antiphon.contracts import Request
    from antiphon.descriptor import Price
    from antiphon.types import Call

CHARS_PER_TOKEN = 4
"""What lengths are estimated by, and marked as such, where a provider or a generator counts no tokens."""

_TEMPLATE_TOKENS = 256  # what a chat template may add to a request: a system preamble, dates, tool instructions
_MESSAGE_TOKENS = 16  # what it may add to each message: role headers, turn markers
_MOST_TOKENS = 10_000_000  # no context window is larger; a count above it is a provider's mistake
_TOLERANCE = 1e-9  # relative: sums of floats may exceed a limit by rounding alone


def per_token(usage: Usage, price: Price) -> float:
    """USD: input (cached part at its own price) plus output, at USD per million tokens.

    An absent input price counts as nothing; pricing functions that need it refuse the descriptor at load.
    """
    cached = min(usage.cached_input_tokens, usage.input_tokens)
    fresh_price = price.input or 0.0
    cached_price = fresh_price if price.cached_input is None else price.cached_input
    fresh = (usage.input_tokens - cached) * fresh_price
    return (fresh + cached * cached_price + usage.output_tokens * price.output) / 1e6


def raw_cost(call: Call, prices: Mapping[str, float | None]) -> float:
    """Output price in USD per million tokens x output tokens of the served reply (arXiv 2506.09033 §3).

    Another model that answered counts at its own price where that is known; without a known price the reply counts
    what it was charged, in millionths of a USD (the same unit), and a failed call nothing.
    """
    usage = call.usage
    if usage is None:
        return 0.0
    served = call.attempts[-1]
    price = prices.get(served.priced_as or call.member, prices.get(call.member))
    return served.cost_usd * 1e6 if price is None else price * usage.output_tokens


def most_usage(request: Request) -> Usage:
    """More tokens than a request can use, whatever the tokeniser: for the upper bounds of pricing functions.

    Every token of a byte-level or byte-fallback vocabulary stands for at least one UTF-8 byte of the text, so there
    are no more tokens than bytes; an allowance is added for what a chat template puts around the messages.
    """
    text = sum(len(message.content.encode("utf-8", "surrogatepass")) for message in request.messages)
    return Usage(text + _MESSAGE_TOKENS * len(request.messages) + _TEMPLATE_TOKENS, request.max_tokens)


def estimated_usage(request: Request, reply: str) -> Usage:
    """What a request and its reply come to at four characters a token, rounded up and marked as estimated."""
    characters = sum(len(message.content) for message in request.messages)
    return Usage(-(-characters // CHARS_PER_TOKEN), -(-len(reply) // CHARS_PER_TOKEN), estimated=True)


def credible(usage: Usage | None) -> Usage | None:
    """Reported usage as whole counts, the cached part at most the input; None where it cannot be what happened.

    Negative, fractional, infinite or absurdly large counts are no counts.
    """
    if usage is None:
        return None
    counts = (usage.input_tokens, usage.output_tokens, usage.cached_input_tokens)
    if not all(isinstance(n, int | float) and not isinstance(n, bool) for n in counts):
        return None
    if not all(0 <= n <= _MOST_TOKENS and n == int(n) for n in counts):  # false for NaN and infinities at once
        return None
    given, made, cached = (int(n) for n in counts)
    return Usage(given, made, min(cached, given), usage.estimated)


def is_amount(usd: object) -> bool:
    """Whether it is a finite number of USD of at least 0."""
    return isinstance(usd, int | float) and not isinstance(usd, bool) and math.isfinite(usd) and usd >= 0


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

    Raises:
        ConfigError: the limit is no amount.
    """

    def __init__(self, limit_usd: float | None = None, parent: Budget | None = None) -> None:
        if limit_usd is not None and not is_amount(limit_usd):
            raise ConfigError(f"a budget is a finite number of USD of at least 0, got {limit_usd!r}")
        self.limit_usd = limit_usd
        self.parent = parent
        self._spent = 0.0
        self._reserved = 0.0
        self._open = 0  # reservations; with none left the reserved sum is exactly 0 again
        self._lock = threading.Lock()

    @property
    def spent_usd(self) -> float:
        return self._spent

    @property
    def reserved_usd(self) -> float:
        return self._reserved

    @property
    def left_usd(self) -> float:
        """What may still be reserved, at least 0; infinite without a limit."""
        with self._lock:
            own = math.inf if self.limit_usd is None else max(0.0, self.limit_usd - self._spent - self._reserved)
        return min(own, self.parent.left_usd) if self.parent is not None else own

    @property
    def overspent(self) -> bool:
        """More than the limit is spent; only what is charged can do that."""
        return self.limit_usd is not None and self._spent > self.limit_usd * (1 + _TOLERANCE)

    def charge(self, usd: float) -> None:
        """Count `usd` that were spent without a reservation, whatever is left."""
        with self._lock:
            self._spent += usd
        if self.parent is not None:
            self.parent.charge(usd)

    def reserve(self, usd: float) -> Reservation:
        """Set `usd` aside.

        Raises:
            BudgetExceeded: it does not fit into what is left here or in a parent.
        """
        if not is_amount(usd):
            raise BudgetExceeded(
                f"a reservation of {usd!r} USD is no amount; the pricing function's upper bound is wrong"
            )
        with self._lock:
            if self.limit_usd is not None and self._spent + self._reserved + usd > self.limit_usd * (1 + _TOLERANCE):
                left = max(0.0, self.limit_usd - self._spent - self._reserved)
                raise BudgetExceeded(f"needs up to ${usd:.6f}, ${left:.6f} of ${self.limit_usd:.6f} is left")
            if self.parent is not None:
                self.parent.reserve(usd)
            self._reserved += usd
            self._open += 1
        return Reservation(usd)

    def settle(self, reservation: Reservation, usd: float) -> None:
        """Replace a reservation by what was really spent (0 to release it).

        What is no amount (negative, NaN, infinite) counts as all that was reserved: a fault never frees money.
        """
        with self._lock:
            if not reservation.open:
                return
            reservation.open = False
            self._close(reservation.usd, usd if is_amount(usd) else reservation.usd)

    def _close(self, reserved: float, spent: float) -> None:
        self._open -= 1
        self._reserved = max(0.0, self._reserved - reserved) if self._open else 0.0
        self._spent += spent
        if self.parent is not None:
            with self.parent._lock:
                self.parent._close(reserved, spent)
