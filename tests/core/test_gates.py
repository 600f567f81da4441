"""A gate lets through so many at once and so many a minute, in the order of arrival, and forgets nobody who left."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon._gates import WINDOW_S, Gate


class Clock:
    """Time that passes only where somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)
        self.now += seconds


def gate(concurrency: int | None = None, per_minute: int | None = None, clock: Clock | None = None) -> Gate:
    clock = clock or Clock()
    return Gate(concurrency, per_minute, clock=clock, sleep=clock.sleep)


async def test_so_many_at_once_in_the_order_of_arrival() -> None:
    door, inside, most, order = gate(concurrency=3), 0, 0, []

    async def visit(number: int) -> None:
        nonlocal inside, most
        async with door.slot(60):
            inside += 1
            most = max(most, inside)
            order.append(number)
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(*(visit(number) for number in range(50)))
    assert (inside, most, order) == (0, 3, list(range(50)))


@given(st.integers(1, 7), st.lists(st.floats(0, 40), min_size=1, max_size=40))
def test_no_window_of_a_minute_holds_more_starts_than_allowed(per_minute: int, pauses: list[float]) -> None:
    clock = Clock()
    door, starts = gate(per_minute=per_minute, clock=clock), []

    async def visit() -> None:
        for pause in pauses:
            clock.now += pause
            async with door.slot(1e9):
                starts.append(clock.now)

    asyncio.run(visit())
    assert len(starts) == len(pauses)
    for first, later in zip(starts, starts[per_minute:], strict=False):
        assert later - first >= WINDOW_S * (1 - 1e-9)


async def test_what_cannot_come_free_in_time_is_refused_at_once() -> None:
    clock = Clock()
    door = gate(per_minute=1, clock=clock)
    async with door.slot(60):
        pass
    with pytest.raises(TimeoutError):
        async with door.slot(59):
            pass
    assert clock.now == 0
    async with door.slot(61):
        assert clock.now == WINDOW_S


async def test_a_slot_that_does_not_come_free_times_out_and_is_not_lost() -> None:
    door = gate(concurrency=1)
    async with door.slot(60):
        with pytest.raises(TimeoutError):
            async with door.slot(0.01):
                pass
    async with door.slot(60):
        pass


async def test_who_is_cancelled_in_the_queue_or_inside_leaves_a_free_slot() -> None:
    door = gate(concurrency=1, per_minute=10**6)

    async def stay() -> None:
        async with door.slot(60):
            await asyncio.Event().wait()

    tasks = [asyncio.ensure_future(stay()) for _ in range(5)]
    for task in (tasks[2], tasks[0], *tasks[3:], tasks[1]):
        await asyncio.sleep(0)
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    async with asyncio.timeout(60), door.slot(60):
        pass


def test_a_gate_moves_to_another_event_loop() -> None:
    door = gate(concurrency=1, per_minute=1000)

    async def visit() -> int:
        async with door.slot(60):
            await asyncio.sleep(0)
            return 1

    async def many() -> list[int]:
        return await asyncio.gather(*(visit() for _ in range(5)))

    for _ in range(2):
        assert asyncio.run(many()) == [1] * 5
