"""The `openai` adapter on a real loopback server: every case of provider.jsonl, faults of the wire, keys, sharing."""

import asyncio
import json
import logging
from pathlib import Path

import pytest

from antiphon.contracts import CallContext, Reply, Request
from antiphon.descriptor import Descriptor
from antiphon.errors import ConfigError, MemberError
from antiphon.pool import Pool
from antiphon.registry import default_registry
from antiphon.testing import FaultServer
from antiphon.testing.server import HTTPReply
from antiphon.types import Message, Usage
from antiphon_pools.adapters import openai
from antiphon_pools.adapters.openai import OpenAIAdapter

CASES = [json.loads(line) for line in (Path(__file__).parents[1] / "cases" / "provider.jsonl").read_text().splitlines()]
KEY = "sk-planted-0123456789abcdef"


def make(api_base: str | None, **endpoint: object) -> OpenAIAdapter:
    endpoint = {"adapter": "openai", "model": "m", "api_base": api_base, **endpoint}
    member = Descriptor.of({"name": "Ada", "description": "x", "price": {"output": 1}, "endpoints": [endpoint]})
    return OpenAIAdapter(endpoint=member.endpoints[0], descriptor=member)


def request(timeout_s: float = 60.0, **sampling: object) -> Request:
    return Request("m", (Message("user", "Capital of Peru?"),), 32, timeout_s, sampling)


async def ask(adapter: OpenAIAdapter, timeout_s: float = 60.0) -> Reply:
    try:
        return await adapter.complete(request(timeout_s), CallContext())
    finally:
        await adapter.aclose()


async def failure(adapter: OpenAIAdapter, timeout_s: float = 60.0) -> MemberError:
    with pytest.raises(MemberError) as caught:
        await ask(adapter, timeout_s)
    return caught.value


def scripted(case: dict) -> HTTPReply:
    if "delay_s" in case:
        return HTTPReply(silent=True)
    text = case.get("text") if "body" not in case else None
    return HTTPReply(
        case["status"], case.get("body"), text=text or (None if "body" in case else ""), headers=case.get("headers", {})
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
async def test_what_a_provider_sends_becomes_the_outcome_it_is(case: dict) -> None:
    reported = (case.get("body") or {}).get("usage")
    expected = Usage(reported["prompt_tokens"], reported["completion_tokens"]) if reported else None
    with FaultServer(scripted(case)) as server:
        adapter = make(server.url)
        timeout_s = 1.0 if "delay_s" in case else 60.0
        if case["outcome"] == "ok":
            reply = await ask(adapter, timeout_s)
            assert (reply.text, reply.usage) == ("Lima", expected)
            assert reply.model == case["body"].get("model")
        else:
            error = await failure(adapter, timeout_s)
            assert (error.kind, error.usage) == (case["outcome"], expected)
            if case.get("headers", {}).get("retry-after") == "2":
                assert error.retry_after_s == 2.0
            if "2037" in str(case.get("headers")):
                assert error.retry_after_s is not None
                assert error.retry_after_s > 3600
        assert len(server.requests) in ((0, 1) if "delay_s" in case else (1,))  # what is given up may not be there yet


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((status, "auth") for status in (402, 403)),
        *((status, "bad_request") for status in (400, 405, 413, 422)),
        *((status, "unavailable") for status in (409, 425, 500, 504, 529)),
        (408, "timeout"),
        (302, "bad_response"),
    ],
)
async def test_a_status_means_one_kind(status: int, kind: str) -> None:
    with FaultServer(HTTPReply(status, {"error": {"message": "the words"}}, headers={"location": "/v2"})) as server:
        error = await failure(make(server.url))
    assert error.kind == kind
    assert f"HTTP {status}" in str(error)
    assert len(server.requests) == 1  # a redirect is not followed either


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (HTTPReply(reset=True), "connection"),
        (HTTPReply.says("Lima", cut_after=20), "connection"),
        (HTTPReply.says("Lima", cut_after=20, reset=True), "connection"),
        (HTTPReply(raw='{"choices": [{"message": {"content": "Perú"}}]}'.encode("latin-1")), "bad_response"),
        (HTTPReply(raw=b"\x1f\x8b broken", headers={"content-encoding": "gzip"}), "bad_response"),
        (HTTPReply(raw=b"[" * 200_000), "bad_response"),
        (HTTPReply(raw=b""), "bad_response"),
        (HTTPReply(body=[1, 2]), "bad_response"),
        (HTTPReply(body={"id": "x"}), "bad_response"),
        (HTTPReply(body={"choices": ["x"]}), "bad_response"),
        (HTTPReply(body={"choices": [{"message": {"content": " \n"}}]}), "empty_response"),
        (HTTPReply(body={"choices": [{"message": {"content": None, "reasoning_content": "hm"}}]}), "empty_response"),
        (HTTPReply(body={"choices": None}), "empty_response"),
        (HTTPReply(body={"error": "upstream overloaded"}), "unavailable"),
        (HTTPReply(body={"error": {"type": "invalid_request_error", "message": "no"}}), "bad_request"),
        (HTTPReply(body={"error": {"code": "model_not_found", "message": "no"}}), "not_found"),
        (HTTPReply(body={"error": {"code": "429", "message": "no"}}), "rate_limited"),
        (HTTPReply(body={"object": "error", "message": "no", "code": 404}), "not_found"),
        (HTTPReply(body={"choices": [{"error": {"code": 502, "message": "no"}, "message": {}}]}), "unavailable"),
        (HTTPReply.says("Lima", piece_delay_s=0.2, piece_bytes=4), "timeout"),
    ],
)
async def test_a_fault_of_the_wire_has_its_kind(fault: HTTPReply, kind: str) -> None:
    with FaultServer(fault) as server:
        assert (await failure(make(server.url), 1.0 if kind == "timeout" else 60.0)).kind == kind


async def test_a_refused_connection_is_a_connection_error() -> None:
    assert (await failure(make("http://127.0.0.1:1/v1"))).kind == "connection"


async def test_a_body_over_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai, "MAX_BODY", 1000)
    with FaultServer(HTTPReply.says("x" * 2000)) as server:
        error = await failure(make(server.url))
    assert error.kind == "bad_response"


async def test_a_reply_in_any_dress_is_read() -> None:
    parts = [{"type": "text", "text": "Li"}, {"type": "text", "text": "ma"}, {"type": "image_url"}]
    body = {
        "model": "m-2",
        "choices": [{"message": {"content": parts}, "finish_reason": "length"}],
        "usage": {"prompt_tokens": "11", "completion_tokens": 3.0, "prompt_tokens_details": {"cached_tokens": 4}},
    }
    raw = b"\xef\xbb\xbf" + json.dumps(body).encode()
    with FaultServer(HTTPReply(raw=raw, headers={"content-type": "text/plain; charset=latin-1"})) as server:
        assert await ask(make(server.url)) == Reply("Lima", Usage(11, 3, 4), "m-2", "length")


async def test_a_lone_surrogate_in_a_reply_is_made_encodable() -> None:
    with FaultServer(HTTPReply(raw=b'{"choices": [{"message": {"content": "a\\ud800b"}}]}')) as server:
        assert (await ask(make(server.url))).text == "a\ufffdb"


async def test_the_body_says_what_the_call_says_whatever_the_sampling() -> None:
    with FaultServer() as server:
        adapter = make(server.url + "/", options={"extra_body": {"top_k": 1}, "headers": {"X-Team": "a"}})
        await adapter.complete(request(temperature=0, model="other", stream=True), CallContext())
        await adapter.aclose()
    sent = server.requests[0]
    assert sent.path == "/v1/chat/completions"
    assert sent.headers["x-team"] == "a"
    assert "authorization" not in sent.headers
    assert sent.body == {
        "top_k": 1,
        "temperature": 0,
        "model": "m",
        "stream": False,
        "messages": [{"role": "user", "content": "Capital of Peru?"}],
        "max_tokens": 32,
    }


async def test_the_output_limit_can_have_another_name() -> None:
    with FaultServer() as server:
        await ask(make(server.url, options={"max_tokens_field": "max_completion_tokens"}))
    assert server.requests[0].body["max_completion_tokens"] == 32
    assert "max_tokens" not in server.requests[0].body


async def test_the_key_is_read_when_asked_and_never_repeated(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with FaultServer(HTTPReply(401, {"error": {"message": f"Incorrect API key {KEY} " + "x" * 400}})) as server:
        adapter = make(server.url, api_key_env="ADA_KEY")
        monkeypatch.delenv("ADA_KEY", raising=False)
        missing = await failure(adapter)
        assert (missing.kind, str(missing)) == ("auth", "environment variable ADA_KEY is not set")
        assert server.requests == []
        monkeypatch.setenv("ADA_KEY", KEY)
        refused = await failure(adapter)
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert refused.kind == "auth"
    assert KEY not in str(refused)
    assert len(str(refused)) <= 300
    assert KEY not in caplog.text


async def test_the_key_is_in_no_attempt_that_a_pool_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADA_KEY", KEY)
    with FaultServer(HTTPReply(401, {"error": {"message": f"Incorrect API key {KEY}"}})) as server:
        endpoint = {"adapter": "openai", "model": "m", "api_base": server.url, "api_key_env": "ADA_KEY"}
        price = {"input": 1, "output": 1}
        member = Descriptor.of({"name": "Ada", "description": "x", "price": price, "endpoints": [endpoint]})
        pool = Pool([member], default_registry())
        call = await pool.ask("Ada", [Message("user", "q")], context=CallContext())
        await pool.aclose()
    assert (call.outcome, len(call.attempts)) == ("auth", 1)
    assert "Incorrect API key" in (call.attempts[0].error or "")
    assert KEY not in repr(call)


async def test_a_key_that_no_header_carries_is_an_auth_error_without_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADA_KEY", "schlüssel\nx")
    error = await failure(make("http://127.0.0.1:9/v1", api_key_env="ADA_KEY"))
    assert error.kind == "auth"
    assert "schl" not in str(error)


async def test_256_calls_run_at_once_over_one_client() -> None:
    with FaultServer() as server:
        server.play(HTTPReply.says("Lima", until=lambda: server.most_in_flight == 256))
        adapters = [make(server.url) for _ in range(4)]
        await asyncio.gather(*[adapters[i % 4].complete(request(300.0), CallContext()) for i in range(256)])
        assert server.most_in_flight == 256
        here = openai._clients[asyncio.get_running_loop()]
        (shared,) = [shared for (base, _), shared in here.items() if base == server.url]
        assert shared.users == 4
        for adapter in adapters:
            await adapter.aclose()
        assert shared.client.is_closed
        await adapters[0].complete(request(), CallContext())  # and it can be used again
        await adapters[0].aclose()


async def test_connections_are_kept_alive() -> None:
    with FaultServer() as server:
        adapter = make(server.url)
        for _ in range(3):
            await adapter.complete(request(), CallContext())
        assert len(server._connections) == 1
        await adapter.aclose()


def test_one_adapter_serves_one_event_loop_after_another() -> None:
    with FaultServer() as server:
        adapter = make(server.url)
        for _ in range(2):
            assert asyncio.run(ask(adapter)).text == "pong"


async def test_cancelling_goes_through() -> None:
    loop, arrived = asyncio.get_running_loop(), asyncio.Event()

    def hang(_: object) -> HTTPReply:
        loop.call_soon_threadsafe(arrived.set)
        return HTTPReply(silent=True)

    with FaultServer(hang) as server:
        adapter = make(server.url)
        task = asyncio.create_task(adapter.complete(request(), CallContext()))
        await arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await adapter.aclose()


@pytest.mark.parametrize(
    ("api_base", "options", "says"),
    [
        (None, {}, "needs an api_base"),
        ("localhost:8000/v1", {}, "http://"),
        ("http://me:hunter22@127.0.0.1/v1", {}, "api_key_env"),
        ("http://127.0.0.1/v1", {"max_token_field": "x"}, "did you mean 'max_tokens_field'"),
        ("http://127.0.0.1/v1", {"trust_env": "perhaps"}, "trust_env"),
    ],
)
def test_a_bad_endpoint_is_refused_by_name(api_base: str | None, options: dict, says: str) -> None:
    with pytest.raises(ConfigError, match="Ada") as caught:
        make(api_base, options=options)
    assert says in str(caught.value)
    assert "hunter22" not in str(caught.value)
