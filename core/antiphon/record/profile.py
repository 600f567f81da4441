"""What recorded replies say about a member (scores, latency, whether its price holds), as overriding tables."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from antiphon._served import is_asked
from antiphon.descriptor import Latency

if TYPE_CHECKING:
    from antiphon.contracts import MemberView
    from antiphon.descriptor import Price
    from antiphon.record.rows import Row

FEWEST = 10
"""Replies below which no latency is fitted."""

FASTEST = 100_000.0
"""Tokens per second above which it is no model that wrote them: a replay, a cache."""

TOLERANCE = 0.01
"""Relative difference between what was charged and what the price says, below which the price holds."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One member, measured.

    Attributes:
        scores: data set -> mean score over its replies.
        latency: None where it could not be measured.
        charged: USD charged for the replies over what the quoted price says of their tokens; None: not comparable.
        notes: what could not be measured and why.
    """

    member: str
    replies: int
    failed: int
    cost_usd: float
    scores: Mapping[str, float] = field(default_factory=dict)
    latency: Latency | None = None
    charged: float | None = None
    quote: Price | None = None
    notes: tuple[str, ...] = ()

    @property
    def raised(self) -> tuple[float | None, float] | None:
        """The price that the charges come to, per million tokens (input, output), where they are above the quoted one.

        A lower one is not taken over: budgets reserve by the price.
        """
        if self.quote is None or self.charged is None or self.charged <= 1 + TOLERANCE:
            return None
        given = None if self.quote.input is None else _rounded(self.quote.input * self.charged)
        return given, _rounded(self.quote.output * self.charged)


def profile(view: MemberView, rows: Sequence[Row], failed: int) -> Profile:
    """Measure a member by its recorded replies. `failed`: questions to which it has none."""
    kept = [row for row in rows if row.kept]
    by_dataset: dict[str, list[float]] = defaultdict(list)
    for row in kept:
        if row.score is not None:
            by_dataset[row.dataset].append(row.score)
    latency, why = fitted((row.output_tokens, row.latency_s) for row in kept)
    notes = [] if latency is not None else [f"latency: {why}"]
    if failed:
        notes.append(f"no reply to {failed} of {len(kept) + failed}, which the scores leave out")
    served = {row.served_model for row in kept if row.served_model}
    others = sorted(model for model in served if not is_asked(view.descriptor, model))
    if others:
        notes.append(f"answered as {', '.join(others)}")
    charged = _charged(kept, view.quote)
    if charged is not None and abs(charged - 1) > TOLERANCE:
        done = "the price is raised" if charged > 1 else "the price is left, since budgets reserve by it"
        notes.append(f"charged {charged:.3g} times what the quoted price says; {done}")
    return Profile(
        member=view.name,
        replies=len(kept),
        failed=failed,
        cost_usd=sum(row.cost_usd for row in rows),
        scores={name: round(sum(scores) / len(scores), 4) for name, scores in sorted(by_dataset.items())},
        latency=latency,
        charged=charged,
        quote=view.quote,
        notes=tuple(notes),
    )


def fitted(replies: Iterable[tuple[int | None, float | None]]) -> tuple[Latency | None, str]:
    """The least-squares line through (output tokens, seconds): its start is the time to the first token, its slope the
    time of one token. Where the line starts below 0, the one through the origin is taken.

    Returns:
        The latency, or None and the reason.
    """
    points = [(tokens, seconds) for tokens, seconds in replies if tokens and seconds]
    if len(points) < FEWEST:
        return None, f"{len(points)} replies with token counts and times; it takes {FEWEST}"
    n = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if spread == 0:
        return None, "all replies are of one length, so that the first token cannot be told from the rest"
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    start = mean_y - slope * mean_x
    if start < 0:
        start, slope = 0.0, sum(x * y for x, y in points) / sum(x * x for x, _ in points)
    if slope <= 1 / FASTEST:
        return None, "longer replies took no longer"
    return Latency(first_token_s=round(start, 4), tokens_per_s=float(f"{1 / slope:.4g}")), ""


def to_toml(profiles: Sequence[Profile], how: str) -> str:
    """`[members."NAME"]` tables for antiphon.toml, under a comment that says how they were measured."""
    lines = [f"# {how}"]
    for each in profiles:
        name = json.dumps(each.member, ensure_ascii=False)
        body: list[str] = []
        if each.scores:
            scores = (f"{json.dumps(key, ensure_ascii=False)} = {value}" for key, value in each.scores.items())
            body.append(f"scores = {{ {', '.join(scores)} }}")
        if each.latency is not None:
            latency = each.latency
            body.append(
                f"latency = {{ first_token_s = {latency.first_token_s}, tokens_per_s = {latency.tokens_per_s} }}"
            )
        if each.raised is not None:
            given, made = each.raised
            source = json.dumps(f"measured: {each.charged:.3g} times the quoted price was charged")
            prices = ([] if given is None else [f"input = {given}"]) + [f"output = {made}", f"source = {source}"]
            body.append(f"price = {{ {', '.join(prices)} }}")
        lines += ["", f"# {each.replies} replies" + "".join(f"; {note}" for note in each.notes)]
        lines += [f"[members.{name}]", *body] if body else [f"# {each.member}: nothing was measured"]
    return "\n".join(lines) + "\n"


def _charged(rows: Iterable[Row], quote: Price | None) -> float | None:
    """What was charged over what the quote says, over the replies whose tokens were counted."""
    if quote is None:
        return None
    charged = expected = 0.0
    for row in rows:
        if row.output_tokens is not None:
            charged += row.cost_usd
            expected += ((row.input_tokens or 0) * (quote.input or 0.0) + row.output_tokens * quote.output) / 1e6
    return charged / expected if expected else None


def _rounded(price: float) -> float:
    return float(f"{price:.4g}")
