"""Gates in front of an endpoint: so many requests at once, so many started in any minute; first come, first served."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

WINDOW_S = 60.0


class Gate:
    """Lets requests through to one endpoint.

    It belongs to one event loop at a time: to the one it is used on, from its first use there.

    Args:
        concurrency: most requests at once; None: unlimited.
        per_minute: most requests started in any 60 s; None: unlimited.
    """

    def __init__(
        self,
        concurrency: int | None,
        per_minute: int | None,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._concurrency, self._per_minute = concurrency, per_minute
        self._clock, self._sleep = clock, sleep
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started: deque[float] = deque()  # when the requests of the last minute began

    @asynccontextmanager
    async def slot(self, wait_s: float) -> AsyncIterator[None]:
        """Hold a slot; freed on leaving, cancellation included.

        Raises:
            TimeoutError: none comes free within `wait_s`; raised at once where that is known beforehand.
        """
        self._bind()
        slots = self._slots
        if slots is None:
            await self._take_turn(self._clock() + wait_s)
            yield
            return
        deadline = self._clock() + wait_s
        async with asyncio.timeout(wait_s):
            await slots.acquire()
        try:
            await self._take_turn(deadline)
            yield
        finally:
            slots.release()

    def _bind(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            self._slots = None if self._concurrency is None else asyncio.Semaphore(self._concurrency)
            self._turn = asyncio.Lock()

    async def _take_turn(self, deadline: float) -> None:
        """Wait until a request may start, then count it. The slot is taken first, so that it starts when counted."""
        if self._per_minute is None:
            return
        async with asyncio.timeout(max(0.0, deadline - self._clock())), self._turn:
            while (wait := self._until_free()) > 0:
                if self._clock() + wait >= deadline:
                    raise TimeoutError
                await self._sleep(wait)
            self._started.append(self._clock())

    def _until_free(self) -> float:
        """Seconds until the oldest of a full window leaves it; 0: a request may start."""
        assert self._per_minute is not None
        now = self._clock()
        while self._started and self._started[0] + WINDOW_S <= now:
            self._started.popleft()
        return 0.0 if len(self._started) < self._per_minute else self._started[0] + WINDOW_S - now
