"""A loopback server that speaks the chat-completions protocol and misbehaves as told, to test what calls it."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Self

from antiphon.errors import ConfigError

_LONGEST_HEAD = 64 * 1024
_LONGEST_BODY = 64 * 1024 * 1024
_LOOK_S = 0.2  # how often to look whether a client that waits is still there
_ASK_S = 0.02  # how often to ask whether a reply may be sent
_PHRASES = {status.value: status.phrase for status in HTTPStatus}


@dataclass(frozen=True, slots=True)
class HTTPReply:
    """What the server does with one request.

    Attributes:
        body: JSON data; sent unless `text`, `raw` or `events` says otherwise.
        text: the body as text, sent as UTF-8.
        raw: the body as bytes.
        events: server-sent events: JSON data each, or a string to send as it is; the last is followed by `[DONE]`.
        headers: besides, or instead of, Content-Type and Content-Length. A value of None leaves the header out.
        delay_s: waits before anything is sent.
        until: asked again and again; nothing is sent before it holds.
        piece_delay_s: sends the body in pieces (events, or `piece_bytes` at a time) with this pause before each.
        cut_after: closes the connection after so many bytes of the body, whose full length was promised.
        reset: resets the connection (RST) where it would be closed or, without `cut_after`, in place of answering.
        silent: never replies; the connection stays open until the client closes it or the server stops.
    """

    status: int = 200
    body: Any = None
    text: str | None = None
    raw: bytes | None = None
    events: Sequence[Any] | None = None
    headers: Mapping[str, str | None] = field(default_factory=dict)
    delay_s: float = 0.0
    until: Callable[[], bool] | None = None
    piece_delay_s: float = 0.0
    piece_bytes: int = 64
    cut_after: int | None = None
    reset: bool = False
    silent: bool = False

    @classmethod
    def says(
        cls,
        text: str | None = "pong",
        *,
        usage: tuple[int, int] | None = (7, 3),
        model: str | None = None,
        finish: str = "stop",
        **rest: Any,
    ) -> HTTPReply:
        """A chat completion.

        Args:
            usage: prompt tokens, completion tokens.
            rest: the attributes of `HTTPReply`.
        """
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
        body: dict[str, Any] = {"id": "chatcmpl-1", "object": "chat.completion", "choices": [choice]}
        if model is not None:
            body["model"] = model
        if usage is not None:
            body["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
        return cls(body=body, **rest)

    def pieces(self) -> list[bytes]:
        """The body, in the pieces in which it is sent."""
        if self.events is not None:
            events = [each if isinstance(each, str) else json.dumps(each) for each in self.events]
            return [f"data: {event}\n\n".encode() for event in (*events, "[DONE]")]
        body = self.raw
        if body is None:
            body = (json.dumps(self.body) if self.text is None else self.text).encode("utf-8", "surrogatepass")
        if not self.piece_delay_s:
            return [body]
        return [body[start : start + self.piece_bytes] for start in range(0, len(body), self.piece_bytes)]


@dataclass(frozen=True, slots=True)
class Received:
    """A request as the server read it. `at_s` is on the clock of `time.monotonic`; header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    raw: bytes
    body: Any
    at_s: float

    @property
    def model(self) -> str | None:
        return self.body.get("model") if isinstance(self.body, Mapping) else None

    @property
    def query(self) -> str:
        """The content of the last message."""
        messages = self.body.get("messages") if isinstance(self.body, Mapping) else None
        return str(messages[-1].get("content", "")) if messages else ""


Script = (
    HTTPReply | Sequence[HTTPReply] | Mapping[str, "HTTPReply | Sequence[HTTPReply]"] | Callable[[Received], HTTPReply]
)


class FaultServer:
    """Serves on 127.0.0.1, on a thread and an event loop of its own; `with` or `async with` runs it.

    Args:
        script: what it does, request after request; the last one repeats for ever. Either one reply, a list, a list
            for each model, or a function of the request. A model without a script gets a plain reply.

    Attributes:
        requests: every request so far.
        most_in_flight: requests answered at the same time, at most.

    Example:
        with FaultServer([HTTPReply(status=503), HTTPReply.says("Lima")]) as server:
            ...  # point an endpoint's api_base at server.url
    """

    def __init__(self, script: Script = ()) -> None:
        self.requests: list[Received] = []
        self.most_in_flight = 0
        self._in_flight = 0
        self._chosen: Callable[[Received], HTTPReply] | None = None
        self._queues: dict[str | None, deque[HTTPReply]] = defaultdict(deque)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.port = 0
        self.play(script)

    @property
    def url(self) -> str:
        """What to give as `api_base`."""
        return f"{self.origin}/v1"

    @property
    def origin(self) -> str:
        if not self.port:
            raise ConfigError("the server is not running; use it in a `with` block")
        return f"http://127.0.0.1:{self.port}"

    def play(self, script: Script) -> None:
        """Do this from now on, in place of what is left of the script."""
        self._chosen = script if callable(script) else None
        queues: dict[str | None, deque[HTTPReply]] = defaultdict(deque)
        if isinstance(script, Mapping):
            for model, replies in script.items():
                queues[model].extend([replies] if isinstance(replies, HTTPReply) else replies)
        elif isinstance(script, HTTPReply | Sequence):
            queues[None].extend([script] if isinstance(script, HTTPReply) else script)
        self._queues = queues

    # ---- running --------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Listen on a free port."""
        ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="fault-server", daemon=True)
        self._thread.start()
        ready.wait()
        if not self.port:
            raise ConfigError("the server could not listen on 127.0.0.1")
        return self

    def stop(self) -> None:
        """Drop every connection and end the thread."""
        if self._loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = self._thread = None
        self.port = 0

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.stop)

    def _run(self, ready: threading.Event) -> None:
        assert self._loop is not None
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._listen())
        finally:
            ready.set()
        self._loop.run_forever()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=_LONGEST_HEAD, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    # ---- one connection -------------------------------------------------------------------------------------------

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while (request := await _read(reader)) is not None:
                if not await self._serve(request, reader, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError, ValueError):
            pass  # the client went away, which is its right, or does not speak HTTP
        except asyncio.CancelledError:
            pass  # the server stops; nobody awaits this task but `_close`
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, request: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Act on a request; True where the connection stays open for the next."""
        self.requests.append(request)
        self._in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self._in_flight)
        try:
            reply = self._next(request)
            return await _while_connected(_send(reply, writer), reader)
        finally:
            self._in_flight -= 1

    def _next(self, request: Received) -> HTTPReply:
        if self._chosen is not None:
            return self._chosen(request)
        queue = self._queues[request.model] if request.model in self._queues else self._queues[None]
        if not queue:
            return HTTPReply.says(model=request.model)
        return queue.popleft() if len(queue) > 1 else queue[0]


async def _read(reader: asyncio.StreamReader) -> Received | None:
    """One request with its body, or None at the end of the connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = (*first.split(" "), "", "")[:3]
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    raw = await _read_body(reader, headers)
    try:
        body = json.loads(raw)
    except ValueError:
        body = None
    return Received(method, path, headers, raw, body, time.monotonic())


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        return await reader.readexactly(min(int(headers.get("content-length", "0")), _LONGEST_BODY))
    chunks = []
    while size := int((await reader.readline()).split(b";")[0], 16):
        chunks.append((await reader.readexactly(size + 2))[:-2])
    await reader.readline()
    return b"".join(chunks)


async def _while_connected(work: Coroutine[Any, Any, bool], reader: asyncio.StreamReader) -> bool:
    """The work's result; False where the client closes the connection first."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=_LOOK_S)
            if reader.at_eof():
                return False
        return task.result()
    finally:
        task.cancel()


async def _send(reply: HTTPReply, writer: asyncio.StreamWriter) -> bool:
    """Send it, or fail to as told; True where the connection stays open."""
    if reply.silent:
        await asyncio.Event().wait()
    await asyncio.sleep(reply.delay_s)
    while reply.until is not None and not reply.until():  # noqa: ASYNC110 - a test's condition tells nobody
        await asyncio.sleep(_ASK_S)
    if reply.reset and reply.cut_after is None:
        return _reset(writer)
    pieces = reply.pieces()
    writer.write(_head(reply, sum(map(len, pieces))))
    room = reply.cut_after
    for piece in pieces:
        if reply.piece_delay_s:
            await asyncio.sleep(reply.piece_delay_s)
        if room is not None and len(piece) >= room:
            writer.write(piece[:room])
            await writer.drain()
            return _reset(writer) if reply.reset else False
        room = None if room is None else room - len(piece)
        writer.write(piece)
        await writer.drain()
    return reply.cut_after is None


def _head(reply: HTTPReply, length: int) -> bytes:
    kind = "text/event-stream" if reply.events is not None else "application/json"
    headers: dict[str, str | None] = {"content-type": kind, "content-length": str(length)}
    headers.update({name.lower(): value for name, value in reply.headers.items()})
    phrase = _PHRASES.get(reply.status, "Unknown")
    lines = [f"{name}: {value}" for name, value in headers.items() if value is not None]
    return "\r\n".join([f"HTTP/1.1 {reply.status} {phrase}", *lines, "", ""]).encode("latin-1")


def _reset(writer: asyncio.StreamWriter) -> bool:
    """Close without the usual goodbye: with a linger time of 0 the kernel sends RST."""
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    return False
