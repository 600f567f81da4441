"""The fault server does to a client what it is told to, and keeps what the client sent."""

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from antiphon.errors import ConfigError
from antiphon.testing import FaultServer
from antiphon.testing.server import HTTPReply


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as running:
        yield running


def post(server: FaultServer, model: str = "m", query: str = "hi", **rest: Any) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": query}]}
    return httpx.post(f"{server.url}/chat/completions", json=body, trust_env=False, **{"timeout": 60, **rest})


def test_without_a_script_it_gives_a_plain_reply_and_keeps_the_request(server: FaultServer) -> None:
    before = time.monotonic()
    answer = post(server, "org/m", "hello", headers={"X-Odd": "1"})
    assert answer.json()["choices"][0]["message"]["content"] == "pong"
    assert answer.json()["model"] == "org/m"
    (received,) = server.requests
    assert (received.method, received.path) == ("POST", "/v1/chat/completions")
    assert (received.model, received.query, received.headers["x-odd"]) == ("org/m", "hello", "1")
    assert json.loads(received.raw) == received.body
    assert before <= received.at_s <= time.monotonic()


def test_a_script_goes_request_by_request_and_its_last_step_repeats(server: FaultServer) -> None:
    server.play([HTTPReply(status=503), HTTPReply.says("one"), HTTPReply(status=599)])
    assert [post(server).status_code for _ in range(4)] == [503, 200, 599, 599]


def test_each_model_has_a_script_of_its_own(server: FaultServer) -> None:
    server.play({"a": [HTTPReply(status=500), HTTPReply.says()], "b": HTTPReply(status=404)})
    assert [post(server, model).status_code for model in "abab"] == [500, 404, 200, 404]
    assert post(server, "c").status_code == 200


def test_a_function_decides_by_the_request(server: FaultServer) -> None:
    server.play(lambda received: HTTPReply.says(received.query.upper()))
    assert post(server, query="abc").json()["choices"][0]["message"]["content"] == "ABC"


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (HTTPReply.says(cut_after=0), httpx.RemoteProtocolError),
        (HTTPReply.says(cut_after=10), httpx.RemoteProtocolError),
        (HTTPReply.says(cut_after=10, reset=True), httpx.ReadError),
        (HTTPReply(reset=True), httpx.ReadError),
        (HTTPReply(silent=True), httpx.ReadTimeout),
        (HTTPReply.says(piece_delay_s=600.0), httpx.ReadTimeout),
        (HTTPReply(raw=b"no gzip", headers={"content-encoding": "gzip"}), httpx.DecodingError),
    ],
)
def test_what_it_breaks_breaks_in_the_client_and_the_next_request_is_served(
    server: FaultServer, reply: HTTPReply, error: type[Exception]
) -> None:
    server.play([reply, HTTPReply.says("after")])
    with pytest.raises(error):
        post(server, timeout=httpx.Timeout(60, read=0.5 if error is httpx.ReadTimeout else 60))
    assert post(server).json()["choices"][0]["message"]["content"] == "after"


def test_bodies_are_sent_as_they_are_whole_or_in_pieces(server: FaultServer) -> None:
    body = json.dumps({"text": "\ud800 é"})
    for reply, sent in (
        (HTTPReply(text="é"), "é".encode()),
        (HTTPReply(raw=b"\xff\xfe"), b"\xff\xfe"),
        (HTTPReply(body={"text": "\ud800 é"}), body.encode()),
        (HTTPReply(raw=b"abcdef", piece_delay_s=0.001, piece_bytes=4), b"abcdef"),
    ):
        server.play(reply)
        assert post(server).content == sent


def test_events_are_streamed_and_can_be_cut_midway(server: FaultServer) -> None:
    server.play([HTTPReply(events=[{"n": 1}, "odd"]), HTTPReply(events=[{"n": 1}, {"n": 2}], cut_after=20)])
    answer = post(server)
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.text == 'data: {"n": 1}\n\ndata: odd\n\ndata: [DONE]\n\n'
    with pytest.raises(httpx.RemoteProtocolError):
        post(server)


def test_headers_can_be_added_replaced_and_left_out(server: FaultServer) -> None:
    server.play(
        HTTPReply(text="x", headers={"Content-Type": "text/html", "X-Odd": "2", "content-length": None}, cut_after=1)
    )
    answer = post(server)
    assert (answer.text, answer.headers["content-type"], answer.headers["x-odd"]) == ("x", "text/html", "2")
    assert "content-length" not in answer.headers


def test_it_counts_what_is_in_flight_at_once(server: FaultServer) -> None:
    server.play(HTTPReply.says(until=lambda: server.most_in_flight == 4))
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: post(server), range(4)))
    assert server.most_in_flight == 4


def test_a_connection_serves_many_requests_and_chunked_ones(server: FaultServer) -> None:
    with httpx.Client(trust_env=False) as client:
        for _ in range(3):
            client.post(server.url, content=iter([b'{"model": ', b'"chunked"}']))
    assert [received.model for received in server.requests] == ["chunked"] * 3


def test_nonsense_on_the_wire_harms_nobody(server: FaultServer) -> None:
    for nonsense in (
        b"\r\n\r\n",
        b"\x16\x03\x01\x00",
        b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nshort",
        b"POST / HTTP/1.1\r\nContent-Length: nine\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
            connection.sendall(nonsense)
    assert post(server).status_code == 200


async def test_it_runs_in_an_async_block_and_stops_while_requests_wait() -> None:
    async with FaultServer(HTTPReply(silent=True)) as server, httpx.AsyncClient(trust_env=False) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post(server.url, json={}, timeout=httpx.Timeout(60, read=0.1))
    with pytest.raises(ConfigError, match="not running"):
        _ = server.url
