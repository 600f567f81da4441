"""Hands finished trajectories to observers, off the event loop, from a bounded queue; what does not fit is counted."""

from __future__ import annotations

import atexit
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from antiphon._entry_points import said
from antiphon.log import warn

if TYPE_CHECKING:
    from antiphon.types import Trajectory

QUEUE_SIZE = 1_000
EXIT_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Observer:
    """A plugin's function and whose it is."""

    owner: str
    function: Callable[..., object]


class Observers:
    """One daemon thread that calls every observer with every trajectory, started by the first of them.

    Safe across threads. `put` never blocks and never raises.

    Args:
        size: most trajectories that wait at once.
    """

    def __init__(self, observers: Sequence[Observer], *, size: int = QUEUE_SIZE) -> None:
        self._observers = tuple(observers)
        self._queue: queue.Queue[Trajectory | None] = queue.Queue(size)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._complained: set[int] = set()
        self._dropped = 0

    @property
    def dropped(self) -> int:
        """Trajectories that no observer saw, since the queue was full or closed."""
        return self._dropped

    def put(self, trajectory: Trajectory) -> None:
        """Take a trajectory, or count it as dropped."""
        if not self._observers:
            return
        with self._lock:
            if not self._closed:
                self._start()
                try:
                    self._queue.put_nowait(trajectory)
                except queue.Full:
                    pass  # counted below, like what comes after the end
                else:
                    return
            self._dropped += 1
            first = self._dropped == 1
        if first:
            warn(
                "antiphon.registry",
                "observers_dropped",
                remedy="make the observers faster; `dropped` counts what they do not see",
            )

    def drain(self, timeout_s: float = EXIT_TIMEOUT_S) -> bool:
        """Wait until observers have seen everything; False where `timeout_s` was not enough."""
        deadline = time.monotonic() + timeout_s
        with self._queue.all_tasks_done:
            while self._queue.unfinished_tasks:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._queue.all_tasks_done.wait(left)
        return True

    def close(self, timeout_s: float = EXIT_TIMEOUT_S) -> bool:
        """Take no more, wait at most `timeout_s`, end the thread; False where something was left unseen."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is None:
            return True
        atexit.unregister(self.close)
        drained = self.drain(timeout_s)
        if drained:
            self._queue.put_nowait(None)
            thread.join(timeout_s)
        return drained

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="antiphon-observers", daemon=True)
            self._thread.start()
            atexit.register(self.close)

    def _run(self) -> None:
        while (trajectory := self._queue.get()) is not None:
            for index, observer in enumerate(self._observers):
                try:
                    observer.function(trajectory)
                except BaseException as error:  # an observer may call sys.exit; the thread serves the others
                    if index not in self._complained:
                        self._complained.add(index)
                        warn("antiphon.registry", "observer_failed", plugin=observer.owner, error=said(error))
            self._queue.task_done()
