"""An asynchronous engine that generators share: on its own loop, started at first use, restarted once if it dies."""

from __future__ import annotations

import asyncio
import atexit
import itertools
import threading
from collections.abc import AsyncGenerator, Callable, Hashable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from antiphon._loop import BackgroundLoop, Channel
from antiphon.contracts import Chunk
from antiphon.errors import GeneratorError, first_line
from antiphon.log import warn
from antiphon.types import Usage

if TYPE_CHECKING:
    from antiphon.generators._chat import Utterance
    from antiphon.sampling import Sampling


_LONGEST_STOP_S = 60.0  # one that is being started can be ended only then


_numbers = itertools.count(1)


class EngineDied(Exception):
    """The engine is gone, with all that it was asked; the message says why."""


@dataclass(frozen=True, slots=True)
class Lora:
    """A LoRA adapter as an engine knows it. Weights read anew are another adapter, of another name and number."""

    name: str
    number: int
    path: Path


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a generation asks of an engine, whatever it has said already.

    Attributes:
        end_ids: tokens that end it; they are given out like any other.
    """

    sampling: Sampling
    end_ids: tuple[int, ...]
    lora: Lora | None = None


@dataclass(frozen=True, slots=True)
class Tokens:
    """The next tokens of a generation.

    Attributes:
        logprobs: one each; None where the engine cannot say them.
        cached: tokens of the prompt that did not have to be run again.
        ended: why the engine goes no further, in its own word.
    """

    ids: Sequence[int]
    logprobs: Sequence[float] | None
    cached: int = 0
    ended: str | None = None


class TokenEngine(Protocol):
    """What runs a model. It lives on one event loop; closing a stream frees what that held."""

    def stream(self, prompt: Sequence[int], max_tokens: int, wanted: Wanted) -> AsyncGenerator[Tokens, None]:
        """Generate after a prompt, over stop strings and up to `max_tokens`.

        Raises:
            EngineDied: it is gone.
            GeneratorError: this request failed; others go on.
        """
        ...

    def shutdown(self) -> None:
        """End it, dead or alive, and free its memory."""
        ...


class SharedEngine:
    """Runs one engine for every event loop of the process.

    When the engine dies, another is started in its place, once, and every generation under way goes on from the tokens
    that it has: what was given out stays as it was. A second death is an error of all that run and of all that come.

    Args:
        name: what errors and warnings call it.
        start: makes the engine; called on the engine's own loop, and may take its time.
        max_context: tokens that it has room for.
    """

    def __init__(self, name: str, start: Callable[[], TokenEngine], max_context: int) -> None:
        self.name, self.max_context = name, max_context
        self.restarts = 0
        self._start = start
        self._loop = BackgroundLoop()
        self._used = self._closed = False
        self._engine: TokenEngine | None = None
        self._death: str | None = None
        self._failed: str | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._loras: dict[tuple[Path, tuple[int, ...]], Lora] = {}

    @property
    def running(self) -> int:
        """Generations under way."""
        return len(self._running)

    async def generate(self, prompt: Sequence[int], said: Utterance, wanted: Wanted) -> AsyncGenerator[Chunk, None]:
        """Generate from any event loop; closing the iterator frees the place. The last chunk has usage.

        Raises:
            GeneratorError: the request or the engine failed; says why.
        """
        if self._closed:
            raise GeneratorError(f"model {self.name!r} is closed; make a new generator")
        self._used = True
        channel: Channel[Chunk] = Channel()
        job = self._loop.submit(self._run(prompt, said, wanted, channel), channel)
        try:
            async for chunk in channel:
                yield chunk
            job.future.result()  # it is done: raises what ended it
        finally:
            job.cancel()

    def lora(self, path: Path) -> Lora:
        """The adapter in a folder as the folder now is: another one once its files have changed."""
        state = tuple(sorted(file.stat().st_mtime_ns for file in path.iterdir()))
        if (path, state) not in self._loras:
            number = next(_numbers)
            self._loras[path, state] = Lora(f"{path.name}-{number}", number, path)
        return self._loras[path, state]

    def close(self) -> None:
        """End the engine; generations under way fail. A second time does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._used:
            with suppress(Exception):  # then the loop is closed as it is
                self._loop.submit(self._stop()).future.result(_LONGEST_STOP_S)
        self._loop.close()

    # ---- on the engine's loop -------------------------------------------------------------------------------------

    async def _run(self, prompt: Sequence[int], said: Utterance, wanted: Wanted, channel: Channel[Chunk]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        cached: int | None = None
        try:
            while True:
                engine = self._ready()
                stream = engine.stream((*prompt, *said.ids), said.room, wanted)
                try:
                    async with aclosing(stream) as pieces:
                        async for tokens in pieces:
                            cached = tokens.cached if cached is None else cached
                            chunk = _chunk(said, tokens, len(prompt), cached)
                            channel.put(chunk)
                            if chunk.finish is not None:
                                return
                    raise GeneratorError(f"model {self.name!r}: the engine ended a generation without a reason")
                except EngineDied as death:
                    self._bury(engine, death)
        except asyncio.CancelledError:
            if self._closed:
                raise GeneratorError(f"model {self.name!r} was closed while it generated") from None
            raise
        finally:
            self._running.discard(task)

    async def _stop(self) -> None:
        for task in (running := list(self._running)):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if self._engine is not None:
            self._end(self._engine)

    def _ready(self) -> TokenEngine:
        """The engine, started if there is none."""
        if self._failed is not None:
            raise GeneratorError(self._failed)
        if self._engine is None:
            try:
                engine = self._start()
            except Exception as error:
                again = f" again after it had died ({self._death})" if self._death else ""
                self._failed = (
                    f"model {self.name!r}: its engine could not be started{again} ({first_line(error)}); see what it "
                    "wrote to standard error above, mend it, and make a new generator"
                )
                raise GeneratorError(self._failed) from error
            self._engine = engine
        return self._engine

    def _bury(self, engine: TokenEngine, death: EngineDied) -> None:
        """Let a dead engine go, so that the next who is `_ready` starts another; only the first to notice does it."""
        if engine is not self._engine:
            return
        self._end(engine)
        before, cause = self._death, first_line(death)
        if before is not None:
            self._failed = (
                f"model {self.name!r}: its engine died a second time ({cause}; the first time: {before}); see what it "
                "wrote to standard error above: where memory ran out, lower gpu_memory_utilization, max_num_seqs or "
                "max_context"
            )
            return
        self._death, self.restarts = cause, 1
        warn("antiphon.generators", "engine died; starting it again", model=self.name, cause=cause, kept=self.running)

    def _end(self, engine: TokenEngine) -> None:
        self._engine = None
        try:
            engine.shutdown()
        except Exception as error:  # what is dead may not let itself be ended in order
            warn("antiphon.generators", "an engine did not end in order", model=self.name, cause=first_line(error))


def _chunk(said: Utterance, tokens: Tokens, prompt_tokens: int, cached: int) -> Chunk:
    """What the tokens add to an utterance: up to the one that ends it, should the engine have run on."""
    text, ids, finish = "", [], None
    for index, token_id in enumerate(tokens.ids):
        added = said.add(token_id, 0.0 if tokens.logprobs is None else tokens.logprobs[index])
        text, finish = text + added.text, added.finish
        ids.append(token_id)
        if finish is not None:
            break
    if finish is None and tokens.ended is not None:
        if tokens.ended != "length":
            raise GeneratorError(f"the engine ended a generation ({tokens.ended})")
        text, finish = text + said.cut(), "length"
    logprobs = None if tokens.logprobs is None else tuple(min(p, 0.0) for p in tokens.logprobs[: len(ids)])
    usage = None if finish is None else Usage(prompt_tokens, len(said.ids), cached)
    return Chunk(text, tuple(ids), logprobs, finish, usage)


# ---- shared by the process ----------------------------------------------------------------------------------------

_lock = threading.Lock()
_shared: dict[Hashable, SharedEngine] = {}
_users: dict[Hashable, int] = {}


def lease(key: Hashable, make: Callable[[], SharedEngine]) -> SharedEngine:
    """The engine of this key, made where there is none; give it back with `release`."""
    with _lock:
        if key not in _shared:
            _shared[key] = make()
        _users[key] = _users.get(key, 0) + 1
        return _shared[key]


def release(key: Hashable) -> None:
    """Give an engine back; with its last user it ends."""
    with _lock:
        _users[key] = _users.get(key, 0) - 1
        if _users[key] > 0:
            return
        del _users[key]
        engine = _shared.pop(key, None)
    if engine is not None:
        engine.close()


@atexit.register
def _close_all() -> None:
    """End the engines' processes before the interpreter goes."""
    with _lock:
        engines = list(_shared.values())
        _shared.clear()
    for engine in engines:
        engine.close()
