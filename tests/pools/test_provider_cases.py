"""Every provider case, the given ones and ours, through a pool with each adapter that speaks HTTP."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from antiphon.contracts import CallContext
from antiphon.descriptor import Descriptor
from antiphon.money import Budget
from antiphon.pool import Pool, RetryPolicy
from antiphon.registry import Registry
from antiphon.testing.server import FaultServer, HTTPReply
from antiphon.types import Message
from antiphon_pools.adapters.litellm import _import

CASES = [
    json.loads(line)
    for name in ("provider.jsonl", "provider_more.jsonl")
    for line in (Path(__file__).parents[1] / "cases" / name).read_text("utf-8").splitlines()
]
MODEL = "meta/llama-3.1-70b-instruct"


def reply_of(case: dict[str, Any]) -> HTTPReply:
    if "delay_s" in case:
        return HTTPReply(silent=True)
    return HTTPReply(case["status"], case.get("body", {}), case.get("text"), headers=case.get("headers", {}))


@pytest.fixture(params=["openai", "litellm"])
def adapter(request: pytest.FixtureRequest) -> str:
    if request.param == "litellm":
        _import()  # takes seconds, which no attempt's time-out should count
    return str(request.param)


async def no_wait(seconds: float) -> None:
    """What the pool would have slept."""


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # LiteLLM's, about odd bodies
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['id']} {case['kind']}")
async def test_a_case_has_its_outcome_its_requests_and_its_charge(
    case: dict[str, Any], adapter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "PLANTED", "planted-key-0123456789")
    lost = adapter == "litellm" and "litellm" in case  # LiteLLM keeps the reason to itself
    outcome, retried = (case["litellm"], True) if lost else (case["outcome"], case["retried"])
    budget = Budget(1.0)
    with FaultServer(reply_of(case)) as server:
        member = Descriptor.of(
            {
                "name": "LLaMA",
                "description": "d",
                "price": {"input": 1, "output": 2},
                "adapter": adapter,
                "model": MODEL if adapter == "openai" else f"openai/{MODEL}",
                "api_base": server.url,
                "api_key_env": "PLANTED",
            }
        )
        policy = RetryPolicy(attempt_timeout_s=1.0 if "delay_s" in case else 60.0)
        async with Pool([member], Registry.load([]), policy=policy, sleep=no_wait) as pool:
            context = CallContext(deadline=time.monotonic() + 300)
            call = await pool.ask("LLaMA", [Message("user", "Capital of Peru?")], context=context, budget=budget)
        assert [attempt.outcome for attempt in call.attempts] == [outcome] * (3 if retried else 1), call.error
        least = 0 if "delay_s" in case else len(call.attempts)  # what is given up may not be there yet
        assert least <= len(server.requests) <= len(call.attempts)
    assert (call.cost_usd > 0) == (case["charged"] and not lost)
    assert (budget.spent_usd, budget.reserved_usd) == (pytest.approx(call.cost_usd), 0)
    assert call.reply == ("Lima" if outcome == "ok" else None)
