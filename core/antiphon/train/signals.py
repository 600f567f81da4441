"""What Ctrl-C and a termination signal do: a run finishes the step under way; what keeps nothing is cancelled."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class Stopping:
    """Whether the run has been asked to stop."""

    asked: bool = False


@contextmanager
def gentle_stop(on_asked: Callable[[], None]) -> Iterator[Stopping]:
    """Within it, the first signal sets `asked` and calls `on_asked`; the next raises KeyboardInterrupt.

    Only the main thread is sent signals: elsewhere nothing is ever asked.
    """
    stopping = Stopping()

    def gently() -> None:
        stopping.asked = True
        on_asked()

    with _first(gently):
        yield stopping


def run_cancellable(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, but the first signal cancels `main`, whose clean-up runs to its end; the next ends it at once.

    `asyncio.run` does so for Ctrl-C alone: a termination signal would break out of whichever task is running.

    Raises:
        KeyboardInterrupt: it was cancelled so.
    """
    asked = False

    async def cancellable() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None  # a coroutine runs in a task

        def cancel() -> None:
            nonlocal asked
            asked = True
            loop.call_soon_threadsafe(task.cancel)

        with _first(cancel):
            return await main

    try:
        result = asyncio.run(cancellable())
    except asyncio.CancelledError:
        if not asked:
            raise
        raise KeyboardInterrupt from None
    if asked:  # too late to cancel anything
        raise KeyboardInterrupt
    return result


@contextmanager
def _first(do: Callable[[], None]) -> Iterator[None]:
    """Within it, the first signal does that; the next raises KeyboardInterrupt. Only the main thread is sent any."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.default_int_handler)
        do()

    before = {each: signal.signal(each, handle) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
