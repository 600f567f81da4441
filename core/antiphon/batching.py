"""Continuous batching on torch: one worker thread, requests join and leave at token boundaries.

A prompt is run alone, without padding; its keys and values then join the running batch, padded on the left, so that a
request decodes the same alone and in company. Keys and values of finished contexts are kept for a while, so that a
context that goes on, or shares its beginning with another, is not encoded again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from antiphon.contracts import Chunk
from antiphon.errors import GeneratorError
from antiphon.generators._chat import Chat, Detokeniser, find_stop
from antiphon.sampling import Sampling, draw, randomness
from antiphon.types import Finish

BASE = "__base__"  # peft's name for "no adapter"
_WORTH_REUSING = 8  # tokens: a shorter common beginning is encoded again

T = TypeVar("T")
_KeyValues = list[tuple[Any, Any]]  # one (keys, values) per layer, each [rows, heads, tokens, size]


@dataclass(slots=True, eq=False)
class Job:
    """One generation. `deliver` is called on the worker thread with each chunk, or with the error that ended it."""

    chat: Chat
    token_ids: Sequence[int]
    stop: tuple[str, ...]
    max_tokens: int
    sampling: Sampling
    adapter: str
    deliver: Callable[[Chunk | Exception], None]
    cancelled: bool = False


@dataclass(slots=True, eq=False)
class _Row:
    """A job in the running batch. `length`: tokens whose keys and values are in the batch."""

    job: Job
    detokeniser: Detokeniser
    random: Any
    length: int
    ids: list[int] = field(default_factory=list)
    text: str = ""

    @property
    def known(self) -> tuple[int, ...]:
        """The ids behind the row's keys and values: all but the newest."""
        return (*self.job.token_ids, *self.ids)[: self.length]


class Engine:
    """Runs one model for everybody.

    Args:
        model: a causal language model of transformers (or peft), in eval mode, with full attention caches.
        name: what errors call it.
        max_batch: requests decoded at once; others wait.
        cache_tokens: how many tokens of finished contexts to keep for reuse; 0: none.
        threads: torch threads of the worker; None: torch's own choice.
    """

    def __init__(self, model: Any, *, name: str, max_batch: int, cache_tokens: int, threads: int | None) -> None:
        self.model: Any = model
        self._name, self._max_batch, self._threads = name, max_batch, threads
        self._wake = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._tasks: deque[Callable[[], None]] = deque()
        self._closed = False
        self._rows: list[_Row] = []
        self._cache: Any = None  # keys and values of the rows, each padded on the left to the longest
        self._prefixes = _Prefixes(cache_tokens)
        self.reused_tokens = 0  # prompt tokens that did not have to be encoded again
        self._thread = threading.Thread(target=self._work, name=f"antiphon-{name}", daemon=True)
        self._thread.start()

    @property
    def running(self) -> int:
        """Requests that are waiting or being decoded."""
        return len(self._waiting) + len(self._rows)

    def submit(self, job: Job) -> None:
        self._enqueue(self._waiting, job)

    def call(self, work: Callable[[], T]) -> T:
        """Run `work` between two steps, on the worker thread: for what changes the model."""
        future: Future[T] = Future()

        def task() -> None:
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

        self._enqueue(self._tasks, task)
        return future.result()

    def _enqueue(self, queue: deque[T], item: T) -> None:
        with self._wake:
            if self._closed:
                raise GeneratorError(f"model {self._name!r} is closed; make a new generator")
            queue.append(item)
            self._wake.notify()

    def close(self) -> None:
        """Stop the worker; requests under way fail. A second time does nothing."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # ---- on the worker thread -------------------------------------------------------------------------------------

    def _work(self) -> None:
        import torch

        if self._threads is not None:
            torch.set_num_threads(self._threads)
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._closed or self._waiting or self._tasks or self._rows)
                if self._closed:
                    break
                tasks = list(self._tasks)
                self._tasks.clear()
            for task in tasks:
                task()
            with torch.inference_mode():
                self._leave([row for row in self._rows if row.job.cancelled])
                self._join()
                if self._rows:
                    self._step()
        error = f"model {self._name!r} was closed while it generated"
        for job in [*self._waiting, *(row.job for row in self._rows)]:
            job.deliver(GeneratorError(error))
        for task in self._tasks:  # nobody may wait for ever
            task()
        self._waiting.clear()
        self._rows, self._cache, self.model = [], None, None

    def _join(self) -> None:
        while len(self._rows) < self._max_batch:
            with self._wake:
                if not self._waiting:
                    return
                job = self._waiting.popleft()
            if job.cancelled:
                continue
            try:
                self._prefill(job)
            except Exception as error:  # this request's own: the others go on
                job.deliver(self._failed(error))

    def _prefill(self, job: Job) -> None:
        """Run a prompt, draw its first token, and let it join the batch unless that ended it."""
        import torch
        from transformers import DynamicCache

        ids = tuple(job.token_ids)
        reused, kv = self._prefixes.find(job.adapter, ids)
        self.reused_tokens += reused
        cache: Any = DynamicCache()
        for layer, (keys, values) in enumerate(kv):
            cache.update(keys, values, layer)
        device = self.model.device
        logits = self._forward(
            torch.tensor([ids[reused:]], device=device),
            torch.ones((1, len(ids)), dtype=torch.long, device=device),
            torch.arange(reused, len(ids), device=device)[None],
            cache,
            [job.adapter],
        )
        self._prefixes.keep(job.adapter, ids, [(layer.keys, layer.values) for layer in cache.layers])
        row = _Row(job, Detokeniser(job.chat), randomness(job.sampling.seed, len(ids)), len(ids))
        if self._draw(row, logits[0]):
            return
        self._cache = _joined(self._cache, cache) if self._rows else cache
        self._rows.append(row)

    def _step(self) -> None:
        """One more token for every row."""
        import torch

        try:
            device = self.model.device
            total = self._cache.get_seq_length()
            lengths = torch.tensor([row.length for row in self._rows], device=device)
            columns = torch.arange(total + 1, device=device)[None]
            logits = self._forward(
                torch.tensor([row.ids[-1:] for row in self._rows], device=device),
                (columns >= (total - lengths)[:, None]).long(),
                lengths[:, None],
                self._cache,
                [row.job.adapter for row in self._rows],
            )
        except Exception as error:  # everybody's: say so to each, and be ready for the next
            rows, self._rows, self._cache = self._rows, [], None
            for row in rows:
                row.job.deliver(self._failed(error))
            return
        ended = []
        for row, scores in zip(self._rows, logits, strict=True):
            row.length += 1
            try:
                if self._draw(row, scores):
                    ended.append(row)
            except Exception as error:
                row.job.deliver(self._failed(error))
                row.job.cancelled = True
                ended.append(row)
        self._leave(ended)

    def _forward(self, ids: Any, mask: Any, positions: Any, cache: Any, adapters: list[str]) -> Any:
        """Scores of the next token, [rows, vocabulary], float32 on the CPU."""
        extra = {"adapter_names": adapters} if hasattr(self.model, "peft_config") else {}
        output = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
            **extra,
        )
        return output.logits[:, -1].float().cpu()

    def _draw(self, row: _Row, scores: Any) -> bool:
        """Draw the row's next token and deliver it; whether that ended the row."""
        job = row.job
        token_id, logprob = draw(scores, job.sampling, row.random)
        row.ids.append(token_id)
        piece = row.detokeniser.add(token_id)
        finish: Finish | None = None
        if token_id in job.chat.end_ids:
            finish = "end"
        elif piece and find_stop(row.text + piece, job.stop, len(row.text)) is not None:
            finish = "stop"
        elif len(row.ids) >= job.max_tokens:
            finish = "length"
        if finish is not None:
            piece += row.detokeniser.finish()
        row.text += piece
        job.deliver(Chunk(piece, (token_id,), (logprob,), finish))
        return finish is not None

    def _leave(self, rows: Sequence[_Row]) -> None:
        """Take rows out of the batch, keeping their keys and values for a context that goes on."""
        if not rows:
            return
        layers = self._cache.layers
        for index, row in enumerate(self._rows):
            if row in rows:
                at = (slice(index, index + 1), slice(None), slice(-row.length, None))
                own = [(layer.keys[at].clone(), layer.values[at].clone()) for layer in layers]
                self._prefixes.keep(row.job.adapter, row.known, own)
        stay = [index for index, row in enumerate(self._rows) if row not in rows]
        self._rows = [self._rows[index] for index in stay]
        if not stay:
            self._cache = None
            return
        longest = max(row.length for row in self._rows)
        for layer in layers:
            layer.keys, layer.values = layer.keys[stay, :, -longest:], layer.values[stay, :, -longest:]

    def _failed(self, error: Exception) -> GeneratorError:
        remedy = "; lower max_batch or max_context" if "out of memory" in str(error).lower() else ""
        return GeneratorError(f"model {self._name!r} failed: {type(error).__name__}: {error}{remedy}")


class _Prefixes:
    """Keys and values of contexts seen lately, the oldest dropped first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: list[tuple[str, tuple[int, ...], _KeyValues]] = []  # oldest first

    def find(self, adapter: str, ids: tuple[int, ...]) -> tuple[int, _KeyValues]:
        """The longest known beginning of `ids`, short of its last token: how many ids, and their keys and values."""
        best, at = 0, -1
        for index, (name, known, _) in enumerate(self._entries):
            if name == adapter:
                shared = _common(known, ids[:-1])
                if shared > best:
                    best, at = shared, index
        if best < _WORTH_REUSING:
            return 0, []
        entry = self._entries.pop(at)
        self._entries.append(entry)
        return best, [(keys[:, :, :best], values[:, :, :best]) for keys, values in entry[2]]

    def keep(self, adapter: str, ids: tuple[int, ...], kv: _KeyValues) -> None:
        if len(ids) > self._limit:
            return
        self._entries = [e for e in self._entries if not (e[0] == adapter and ids[: len(e[1])] == e[1])]
        self._entries.append((adapter, ids, kv))
        while sum(len(entry[1]) for entry in self._entries) > self._limit:
            self._entries.pop(0)


def _joined(batch: Any, own: Any) -> Any:
    """Two caches as one, the shorter padded on the left."""
    import torch
    from torch.nn.functional import pad

    def join(left: Any, right: Any) -> Any:
        total = max(left.shape[-2], right.shape[-2])
        return torch.cat([pad(part, (0, 0, total - part.shape[-2], 0)) for part in (left, right)])

    for layer, other in zip(batch.layers, own.layers, strict=True):
        layer.keys, layer.values = join(layer.keys, other.keys), join(layer.values, other.values)
    return batch


def _common(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """How many leading ids two contexts share."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))
