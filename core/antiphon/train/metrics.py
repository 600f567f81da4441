"""What a step's rollouts come to, as one row of numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from antiphon import money
from antiphon.train.collect import Rolled

if TYPE_CHECKING:
    from antiphon.contracts import MemberView, Metric

RESULTS = (
    "reward",
    "format_ok",
    "em",
    "calls",
    "cost",
    "val_reward",
    "val_format_ok",
    "val_em",
    "val_calls",
    "val_cost",
)
"""What of a step's metrics the card of its weights tells."""

RECENT = 10
"""Steps by which the time that is left is judged."""


def summary(rolled: Sequence[Rolled], em: Metric) -> dict[str, float]:
    """Means over the rollouts that did not fail, and sums where the name says so.

    Keys: reward and `reward_TERM` for each of its terms; format_ok (share without format problems); em; answered; cost
    (raw, see `raw_cost`) and cost_usd (at the prices shown), a rollout; calls, rounds, response_tokens, a rollout;
    failed (rollouts, a count); split_groups, where questions have several samples: the share of questions whose samples
    earned different rewards, from which alone GRPO and RLOO learn.
    """
    good = [each for each in rolled if each.result is not None]
    results = [each.result for each in good if each.result is not None]
    row: dict[str, float] = {"failed": len(rolled) - len(good)}
    if not results:
        return row
    row["reward"] = _mean(result.total for result in results)
    for term in results[0].parts:
        row[f"reward_{term}"] = _mean(result.parts[term] for result in results)
    earned: dict[int, list[float]] = {}
    for each, result in zip(good, results, strict=True):
        earned.setdefault(each.place, []).append(result.total)
    if len(good) > len(earned):
        row["split_groups"] = _mean(len(set(rewards)) > 1 for rewards in earned.values())
    trajectories = [each.trajectory for each in good]
    row["format_ok"] = _mean(not t.format_problems for t in trajectories)
    row["em"] = _mean(0.0 if t.answer is None else em(t.answer, t.task.golden_answers or ()) for t in trajectories)
    row["answered"] = _mean(t.answer is not None for t in trajectories)
    row["cost"] = _mean(raw_cost(each) for each in good)
    row["cost_usd"] = _mean(t.cost_usd for t in trajectories)
    row["calls"] = _mean(len(t.calls) for t in trajectories)
    row["rounds"] = _mean(t.rounds for t in trajectories)
    row["response_tokens"] = _mean(t.policy_usage.output_tokens for t in trajectories)
    return row


def pace(
    rolled: Sequence[Rolled],
    rollout_s: float,
    step_s: float,
    rows: Sequence[Mapping[str, float]],
    left: int,
    val_s: float = 0.0,
) -> dict[str, float]:
    """How fast a step was, and how long those that are left will take.

    Args:
        rollout_s, step_s: seconds that its rollouts took, and all of it.
        rows: metrics of the steps before.
        left: steps.
        val_s: seconds that the validations to come will take.
    """
    tokens = sum(each.trajectory.policy_usage.output_tokens for each in rolled)
    recent = [*(row["step_s"] for row in rows[1 - RECENT :]), step_s]
    return {
        "tokens": tokens,
        "tokens_per_s": tokens / step_s,
        "rollout_s": rollout_s,
        "update_s": step_s - rollout_s,
        "step_s": step_s,
        "left_s": left * sum(recent) / len(recent) + val_s,
    }


def last_val_s(rows: Sequence[Mapping[str, float]]) -> float:
    """Seconds that the last validation took; 0 where there was none."""
    return next((row["val_s"] for row in reversed(rows) if "val_s" in row), 0.0)


def raw_cost(rolled: Rolled) -> float:
    """That of the cost reward: see `antiphon.money.raw_cost`, by the prices shown, summed over the calls and divided by
    the scale of a drawn pool."""
    prices, shown = _prices(rolled.members), rolled.trajectory.shown
    whole = math.fsum(money.raw_cost(call, prices) for call in rolled.trajectory.calls)
    return whole / (1.0 if shown is None else shown.price_scale)


def prefixed(row: Mapping[str, float], prefix: str) -> dict[str, float]:
    return {f"{prefix}{key}": value for key, value in row.items()}


def _prices(members: Sequence[MemberView]) -> dict[str, float]:
    return {view.name: view.quote.output for view in members if view.quote is not None}


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return math.fsum(values) / len(values)
