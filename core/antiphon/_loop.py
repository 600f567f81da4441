"""One background event loop in a daemon thread, and what crosses between it and any other thread or loop."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import AsyncExitStack, suppress
from typing import Any, Generic, TypeVar

from antiphon.errors import AntiphonError

T = TypeVar("T")

GRACE_S = 5.0
"""How long cancelled work may take to clean up before it is left behind."""

_log = logging.getLogger("antiphon")


class BackgroundLoop:
    """An event loop on a thread of its own, started by the first `submit`.

    Whatever is entered into `resources` (on the loop) is closed with it.
    """

    def __init__(self) -> None:
        self.resources = AsyncExitStack()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this loop's own thread."""
        return self._thread is threading.current_thread()

    def submit(self, work: Coroutine[Any, Any, T]) -> Job[T]:
        """Run a coroutine on the loop, from any thread.

        Raises:
            AntiphonError: the loop is closed, or belongs to the process that this one was forked from.
        """
        try:
            with self._lock:  # so that a `close` in between cannot leave it unstarted
                loop = self._running()
                job: Job[T] = Job(loop)
                loop.call_soon_threadsafe(job.start, work)
        except BaseException:
            work.close()
            raise
        return job

    def close(self) -> None:
        """Cancel what runs, close `resources`, end the thread. Safe to call again, from any thread, and at exit."""
        with self._lock:
            loop, thread = self._loop, self._thread
            if self._closed or os.getpid() != self._pid:
                return
            self._closed = True
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(self._begin_shutdown, loop)
        if not self.is_current:
            thread.join(2 * GRACE_S)

    def _running(self) -> asyncio.AbstractEventLoop:
        if os.getpid() != self._pid:
            raise AntiphonError(
                f"this orchestrator belongs to process {self._pid}, and this is a fork of it ({os.getpid()}); "
                "its connections cannot be shared: make an orchestrator in the child, or start it with spawn"
            )
        if self._closed:
            raise AntiphonError("this orchestrator is closed; make another one")
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._loop.set_default_executor(_DaemonThreads())
            self._thread = threading.Thread(target=self._work, args=(self._loop,), name="antiphon", daemon=True)
            self._thread.start()
        return self._loop

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            while True:
                try:
                    loop.run_forever()
                    break
                except (SystemExit, KeyboardInterrupt) as error:  # asyncio lets these two out of a task; others run on
                    _log.error("a task on antiphon's event loop ended by %s", type(error).__name__)
        finally:
            loop.close()

    def _begin_shutdown(self, loop: asyncio.AbstractEventLoop) -> None:
        ending = loop.create_task(self._shutdown(loop))
        ending.add_done_callback(lambda _: loop.stop())

    async def _shutdown(self, loop: asyncio.AbstractEventLoop) -> None:
        running = asyncio.all_tasks() - {asyncio.current_task()}
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=GRACE_S)
        try:
            await asyncio.wait_for(self.resources.aclose(), GRACE_S)
        except Exception as error:
            _log.warning("closing failed: %s: %s", type(error).__name__, error)
        await loop.shutdown_asyncgens()


class Job(Generic[T]):
    """A coroutine at work on a background loop. `future` is done once its task is really over, clean-up included."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.future: Future[T] = Future()
        self.future.set_running_or_notify_cancel()  # so that nobody can mark it as cancelled while the task still runs
        self._loop = loop
        self._task: asyncio.Task[T] | None = None
        self._cancelled = False

    def start(self, work: Coroutine[Any, Any, T]) -> None:
        self._task = self._loop.create_task(work)
        self._task.add_done_callback(self._over)
        if self._cancelled:
            self._task.cancel()

    def cancel(self) -> None:
        """Ask it to stop, from any thread; returns at once."""
        self._cancelled = True
        with suppress(RuntimeError):  # the loop is closed: nothing runs any more
            self._loop.call_soon_threadsafe(self._cancel)

    def wait(self) -> T:
        """The result, in a thread that may block. Ctrl-C cancels the job, waits for its clean-up, and goes on up."""
        try:
            return self.future.result()
        except KeyboardInterrupt:
            self.stop()
            raise

    def stop(self) -> None:
        """Cancel it and wait until it is over, though not for ever."""
        self.cancel()
        with suppress(FutureTimeout, AntiphonError):  # its result is of no interest any more
            self.future.result(GRACE_S)

    async def result(self) -> T:
        """The result, on any event loop. Cancelling the wait cancels the job."""
        try:
            return await asyncio.wrap_future(self.future)
        except asyncio.CancelledError:
            self.cancel()
            raise

    async def over(self) -> None:
        """Wait until it is over, however it ended, though not for ever."""
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        self.future.add_done_callback(lambda _: _wake(loop, ended))
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), GRACE_S)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _over(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.future.set_exception(AntiphonError("cancelled: it was stopped, or its orchestrator was closed"))
            return
        error = task.exception()
        if isinstance(error, SystemExit | KeyboardInterrupt):
            error = AntiphonError(
                f"{type(error).__name__} was raised inside a rollout; a plugin must not end the process"
            )
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(task.result())


class ChannelEnded(Exception):
    """Nothing more will come."""


class Channel(Generic[T]):
    """From the loop to one consumer on any thread or loop; putting never blocks.

    Args:
        add: how an item joins those that wait; decides what happens when the consumer is slow.
    """

    def __init__(self, add: Callable[[deque[T], T], None] | None = None) -> None:
        self._items: deque[T] = deque()
        self._add: Callable[[deque[T], T], None] = add or deque.append
        self._lock = threading.Lock()
        self._ended = False
        self._wake: Callable[[], Any] | None = None

    def put(self, item: T) -> None:
        with self._lock:
            if not self._ended:
                self._add(self._items, item)
            wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    def end(self) -> None:
        """What waits is still handed out; then `get` raises `ChannelEnded`."""
        with self._lock:
            self._ended = True
            wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    def get(self) -> T:
        ready = threading.Event()
        while not self._ready(ready.set):
            ready.wait()
            ready.clear()
        return self._take()

    async def aget(self) -> T:
        ready = asyncio.Event()
        loop = asyncio.get_running_loop()

        while not self._ready(lambda: _wake(loop, ready)):
            await ready.wait()
            ready.clear()
        return self._take()

    def drain(self) -> list[T]:
        """What waits, without waiting."""
        with self._lock:
            items = list(self._items)
            self._items.clear()
        return items

    def _ready(self, wake: Callable[[], Any]) -> bool:
        with self._lock:
            if self._items or self._ended:
                return True
            self._wake = wake
            return False

    def _take(self) -> T:
        with self._lock:
            if not self._items:
                raise ChannelEnded
            return self._items.popleft()


def _wake(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    """Set an event of another loop, from any thread."""
    with suppress(RuntimeError):  # that loop is closed, and so is whoever waited on it
        loop.call_soon_threadsafe(event.set)


class _DaemonThreads(ThreadPoolExecutor):
    """A daemon thread for each call: as many at once as rollouts ask for, and none holds up the interpreter's exit.

    The stock executor has a handful of threads on a small machine, and Python waits for each of them at exit.
    """

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # handed on: whoever awaits the future gets it
                future.set_exception(error)
            else:
                future.set_result(result)

        threading.Thread(target=work, name="antiphon-call", daemon=True).start()
        return future
