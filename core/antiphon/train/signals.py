"""Ctrl-C and a termination signal end a run gently: the step under way is finished; a second one ends it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


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
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return

    def gently(number: int, frame: FrameType | None) -> None:
        stopping.asked = True
        for each in before:
            signal.signal(each, signal.default_int_handler)
        on_asked()

    before = {each: signal.signal(each, gently) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
