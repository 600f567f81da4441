"""One background event loop in a daemon thread, and what crosses between it and any other thread or loop."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from typing import Any, Generic, Self, TypeVar

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
    def is_current(self) -> bool:
        """Whether the caller runs on this loop's own thread."""
        return self._thread is threading.current_thread()

    def submit(self, work: Coroutine[Any, Any, T], channel: Channel[Any] | None = None) -> Job[T]:
        """Run a coroutine on the loop, from any thread; `channel` ends with it.

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
        if channel is not None:
            job.future.add_done_callback(lambda _: channel.end())
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
        ending = asyncio.run_coroutine_threadsafe(self._shutdown(loop), loop)
        ending.add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))
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
        self._task: asyncio.Task[T]  # from `start` on, which is the first thing that the loop is given to do

    def start(self, work: Coroutine[Any, Any, T]) -> None:
        self._task = self._loop.create_task(work)
        self._task.add_done_callback(self._over)

    def cancel(self) -> None:
        """Ask it to stop, from any thread; returns at once."""
        with suppress(RuntimeError):  # the loop is closed: nothing runs any more
            self._loop.call_soon_threadsafe(lambda: self._task.cancel())

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
        with suppress(Exception):  # its result is of no interest any more, nor whether there is one
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
        with suppress(Exception):
            await asyncio.wait_for(asyncio.wrap_future(self.future), GRACE_S)

    def _over(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            error: BaseException | None = AntiphonError("cancelled: it was stopped, or its orchestrator was closed")
        else:
            error = task.exception()
        if isinstance(error, SystemExit | KeyboardInterrupt):
            error = AntiphonError(
                f"{type(error).__name__} was raised inside a rollout; a plugin must not end the process"
            )
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(task.result())


class Channel(Generic[T]):
    """From the loop to one consumer on any thread (`for`) or loop (`async for`); putting never blocks.

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
        self._changed()

    def end(self) -> None:
        """Take no more; what waits is still handed out."""
        self._ended = True
        self._changed()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        ready = threading.Event()
        while not self._ready(ready.set):
            ready.wait()
            ready.clear()
        return self._take(StopIteration)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        ready, loop = asyncio.Event(), asyncio.get_running_loop()

        def wake() -> None:
            with suppress(RuntimeError):  # that loop is closed, and so is whoever waited on it
                loop.call_soon_threadsafe(ready.set)

        while not self._ready(wake):
            await ready.wait()
            ready.clear()
        return self._take(StopAsyncIteration)

    def _changed(self) -> None:
        with self._lock:
            wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    def _ready(self, wake: Callable[[], Any]) -> bool:
        with self._lock:
            if self._items or self._ended:
                return True
            self._wake = wake
            return False

    def _take(self, ended: type[Exception]) -> T:
        with self._lock:
            if not self._items:
                raise ended
            return self._items.popleft()


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
