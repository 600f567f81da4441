"""A pool whose every call is charged to a run: what scoring asks counts, whether a verdict comes of it or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from antiphon.money import Budget

if TYPE_CHECKING:
    from antiphon.contracts import AsksMembers, CallContext, MemberView
    from antiphon.types import Call, Message


class ChargedPool:
    """A pool (`antiphon.contracts.AsksMembers`) as reward terms ask it, within budgets of their own.

    Args:
        budget: of the run. It is charged what each call has cost, and refuses none: what is to be scored has been paid
            for already.
    """

    def __init__(self, pool: AsksMembers, budget: Budget) -> None:
        self._pool, self._budget = pool, budget

    @property
    def members(self) -> tuple[MemberView, ...]:
        return self._pool.members

    def resolve(self, asked: str) -> str | None:
        return self._pool.resolve(asked)

    async def ask(
        self,
        member: str,
        messages: Sequence[Message],
        *,
        context: CallContext,
        budget: Budget | None = None,
        max_tokens: int | None = None,
    ) -> Call:
        """As the pool would."""
        spent = Budget(parent=budget)
        try:
            return await self._pool.ask(member, messages, context=context, budget=spent, max_tokens=max_tokens)
        finally:  # a call that was cancelled may have been charged
            self._budget.charge(spent.spent_usd)
