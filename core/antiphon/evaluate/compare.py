"""What changed between two runs, or between two policies of one, question by question."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from antiphon.errors import ConfigError, did_you_mean
from antiphon.evaluate import stats
from antiphon.evaluate.store import SPEC, read_json, rows

Match = tuple[str, str, str, str, int]
"""Policy, pool, data set, question, seed."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side: a run's directory, and the label of one of its policies (None: all of them)."""

    directory: Path
    policy: str | None = None

    @classmethod
    def of(cls, text: str) -> Side:
        """`DIR` or `DIR:LABEL`.

        Raises:
            ConfigError: there is no such run, or no such policy in it.
        """
        directory, label = Path(text), None
        if not directory.is_dir() and ":" in text:
            path, _, label = text.rpartition(":")
            directory = Path(path)
        spec = read_json(directory / SPEC)
        labels = [policy["label"] for policy in spec["policies"]]
        if label is not None and label not in labels:
            raise ConfigError(f"{directory} has no policy {label!r}{did_you_mean(label, labels)}")
        return cls(directory, label)


@dataclass(frozen=True, slots=True)
class _Outcome:
    question: str
    answer: str | None
    metrics: dict[str, float]
    cost: float
    raw_cost: float
    asked: tuple[str, ...]


def compare(before: Side, after: Side, metric: str | None = None) -> dict[str, Any]:
    """Compare two sides on the questions that both have.

    Rollouts are matched by policy, pool, data set, question and seed; where one policy of each side is named, whatever
    its label and its pool.

    Args:
        metric: default: the first that both have.

    Returns:
        JSON data: `metric`; `totals`, for each policy, pool and data set `n` and for the metric, `raw_cost` and
        `cost_usd` the means before and after and the paired difference; `changed`, each rollout whose answer, metric or
        cost differs, those that got worse first; `only_before`, `only_after`: rollouts that have no counterpart.

    Raises:
        ConfigError: the sides have no rollout, or no metric, in common.
    """
    by_name = before.policy is not None and after.policy is not None
    if (before.policy is None) != (after.policy is None):
        raise ConfigError("one side names a policy and the other does not; write DIR:LABEL on both, or on neither")
    old, new = dict(_outcomes(before, by_name)), dict(_outcomes(after, by_name))
    common = [match for match in old if match in new]
    if not common:
        raise ConfigError(
            f"{before.directory} and {after.directory} have no rollout in common; to compare two policies, write "
            "DIR:LABEL on both sides"
        )
    metric = _metric(old[common[0]].metrics, new[common[0]].metrics, metric)
    groups: dict[tuple[str, str, str], list[Match]] = {}
    for match in common:
        groups.setdefault(match[:3], []).append(match)
    changed = [_change(match, old[match], new[match]) for match in common if _differs(old[match], new[match])]
    changed.sort(key=lambda change: change["after"]["metrics"][metric] - change["before"]["metrics"][metric])
    return {
        "before": _shown(before),
        "after": _shown(after),
        "metric": metric,
        "totals": [_total(group, those, old, new, metric) for group, those in groups.items()],
        "changed": changed,
        "only_before": len(old) - len(common),
        "only_after": len(new) - len(common),
    }


def _outcomes(side: Side, by_name: bool) -> Iterator[tuple[Match, _Outcome]]:
    for row in rows(side.directory):
        if side.policy is None or row.policy == side.policy:
            policy, pool = ("", "") if by_name else (row.policy, row.pool)
            outcome = _Outcome(row.question, row.answer, row.metrics, row.cost_usd, row.raw_cost, row.asked)
            yield (policy, pool, row.dataset, row.task_id, row.seed), outcome


def _metric(old: dict[str, float], new: dict[str, float], asked: str | None) -> str:
    common = [name for name in old if name in new]
    if asked is None and common:
        return common[0]
    if asked not in common:
        raise ConfigError(f"the two have no metric {asked or ''!r} in common{did_you_mean(asked or '', common)}")
    assert asked is not None  # None is in no list of names
    return asked


def _differs(old: _Outcome, new: _Outcome) -> bool:
    shared = old.metrics.keys() & new.metrics.keys()
    return (
        old.answer != new.answer
        or any(old.metrics[name] != new.metrics[name] for name in shared)
        or abs(old.cost - new.cost) > 1e-12
        or abs(old.raw_cost - new.raw_cost) > 1e-9
    )


def _change(match: Match, old: _Outcome, new: _Outcome) -> dict[str, Any]:
    policy, pool, dataset, task, seed = match
    return {
        "policy": policy,
        "pool": pool,
        "dataset": dataset,
        "task_id": task,
        "seed": seed,
        "question": old.question,
        "before": _side(old),
        "after": _side(new),
    }


def _side(outcome: _Outcome) -> dict[str, Any]:
    return {
        "answer": outcome.answer,
        "metrics": outcome.metrics,
        "cost_usd": outcome.cost,
        "raw_cost": outcome.raw_cost,
        "asked": list(outcome.asked),
    }


def _total(
    group: tuple[str, str, str],
    matches: list[Match],
    old: dict[Match, _Outcome],
    new: dict[Match, _Outcome],
    metric: str,
) -> dict[str, Any]:
    """Means over questions (seeds averaged first), and the paired difference after - before."""
    policy, pool, dataset = group
    questions: dict[str, list[Match]] = {}
    for match in matches:
        questions.setdefault(match[3], []).append(match)

    def measured(what: str) -> dict[str, Any]:
        def value(outcome: _Outcome) -> float:
            amounts = {"raw_cost": outcome.raw_cost, "cost_usd": outcome.cost}
            return amounts[what] if what in amounts else outcome.metrics[what]

        first = [sum(value(old[match]) for match in each) / len(each) for each in questions.values()]
        second = [sum(value(new[match]) for match in each) / len(each) for each in questions.values()]
        differences = [b - a for a, b in zip(first, second, strict=True)]
        return {
            "before": sum(first) / len(first),
            "after": sum(second) / len(second),
            **asdict(stats.paired(differences)),
        }

    return {
        "policy": policy,
        "pool": pool,
        "dataset": dataset,
        "n": len(questions),
        **{what: measured(what) for what in (metric, "raw_cost", "cost_usd")},
    }


def _shown(side: Side) -> str:
    return str(side.directory) if side.policy is None else f"{side.directory}:{side.policy}"
