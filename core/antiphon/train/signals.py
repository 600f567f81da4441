"""What Ctrl-C and a termination signal do while a coroutine runs: they cancel it, so that it cleans up."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


def run_cancellable(main: Coroutine[Any, Any, T], *, gently: Callable[[], None] | None = None) -> T:
    """`asyncio.run`, but a signal cancels `main`, which cleans up; the next one does not wait for that.

    `asyncio.run` does so for Ctrl-C alone: a termination signal would break out of whichever task is running.

    Args:
        gently: what the first signal does instead.

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

        with _signals(cancel) if gently is None else _signals(gently, cancel):
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
def _signals(*actions: Callable[[], None]) -> Iterator[None]:
    """Each signal does the next of these; after the last, KeyboardInterrupt. Only the main thread is sent any."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    left = list(actions)

    def handle(number: int, frame: FrameType | None) -> None:
        action = left.pop(0)
        if not left:
            for each in before:
                signal.signal(each, signal.default_int_handler)
        action()

    before = {each: signal.signal(each, handle) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
