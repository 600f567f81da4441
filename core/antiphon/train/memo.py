"""Gives a member's reply again where the same member is asked the same: for members that always say the same."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphon.contracts import AsksMembers, CallContext, MemberView
    from antiphon.descriptor import Descriptor
    from antiphon.money import Budget
    from antiphon.types import Call, Message

MOST = 100_000
"""Replies kept; the one that was asked for longest ago goes first."""


class MemoPool:
    """A pool whose replies are kept in memory, by member, messages and token limit; all else is the pool's own.

    Only replies that came are kept: failures are asked again. A reply that is given again is charged to no budget, and
    counts in the trajectory with the usage and cost of the original, so that rewards do not change. Equal questions
    that are under way at once are asked once. One memo serves one event loop.

    Args:
        replays: whether an adapter that only replays reaches a member. What it says depends on the task, not on the
            words alone, and costs nothing to look up: such a member is asked each time.

    Attributes:
        replayed: replies given again.
    """

    def __init__(self, pool: AsksMembers, replays: Callable[[Descriptor], bool]) -> None:
        self._pool = pool
        self._replayed = {view.name for view in pool.members if replays(view.descriptor)}
        self._kept: OrderedDict[tuple[object, ...], Call] = OrderedDict()
        self._under_way: dict[tuple[object, ...], asyncio.Event] = {}
        self.replayed = 0

    @property
    def members(self) -> tuple[MemberView, ...]:
        return self._pool.members

    def resolve(self, asked: str) -> str | None:
        return self._pool.resolve(asked)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    async def ask(
        self,
        member: str,
        messages: Sequence[Message],
        *,
        context: CallContext,
        budget: Budget | None = None,
        max_tokens: int | None = None,
    ) -> Call:
        """As the pool would; waits for an equal question under way, and asks itself where that failed."""
        key = (self._pool.resolve(member), tuple(messages), max_tokens)
        if key[0] in self._replayed:
            return await self._pool.ask(member, messages, context=context, budget=budget, max_tokens=max_tokens)
        while key not in self._kept and key in self._under_way:
            await self._under_way[key].wait()
        if key in self._kept:
            self._kept.move_to_end(key)
            self.replayed += 1
            return self._kept[key]
        over = self._under_way[key] = asyncio.Event()
        try:
            call = await self._pool.ask(member, messages, context=context, budget=budget, max_tokens=max_tokens)
        finally:
            del self._under_way[key]
            over.set()
        if call.ok:
            self._kept[key] = call
            if len(self._kept) > MOST:
                self._kept.popitem(last=False)
        return call
