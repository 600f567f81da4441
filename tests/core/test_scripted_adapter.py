"""The scripted adapter says what was written down, fails as told, and keeps what it was asked."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.contracts import Adapter, CallContext, Reply, Request
from antiphon.descriptor import Descriptor
from antiphon.errors import ConfigError, MemberError
from antiphon.testing import ScriptedAdapter
from antiphon.types import Message, Usage


def request(text: str = "2 + 2?") -> Request:
    return Request("m", (Message("user", text),), max_tokens=9, timeout_s=1.0)


async def test_steps_come_in_order_and_the_last_repeats() -> None:
    adapter = ScriptedAdapter(["one", Reply("two", model="other"), lambda r, c: f"{r.messages[-1].content} {c.round}"])
    assert isinstance(adapter, Adapter)
    said = [await adapter.complete(request(), CallContext(round=number)) for number in range(4)]
    assert [reply.text for reply in said] == ["one", "two", "2 + 2? 2", "2 + 2? 3"]
    assert [reply.model for reply in said] == ["m", "other", "m", "m"]
    assert [call.context.round for call in adapter.calls] == [0, 1, 2, 3]


async def test_failures_are_raised_by_kind_or_as_they_are() -> None:
    error = MemberError("timeout", "slow", usage=Usage(3, 0))
    adapter = ScriptedAdapter(["!rate_limited", error, OSError("disk"), "fine"])
    with pytest.raises(MemberError, match="scripted: rate_limited") as caught:
        await adapter.complete(request(), CallContext())
    assert caught.value.kind == "rate_limited"
    with pytest.raises(MemberError) as caught:
        await adapter.complete(request(), CallContext())
    assert caught.value is error
    with pytest.raises(OSError, match="disk"):
        await adapter.complete(request(), CallContext())
    assert (await adapter.complete(request(), CallContext())).text == "fine"


async def test_latencies_are_waited_for_by_the_given_clock_and_calls_at_once_are_counted() -> None:
    waited: list[float] = []
    all_wait, go_on = asyncio.Event(), asyncio.Event()

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            all_wait.set()
        await go_on.wait()

    adapter = ScriptedAdapter(["x"], latencies_s=[0.5, 2.0], sleep=sleep, usage=Usage(1, 2))
    running = [asyncio.create_task(adapter.complete(request(), CallContext())) for _ in range(3)]
    await all_wait.wait()
    assert (adapter.in_flight, adapter.most_in_flight) == (3, 3)
    running[0].cancel()
    go_on.set()
    replies = await asyncio.gather(*running, return_exceptions=True)
    assert isinstance(replies[0], asyncio.CancelledError)
    assert [reply.usage for reply in replies[1:] if isinstance(reply, Reply)] == [Usage(1, 2)] * 2
    assert waited == [0.5, 2.0, 2.0]
    assert adapter.in_flight == 0
    await adapter.aclose()
    assert adapter.closed


async def test_the_class_is_a_factory_that_reads_the_endpoints_options() -> None:
    member = Descriptor.of(
        {"name": "M", "description": "d", "adapter": "s", "model": "m", "options": {"replies": ["a", "!auth"]}}
    )
    adapter = ScriptedAdapter(endpoint=member.endpoints[0], descriptor=member)
    assert (await adapter.complete(request(), CallContext())).text == "a"
    with pytest.raises(MemberError, match="auth"):
        await adapter.complete(request(), CallContext())


@pytest.mark.parametrize("replies", [[], "text", ["!rate_limit"], ["!ok"]])
def test_a_script_that_says_nothing_sensible_is_refused(replies: list[str]) -> None:
    with pytest.raises(ConfigError):
        ScriptedAdapter(replies)
