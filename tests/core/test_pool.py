"""The pool without a network: names, limits, retries, failover, cooldown, money, cancellation."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from antiphon.contracts import Adapter, CallContext, Pricing, Reply, Request
from antiphon.descriptor import Descriptor, Endpoint, Price
from antiphon.errors import ConfigError, DescriptorError, MemberError
from antiphon.money import Budget
from antiphon.pool import Pool, RetryPolicy
from antiphon.registry import Registry
from antiphon.testing.scripted import ScriptedAdapter
from antiphon.types import Call, Message, Outcome, Usage

HELLO = [Message("user", "hello")]


class Makes:
    """A registry that hands out the given adapters by model id; pricing functions are the built-in ones."""

    def __init__(self, adapters: Mapping[str, Adapter]) -> None:
        self._adapters, self._registry = adapters, Registry.load([])

    def adapter(self, name: str, *, endpoint: Endpoint, descriptor: Descriptor) -> Adapter:
        return self._adapters[endpoint.model]

    def pricing(self, name: str, **options: Any) -> Pricing:
        return self._registry.pricing(name, **options)


class Clock:
    """Time that passes only where somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.waits: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        await asyncio.sleep(0)  # whoever begins now does so before the wait is over
        self.now += seconds


def member(name: str = "A", *endpoints: dict[str, Any], **rest: Any) -> Descriptor:
    data = {"name": name, "description": "d", "price": {"input": 1.0, "output": 1.0}, **rest}
    return Descriptor.of({**data, "endpoints": endpoints} if endpoints else {"model": name.lower(), **data})


def pool_of(*adapters: ScriptedAdapter, clock: Clock | None = None, **policy: Any) -> Pool:
    """A pool of one member, "A", with one endpoint for each adapter: m0, m1, …"""
    made = {f"m{index}": adapter for index, adapter in enumerate(adapters)}
    descriptor = member("A", *({"adapter": "x", "model": model} for model in made))
    clock = clock or Clock()
    return Pool([descriptor], Makes(made), policy=RetryPolicy(**policy), clock=clock, sleep=clock.sleep)


async def ask(pool: Pool, name: str = "A", **rest: Any) -> Call:
    return await pool.ask(name, HELLO, **{"context": CallContext(), **rest})


def outcomes(call: Call) -> list[tuple[str, str]]:
    return [(attempt.endpoint, attempt.outcome) for attempt in call.attempts]


# ---- who is in it ---------------------------------------------------------------------------------------------------


def test_a_pool_without_members_is_refused() -> None:
    with pytest.raises(ConfigError, match="no members"):
        Pool([], Makes({}))


@pytest.mark.parametrize(
    "second", [{"name": "A"}, {"name": "a"}, {"name": "B", "aliases": ["A"]}, {"name": "B", "aliases": ["\uff21 "]}]
)
def test_two_members_of_one_name_are_refused_at_load(second: dict[str, Any]) -> None:
    made: dict[str, Adapter] = {"a": ScriptedAdapter(), "b": ScriptedAdapter()}
    with pytest.raises(DescriptorError, match="A"):
        Pool([member("A"), member(**{"model": "b", **second})], Makes(made))


async def test_members_are_asked_by_any_spelling_of_name_or_alias_and_never_by_a_part_of_it() -> None:
    adapter = ScriptedAdapter(["hi"])
    pool = Pool([member("Some-Model 7B", aliases=["org/some-7b"], model="m")], Makes({"m": adapter}))
    assert pool.resolve(" some–model  7b ") == pool.resolve("ORG/Some-7B") == "Some-Model 7B"
    assert pool.resolve("some-model") is pool.resolve("") is None
    assert (await ask(pool, "org/some-7b")).member == "Some-Model 7B"
    with pytest.raises(ConfigError, match="did you mean 'Some-Model 7B'"):
        await ask(pool, "Some-Model 8B")
    with pytest.raises(ConfigError, match="no message"):
        await pool.ask("Some-Model 7B", [], context=CallContext())


def test_the_hash_does_not_depend_on_the_order_but_on_every_field() -> None:
    made: dict[str, Adapter] = {"a": ScriptedAdapter(), "b": ScriptedAdapter()}
    one, two = member("A"), member("B")
    both = {Pool(order, Makes(made)).hash for order in ((one, two), (two, one))}
    assert len(both) == 1
    assert Pool([one, member("B", description="other")], Makes(made)).hash not in both


def test_members_show_the_price_of_their_first_endpoint() -> None:
    made: dict[str, Adapter] = {"x": ScriptedAdapter(), "y": ScriptedAdapter()}
    own = member("A", {"model": "x", "price": {"input": 3, "output": 4}}, {"model": "y"})
    assert Pool([own], Makes(made)).members[0].quote == Price(input=3, output=4)


# ---- what is sent ---------------------------------------------------------------------------------------------------


async def test_a_request_holds_the_lower_token_limit_the_members_sampling_and_text_that_can_be_encoded() -> None:
    adapter = ScriptedAdapter(["hi"])
    pool = Pool([member(max_output_tokens=100, sampling={"temperature": 0})], Makes({"a": adapter}))
    for given, sent in ((None, 100), (50, 50), (500, 100)):
        await pool.ask("A", [Message("user", "a\ud800b")], context=CallContext(), max_tokens=given)
        request = adapter.calls[-1].request
        assert request.max_tokens == sent
        assert request.sampling == {"temperature": 0}
        assert request.messages == (Message("user", "a\ufffdb"),)
    with pytest.raises(ConfigError, match="max_tokens"):
        await ask(pool, max_tokens=0)


async def test_an_attempt_gets_the_time_that_is_left_and_the_adapter_sees_the_calls_own_deadline() -> None:
    adapter, clock = ScriptedAdapter(["hi"]), Clock()
    pool = pool_of(adapter, clock=clock, attempt_timeout_s=60, call_timeout_s=120)
    for deadline, seconds, seen in ((None, 60, 1120), (1500.0, 60, 1120), (1010.0, 10, 1010)):
        await ask(pool, context=CallContext(deadline=deadline))
        assert adapter.calls[-1].request.timeout_s == seconds
        assert adapter.calls[-1].context.deadline == seen


async def test_a_deadline_that_has_passed_sends_nothing() -> None:
    adapter = ScriptedAdapter(["hi"])
    call = await ask(pool_of(adapter), context=CallContext(deadline=999.0))
    assert (call.outcome, call.attempts, adapter.calls) == ("timeout", (), [])


# ---- retries and failover -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "tries", "next_is_asked"),
    [
        ("rate_limited", 3, True),
        ("unavailable", 3, True),
        ("connection", 3, True),
        ("bad_response", 3, True),
        ("empty_response", 3, True),
        ("timeout", 3, True),
        ("auth", 1, True),
        ("not_found", 1, True),
        ("not_recorded", 1, True),
        ("error", 1, True),
        ("bad_request", 1, False),
    ],
)
async def test_each_kind_is_retried_and_fails_over_as_it_should(kind: Outcome, tries: int, next_is_asked: bool) -> None:
    first, second = ScriptedAdapter([f"!{kind}"]), ScriptedAdapter(["hi"])
    call = await ask(pool_of(first, second))
    assert outcomes(call) == [("x:m0", kind)] * tries + [("x:m1", "ok")] * next_is_asked
    assert call.outcome == ("ok" if next_is_asked else kind)
    assert call.reply == ("hi" if next_is_asked else None)
    assert call.error == (None if next_is_asked else f"scripted: {kind}")


async def test_waits_grow_and_stop_at_the_deadline() -> None:
    clock = Clock()
    adapter = ScriptedAdapter(["!unavailable"], latencies_s=[1.0], sleep=clock.sleep)
    pool = pool_of(adapter, clock=clock, attempts=100, backoff_s=1.0, backoff_max_s=16.0, call_timeout_s=60)
    call = await ask(pool)
    waits = [wait for wait in clock.waits if wait != 1.0]
    assert call.outcome == "unavailable"
    assert 4 <= len(waits) <= 6
    for number, wait in enumerate(waits):
        assert min(16.0, 2.0**number) <= wait <= min(16.0, 2.0**number) + 1.0
    assert clock.now <= 1060


async def test_one_deadline_holds_over_all_endpoints() -> None:
    clock = Clock()
    slow = [ScriptedAdapter(["!timeout"], latencies_s=[20.0], sleep=clock.sleep) for _ in range(9)]
    call = await ask(pool_of(*slow, clock=clock, attempts=1, call_timeout_s=50))
    assert outcomes(call) == [("x:m0", "timeout"), ("x:m1", "timeout"), ("x:m2", "timeout")]


async def test_what_an_adapter_does_wrong_is_an_error_of_that_attempt() -> None:
    class Wrong(ScriptedAdapter):
        async def complete(self, request: Request, context: CallContext) -> Reply:
            return "text"  # type: ignore[return-value]

    wrong: list[tuple[ScriptedAdapter, str]] = [
        (Wrong(), "returned str, not a Reply"),
        (ScriptedAdapter([KeyError("choices")]), "KeyError: 'choices'"),
        (ScriptedAdapter([MemberError("weird", "said so")]), "said so"),  # type: ignore[arg-type]
        (ScriptedAdapter([MemberError("ok", "said so")]), "said so"),
    ]
    for adapter, error in wrong:
        call = await ask(pool_of(adapter))
        assert call.outcome == "error"
        assert call.error is not None
        assert error in call.error


async def test_a_reply_that_is_too_long_or_no_text_is_a_bad_response() -> None:
    for text in ("x" * 10_000_001, None, b"hi"):
        adapter = ScriptedAdapter([Reply(text, Usage(5, 5))])  # type: ignore[arg-type]
        call = await ask(pool_of(adapter, attempts=1))
        assert (call.outcome, call.reply) == ("bad_response", None)
        assert call.cost_usd == pytest.approx(10 / 1e6)


async def test_an_attempt_that_takes_too_long_is_given_up() -> None:
    adapter = ScriptedAdapter(["never"], latencies_s=[3600.0])
    pool = Pool([member()], Makes({"a": adapter}), policy=RetryPolicy(attempts=2, attempt_timeout_s=0.02, backoff_s=0))
    call = await ask(pool)
    assert outcomes(call) == [("litellm:a", "timeout")] * 2
    assert (call.cost_usd, adapter.in_flight) == (0, 0)


# ---- Retry-After and cooldown ---------------------------------------------------------------------------------------


def limited(seconds: float) -> MemberError:
    return MemberError("rate_limited", "slow down", retry_after_s=seconds)


async def test_a_wait_within_the_deadline_is_waited_for() -> None:
    clock = Clock()
    call = await ask(pool_of(ScriptedAdapter([limited(30), "hi"]), clock=clock))
    assert outcomes(call) == [("x:m0", "rate_limited"), ("x:m0", "ok")]
    assert clock.waits == [30]


async def test_nobody_waits_long_for_one_endpoint_while_another_is_there() -> None:
    for seconds, asked in ((5.0, ["x:m0", "x:m0"]), (60.0, ["x:m0", "x:m1"])):
        clock = Clock()
        call = await ask(pool_of(ScriptedAdapter([limited(seconds), "hi"]), ScriptedAdapter(["hi"]), clock=clock))
        assert [attempt.endpoint for attempt in call.attempts] == asked
        assert clock.waits == ([seconds] if asked[1] == "x:m0" else [])


async def test_a_cooled_down_endpoint_is_skipped_until_its_time_and_then_asked_again() -> None:
    clock, first, second = Clock(), ScriptedAdapter([limited(500), "back"]), ScriptedAdapter(["hi"])
    pool = pool_of(first, second, clock=clock)
    assert [(await ask(pool)).reply for _ in range(2)] == ["hi", "hi"]
    assert (len(first.calls), clock.waits) == (1, [])
    clock.now += 501
    assert (await ask(pool)).reply == "back"


async def test_an_endless_wait_cools_down_for_no_longer_than_allowed() -> None:
    clock, adapter = Clock(), ScriptedAdapter([limited(1e9), "back"])
    pool = pool_of(adapter, clock=clock, cooldown_max_s=600)
    assert (await ask(pool)).outcome == "rate_limited"
    cooling = await ask(pool)
    assert (cooling.outcome, cooling.attempts) == ("rate_limited", ())
    assert "x:m0 asked to be left alone until" in str(cooling.error)
    clock.now += 601
    assert (await ask(pool)).reply == "back"


async def test_a_hurried_call_that_cools_the_only_endpoint_does_not_fail_a_patient_one() -> None:
    clock, adapter = Clock(), ScriptedAdapter([limited(20), "hi"])
    pool = pool_of(adapter, clock=clock)
    hurried = await ask(pool, context=CallContext(deadline=clock.now + 5))
    assert (hurried.outcome, clock.waits) == ("rate_limited", [])
    assert (await ask(pool)).reply == "hi"
    assert clock.waits == [20]


async def test_calls_that_queue_for_an_endpoint_that_cools_down_are_not_sent() -> None:
    adapter = ScriptedAdapter([limited(1000)])
    descriptor = member("A", {"model": "a", "concurrency": 1})
    pool = Pool([descriptor], Makes({"a": adapter}))
    calls = await asyncio.gather(*(ask(pool) for _ in range(8)))
    assert {call.outcome for call in calls} == {"rate_limited"}
    assert len(adapter.calls) == 1


# ---- gates ----------------------------------------------------------------------------------------------------------


async def test_no_more_requests_a_minute_than_the_endpoint_takes_and_waiting_counts() -> None:
    clock = Clock()
    starts: list[float] = []

    def note(request: Request, context: CallContext) -> str:
        starts.append(clock.now)
        return "hi"

    descriptor = member("A", {"model": "a", "requests_per_minute": 2})
    pool = Pool(
        [descriptor],
        Makes({"a": ScriptedAdapter([note])}),
        policy=RetryPolicy(call_timeout_s=100),
        clock=clock,
        sleep=clock.sleep,
    )
    calls = await asyncio.gather(*(ask(pool) for _ in range(6)))
    assert starts == [1000, 1000, 1060, 1060]
    assert [call.outcome for call in calls] == ["ok"] * 4 + ["timeout"] * 2
    assert [len(call.attempts) for call in calls] == [1] * 4 + [0] * 2
    assert "no free slot" in str(calls[-1].error)
    assert clock.now == 1060  # the last two failed at once: no slot could come free in time


async def test_an_endpoint_without_a_free_slot_fails_over() -> None:
    clock, first, second = Clock(), ScriptedAdapter(["one"]), ScriptedAdapter(["two"])
    descriptor = member("A", {"model": "a", "requests_per_minute": 1}, {"model": "b"})
    pool = Pool(
        [descriptor],
        Makes({"a": first, "b": second}),
        policy=RetryPolicy(call_timeout_s=30),
        clock=clock,
        sleep=clock.sleep,
    )
    assert [(await ask(pool)).reply for _ in range(3)] == ["one", "two", "two"]


# ---- cancellation ---------------------------------------------------------------------------------------------------


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what it waits for sets no event
            await asyncio.sleep(0)


async def cancelled(work: Awaitable[Call], when: Callable[[], bool]) -> None:
    task = asyncio.ensure_future(work)
    await until(when)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancelling_frees_the_slot_and_the_reservation_in_flight_and_at_the_gate() -> None:
    adapter = ScriptedAdapter(["hi"], latencies_s=[3600.0, 0.0])
    pool = Pool([member("A", {"model": "a", "concurrency": 1})], Makes({"a": adapter}))
    budget = Budget(1.0)
    holder = asyncio.ensure_future(ask(pool, budget=budget))
    await until(lambda: adapter.in_flight == 1)
    assert budget.reserved_usd > 0
    ticks = iter(range(3))
    await cancelled(ask(pool, budget=budget), lambda: next(ticks, None) is None)  # it waits for the slot
    await cancelled(holder, lambda: True)
    assert (budget.reserved_usd, budget.spent_usd) == (0, 0)
    assert (await ask(pool, budget=budget)).ok
    assert len(adapter.calls) == 2


async def test_cancelling_between_attempts_goes_through() -> None:
    adapter = ScriptedAdapter(["!unavailable"])
    pool = Pool([member()], Makes({"a": adapter}), policy=RetryPolicy(backoff_s=60, backoff_max_s=60))
    await cancelled(ask(pool), lambda: len(adapter.calls) == 1)


async def test_an_adapter_that_cancels_itself_cancels_nobody_else() -> None:
    class Cancels(ScriptedAdapter):
        async def complete(self, request: Request, context: CallContext) -> Reply:
            raise asyncio.CancelledError

    call = await ask(pool_of(Cancels()))
    assert (call.outcome, call.error) == ("error", "the adapter cancelled its own request")


# ---- the rest -------------------------------------------------------------------------------------------------------


async def test_a_recorded_latency_is_the_attempts() -> None:
    call = await ask(pool_of(ScriptedAdapter([Reply("hi", latency_s=2.5)])))
    assert call.attempts[0].latency_s == 2.5


async def test_closing_closes_every_adapter_even_where_one_fails() -> None:
    class Stuck(ScriptedAdapter):
        async def aclose(self) -> None:
            raise RuntimeError("stuck")

    last = ScriptedAdapter()
    async with pool_of(Stuck(), last):
        pass
    assert last.closed


async def test_a_pool_on_the_real_clock_ends_by_the_rollouts_deadline() -> None:
    adapter = ScriptedAdapter(["late"], latencies_s=[3600.0])
    pool = Pool([member()], Makes({"a": adapter}))
    call = await ask(pool, context=CallContext(deadline=time.monotonic() + 0.5))
    assert outcomes(call) == [("litellm:a", "timeout")]
