"""A run in one JSON object: means with intervals, paired tests against the baseline, who was asked, and the audit."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from antiphon.evaluate import stats
from antiphon.evaluate.audit import Audit

if TYPE_CHECKING:
    from antiphon.evaluate.rows import Row

Where = tuple[str, str, str]
"""A cell: policy label, pool, data set."""

NUMBERS = ("raw_cost", "members_usd", "policy_usd", "calls", "rounds")
REDUCTION = (
    "A policy's answer is judged as it is. Where a member's reply is the answer, it is reduced in one way for all: the "
    "last <answer> span, else the whole reply."
)


def summarise(
    rows: Iterable[Row], spec: Mapping[str, Any], *, command: str = "", note: str | None = None
) -> dict[str, Any]:
    """The summary of a run, from rows in any order, which are not kept.

    Args:
        spec: the run's spec as its directory holds it.
        note: of the whole run: that it is not finished, and why.

    Raises:
        MissingExtra: numpy is not installed.
    """
    metrics: list[str] = spec["evaluate"]["metrics"]
    cells = {where: _Cell(metrics) for where in _expected(spec)}
    members = {pool["name"]: pool["members"] for pool in spec["pools"]}
    audits = {
        pool: Audit(tuple(member["name"] for member in those if member["output_price"] is None))
        for pool, those in members.items()
    }
    for row in rows:
        cells[row.policy, row.pool, row.dataset].add(row)
        audits[row.pool].add(row)
    counts = {dataset["label"]: dataset["questions"] for dataset in spec["datasets"]}
    seeds = len(spec["evaluate"]["seeds"])
    baseline, oracle = spec["evaluate"]["baseline"], spec["evaluate"]["oracle"]
    return {
        "spec": spec,
        "cells": [cell.to_data(where, counts[where[2]], seeds) for where, cell in cells.items()],
        "averages": list(_averages(cells, metrics)),
        "paired": [] if baseline is None else list(_paired(cells, metrics, baseline)),
        "oracle": [] if oracle is None else list(_oracle(cells, metrics, oracle)),
        "audit": {pool: audit.to_data() for pool, audit in audits.items()},
        "baseline": baseline,
        "reduction": REDUCTION,
        "note": note,
        "command": command,
    }


@dataclass(slots=True)
class _Cell:
    """Columns of numbers in place of the rows of one cell."""

    metrics: Sequence[str]
    index: array[int] = field(default_factory=lambda: array("q"))
    wall_s: array[float] = field(default_factory=lambda: array("d"))
    columns: dict[str, array[float]] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    histogram: Counter[int] = field(default_factory=Counter)
    escalated: int = 0
    malformed: int = 0
    unanswered: int = 0
    failed: int = 0
    unrecorded: int = 0
    errors: int = 0
    error: str | None = None
    missing: str | None = None

    def __post_init__(self) -> None:
        self.columns = {name: array("d") for name in (*self.metrics, *NUMBERS)}

    def add(self, row: Row) -> None:
        self.index.append(row.index)
        if row.timed:
            self.wall_s.append(row.wall_s)
        for name in self.metrics:
            self.columns[name].append(row.metrics[name])
        for name in NUMBERS:
            self.columns[name].append(getattr(row, name))
        self.asked.update(row.asked)
        self.histogram[row.calls] += 1
        self.escalated += row.escalated
        self.malformed += not row.format_ok
        self.unanswered += row.answer is None
        self.failed += row.failed
        self.unrecorded += row.unrecorded
        if row.stop == "error":
            self.errors += 1
            self.error = self.error or row.error
        elif row.unrecorded:
            self.missing = self.missing or row.error

    @property
    def rows(self) -> int:
        return len(self.index)

    @property
    def not_run(self) -> str | None:
        """Why its numbers say nothing about the policy; None: they do."""
        calls = sum(self.asked.values())
        if not self.rows:
            return "nothing has been asked yet"
        if calls and self.unrecorded * 2 > calls:
            return f"{self.unrecorded} of {calls} calls were for replies that are not recorded ({self.missing})"
        if self.errors * 2 > self.rows:
            return f"{self.errors} of {self.rows} rollouts ended in an error ({self.error})"
        return None

    def by_question(self, name: str) -> tuple[Any, Any]:
        """(places, values): of each question that has rows, the mean over its seeds."""
        np = stats.numpy()
        index = np.asarray(self.index, dtype=np.int64)
        counts = np.bincount(index)
        places = np.flatnonzero(counts)
        sums = np.bincount(index, weights=np.asarray(self.columns[name]))
        return places, sums[places] / counts[places]

    def values(self, name: str) -> Any:
        return self.by_question(name)[1]

    def to_data(self, where: Where, questions: int, seeds: int) -> dict[str, Any]:
        """JSON data of the cell. Where it is "not run", it has a note in place of metrics."""
        policy, pool, dataset = where
        not_run = self.not_run
        share = {member: count / sum(self.asked.values()) for member, count in self.asked.most_common()}
        rows = max(1, self.rows)
        return {
            "policy": policy,
            "pool": pool,
            "dataset": dataset,
            "n": len(set(self.index)),
            "rows": self.rows,
            "metrics": {} if not_run else {name: asdict(stats.interval(self.values(name))) for name in self.metrics},
            **{name: asdict(stats.interval(self.values(name))) for name in NUMBERS},
            "share": share,
            "escalation": self.escalated / rows,
            "latency": self._latency(),
            "format_failures": self.malformed / rows,
            "no_answer": self.unanswered / rows,
            "failed_calls": self.failed,
            "errors": self.errors,
            "entropy": entropy(share.values()),
            "calls_histogram": {str(calls): count for calls, count in sorted(self.histogram.items())},
            "status": "not run" if not_run else "run",
            "note": not_run or self._note(questions, seeds),
        }

    def _latency(self) -> dict[str, float | None]:
        """Of the rollouts whose times are known: none where a recording has no latencies."""
        if not self.wall_s:
            return {"p50": None, "p95": None}
        middle, high = stats.numpy().percentile(self.wall_s, [50, 95])
        return {"p50": float(middle), "p95": float(high)}

    def _note(self, questions: int, seeds: int) -> str | None:
        notes = []
        if self.rows < questions * seeds:
            notes.append(f"{self.rows} of {questions * seeds} rollouts so far")
        if self.unrecorded:
            notes.append(
                f"{self.unrecorded} of {sum(self.asked.values())} calls were for replies that are not recorded"
            )
        if self.errors:
            notes.append(f"{self.errors} rollouts ended in an error (the first: {self.error})")
        return "; ".join(notes) or None


def entropy(shares: Iterable[float]) -> float:
    """Bits: 0 where one member gets every call, log2 of their number where all get as many."""
    return max(0.0, -sum(share * math.log2(share) for share in shares if share > 0))


def _expected(spec: Mapping[str, Any]) -> Iterator[Where]:
    """Every cell that the spec asks for, in the order in which it runs."""
    for policy in spec["policies"]:
        for pool in policy["pools"]:
            for dataset in spec["datasets"]:
                yield policy["label"], pool, dataset["label"]


def _averages(cells: Mapping[Where, _Cell], metrics: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The mean over data sets, each counting the same, and its interval: of each data set's bootstrap means."""
    for policy, pool in dict.fromkeys((policy, pool) for policy, pool, _ in cells):
        over = {
            dataset: cell
            for (who, where, dataset), cell in cells.items()
            if (who, where) == (policy, pool) and cell.not_run is None
        }
        if over:
            averaged = {name: asdict(_average(list(over.values()), name)) for name in metrics}
            yield {"policy": policy, "pool": pool, "over": list(over), "metrics": averaged}


def _average(cells: Sequence[_Cell], name: str) -> stats.Interval:
    values = [cell.values(name) for cell in cells]
    drawn = stats.numpy().mean([stats.means(each, stream) for stream, each in enumerate(values)], axis=0)
    return stats.around(sum(float(each.mean()) for each in values) / len(values), drawn)


def _paired(cells: Mapping[Where, _Cell], metrics: Sequence[str], baseline: str) -> Iterator[dict[str, Any]]:
    """Each policy less the baseline, on the same pool, or on the one pool that the baseline has."""
    np = stats.numpy()
    baseline_pools = list(dict.fromkeys(pool for policy, pool, _ in cells if policy == baseline))
    for (policy, pool, dataset), cell in cells.items():
        against = pool if pool in baseline_pools else baseline_pools[0] if len(baseline_pools) == 1 else None
        if policy == baseline or against is None or cell.not_run is not None:
            continue
        other = cells[baseline, against, dataset]
        if other.not_run is not None:
            continue
        for metric in metrics:
            (ours, values), (theirs, base) = cell.by_question(metric), other.by_question(metric)
            _, at, other_at = np.intersect1d(ours, theirs, assume_unique=True, return_indices=True)
            found = asdict(stats.paired(values[at] - base[other_at]))
            yield {
                "policy": policy,
                "baseline": baseline,
                "pool": pool,
                "dataset": dataset,
                "metric": metric,
                **found,
            }


def _oracle(cells: Mapping[Where, _Cell], metrics: Sequence[str], label: str) -> Iterator[dict[str, Any]]:
    for (policy, pool, dataset), cell in cells.items():
        if policy == label and cell.not_run is None:
            for metric in metrics:
                yield {"pool": pool, "dataset": dataset, "metric": metric, "mean": float(cell.values(metric).mean())}
