"""A member that is asked the same again is not asked: its reply is given again, with its cost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from antiphon.contracts import CallContext
from antiphon.money import Budget
from antiphon.train.memo import MemoPool
from antiphon.types import Message

HELLO, BYE = (Message("user", "Hello?"),), (Message("user", "Bye?"),)


async def ask(pool: MemoPool, member: str, messages: tuple[Message, ...], **options: Any) -> Any:
    return await pool.ask(member, messages, context=CallContext(), **options)


def test_equal_questions_are_asked_once_even_at_once(scripted_pool: Callable[..., Any]) -> None:
    real = scripted_pool(["A", "B"], ["one", "two", "three", "four"])

    async def run() -> list[Any]:
        pool = MemoPool(real, lambda descriptor: False)
        twice = await asyncio.gather(ask(pool, "A", HELLO), ask(pool, "a", HELLO))
        others = [await ask(pool, "B", HELLO), await ask(pool, "A", BYE), await ask(pool, "A", HELLO, max_tokens=5)]
        again = await ask(pool, "A", HELLO)
        assert pool.replayed == 2
        return [*twice, *others, again]

    calls = asyncio.run(run())
    assert [call.reply for call in calls] == ["one", "one", "two", "three", "four", "one"]
    assert len(real.asked) == 4
    assert calls[-1].cost_usd == calls[0].cost_usd > 0, "rewards see the original's cost"


def test_a_failure_is_asked_again(scripted_pool: Callable[..., Any]) -> None:
    real = scripted_pool(["A"], [RuntimeError("once"), "better"])

    async def run() -> str | None:
        pool = MemoPool(real, lambda descriptor: False)
        results = await asyncio.gather(ask(pool, "A", HELLO), ask(pool, "A", HELLO), return_exceptions=True)
        assert isinstance(results[0], RuntimeError)
        return results[1].reply  # type: ignore[union-attr]

    assert asyncio.run(run()) == "better"


def test_it_is_the_pool_in_all_else(scripted_pool: Callable[..., Any]) -> None:
    real = scripted_pool(["A"], ["hi"])
    pool = MemoPool(real, lambda descriptor: False)
    assert pool.members == real.members
    assert pool.resolve("a") == "A"
    budget = Budget(1.0)
    asyncio.run(ask(pool, "A", HELLO, budget=budget))
    assert budget.spent_usd == 0.0, "a scripted pool charges nothing"


def test_what_is_replayed_is_asked_for_each_task(scripted_pool: Callable[..., Any]) -> None:
    """A recorded reply goes by the task's question, whatever the words of the query."""
    real = scripted_pool(["A", "B"], ["Austen", "Lima", "kept"])

    async def run() -> list[Any]:
        pool = MemoPool(real, lambda descriptor: descriptor.name == "A")
        tasks = [await pool.ask("a", HELLO, context=CallContext(task_id=name)) for name in ("author", "capital")]
        return [*tasks, await ask(pool, "B", HELLO), await ask(pool, "B", HELLO)]

    assert [call.reply for call in asyncio.run(run())] == ["Austen", "Lima", "kept", "kept"]
