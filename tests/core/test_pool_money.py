"""What a pool charges: budgets under attempts and calls at once, usage that cannot be, prices that miss or break."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from antiphon._served import is_same
from antiphon.contracts import Adapter, CallContext, Pricing, Reply, Request
from antiphon.descriptor import Descriptor, Endpoint, Price
from antiphon.errors import DescriptorError, MemberError, PluginError
from antiphon.money import Budget, most_usage, per_token
from antiphon.pool import Pool, RetryPolicy
from antiphon.registry import Registry
from antiphon.rollout import Rollout
from antiphon.testing.scripted import ScriptedAdapter
from antiphon.types import Call, Message, Task, Usage

HELLO = [Message("user", "hello")]


class Makes:
    """A registry that hands out the given adapters by model id; pricing functions are the built-in ones or given."""

    def __init__(self, adapters: Mapping[str, Adapter], pricing: Pricing | None = None) -> None:
        self._adapters, self._pricing, self._registry = adapters, pricing, Registry.load([])

    def adapter(self, name: str, *, endpoint: Endpoint, descriptor: Descriptor) -> Adapter:
        return self._adapters[endpoint.model]

    def pricing(self, name: str, **options: Any) -> Pricing:
        return self._pricing or self._registry.pricing(name, **options)


def member(name: str = "A", *endpoints: dict[str, Any], **rest: Any) -> Descriptor:
    data = {"name": name, "description": "d", "price": {"input": 1.0, "output": 1.0}, **rest}
    return Descriptor.of({**data, "endpoints": endpoints} if endpoints else {"model": name.lower(), **data})


def pool_of(*adapters: ScriptedAdapter, pricing: Pricing | None = None) -> Pool:
    """A pool of one member, "A", with one endpoint for each adapter: m0, m1, …; it never really waits."""
    made: dict[str, Adapter] = {f"m{index}": adapter for index, adapter in enumerate(adapters)}
    descriptor = member("A", *({"adapter": "x", "model": model} for model in made))
    return Pool([descriptor], Makes(made, pricing), policy=RetryPolicy(backoff_s=0))


async def ask(pool: Pool, **rest: Any) -> Call:
    return await pool.ask("A", HELLO, context=CallContext(), **rest)


def bound(price: Price, max_tokens: int = 512) -> float:
    return per_token(most_usage(Request("m0", tuple(HELLO), max_tokens, 1.0)), price)


async def test_a_call_that_could_cost_too_much_is_not_made() -> None:
    adapter = ScriptedAdapter(["hi"])
    most = bound(Price(input=1, output=1))
    assert (await ask(pool_of(adapter), budget=Budget(most))).ok
    call = await ask(pool_of(adapter), budget=Budget(most * 0.999))
    assert (call.outcome, call.attempts, len(adapter.calls)) == ("over_budget", (), 1)
    assert "is left" in str(call.error)


async def test_a_retry_or_another_endpoint_that_could_cost_too_much_is_not_made() -> None:
    empty = MemberError("empty_response", "nothing", usage=Usage(100, 400))
    budget = Budget(bound(Price(input=1, output=1)) + 450 / 1e6)
    call = await ask(pool_of(ScriptedAdapter([empty]), ScriptedAdapter(["hi"])), budget=budget)
    assert [attempt.endpoint for attempt in call.attempts] == ["x:m0"]
    assert call.outcome == "empty_response"
    assert "nothing; then: needs up to" in str(call.error)
    assert budget.spent_usd == pytest.approx(500 / 1e6)


async def test_calls_at_once_never_overshoot_a_budget() -> None:
    most = bound(Price(input=1, output=1))
    budget = Budget(most * 4.5)
    usage = most_usage(Request("m0", tuple(HELLO), 512, 1.0))
    adapter = ScriptedAdapter([Reply("hi", usage)], latencies_s=[0.002])
    pool = Pool([member()], Makes({"a": adapter}))
    calls = await asyncio.gather(*(ask(pool, budget=budget) for _ in range(20)))
    assert [call.outcome for call in calls].count("ok") == 4
    assert {call.outcome for call in calls} == {"ok", "over_budget"}
    assert budget.spent_usd == pytest.approx(sum(call.cost_usd for call in calls))
    assert budget.spent_usd <= most * 4.5


async def test_every_attempt_that_reports_usage_is_charged_and_the_replys_usage_is_the_calls() -> None:
    failed = MemberError("unavailable", "died midway", usage=Usage(10, 20))
    budget = Budget(1.0)
    call = await ask(pool_of(ScriptedAdapter([failed, "!timeout", Reply("hi", Usage(10, 2))])), budget=budget)
    assert [attempt.cost_usd for attempt in call.attempts] == pytest.approx([30 / 1e6, 0, 12 / 1e6])
    assert [attempt.priced_as for attempt in call.attempts] == ["A", None, "A"]
    assert call.usage == Usage(10, 2)
    assert budget.spent_usd == pytest.approx(42 / 1e6)


IMPOSSIBLE: list[tuple[Any, Any]] = [
    (-1, 5),
    (5, 10**12),
    (float("nan"), 5),
    (5, float("inf")),
    ("5", 5),
    (1.5, 5),
    (True, 5),
    (0, 0),
]


@pytest.mark.parametrize("counts", IMPOSSIBLE)
async def test_usage_that_cannot_be_is_estimated(counts: tuple[Any, Any]) -> None:
    call = await ask(pool_of(ScriptedAdapter([Reply("hi", Usage(*counts))])), budget=Budget(1.0))
    assert call.usage == Usage(2, 1, estimated=True)


async def test_a_cached_part_larger_than_the_input_is_all_of_the_input() -> None:
    call = await ask(pool_of(ScriptedAdapter([Reply("hi", Usage(5, 1, 50))])))
    assert call.usage == Usage(5, 1, 5)


def test_an_unpriced_member_is_refused_unless_allowed() -> None:
    with pytest.raises(DescriptorError, match=r"'A' has no price.*allow_unpriced"):
        Pool([member(price=None)], Makes({"a": ScriptedAdapter()}))
    half = member("A", {"model": "a", "price": {"input": 1, "output": 1}}, {"model": "b"}, price=None)
    with pytest.raises(DescriptorError, match="no price"):
        Pool([half], Makes({"a": ScriptedAdapter(), "b": ScriptedAdapter()}))


async def test_an_unpriced_member_that_is_allowed_costs_nothing_and_no_attempt_names_a_price() -> None:
    adapter = ScriptedAdapter([Reply("hi", Usage(5, 5))])
    pool = Pool([member(price=None)], Makes({"a": adapter}), allow_unpriced=True)
    call = await ask(pool, budget=Budget(0.0))
    assert (call.cost_usd, call.attempts[0].priced_as, pool.members[0].quote) == (0, None, None)
    free = Pool([member(price={"input": 0, "output": 0})], Makes({"a": adapter}))
    call = await ask(free, budget=Budget(0.0))
    assert (call.cost_usd, call.attempts[0].priced_as) == (0, "A")


def test_a_price_without_input_is_refused_but_for_output_only() -> None:
    for allowed in (False, True):
        with pytest.raises(DescriptorError, match="no input price"):
            Pool([member(price={"output": 0.3})], Makes({"a": ScriptedAdapter()}), allow_unpriced=allowed)
    pool = Pool([member(price={"output": 0.3}, pricing="output_only")], Makes({"a": ScriptedAdapter()}))
    assert pool.members[0].quote == Price(input=0, output=0.3)


class Odd:
    """A pricing function of somebody's own; `later` is what it does once the pool has been loaded."""

    def __init__(self, **faults: Any) -> None:
        self.faults = faults

    def quote(self, descriptor: Descriptor) -> Price:
        return self._do("quote", Price(input=1, output=1))  # type: ignore[no-any-return]

    def cost(self, usage: Usage, descriptor: Descriptor) -> float:
        return self._do("cost", 1e-6)  # type: ignore[no-any-return]

    def upper_bound(self, request: Request, descriptor: Descriptor) -> float:
        return self._do("upper_bound", 5e-6)  # type: ignore[no-any-return]

    def _do(self, method: str, value: Any) -> Any:
        fault = self.faults.get(method, value)
        if isinstance(fault, Exception):
            raise fault
        return fault


@pytest.mark.parametrize(
    "faults",
    [
        {"quote": None},
        {"quote": KeyError("x")},
        {"cost": float("nan")},
        {"cost": -1.0},
        {"cost": None},
        {"upper_bound": "5"},
    ],
)
def test_a_pricing_function_that_does_not_work_is_refused_at_load(faults: dict[str, Any]) -> None:
    with pytest.raises(PluginError, match="pricing function 'per_token' of member 'A'"):
        pool_of(ScriptedAdapter(), pricing=Odd(**faults))


@pytest.mark.parametrize("fault", [RuntimeError("broken"), float("nan"), float("inf"), -1.0, None])
async def test_a_pricing_function_that_breaks_later_never_makes_a_call_free(fault: object) -> None:
    pricing = Odd()
    pool, budget = pool_of(ScriptedAdapter(["hi"]), pricing=pricing), Budget(1.0)
    pricing.faults = {"cost": fault}
    call = await ask(pool, budget=budget)
    assert (call.ok, call.cost_usd, budget.spent_usd, budget.reserved_usd) == (True, 5e-6, 5e-6, 0)
    pricing.faults = {"upper_bound": fault}
    assert (await ask(pool, budget=budget)).outcome == "over_budget"


# ---- who answered ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "served", "same"),
    [
        ("nvidia_nim/meta/llama-3.1-70b-instruct", "meta/llama-3.1-70b-instruct", True),
        ("Meta-Llama-3.1-70B-Instruct", "meta-llama/meta-llama-3.1-70b-instruct", True),
        ("gpt-4o", "gpt-4o-2024-08-06", True),
        ("gpt-4", "gpt-4-0613", True),
        ("openai/gpt-4o-2024-08-06", "gpt-4o", True),
        ("gemini-1.5-pro", "models/gemini-1.5-pro-002", True),
        ("gpt-4o-2024-05-13", "gpt-4o-2024-08-06", False),
        ("claude-3-5-sonnet-latest", "claude-3-5-sonnet-20241022", True),
        ("qwen2.5:latest", "qwen2.5", True),
        ("mistral-small-latest", "mistral-large-2411", False),
        ("gpt-4o", "gpt-4o-mini", False),
        ("gpt-4o", "gpt-4o-mini-2024-07-18", False),
        ("llama-3.1-70b-instruct", "llama-3.1-8b-instruct", False),
        ("mistral-7b-instruct", "mistral-7b-instruct-v0.3", False),
        ("llama3", "llama3:8b", False),
        ("llama-3.1-70b-instruct", "", False),
        ("x/", "anything", False),
    ],
)
def test_releases_of_one_model_are_the_same_and_sizes_and_versions_are_not(asked: str, served: str, same: bool) -> None:
    assert is_same(asked, served) is same


async def test_a_member_that_answers_under_its_name_an_alias_or_the_id_of_another_endpoint_is_itself() -> None:
    asked = member("A", {"model": "a"}, {"model": "host/second-id"}, aliases=["other-id"])
    for served in ("a", "A", "org/other-id", "OTHER-ID", "Second-ID", None, "", "  "):
        says = ScriptedAdapter([Reply("hi", model=served)])
        pool = Pool([asked], Makes({"a": says, "host/second-id": says}))
        call = await ask(pool)
        assert call.substituted is False


async def test_another_member_that_answered_is_charged_at_its_own_price_or_else_at_the_asked_ones() -> None:
    known = ScriptedAdapter([Reply("hi", Usage(100, 100), model="org/b")])
    cheap = member("B", {"model": "b", "price": {"input": 0.1, "output": 0.1}}, price={"input": 5, "output": 5})
    unpriced = member("B", price=None)
    release = ScriptedAdapter([Reply("hi", Usage(100, 100), model="org/b-2025-01-31")])
    for said, catalogue, priced_as, usd in (
        (known, [], "A", 2e-4),
        (known, [cheap], "B", 2e-5),
        (release, [cheap], "B", 2e-5),
        (known, [unpriced], "A", 2e-4),
        (known, [member("B", pricing="of-a-plugin-that-is-gone")], "A", 2e-4),
    ):
        call = await ask(Pool([member()], Makes({"a": said}), catalogue=catalogue))
        assert call.substituted
        assert str(call.served_model).startswith("org/b")
        assert call.attempts[0].priced_as == priced_as
        assert call.cost_usd == pytest.approx(usd)


async def test_what_was_charged_before_a_cancellation_is_on_record() -> None:
    """An empty reply is paid for and tried again; Ctrl-C comes while the second attempt runs."""
    empty = MemberError("empty_response", "nothing", usage=Usage(100, 400))
    adapter = ScriptedAdapter([empty, "late"], latencies_s=[0.0, 3600.0])

    class Asks:
        name = "asks"

        async def run(self, task: Task, rollout: Rollout) -> str | None:
            return (await rollout.ask("A", task.question)).reply

    rollout = Rollout(Task("hello"), pool_of(adapter))
    running = asyncio.create_task(rollout.run(Asks()))
    async with asyncio.timeout(60):
        while len(adapter.calls) < 2:  # noqa: ASYNC110 - nothing in there tells of it
            await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    trajectory = rollout.trajectory()
    (call,) = trajectory.calls
    assert (call.outcome, [attempt.outcome for attempt in call.attempts]) == ("cancelled", ["empty_response"])
    assert trajectory.cost_usd == pytest.approx(500 / 1e6) == rollout.budget.spent_usd
