"""Makes a generation once where several policies of an evaluation would have the same model make the same one."""

from __future__ import annotations

import asyncio
import hashlib
import pickle
import threading
import zlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from antiphon.contracts import Chunk, GenerationRequest, Generator
    from antiphon.registry import Registry


class Kept:
    """Finished generations, within bounds; the one that was used longest ago goes first. Safe across threads.

    They are kept packed, at less than a tenth of their size: policies run one after the other, so that whoever asks a
    second time does so only after all questions of the first.

    Args:
        most: generations.
        most_bytes: of all of them, packed.
    """

    def __init__(self, most: int = 200_000, most_bytes: int = 512 << 20) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._bytes = 0
        self._packed: OrderedDict[bytes, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: bytes) -> list[Chunk] | None:
        """The chunks as they came; None: not kept."""
        with self._lock:
            packed = self._packed.get(key)
            if packed is None:
                return None
            self._packed.move_to_end(key)
        return cast("list[Chunk]", pickle.loads(zlib.decompress(packed)))

    def put(self, key: bytes, chunks: Sequence[Chunk]) -> None:
        packed = zlib.compress(pickle.dumps(list(chunks), pickle.HIGHEST_PROTOCOL), 1)
        if len(packed) > self._most_bytes:
            return
        with self._lock:
            self._bytes += len(packed) - len(self._packed.pop(key, b""))
            self._packed[key] = packed
            while len(self._packed) > self._most or self._bytes > self._most_bytes:
                self._bytes -= len(self._packed.popitem(last=False)[1])


class Memo:
    """A generator that replays what has been generated for an equal request; all else is the generator's own.

    Requests are equal where everything but `request_id` is. Only greedy ones (a temperature of 0, said in the request)
    are replayed: others are meant to differ, and where nothing is said the generator decides. A generation that failed,
    was cancelled or was left before its end is not kept. One memo serves one event loop.

    Args:
        kept: shared with other memos; default: its own.
        of: what tells this generator from others in `kept`.
    """

    def __init__(self, generator: Generator, kept: Kept | None = None, of: object = None) -> None:
        self._generator = generator
        self._kept = kept or Kept()
        self._of = of
        self._under_way: dict[bytes, asyncio.Event] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """As the generator would; while an equal request is under way, waits for it, and takes over if it fails."""
        if request.sampling.get("temperature") != 0:
            async with aclosing(self._generator.generate(request)) as stream:  # type: ignore[type-var]
                async for chunk in stream:
                    yield chunk
            return
        key = self._key(request)
        while (replayed := self._kept.get(key)) is None and key in self._under_way:
            await self._under_way[key].wait()
        if replayed is not None:
            for chunk in replayed:
                yield chunk
            return
        over = self._under_way[key] = asyncio.Event()
        chunks: list[Chunk] = []
        try:
            async with aclosing(self._generator.generate(request)) as stream:  # type: ignore[type-var]
                async for chunk in stream:
                    chunks.append(chunk)
                    if chunk.finish is not None:  # the last; its reader may leave without asking for more
                        self._kept.put(key, chunks)
                    yield chunk
        finally:
            del self._under_way[key]
            over.set()

    def _key(self, request: GenerationRequest) -> bytes:
        asked = (request.messages, request.prefix, request.token_ids, request.stop, request.max_tokens)
        return hashlib.sha256(repr((self._of, asked, sorted(request.sampling.items()))).encode()).digest()


class _Remembering:
    """A registry whose generators, where made of the same name and options, replay each other's generations."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._kept = Kept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._registry, name)

    def generator(self, name: str, /, **options: Any) -> Generator:
        made = self._registry.generator(name, **options)
        return cast("Generator", Memo(made, self._kept, (name, sorted(options.items()))))


def remembering(registry: Registry) -> Registry:
    """The registry, with generators that share what they generate: models stay configured and loaded as they are."""
    return cast("Registry", _Remembering(registry))
