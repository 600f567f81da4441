"""An adapter that says what a test wrote down: replies, failures and latencies by schedule; it records every call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from antiphon.contracts import CallContext, Reply, Request
from antiphon.errors import ConfigError, MemberError, did_you_mean
from antiphon.types import Outcome, Usage

Step = str | Reply | Exception | Callable[[Request, CallContext], "str | Reply | Exception"]


@dataclass(frozen=True, slots=True)
class AdapterCall:
    """One attempt as the adapter saw it."""

    request: Request
    context: CallContext


class ScriptedAdapter:
    """Answers attempt after attempt from a script; the last step repeats for ever.

    A step is a text or a `Reply`; a `MemberError` (or any exception) to raise; a function of request and context that
    gives one of them; or `"!kind"` (`"!rate_limited"`, `"!timeout"`, …), short for a `MemberError` of that outcome. The
    names of adapter factories' arguments are taken too, so that the class is itself a factory:
    `{"mine": ScriptedAdapter}` in `antiphon_adapters`, with `replies`, `latencies_s` in the endpoint's options.

    Args:
        replies: the steps; a text that itself begins with "!" is given as a `Reply`.
        latencies_s: seconds to wait before each step; the last repeats; empty: none.
        usage: what a plain text reports; None: nothing, as some providers do.
        sleep: what waits; tests inject their clock.

    Attributes:
        calls: every attempt so far, cancelled ones included.
        in_flight, most_in_flight: attempts at once, now and at most.
        closed: `aclose` was called.

    Raises:
        ConfigError: an empty script or an unknown outcome.
    """

    def __init__(
        self,
        replies: Sequence[Step] | None = None,
        *,
        latencies_s: Sequence[float] = (),
        usage: Usage | None = None,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
        endpoint: Any = None,
        descriptor: Any = None,
    ) -> None:
        options = endpoint.options if endpoint is not None else {}
        steps = options.get("replies", ("ok",)) if replies is None else replies
        if isinstance(steps, str) or not steps:
            raise ConfigError("a scripted adapter needs a list of at least one reply")
        self._steps: tuple[Step, ...] = tuple(_step(step) for step in steps)
        self._latencies = tuple(latencies_s) or tuple(options.get("latencies_s", ()))
        self._usage = usage
        self._sleep = sleep
        self.calls: list[AdapterCall] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.closed = False

    async def complete(self, request: Request, context: CallContext) -> Reply:
        """The next step of the script."""
        number = len(self.calls)
        self.calls.append(AdapterCall(request, context))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            if self._latencies:
                await self._sleep(self._latencies[min(number, len(self._latencies) - 1)])
            step = self._steps[min(number, len(self._steps) - 1)]
            said = step(request, context) if callable(step) else step
        finally:
            self.in_flight -= 1
        if isinstance(said, Exception):
            raise said
        return said if isinstance(said, Reply) else Reply(said, usage=self._usage, model=request.model)

    async def aclose(self) -> None:
        self.closed = True


def _step(step: Step) -> Step:
    if not isinstance(step, str) or not step.startswith("!"):
        return step
    kind = step[1:]
    known: tuple[Outcome, ...] = get_args(Outcome)
    for outcome in known:
        if outcome == kind and outcome != "ok":
            return MemberError(outcome, f"scripted: {outcome}")
    raise ConfigError(f"a scripted reply {step!r} names no failure{did_you_mean(kind, known)}")
