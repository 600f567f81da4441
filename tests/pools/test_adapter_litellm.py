"""The `litellm` adapter: one request an attempt for each provider, its exceptions read right, nothing leaked.

LiteLLM's HTTP is caught by respx; a few faults that only a socket can show are on a real loopback server.
"""

import asyncio
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import respx

from antiphon.contracts import CallContext, Reply, Request
from antiphon.descriptor import Descriptor
from antiphon.errors import ConfigError, MemberError
from antiphon.testing import FaultServer
from antiphon.testing.server import HTTPReply, Received
from antiphon.types import Message, Usage
from antiphon_pools.adapters.litellm import LiteLLMAdapter

KEY = "nvapi-planted-0123456789abcdef"
PROVIDERS = ("openai/m", "hosted_vllm/m", "nvidia_nim/meta/m", "together_ai/org/m", "ollama_chat/m")
SDK = ("openai/m", "nvidia_nim/meta/m")  # reached through the OpenAI SDK, whose own default is two retries
COMPLETION = {
    "id": "x",
    "object": "chat.completion",
    "created": 1,
    "model": "served",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Lima"}, "finish_reason": "length"}],
    "usage": {
        "prompt_tokens": 11,
        "completion_tokens": 3,
        "total_tokens": 14,
        "prompt_tokens_details": {"cached_tokens": 4},
    },
}
OLLAMA = {
    "model": "served",
    "created_at": "2026-01-01T00:00:00Z",
    "message": {"role": "assistant", "content": "Lima"},
    "done": True,
    "done_reason": "length",
    "prompt_eval_count": 11,
    "eval_count": 3,
}


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADA_KEY", KEY)


@pytest.fixture
def router() -> Iterator[respx.MockRouter]:
    """Everything goes here; nothing leaves the process."""
    with respx.mock(assert_all_called=False) as mock:
        yield mock


def make(model: str, api_base: str = "http://member.test/v1", **endpoint: object) -> LiteLLMAdapter:
    if model.startswith("ollama"):
        api_base = api_base.removesuffix("/v1")
    endpoint = {"model": model, "api_base": api_base, "api_key_env": "ADA_KEY", **endpoint}
    member = Descriptor.of({"name": "Ada", "description": "x", "price": {"output": 1}, "endpoints": [endpoint]})
    return LiteLLMAdapter(endpoint=member.endpoints[0], descriptor=member)


async def ask(adapter: LiteLLMAdapter, timeout_s: float = 60.0, **sampling: object) -> Reply:
    request = Request(adapter._endpoint.model, (Message("user", "Capital of Peru?"),), 32, timeout_s, sampling)
    return await adapter.complete(request, CallContext())


async def failure(adapter: LiteLLMAdapter, timeout_s: float = 60.0) -> MemberError:
    with pytest.raises(MemberError) as caught:
        await ask(adapter, timeout_s)
    return caught.value


@pytest.mark.parametrize("model", PROVIDERS)
async def test_a_success_is_one_request(router: respx.MockRouter, model: str) -> None:
    ollama = model.startswith("ollama")
    route = router.route().respond(json=OLLAMA if ollama else COMPLETION)
    reply = await ask(make(model), temperature=0.0)
    await asyncio.sleep(0)  # LiteLLM's own follow-up work, if any, would send now
    assert route.call_count == 1
    assert (reply.text, reply.finish) == ("Lima", "length")
    assert reply.usage == Usage(11, 3, 0 if ollama else 4)
    assert reply.model == ("m" if ollama else "served")
    sent = route.calls[0].request
    assert sent.url.path == ("/api/chat" if ollama else "/v1/chat/completions")
    assert sent.headers["authorization"] == f"Bearer {KEY}"
    assert KEY.encode() not in sent.content


@pytest.mark.parametrize("model", PROVIDERS)
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((status, "auth") for status in (401, 402, 403)),
        *((status, "bad_request") for status in (400, 422)),
        *((status, "not_found") for status in (404, 410)),
        *((status, "unavailable") for status in (500, 503)),
        (408, "timeout"),
        (429, "rate_limited"),
    ],
)
async def test_a_failure_is_one_request_of_the_right_kind(
    router: respx.MockRouter, model: str, status: int, kind: str
) -> None:
    said = {"error": {"message": f"no, not with {KEY}", "code": status}}
    route = router.route().respond(status, json=said, headers={"retry-after": "2"})
    error = await failure(make(model))
    assert (error.kind, route.call_count) == (kind, 1)
    assert error.retry_after_s == 2.0
    assert "no, not with" in str(error)
    assert KEY not in str(error)


@pytest.mark.parametrize("provider", ["deepinfra", "deepseek", "fireworks_ai", "groq", "mistral", "openrouter", "xai"])
async def test_other_providers_get_one_request_too_and_no_word_of_retries(
    router: respx.MockRouter, provider: str
) -> None:
    route = router.route().respond(429, json={"error": {"message": "slow down"}})
    error = await failure(make(f"{provider}/m"))
    assert (error.kind, route.call_count) == ("rate_limited", 1)
    assert b"retries" not in route.calls[0].request.content


@pytest.mark.parametrize("model", PROVIDERS)
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (httpx.ConnectError("All connection attempts failed"), "connection"),
        (httpx.ReadError("reset by peer"), "connection"),
        (httpx.RemoteProtocolError("peer closed"), "connection"),
        (httpx.ReadTimeout("too slow"), "timeout"),
    ],
)
async def test_a_lost_connection_is_told_from_a_server_error(
    router: respx.MockRouter, model: str, fault: Exception, kind: str
) -> None:
    route = router.route().mock(side_effect=fault)
    assert (await failure(make(model))).kind == kind
    # Where no connection could be opened, LiteLLM's own HTTP client opens another: nothing was sent by the first.
    assert route.call_count == (2 if isinstance(fault, httpx.ConnectError) and model not in SDK else 1)


@pytest.mark.parametrize("model", PROVIDERS)
@pytest.mark.parametrize("body", [b"<html>502</html>", b'{"choices": [{"mess', b'{"choices": "\xff"}', b"[1]", b""])
async def test_what_is_no_reply_is_a_bad_response(router: respx.MockRouter, model: str, body: bytes) -> None:
    route = router.route().respond(content=body, headers={"content-type": "application/json"})
    assert ((await failure(make(model))).kind, route.call_count) == ("bad_response", 1)


@pytest.mark.parametrize("model", [model for model in PROVIDERS if not model.startswith("ollama")])
async def test_an_empty_success_is_an_empty_response_with_its_usage(router: respx.MockRouter, model: str) -> None:
    null = [{"index": 0, "message": {"role": "assistant", "content": None}, "finish_reason": "stop"}]
    for choices in ([], null):
        router.route().respond(json={**COMPLETION, "choices": choices})
        error = await failure(make(model))
        assert (error.kind, error.usage) == ("empty_response", Usage(11, 3, 4))


@pytest.mark.parametrize("model", [model for model in PROVIDERS if not model.startswith("ollama")])
async def test_an_error_inside_a_success_has_its_kind(router: respx.MockRouter, model: str) -> None:
    router.route().respond(json={"choices": None, "error": {"code": 429, "message": "rate limited"}})
    assert (await failure(make(model))).kind == "rate_limited"


async def test_a_usage_left_out_is_unknown_and_not_zero(router: respx.MockRouter) -> None:
    router.route().respond(json={**COMPLETION, "usage": None})
    assert (await ask(make("hosted_vllm/m"))).usage is None


async def test_an_attempt_ends_by_its_timeout_and_sends_no_more() -> None:
    with FaultServer(HTTPReply(silent=True)) as server:
        for model in ("hosted_vllm/m", "openai/m"):
            assert (await failure(make(model, server.url), 1.0)).kind == "timeout"
        assert len(server.requests) <= 2  # what is given up may not be there yet


async def test_a_body_cut_midway_is_one_request_on_a_real_socket() -> None:
    with FaultServer(HTTPReply.says("Lima", cut_after=20)) as server:
        for model in ("hosted_vllm/m", "openai/m", "nvidia_nim/m"):
            assert (await failure(make(model, server.url))).kind == "connection"
        assert len(server.requests) == 3


async def test_an_unknown_provider_is_a_bad_request(router: respx.MockRouter) -> None:
    error = await failure(make("nobody-knows-this/m", api_base="http://member.test"))
    assert (error.kind, router.calls.call_count) == ("bad_request", 0)


async def test_a_missing_key_is_an_auth_error_before_anything_is_sent(
    router: respx.MockRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ADA_KEY")
    error = await failure(make("openai/m"))
    assert (error.kind, router.calls.call_count) == ("auth", 0)
    assert "ADA_KEY" in str(error)


async def test_the_key_is_in_no_log(router: respx.MockRouter, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    router.route().respond(500, json={"error": {"message": KEY}})
    for model in PROVIDERS:
        await failure(make(model))
    assert caplog.records  # LiteLLM and httpx do log
    assert KEY not in caplog.text


async def test_litellm_is_tamed_and_its_callbacks_are_not_called(router: respx.MockRouter) -> None:
    router.route().respond(json=COMPLETION)
    await ask(make("hosted_vllm/m"))
    import litellm  # only now: imported by the adapter, it fetches nothing

    called = asyncio.Queue[str]()

    async def callback(details: dict, *_: object) -> None:
        called.put_nowait(details["model"])

    litellm._async_success_callback.append(callback)
    try:
        await ask(make("hosted_vllm/ours"))
        said = [{"role": "user", "content": "?"}]
        await litellm.acompletion("hosted_vllm/theirs", messages=said, api_base="https://member.test/v1", api_key="k")
        async with asyncio.timeout(120):
            assert await called.get() == "theirs"  # in order: ours would have come first
    finally:
        litellm._async_success_callback.clear()
    assert litellm.disable_aiohttp_transport
    assert {call.request.url.host for call in router.calls} == {"member.test"}


def test_one_event_loop_after_another_is_served_and_left_in_silence() -> None:
    code = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from test_adapter_litellm import ask, make
async def main(url):
    for model in ("hosted_vllm/m", "openai/m", "ollama_chat/m"):
        print((await ask(make(model, url))).text)
for _ in range(2):
    asyncio.run(main(sys.argv[2]))
"""

    def answer(request: Received) -> HTTPReply:
        return HTTPReply(body=OLLAMA if request.path == "/api/chat" else COMPLETION)

    with FaultServer(answer) as server:
        command = [sys.executable, "-W", "ignore", "-c", code, str(Path(__file__).parent), server.url]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        assert len(server.requests) == 6
    assert (done.stdout.split(), done.stderr) == (["Lima"] * 6, "")


@pytest.mark.parametrize(
    ("options", "says"),
    [({"param": {}}, "did you mean 'params'"), ({"params": {"max_retries": 3}}, "set by the endpoint")],
)
def test_a_bad_option_is_refused_by_name(options: dict, says: str) -> None:
    with pytest.raises(ConfigError, match="Ada") as caught:
        make("openai/m", options=options)
    assert says in str(caught.value)


def test_importing_the_adapters_imports_no_library() -> None:
    names = ("litellm", "openai", "local", "function", "bm25", "recorded", "cassette")
    code = "import sys\n" + "".join(f"import antiphon_pools.adapters.{name}\n" for name in names)
    code += "print([m for m in ('litellm', 'httpx', 'openai', 'torch', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
