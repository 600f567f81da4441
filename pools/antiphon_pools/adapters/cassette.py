"""The `cassette` adapter: keeps what another adapter's members said, and replays it without asking again."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from antiphon.contracts import Adapter, CallContext, Reply, Request
from antiphon.errors import ConfigError, MemberError
from antiphon.paths import map_paths
from antiphon_pools.adapters._options import Options, expand_path, in_thread, read_options
from antiphon_pools.adapters._tape import Tape

if TYPE_CHECKING:
    from antiphon.descriptor import Descriptor, Endpoint


class CassetteOptions(Options):
    """Attributes:
    path: the file, made where it is not there; `${NAME}` and `~` are expanded.
    mode: `record` asks every time and keeps the newest reply, `replay` never asks, `record_missing` asks once.
    adapter, inner: the adapter that really asks, and its options.
    """

    path: str
    mode: Literal["record", "replay", "record_missing"] = "record_missing"
    adapter: str = "litellm"
    inner: dict[str, Any] = Field(default_factory=dict)


class CassetteAdapter:
    """A reply is kept under adapter, its options, model, messages, parameters and sample number; it is on disk before
    the caller sees it. Errors are not kept. The same request made twice at once in one process is asked once.

    Any number of processes may write to one file.

    Args:
        inner: the adapter to wrap, for an embedding that made it itself; else options `adapter` and `inner` say.

    Raises:
        ConfigError: an unknown option, a file that is no cassette, or none to replay.
    """

    def __init__(self, *, endpoint: Endpoint, descriptor: Descriptor, inner: Adapter | None = None) -> None:
        options = read_options(CassetteOptions, endpoint, descriptor)
        where = f"member {descriptor.name!r}"
        if options.adapter == "cassette":
            raise ConfigError(f"{where}: a cassette cannot wrap a cassette; name the adapter that really asks")
        self._member, self._options = descriptor.name, options
        self.needs_key = options.mode != "replay"
        self._tape = Tape(expand_path(options.path, where), read_only=options.mode == "replay", where=where)
        self._inner = inner
        if inner is None and options.mode != "replay":
            from antiphon.registry import default_registry

            inside = endpoint.model_copy(update={"adapter": options.adapter, "options": options.inner})
            self._inner = default_registry().adapter(options.adapter, endpoint=inside, descriptor=descriptor)

    async def complete(self, request: Request, context: CallContext) -> Reply:
        key, shown = request_key(self._options.adapter, request, context.sample, self._options.inner)
        try:
            async with asyncio.timeout(request.timeout_s):
                if self._options.mode != "record":
                    found = await in_thread(self._tape.read, key)
                    if found is not None:
                        return found
                if self._inner is None or self._options.mode == "replay":
                    raise MemberError(
                        "not_recorded",
                        f"{self._tape.path.name} has no reply of {request.model} to this request (sample "
                        f"{context.sample}, key {key[:12]}); record it with mode = 'record_missing'",
                    )
                return await _once((self._tape.path, key), lambda: self._ask(key, shown, request, context))
        except TimeoutError:
            raise MemberError("timeout", f"no answer within {request.timeout_s:g} s") from None

    async def aclose(self) -> None:
        try:
            if self._inner is not None:
                await self._inner.aclose()
        finally:
            await in_thread(self._tape.close)

    async def _ask(self, key: str, shown: str, request: Request, context: CallContext) -> Reply:
        assert self._inner is not None
        started = time.monotonic()
        reply = await self._inner.complete(request, context)
        latency_s = time.monotonic() - started if reply.latency_s is None else reply.latency_s
        # Shielded: once it is paid for it is kept, even if the caller's time is up.
        writing = asyncio.ensure_future(in_thread(self._tape.write, key, shown, context.sample, reply, latency_s))
        try:
            await asyncio.shield(writing)
        except ConfigError as error:
            raise MemberError("error", str(error), usage=reply.usage, served_model=reply.model) from None
        return reply


def request_key(adapter: str, request: Request, sample: int, inner: Mapping[str, Any] | None = None) -> tuple[str, str]:
    """The key of a request, and the JSON that it is the SHA-256 of. Time limits are no part of it.

    The wrapped adapter's options are, since members of one model may differ by them alone (a LoRA adapter, a system
    message). They are hashed first, so that nothing of them is stored, and of paths only the last part counts, so that
    a recording can be replayed elsewhere.
    """
    parts: dict[str, Any] = {
        "adapter": adapter,
        "model": request.model,
        "messages": [[message.role, message.content] for message in request.messages],
        "max_tokens": request.max_tokens,
        "sampling": dict(request.sampling),
        "sample": sample,
    }
    if inner:
        parts["options"] = hashlib.sha256(_json(map_paths(inner, lambda path: Path(path).name))).hexdigest()
    shown = _json(parts)
    return hashlib.sha256(shown).hexdigest(), shown.decode()


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode()


_flights: dict[tuple[Path, str], Future[Reply]] = {}
_flights_lock = threading.Lock()


async def _once(key: tuple[Path, str], ask: Callable[[], Awaitable[Reply]]) -> Reply:
    """Ask, or wait for whoever in this process, on whatever event loop, is asking the same already."""
    while True:
        with _flights_lock:
            flight = _flights.get(key)
            mine = flight is None
            if flight is None:
                flight = _flights[key] = Future()
        if mine:
            return await _lead(key, flight, ask)
        # Waited for through a shield: giving up here must not end the flight for the others.
        waiting = asyncio.wrap_future(flight)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            if flight.cancelled() and not _cancelling():
                continue  # whoever was asking gave up: take over
            raise
        except MemberError as error:
            # What a failure cost is charged to the one who asked.
            raise MemberError(error.kind, str(error), retry_after_s=error.retry_after_s) from None


async def _lead(key: tuple[Path, str], flight: Future[Reply], ask: Callable[[], Awaitable[Reply]]) -> Reply:
    try:
        reply = await ask()
    except Exception as error:
        _land(key)
        flight.set_exception(error)
        raise
    except BaseException:
        _land(key)
        flight.cancel()
        raise
    _land(key)
    flight.set_result(reply)
    return reply


def _land(key: tuple[Path, str]) -> None:
    with _flights_lock:
        del _flights[key]


def _cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
