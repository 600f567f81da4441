"""The events of one rollout under way, as an iterator for a thread or for an event loop."""

from __future__ import annotations

from collections import deque
from typing import Self

from antiphon._loop import Channel, Job
from antiphon.types import Event, Trajectory

MERGED_CHARS = 8192
WAITING_EVENTS = 4096
"""What a stream holds for a slow consumer: thinking is merged up to MERGED_CHARS an event, and left out beyond
WAITING_EVENTS of them (the trajectory of `done` has all of it)."""


class _Streaming:
    """A rollout under way and the events that wait to be read."""

    def __init__(self, job: Job[Trajectory], channel: Channel[Event], kept: list[Trajectory]) -> None:
        self._job, self._channel, self._kept = job, channel, kept
        self._closed = False

    @property
    def trajectory(self) -> Trajectory | None:
        """The trajectory once it has finished, or has been cancelled by closing the stream; None before."""
        return self._kept[0] if self._kept else None

    def _abandon(self) -> None:
        self._closed = True
        self._channel.end()
        self._job.cancel()

    def __del__(self) -> None:
        self._job.cancel()


class Stream(_Streaming):
    """Iterates over the events of one rollout; a context manager that cancels it where it is left early."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        try:
            return next(self._channel)
        except StopIteration:
            if not self._closed:
                self._job.future.result()  # raises what ended it, if it was not its own end
            raise

    def close(self) -> None:
        """Cancel the rollout if it still runs, and wait for its clean-up; `trajectory` holds how far it came."""
        self._abandon()
        self._job.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncStream(_Streaming):
    """`Stream` for `async for` and `async with`."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        try:
            return await anext(self._channel)
        except StopAsyncIteration:
            if not self._closed:
                await self._job.result()
            raise

    async def aclose(self) -> None:
        """Cancel the rollout if it still runs, and wait for its clean-up; `trajectory` holds how far it came."""
        self._abandon()
        await self._job.over()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def buffer(waiting: deque[Event], event: Event) -> None:
    """Add an event for a consumer that may be slow: thinking is merged, and beyond the limit left out."""
    last = waiting[-1] if waiting else None
    if event.kind == "thinking":
        if last is not None and last.kind == "thinking" and len(last.text) < MERGED_CHARS:
            waiting[-1] = Event("thinking", last.text + event.text)
            return
        if len(waiting) >= WAITING_EVENTS:
            return
    waiting.append(event)
