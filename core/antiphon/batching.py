"""Continuous batching on torch: one worker thread, requests join and leave at token boundaries.

Prompts of like lengths are run together, without padding between a context and its end, and their keys and values lie
where the running batch reads them, padded on the left: a request decodes the same alone and in company. Keys and values
of finished contexts are kept for a while, so that a context that goes on, or shares its beginning with another, is not
encoded again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from antiphon._adapters import Adapters
from antiphon._attention import use_grouped_attention
from antiphon._kv import Batch, KeyValues, Prefixes, common
from antiphon.contracts import Chunk
from antiphon.errors import GeneratorError
from antiphon.generators._chat import Chat, Utterance
from antiphon.sampling import Sampling, draw, randomness

BASE = ""  # no adapter
_WORTH_WAITING = 8  # tokens: prompts that share as many that are not known yet run one after the other
_PREFILL_TOKENS = 4096  # run together at most
_GATHER = 4  # steps that whoever waits may have to wait for others

T = TypeVar("T")


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
class _Prompt:
    """A job that is about to join. `reused`: tokens whose keys and values are known."""

    job: Job
    ids: tuple[int, ...]
    reused: int
    known: KeyValues

    @property
    def fresh(self) -> int:
        return len(self.ids) - self.reused


@dataclass(slots=True, eq=False)
class _Row:
    """A job in the running batch. `length`: tokens whose keys and values are in the batch."""

    job: Job
    said: Utterance
    random: Any
    length: int

    @property
    def known(self) -> tuple[int, ...]:
        """The ids behind the row's keys and values: all but the newest."""
        return (*self.job.token_ids, *self.said.ids)[: self.length]


class Engine:
    """Runs one model for everybody.

    Args:
        model: a causal language model of transformers, in eval mode, with full attention caches.
        name: what errors call it.
        max_batch: requests decoded at once; others wait.
        cache_tokens: how many tokens of finished contexts to keep for reuse; 0: none.
        threads: torch threads of the worker; None: torch's own choice.
    """

    def __init__(self, model: Any, *, name: str, max_batch: int, cache_tokens: int, threads: int | None) -> None:
        self.model: Any = model
        self.adapters = Adapters(model)
        use_grouped_attention(model)
        self._name, self._max_batch, self._threads = name, max_batch, threads
        self._wake = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._tasks: deque[Callable[[], None]] = deque()
        self._closed = False
        self._rows: list[_Row] = []
        self._steps = 0  # since others could last join
        self._cache: Batch | None = None  # keys and values of the rows; None: nothing runs
        self._prefixes = Prefixes(cache_tokens)
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

    def change(self, work: Callable[[], T]) -> T:
        """Like `call`, for what replaces weights: no keys and values of before are used for a prompt after it."""

        def changing() -> T:
            try:
                return work()
            finally:
                self._prefixes.clear()

        return self.call(changing)

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
                if self._due():
                    self._join()
                    self._steps = 0
                if self._rows:
                    self._step()
                    self._steps += 1
        error = f"model {self._name!r} was closed while it generated"
        for job in [*self._waiting, *(row.job for row in self._rows)]:
            job.deliver(GeneratorError(error))
        for task in self._tasks:  # nobody may wait for ever
            task()
        self._waiting.clear()
        self._rows, self._cache, self.model = [], None, None

    def _due(self) -> bool:
        """Whether those who wait are run now. A pass costs nearly as much for one as for many, so while others are
        being decoded they gather for a few steps."""
        return self._steps >= _GATHER or len(self._waiting) >= len(self._rows)

    def _join(self) -> None:
        """Run what waits, as far as there is room, and draw each one's first token."""
        waiting: list[Job] = []
        with self._wake:
            while self._waiting and len(self._rows) + len(waiting) < self._max_batch:
                job = self._waiting.popleft()
                if not job.cancelled:
                    waiting.append(job)
        while waiting:
            wave, waiting = self._wave(waiting)
            for together in _alike(wave):
                self._prefill(together)

    def _wave(self, waiting: Sequence[Job]) -> tuple[list[_Prompt], list[Job]]:
        """The prompts to run now, and those that had better wait, since one of them runs what they begin with."""
        wave: list[_Prompt] = []
        later = []
        for job in waiting:
            ids = tuple(job.token_ids)
            reused, known = self._prefixes.find(job.adapter, ids)
            shared = (common(p.ids, ids) for p in wave if p.job.adapter == job.adapter)
            if min(max(shared, default=0), len(ids) - 1) >= reused + _WORTH_WAITING:
                later.append(job)
            else:
                wave.append(_Prompt(job, ids, reused, known))
        return wave, later

    def _prefill(self, prompts: Sequence[_Prompt]) -> None:
        """Run prompts together, none shorter than what the one with most to run has to; each becomes a row."""
        cache = self._cache = self._cache or Batch(self._max_batch)
        first = len(self._rows)
        lengths = [len(prompt.ids) for prompt in prompts]
        tokens = max(prompt.fresh for prompt in prompts)  # of each: who knows more runs some of it again
        try:
            cache.admit(lengths, tokens, [prompt.known for prompt in prompts], self._longest())
            logits = self._forward(
                [prompt.ids[-tokens:] for prompt in prompts], lengths, cache, [prompt.job.adapter for prompt in prompts]
            )
        except Exception as error:
            cache.rows = first
            if len(prompts) == 1:  # this request's own: the others go on
                prompts[0].job.deliver(self._failed(error))
            for prompt in prompts if len(prompts) > 1 else ():
                self._prefill([prompt])
            return
        for prompt in prompts:
            job, length = prompt.job, len(prompt.ids)
            said = Utterance(job.chat, job.stop, job.max_tokens)
            self._rows.append(_Row(job, said, randomness(job.sampling.seed, length), length))
            self.reused_tokens += length - tokens
            if prompt.fresh >= _WORTH_WAITING:
                self._prefixes.keep(job.adapter, prompt.ids, cache.row(len(self._rows) - 1, length))
        self._draw(self._rows[first:], logits)

    def _step(self) -> None:
        """One more token for every row."""
        rows, cache = self._rows, self._cache
        try:
            if cache is None:
                raise RuntimeError("rows without keys and values")
            cache.extend(self._longest())
            logits = self._forward(
                [row.said.ids[-1:] for row in rows],
                [row.length + 1 for row in rows],
                cache,
                [row.job.adapter for row in rows],
            )
        except Exception as error:  # everybody's: say so to each, and be ready for the next
            self._rows, self._cache = [], None
            for row in rows:
                row.job.deliver(self._failed(error))
            return
        for row in rows:
            row.length += 1
        self._draw(rows, logits)

    def _forward(self, ids: Sequence[Sequence[int]], lengths: Sequence[int], cache: Batch, adapters: list[str]) -> Any:
        """Scores of the token after `ids`, the newest of contexts of these lengths: [rows, vocabulary], on the CPU."""
        device = self.model.device
        tokens = len(ids[0])
        ends = torch.tensor(lengths, device=device)[:, None]
        total = max(lengths)
        self.adapters.use(adapters)
        output = self.model(
            input_ids=torch.tensor(ids, device=device),
            attention_mask=(torch.arange(total, device=device)[None] >= total - ends).long(),
            position_ids=ends - tokens + torch.arange(tokens, device=device)[None],
            past_key_values=cache.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1].cpu()

    def _draw(self, rows: Sequence[_Row], scores: Any) -> None:
        """Draw each row's next token and deliver it; rows that this ends leave."""
        drawn = draw(scores, [row.job.sampling for row in rows], [row.random for row in rows])
        ended = []
        for row, (token_id, logprob) in zip(rows, drawn, strict=True):
            try:
                chunk = row.said.add(token_id, logprob)
                row.job.deliver(chunk)
                if chunk.finish is not None:
                    ended.append(row)
            except Exception as error:
                row.job.deliver(self._failed(error))
                row.job.cancelled = True
                ended.append(row)
        self._leave(ended)

    def _leave(self, rows: Sequence[_Row]) -> None:
        """Take rows out of the batch, keeping their keys and values for a context that goes on."""
        cache = self._cache
        if cache is None:
            return
        for row in rows:
            index = self._rows.index(row)
            self._prefixes.keep(row.job.adapter, row.known, cache.row(index, row.length))
            last = self._rows.pop()
            cache.drop(index, last.length)
            if last is not row:
                self._rows[index] = last
        if not self._rows:
            self._cache = None

    def _longest(self) -> int:
        return max((row.length for row in self._rows), default=0)

    def _failed(self, error: Exception) -> GeneratorError:
        remedy = "; lower max_batch or max_context" if "out of memory" in str(error).lower() else ""
        return GeneratorError(f"model {self._name!r} failed: {type(error).__name__}: {error}{remedy}")


def _alike(wave: Sequence[_Prompt]) -> list[list[_Prompt]]:
    """Prompts that are run together: about as much to run, and none shorter than the most that one has to."""
    groups: list[list[_Prompt]] = []
    for prompt in sorted(wave, key=lambda prompt: prompt.fresh):
        group = groups[-1] if groups else []
        shortest = min((len(p.ids) for p in group), default=0)
        if (
            group
            and prompt.fresh <= min(2 * group[0].fresh + 16, shortest)
            and (len(group) + 1) * prompt.fresh <= _PREFILL_TOKENS
        ):
            group.append(prompt)
        else:
            groups.append([prompt])
    return groups
