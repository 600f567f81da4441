"""The openai generator against a server that misbehaves: what is sent, how an end is told, what is said of faults."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from antiphon.contracts import Chunk, GenerationRequest
from antiphon.errors import ConfigError, GeneratorError
from antiphon.generators.openai import OpenAIGenerator
from antiphon.testing.server import FaultServer, HTTPReply
from antiphon.types import Message, Usage

KEY = "planted-secret-0123456789"


def asked(**rest: Any) -> GenerationRequest:
    messages = (Message("user", "Who?"),)
    return GenerationRequest(
        messages, **{"prefix": "", "token_ids": (5, 6), "stop": ("</a>",), "max_tokens": 9, "request_id": "r", **rest}
    )


def text(content: str, reason: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": content, "finish_reason": reason, **more}]}


def delta(content: str | None, reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": reason}]}


async def run(at: FaultServer, request: GenerationRequest, **options: Any) -> list[Chunk]:
    generator = OpenAIGenerator(at.url, "m", **{"api": "chat", **options})
    try:
        return [chunk async for chunk in generator.generate(request)]
    finally:
        await generator.aclose()


def joined(chunks: list[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


async def test_what_is_sent_to_a_chat_api(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    async with FaultServer(HTTPReply(events=[delta("Lima", "stop")])) as server:
        sampling = {"temperature": 0.5, "seed": 3, "top_p": None}
        await run(server, asked(sampling=sampling), api_key_env="MY_KEY", extra_body={"priority": 1})
    (received,) = server.requests
    assert received.path == "/v1/chat/completions"
    assert received.headers["authorization"] == f"Bearer {KEY}"
    assert received.body == {
        "model": "m",
        "messages": [{"role": "user", "content": "Who?"}],
        "max_tokens": 9,
        "temperature": 0.5,
        "seed": 3,
        "priority": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_what_is_sent_to_vllm(tiny_model: Path) -> None:
    token = {"token_ids": [65], "logprobs": {"token_logprobs": [-0.5]}}
    async with FaultServer(HTTPReply(events=[text("?", "stop", stop_reason="</a>", **token)])) as server:
        chunks = await run(server, asked(), api="completions", server="vllm", tokenizer=tiny_model)
    (received,) = server.requests
    assert received.path == "/v1/completions"
    assert received.body["prompt"] == [5, 6]
    assert received.body["stop"] == ["</a>"]
    assert received.body["include_stop_str_in_output"] is True
    assert received.body["return_token_ids"] is True
    assert [c.token_ids for c in chunks if c.token_ids] == [(65,)]
    assert chunks[-1].finish == "stop"


@pytest.mark.parametrize(
    ("stop_reason", "finish"),
    [("</a>", "stop"), (None, "end"), (2, "end"), ("</other>", "end")],
)
async def test_vllm_says_which_stop_it_was(tiny_model: Path, stop_reason: Any, finish: str) -> None:
    token = {"token_ids": [65], "logprobs": {"token_logprobs": [-0.5]}}
    async with FaultServer(HTTPReply(events=[text("b", "stop", stop_reason=stop_reason, **token)])) as server:
        chunks = await run(server, asked(), api="completions", server="vllm", tokenizer=tiny_model)
    assert chunks[-1].finish == finish


async def test_a_plain_server_is_watched_for_the_stop_string() -> None:
    events = [delta("say <"), delta("/"), delta("a> and on"), delta(" and on", "stop")]
    async with FaultServer(HTTPReply(events=events)) as server:
        chunks = await run(server, asked())
        assert joined(chunks) == "say </a>"
        assert chunks[-1].finish == "stop"
        assert "stop" not in server.requests[0].body  # its own stopping could not be told from the model's end


async def test_the_models_own_end_never_closes_a_tag() -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 2}}
    async with FaultServer(HTTPReply(events=[delta("say <a>"), delta(None, "stop"), usage])) as server:
        chunks = await run(server, asked())
    assert joined(chunks) == "say <a>"
    assert chunks[-1].finish == "end"
    assert chunks[-1].usage == Usage(4, 2)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (
            HTTPReply(status=401, body={"error": {"message": f"bad key {KEY}"}}),
            r"HTTP 401 \(bad key \[redacted\]\).*MY_KEY",
        ),
        (HTTPReply(status=404, body={"message": "no model m"}), r"no model m\); check base_url"),
        (HTTPReply(status=429, text="slow down"), r"slow down\); the server's rate limit"),
        (HTTPReply(status=500, text=""), "no reason given"),
        (HTTPReply(text="<html>", headers={"content-type": "text/html"}), "web page"),
        (HTTPReply(events=["{not json"]), "not JSON"),
        (HTTPReply(events=["[1]"]), "no object"),
        (HTTPReply(events=[{"error": {"message": "boom"}}]), "boom"),
        (HTTPReply(events=[delta("half")]), "cut off before it ended"),
        (HTTPReply(events=[delta("half"), delta("more", "stop")], cut_after=90), "cut off"),
        (HTTPReply(events=[delta("half"), delta("more", "stop")], cut_after=90, reset=True), "cut off"),
        (HTTPReply(reset=True), "cut off"),
        (HTTPReply(body={"choices": []}), "cut off before it ended"),
        (HTTPReply(silent=True), "did not answer in time.*timeout_s"),
    ],
)
async def test_faults_are_said_in_words_without_the_key(
    reply: HTTPReply, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    async with FaultServer(reply) as server:
        with pytest.raises(GeneratorError, match=said) as caught:
            await run(server, asked(), api_key_env="MY_KEY", timeout_s=1.0 if reply.silent else 60.0)
        assert KEY not in str(caught.value)
        assert len(server.requests) in ((0, 1) if reply.silent else (1,))  # nothing is sent twice


async def test_nobody_there_is_said_with_the_address() -> None:
    generator = OpenAIGenerator("http://127.0.0.1:1/v1", "m", api="chat")
    with pytest.raises(GeneratorError, match=r"cannot be reached.*check base_url"):
        await anext(aiter(generator.generate(asked())))
    await generator.aclose()


async def test_events_may_come_in_any_pieces() -> None:
    raw = (
        b": hello\r\n\r\nevent: x\r\ndata: "
        + b'{"choices":\ndata: [{"index": 0, "delta": {"content": "\xc3\xa9"}}]}\n\n'
    )
    raw += b'data:{"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}'
    reply = HTTPReply(raw=raw, headers={"content-type": "text/event-stream"}, piece_delay_s=1e-4, piece_bytes=1)
    async with FaultServer(reply) as server:
        chunks = await run(server, asked())
    assert joined(chunks) == "é"
    assert chunks[-1].finish == "length"


async def test_going_away_closes_the_connection() -> None:
    endless = HTTPReply(events=[delta("a")] * 20_000, piece_delay_s=0.01)
    async with FaultServer(endless) as server:
        generator = OpenAIGenerator(server.url, "m", api="chat")
        async with aclosing(generator.generate(asked())) as chunks:  # type: ignore[type-var]
            async for _ in chunks:
                break
        async with asyncio.timeout(60):  # the stream itself would take 200 s
            while server._in_flight:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await generator.aclose()
        with pytest.raises(GeneratorError, match="closed"):
            await anext(aiter(generator.generate(asked())))


async def test_a_chat_api_cannot_go_on_inside_a_turn() -> None:
    generator = OpenAIGenerator("http://127.0.0.1:1/v1", "m", api="chat")
    assert not generator.capabilities.continue_turn
    with pytest.raises(GeneratorError, match="cannot continue a turn"):
        await anext(aiter(generator.generate(asked(prefix="<think>"))))
    with pytest.raises(GeneratorError, match="text only"):
        generator.decode([1])


async def test_a_server_that_gives_no_ids_is_no_vllm(tiny_model: Path) -> None:
    async with FaultServer(HTTPReply(events=[text("b", "stop")])) as server:
        with pytest.raises(GeneratorError, match="server = 'generic'"):
            await run(server, asked(), api="completions", server="vllm", tokenizer=tiny_model)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"api": "completions"}, "needs the tokeniser of 'm'.*api = 'chat'"),
        ({"api": "responses"}, "api must be"),
        ({"server": "tgi", "api": "chat"}, "server must be"),
        ({"base_url": "localhost:8000", "api": "chat"}, "must begin with http"),
        ({"api_key_env": "NOT_SET_ANYWHERE", "api": "chat"}, "NOT_SET_ANYWHERE"),
        ({"api": "completions", "tokenizer": "/not/there"}, "no such folder"),
    ],
)
def test_wrong_options_are_errors_at_start(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        OpenAIGenerator(**{"base_url": "http://127.0.0.1:1/v1", "model": "m", **options})
