"""What providers send, over real loopback HTTP through the built-in `openai` adapter, and what the pool makes of it."""

import json
import time
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from antiphon.contracts import CallContext
from antiphon.descriptor import Descriptor
from antiphon.money import Budget
from antiphon.pool import Pool, RetryPolicy
from antiphon.registry import Registry
from antiphon.testing.server import FaultServer, HTTPReply
from antiphon.types import Call, Message

CASES = [
    json.loads(line)
    for line in (Path(__file__).parent.parent / "cases/provider.jsonl").read_text().splitlines()
    if line
]
MODEL = "meta/llama-3.1-70b-instruct"
OK: dict[str, Any] = {"choices": [{"message": {"content": "Lima"}, "finish_reason": "stop"}]}


class Waits:
    """A sleep that takes no time and remembers how long it was asked to take."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def member(url: str, name: str = "LLaMA-3.1-70B-Instruct", **rest: Any) -> Descriptor:
    return Descriptor.of(
        {
            "name": name,
            "description": "an open model",
            "price": {"input": 1.0, "output": 2.0},
            "model": MODEL,
            "adapter": "openai",
            "api_base": url,
            **rest,
        }
    )


async def ask(
    server: FaultServer,
    *descriptors: Descriptor,
    waits: Waits | None = None,
    budget: Budget | None = None,
    **policy: Any,
) -> Call:
    """One call to the first of these members (default: one on the server)."""
    members = descriptors or (member(server.url),)
    retry = RetryPolicy(**{"attempt_timeout_s": 60.0, **policy})
    async with Pool(members, Registry.load([]), policy=retry, sleep=waits or Waits()) as pool:
        return await pool.ask(
            members[0].name,
            [Message("user", "What is the capital of Peru?")],
            context=CallContext(deadline=time.monotonic() + 300),
            budget=budget,
        )


def reply_of(case: dict[str, Any]) -> HTTPReply:
    if "delay_s" in case:
        return HTTPReply(silent=True)
    return HTTPReply(
        status=case["status"], headers=case.get("headers", {}), body=case.get("body", {}), text=case.get("text")
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
async def test_a_case_has_its_outcome_its_number_of_requests_and_its_charge(case: dict[str, Any]) -> None:
    budget, waits = Budget(1.0), Waits()
    with FaultServer(reply_of(case)) as server:
        call = await ask(
            server, waits=waits, budget=budget, attempt_timeout_s=0.5 if "delay_s" in case else 60.0, attempts=3
        )
        attempts = 3 if case["retried"] else 1
        least = 0 if "delay_s" in case else attempts  # what is given up may not be there yet
        assert least <= len(server.requests) <= attempts
    assert call.outcome == case["outcome"]
    assert [attempt.outcome for attempt in call.attempts] == [case["outcome"]] * attempts
    assert (call.cost_usd > 0) == case["charged"]
    assert budget.spent_usd == pytest.approx(call.cost_usd)
    assert budget.reserved_usd == 0
    if not call.ok:
        assert call.reply is None
        assert call.error


async def test_usage_that_is_missing_is_estimated_and_marked() -> None:
    with FaultServer(HTTPReply.says("Lima", usage=None)) as server:
        call = await ask(server)
    assert call.usage is not None
    assert call.usage.estimated
    assert (call.usage.input_tokens, call.usage.output_tokens) == (7, 1)  # 28 and 4 characters
    assert call.cost_usd == pytest.approx((7 * 1.0 + 1 * 2.0) / 1e6)


async def test_a_retry_after_within_the_deadline_is_waited_for_in_seconds_and_as_a_date() -> None:
    soon = formatdate(time.time() + 50, usegmt=True)
    for header, least, most in (("2", 2.0, 3.0), (soon, 10.0, 51.0)):
        waits = Waits()
        with FaultServer([HTTPReply(status=429, headers={"Retry-After": header}), HTTPReply.says("Lima")]) as server:
            call = await ask(server, waits=waits)
        assert [attempt.outcome for attempt in call.attempts] == ["rate_limited", "ok"]
        assert len(waits.seconds) == 1
        assert least <= waits.seconds[0] <= most


@pytest.mark.parametrize("header", ["soon", "-5", "", "nan", "Wed, 99 Foo 2037 07:28:00 GMT", "0", "1e3", "١"])
async def test_a_429_without_a_wait_to_go_by_backs_off(header: str) -> None:
    waits = Waits()
    headers = {"retry-after": header} if header.isascii() else {}
    with FaultServer(HTTPReply(status=429, headers=headers)) as server:
        call = await ask(server, waits=waits, backoff_s=0.5, backoff_max_s=8.0)
    assert call.outcome == "rate_limited"
    assert len(waits.seconds) == 2
    assert 0.5 <= waits.seconds[0] <= 1.0  # the first wait and its jitter
    assert 1.0 <= waits.seconds[1] <= 1.5  # twice as long, and its jitter


async def test_a_wait_beyond_the_deadline_fails_over_at_once_and_cools_the_endpoint_down() -> None:
    waits = Waits()
    with FaultServer(HTTPReply(status=429, headers={"RETRY-AFTER": "300"})) as busy, FaultServer() as free:
        both = Descriptor.of(
            {
                "name": "Both",
                "description": "two endpoints",
                "price": {"input": 1, "output": 1},
                "endpoints": [{"adapter": "openai", "model": MODEL, "api_base": each.url} for each in (busy, free)],
            }
        )
        async with Pool([both], Registry.load([]), sleep=waits) as pool:
            calls = [await pool.ask("Both", [Message("user", "hi")], context=CallContext()) for _ in range(3)]
        assert len(busy.requests) == 1
        assert len(free.requests) == 3
    assert [attempt.outcome for attempt in calls[0].attempts] == ["rate_limited", "ok"]
    assert [len(call.attempts) for call in calls] == [2, 1, 1]
    assert waits.seconds == []


async def test_a_cooling_only_endpoint_fails_at_once_and_says_until_when() -> None:
    with FaultServer(HTTPReply(status=503, headers={"retry-after": "Wed, 21 Oct 2037 07:28:00 GMT"})) as server:
        async with Pool([member(server.url)], Registry.load([]), sleep=Waits()) as pool:
            first, second = [
                await pool.ask(pool.members[0].name, [Message("user", "hi")], context=CallContext()) for _ in range(2)
            ]
        assert len(server.requests) == 1
    assert (first.outcome, second.outcome) == ("unavailable", "rate_limited")
    assert second.attempts == ()
    assert second.error is not None
    assert "until 20" in second.error


MIDWAY = {
    "closed before any byte": (HTTPReply.says("Lima", cut_after=0), "connection"),
    "closed inside the body": (HTTPReply.says("Lima", cut_after=30), "connection"),
    "reset in place of a reply": (HTTPReply(reset=True), "connection"),
    "reset inside the body": (HTTPReply.says("Lima", cut_after=30, reset=True), "connection"),
    "cut where no length was promised": (
        HTTPReply.says("Lima", cut_after=30, headers={"content-length": None, "connection": "close"}),
        "bad_response",
    ),
    "never a reply": (HTTPReply(silent=True), "timeout"),
    "a drip too slow to end": (HTTPReply.says("Lima", piece_delay_s=0.5, piece_bytes=1), "timeout"),
    "gzip that is none": (HTTPReply(raw=b"not gzip", headers={"content-encoding": "gzip"}), "bad_response"),
    "bytes that are not UTF-8": (
        HTTPReply(raw=json.dumps(OK).encode().replace(b"Lima", b"L\xff\xfema")),
        "bad_response",
    ),
    "an empty body": (HTTPReply(raw=b""), "bad_response"),
    "a JSON list": (HTTPReply(body=[1, 2]), "bad_response"),
    "JSON null": (HTTPReply(body=None), "bad_response"),
    "white space alone": (HTTPReply.says(" \n\t\u200b"), "empty_response"),
    "a redirect": (HTTPReply(status=302, headers={"location": "http://127.0.0.1:1/"}), "bad_response"),
}


@pytest.mark.parametrize("name", MIDWAY)
async def test_a_broken_exchange_is_an_outcome_that_is_retried(name: str) -> None:
    reply, outcome = MIDWAY[name]
    with FaultServer([reply, HTTPReply.says("Lima")]) as server:
        call = await ask(server, attempt_timeout_s=3.0 if outcome == "timeout" else 60.0)
        assert len(server.requests) == 2
    assert [attempt.outcome for attempt in call.attempts] == [outcome, "ok"]
    assert call.reply == "Lima"


async def test_a_refused_connection_is_an_outcome() -> None:
    async with FaultServer() as server:
        call = await ask(server, member("http://127.0.0.1:1/v1"))
    assert [attempt.outcome for attempt in call.attempts] == ["connection"] * 3


@pytest.mark.parametrize(
    ("status", "outcome", "requests"),
    [
        (400, "bad_request", 1),
        (402, "auth", 1),
        (403, "auth", 1),
        (408, "timeout", 3),
        (409, "unavailable", 3),
        (413, "bad_request", 1),
        (422, "bad_request", 1),
        (425, "unavailable", 3),
        (429, "rate_limited", 3),
        (500, "unavailable", 3),
        (502, "unavailable", 3),
        (504, "unavailable", 3),
        (529, "unavailable", 3),
        (599, "unavailable", 3),
    ],
)
async def test_a_status_has_its_kind_and_the_kind_decides_on_retries(status: int, outcome: str, requests: int) -> None:
    for body in ({"error": {"message": "no"}}, ["no"], "no", {"error": "no"}, None):
        with FaultServer(HTTPReply(status=status, body=body)) as server:
            call = await ask(server)
            assert len(server.requests) == requests
        assert call.outcome == outcome


def said(**message: Any) -> dict[str, Any]:
    return {"choices": [{"message": message, "finish_reason": message.pop("finish", "stop")}], "usage": USED}


USED = {"prompt_tokens": 5, "completion_tokens": 9}


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        (said(content=[{"type": "text", "text": "Li"}, {"type": "text", "text": "ma"}]), "ok"),
        (said(content=None, tool_calls=[{"id": "1", "function": {"name": "f"}}]), "empty_response"),
        (said(content="", reasoning_content="thinking"), "empty_response"),
        (said(content="", finish="length"), "empty_response"),
        (said(content="Lima", finish="length"), "ok"),
    ],
)
async def test_a_reply_in_an_unusual_dress(body: dict[str, Any], outcome: str) -> None:
    with FaultServer(HTTPReply(body=body)) as server:
        call = await ask(server)
    assert call.outcome == outcome
    assert call.cost_usd == pytest.approx(len(call.attempts) * (5 * 1.0 + 9 * 2.0) / 1e6)
    assert call.truncated == (outcome == "ok" and body["choices"][0]["finish_reason"] == "length")
    if call.ok:
        assert call.reply == "Lima"


@pytest.mark.parametrize(
    "usage",
    [
        None,
        [],
        "many",
        {},
        {"total_tokens": 9},
        {"prompt_tokens": -5, "completion_tokens": -1},
        {"prompt_tokens": float("nan"), "completion_tokens": float("inf")},
        {"prompt_tokens": 1e300, "completion_tokens": 10**30},
        {"prompt_tokens": 0, "completion_tokens": 0},
        {"prompt_tokens": True, "completion_tokens": "x"},
    ],
)
async def test_usage_that_cannot_be_is_estimated_and_never_harms_the_budget(usage: object) -> None:
    budget = Budget(0.01)
    with FaultServer(HTTPReply(body={**OK, "usage": usage})) as server:
        call = await ask(server, budget=budget)
    assert call.ok
    assert call.usage is not None
    assert call.usage.estimated
    assert call.cost_usd == pytest.approx((7 * 1.0 + 1 * 2.0) / 1e6)
    assert budget.spent_usd == pytest.approx(call.cost_usd)


async def test_lone_surrogates_and_wrong_charsets_leave_text_that_can_be_encoded() -> None:
    body = json.dumps(OK).replace("Lima", "L\\ud800ma")
    with FaultServer(HTTPReply(text=body, headers={"content-type": "application/json; charset=utf-16"})) as server:
        call = await ask(server)
    assert call.reply == "L\ufffdma"


async def test_another_model_is_recorded_warned_of_once_and_priced_as_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with FaultServer(HTTPReply.says("Lima", model="meta/llama-3.1-8b-instruct", usage=(1000, 1000))) as server:
        big = member(server.url)
        small = member(
            server.url,
            name="LLaMA-3.1-8B-Instruct",
            price={"input": 0.1, "output": 0.2},
            model="meta/llama-3.1-8b-instruct",
        )
        for others, priced_as, usd in (((), big.name, 0.003), ((small,), small.name, 0.0003)):
            async with Pool([big], Registry.load([]), catalogue=others) as pool:
                calls = [await pool.ask(big.name, [Message("user", "hi")], context=CallContext()) for _ in range(2)]
            for call in calls:
                assert call.substituted
                assert call.served_model == "meta/llama-3.1-8b-instruct"
                assert call.attempts[0].priced_as == priced_as
                assert call.cost_usd == pytest.approx(usd)
    assert capsys.readouterr().err.count("another model answered") == 2  # once for each pool


async def test_a_key_is_in_no_error_even_where_the_provider_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED", "planted-key-0123456789")
    with FaultServer() as server:
        server.play(
            lambda got: HTTPReply(status=401, body={"error": {"message": f"bad key {got.headers['authorization']}"}})
        )
        call = await ask(server, member(server.url, api_key_env="PLANTED"))
        assert server.requests[0].headers["authorization"] == "Bearer planted-key-0123456789"
    assert call.outcome == "auth"
    assert call.error is not None
    assert "bad key" in call.error
    assert "planted-key" not in repr(call)
