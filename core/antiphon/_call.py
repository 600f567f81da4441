"""One call to a member: its endpoints in order, the attempts at each, and what every attempt is charged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, get_args

from antiphon._served import is_asked
from antiphon.contracts import Adapter, CallContext, Reply, Request
from antiphon.errors import BudgetExceeded, MemberError
from antiphon.money import Budget, credible, estimated_usage, is_amount
from antiphon.names import fold
from antiphon.redact import redact, secrets_of
from antiphon.types import Attempt, Call, Message, Outcome, Usage, clean

if TYPE_CHECKING:
    from tenacity import RetryCallState

    from antiphon._gates import Gate
    from antiphon.contracts import Pricing
    from antiphon.descriptor import Descriptor, Endpoint
    from antiphon.pool import RetryPolicy

RETRIED: frozenset[Outcome] = frozenset(
    {"rate_limited", "unavailable", "connection", "bad_response", "empty_response", "timeout"}
)
"""What another attempt at the same endpoint may mend."""

FINAL: frozenset[Outcome] = frozenset({"ok", "bad_request", "over_budget"})
"""What the next endpoint would not mend either: what we sent was refused, or there is no money for another attempt."""

_FAILURES = frozenset(get_args(Outcome)) - {"ok", "over_budget", "cancelled"}
_LONGEST_REPLY = 10_000_000  # characters
_LONGEST_MODEL_ID = 200


@dataclass(slots=True, eq=False)
class Line:
    """An endpoint of a member, ready to be asked.

    Attributes:
        descriptor: the member as priced at this endpoint.
        pricing: None where the member is unpriced, and that is allowed.
        cool_until: on the pool's clock; nothing is sent before it.
    """

    endpoint: Endpoint
    descriptor: Descriptor
    adapter: Adapter
    pricing: Pricing | None
    gate: Gate
    cool_until: float = 0.0


@dataclass(frozen=True, slots=True)
class Services:
    """What the calls of one pool share.

    Attributes:
        owner: a served model -> the descriptor whose price holds for it, and its pricing function.
        warn: logs an event with its fields; with the same `once`, only the first time.
    """

    retry: RetryPolicy
    clock: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]
    owner: Callable[[str], tuple[Descriptor, Pricing] | None]
    warn: Callable[..., None]


@dataclass(frozen=True, slots=True)
class _Tried:
    """What one try at an endpoint led to; `sent` is False where no request was made."""

    outcome: Outcome
    error: str | None = None
    sent: bool = True
    reply: Reply | None = None
    usage: Usage | None = None
    model: str | None = None
    substituted: bool = False
    retry_after_s: float | None = None


class OneCall:
    """Asks one member once, over as many endpoints and attempts as it takes and the deadline allows."""

    def __init__(
        self,
        lines: Sequence[Line],
        services: Services,
        messages: Sequence[Message],
        *,
        context: CallContext,
        budget: Budget | None,
        max_tokens: int,
    ) -> None:
        self._lines, self._services, self._budget, self._max_tokens = lines, services, budget, max_tokens
        self._messages = tuple(Message(message.role, clean(message.content)) for message in messages)
        self._started = services.clock()
        deadline = self._started + services.retry.call_timeout_s
        self._deadline = deadline if context.deadline is None else min(deadline, context.deadline)
        self._context = replace(context, deadline=self._deadline)
        self._attempts: list[Attempt] = []

    async def run(self) -> Call:
        try:
            return await self._run()
        except asyncio.CancelledError as error:
            # The attempts that had ended were charged, so whoever records the call must hear of them.
            call = self._call(_Tried("cancelled", "cancelled", sent=False))
            error.call = replace(call, outcome="cancelled", error="cancelled")  # type: ignore[attr-defined]
            raise

    async def _run(self) -> Call:
        lines = await self._warm_lines()
        if not lines:
            return self._call(self._cooling(min(self._lines, key=lambda line: line.cool_until)))
        tried = _Tried("timeout", "the deadline passed before anything was sent", sent=False)
        for line in lines:
            if self._left() <= 0:
                break
            tried = await self._ask(line, another=line is not lines[-1])
            if tried.outcome in FINAL:
                break
        return self._call(tried)

    # ---- endpoints ------------------------------------------------------------------------------------------------

    def _left(self) -> float:
        return self._deadline - self._services.clock()

    def _is_cooling(self, line: Line) -> bool:
        return line.cool_until > self._services.clock()

    async def _warm_lines(self) -> list[Line]:
        """Endpoints that are not cooling down; where all are, the first to come back, if it does so in time."""
        if all(self._is_cooling(line) for line in self._lines):
            wait = min(line.cool_until for line in self._lines) - self._services.clock()
            if wait < self._left():
                await self._services.sleep(wait)
        return [line for line in self._lines if not self._is_cooling(line)]

    def _cooling(self, line: Line) -> _Tried:
        until = datetime.fromtimestamp(time.time() + line.cool_until - self._services.clock(), UTC)
        return _Tried(
            "rate_limited",
            f"{line.endpoint.label} asked to be left alone until {until:%Y-%m-%d %H:%M:%S} UTC; ask another member",
            sent=False,
        )

    async def _ask(self, line: Line, *, another: bool) -> _Tried:
        """All attempts at one endpoint. `another`: there is one more to go to, and no long wait is worth it."""
        from tenacity import AsyncRetrying, retry_if_result, wait_exponential, wait_random

        retry = self._services.retry
        jitter = wait_random(0, retry.backoff_s)
        backoff = wait_exponential(multiplier=retry.backoff_s, max=retry.backoff_max_s) + jitter

        def too_long(seconds: float) -> bool:
            return seconds >= self._left() or (another and seconds > retry.backoff_max_s + retry.backoff_s)

        def wait(state: RetryCallState) -> float:
            asked = _result(state).retry_after_s
            return max(asked or 0.0, backoff(state))

        def stop(state: RetryCallState) -> bool:
            return state.attempt_number >= retry.attempts or too_long(state.upcoming_sleep)

        last: _Tried = await AsyncRetrying(
            retry=retry_if_result(lambda tried: tried.sent and tried.outcome in RETRIED),
            stop=stop,
            wait=wait,
            sleep=self._services.sleep,
            retry_error_callback=_result,
        )(self._once, line)
        if last.retry_after_s is not None and too_long(last.retry_after_s):
            self._cool_down(line, last)
        return last

    def _cool_down(self, line: Line, tried: _Tried) -> None:
        assert tried.retry_after_s is not None
        seconds = min(tried.retry_after_s, self._services.retry.cooldown_max_s)
        line.cool_until = max(line.cool_until, self._services.clock() + seconds)
        self._services.warn(
            "endpoint cools down", member=line.descriptor.name, endpoint=line.endpoint.label, seconds=round(seconds)
        )

    # ---- one attempt ----------------------------------------------------------------------------------------------

    async def _once(self, line: Line) -> _Tried:
        try:
            async with line.gate.slot(self._left()):
                return await self._attempt(line)
        except TimeoutError:  # the gate's: an attempt records its own
            return _Tried("timeout", f"{line.endpoint.label} had no free slot before the deadline", sent=False)

    async def _attempt(self, line: Line) -> _Tried:
        if self._is_cooling(line):  # since this call began, or while it waited at the gate
            return self._cooling(line)
        endpoint = line.endpoint
        seconds = min(self._services.retry.attempt_timeout_s, self._left())
        if seconds <= 0:
            return _Tried("timeout", "the deadline passed while it waited for a slot", sent=False)
        request = Request(endpoint.model, self._messages, self._max_tokens, seconds, line.descriptor.sampling)
        bound = _upper_bound(line, request)
        try:
            reservation = None if self._budget is None else self._budget.reserve(bound)
        except BudgetExceeded as error:
            return _Tried("over_budget", str(error), sent=False)
        cost, started = 0.0, self._services.clock()
        try:
            tried = await _complete(line, request, self._context)
            if tried.substituted:
                self._warn_of_another_model(line, tried)
            usage = _usage(tried, request)
            cost, priced_as = self._charge(line, usage, tried, bound)
        finally:  # cancelled: nothing is known to have been spent
            if self._budget is not None and reservation is not None:
                self._budget.settle(reservation, cost)
        told = tried.reply.latency_s if tried.reply is not None else None
        latency = self._services.clock() - started if told is None or not is_amount(told) else told
        self._attempts.append(
            Attempt(endpoint.label, tried.outcome, latency, usage, cost, tried.model, priced_as, tried.error)
        )
        return tried

    def _warn_of_another_model(self, line: Line, tried: _Tried) -> None:
        self._services.warn(
            "another model answered",
            once=f"{line.endpoint.label}\n{tried.model}",
            member=line.descriptor.name,
            endpoint=line.endpoint.label,
            served=tried.model,
        )

    def _charge(self, line: Line, usage: Usage | None, tried: _Tried, bound: float) -> tuple[float, str | None]:
        """USD, and whose price was used: the served model's own where it is known, else the asked member's."""
        if usage is None:
            return 0.0, None
        descriptor, pricing = line.descriptor, line.pricing
        if tried.substituted and tried.model is not None:
            descriptor, pricing = self._services.owner(tried.model) or (descriptor, pricing)
        if pricing is None:
            return 0.0, None
        try:
            cost = pricing.cost(usage, descriptor)
        except Exception as error:
            cost = float("nan")
            fault = f"{type(error).__name__}: {error}"
        else:
            fault = f"it returned {cost!r}"
        if is_amount(cost):
            return cost, descriptor.name
        # A broken pricing function never makes a call free: the most that it said the call could cost is charged.
        self._services.warn(
            "pricing function failed", member=descriptor.name, pricing=descriptor.pricing, error=redact(fault)
        )
        return bound if is_amount(bound) else 0.0, descriptor.name

    # ---- the record -----------------------------------------------------------------------------------------------

    def _call(self, tried: _Tried) -> Call:
        """The call as recorded; its outcome is the last attempt's, where there was one."""
        last = self._attempts[-1] if self._attempts else None
        error = tried.error
        if last is not None and not tried.sent:
            error = f"{last.error}; then: {tried.error}"
        call = Call(
            self._lines[0].descriptor.name,
            self._messages[-1].content,
            tried.outcome if last is None else last.outcome,
            attempts=tuple(self._attempts),
            latency_s=self._services.clock() - self._started,
            error=error,
        )
        if tried.reply is None or not call.ok:
            return call
        return replace(
            call,
            reply=tried.reply.text,
            truncated=tried.reply.finish == "length",
            served_model=tried.model,
            substituted=tried.substituted,
        )


def _result(state: RetryCallState) -> _Tried:
    assert state.outcome is not None
    tried: _Tried = state.outcome.result()
    return tried


async def _complete(line: Line, request: Request, context: CallContext) -> _Tried:
    """One request through the adapter; whatever it raises becomes an outcome, cancellation of ours alone goes on."""
    usage, model, retry_after_s, reply = None, None, None, None
    try:
        async with asyncio.timeout(request.timeout_s):
            reply = await line.adapter.complete(request, context)
        outcome, error, reply = _judge(reply)
    except MemberError as failure:
        outcome = failure.kind if failure.kind in _FAILURES else "error"
        error, usage, model = str(failure), failure.usage, failure.served_model
        retry_after_s = failure.retry_after_s if is_amount(failure.retry_after_s) else None
    except TimeoutError:
        outcome, error = "timeout", f"no answer within {request.timeout_s:.3g} s"
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        outcome, error = "error", "the adapter cancelled its own request"
    except Exception as failure:
        outcome, error = "error", f"{type(failure).__name__}: {failure}"
    if reply is not None:
        usage, model = reply.usage, reply.model
    secrets = secrets_of(line.endpoint)
    model = redact(model.strip()[:_LONGEST_MODEL_ID], secrets) if isinstance(model, str) and model.strip() else None
    return _Tried(
        outcome,
        None if error is None else redact(error, secrets),
        reply=reply,
        usage=usage,
        model=model,
        substituted=model is not None and not is_asked(line.descriptor, model),
        retry_after_s=retry_after_s,
    )


def _judge(reply: object) -> tuple[Outcome, str | None, Reply | None]:
    """What a reply is worth: text that can be read, of a size that can be kept."""
    if not isinstance(reply, Reply):
        return "error", f"the adapter returned {type(reply).__name__}, not a Reply", None
    if not isinstance(reply.text, str):
        return "bad_response", f"the reply's text is {type(reply.text).__name__}, not a string", replace(reply, text="")
    if len(reply.text) > _LONGEST_REPLY:
        return "bad_response", f"a reply of more than {_LONGEST_REPLY:,} characters", replace(reply, text="")
    text = clean(reply.text)
    if not any(char.isprintable() and fold(char) for char in text):
        cut = "; its output limit was used up before any text" if reply.finish == "length" else ""
        return "empty_response", f"a reply without text{cut}", reply
    return "ok", None, replace(reply, text=text)


def _usage(tried: _Tried, request: Request) -> Usage | None:
    """Reported usage where it is credible; of a served reply, what is missing of it is estimated and marked."""
    reported = credible(tried.usage)
    if tried.outcome != "ok" or tried.reply is None:
        return reported
    guess = estimated_usage(request, tried.reply.text)
    if reported is None:
        return guess
    if reported.input_tokens and reported.output_tokens:
        return reported
    return Usage(  # a reply to a question has used both
        reported.input_tokens or guess.input_tokens,
        reported.output_tokens or guess.output_tokens,
        reported.cached_input_tokens,
        estimated=True,
    )


def _upper_bound(line: Line, request: Request) -> float:
    """USD to reserve; NaN, which no budget takes, where the pricing function fails."""
    if line.pricing is None:
        return 0.0
    try:
        return line.pricing.upper_bound(request, line.descriptor)
    except Exception:
        return float("nan")
