"""What to know before a run's costs are believed: guessed usage, placeholder counts, missing prices, substitutes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphon.evaluate.rows import Row

ENOUGH = 20
"""Calls of a member from which on one and the same token count is no coincidence."""


@dataclass(slots=True)
class _Count:
    """Whether a member's token count was ever another one, over calls about more than one question."""

    tokens: int
    question: str
    calls: int = 0
    varies: bool = False
    questions_vary: bool = False

    def add(self, tokens: int, question: str) -> None:
        self.calls += 1
        self.varies = self.varies or tokens != self.tokens
        self.questions_vary = self.questions_vary or question != self.question

    @property
    def is_constant(self) -> bool:
        return self.calls >= ENOUGH and self.questions_vary and not self.varies


@dataclass(slots=True)
class Audit:
    """The audit of one pool, row by row; `unpriced` are the members that no price is known of."""

    unpriced: tuple[str, ...] = ()
    rows: int = 0
    calls: int = 0
    rows_without_usage: int = 0
    estimated: int = 0
    unpriced_calls: int = 0
    _substituted: Counter[tuple[str, str]] = field(default_factory=Counter)
    _counts: dict[tuple[str, str], _Count] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        self.rows += 1
        self.calls += row.calls
        self.rows_without_usage += row.estimated > 0
        self.estimated += row.estimated
        self.unpriced_calls += row.unpriced
        for member, tokens, served in zip(row.asked, row.tokens, row.served, strict=True):
            if served is not None:
                self._substituted[member, served] += 1
            for which, count in zip(("input", "output"), tokens or (), strict=False):
                seen = self._counts.setdefault((member, which), _Count(count, row.task_id))
                seen.add(count, row.task_id)

    def to_data(self) -> dict[str, Any]:
        """JSON data.

        Keys: `rows`, `calls`; `rows_without_usage` (a provider left token counts out, in part at least), `estimated`
        (such calls); `constant_token_counts` (members that always report the same number: a placeholder);
        `unpriced_members`, `unpriced_calls`; `substituted` (who answered in whose place, how often).
        """
        return {
            "rows": self.rows,
            "calls": self.calls,
            "rows_without_usage": self.rows_without_usage,
            "estimated": self.estimated,
            "constant_token_counts": [
                {"member": member, "which": which, "tokens": seen.tokens, "calls": seen.calls}
                for (member, which), seen in sorted(self._counts.items())
                if seen.is_constant
            ],
            "unpriced_members": list(self.unpriced),
            "unpriced_calls": self.unpriced_calls,
            "substituted": [
                {"member": member, "served": served, "calls": calls}
                for (member, served), calls in sorted(self._substituted.items())
            ],
        }
