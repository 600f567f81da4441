"""What a run directory says: its summary, looked up by policy, pool and data set."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from antiphon.errors import ConfigError

FIRST_METRICS = ("em", "f1", "strict_em")
"""Metrics that come first, in this order, where there are several; the first one there is ranks the policies."""

Key = tuple[str, str, str]
"""A cell: policy label, pool, data set."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and its interval; the ends are None where there is none."""

    mean: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, value: Any) -> Estimate | None:
        """`{"mean": …, "low": …, "high": …}` or a bare number; None for whatever is not a number."""
        if not isinstance(value, Mapping):
            value = {"mean": value}
        mean = _number(value.get("mean"))
        return None if mean is None else cls(mean, _number(value.get("low")), _number(value.get("high")))


@dataclass(frozen=True, slots=True)
class Entry:
    """A policy in a pool: a line of a table. `label` names it among the lines of its section."""

    policy: str
    pool: str
    label: str


@dataclass(frozen=True, slots=True)
class Section:
    """What stands in one table: one pool, one way to get from a reply to the answer.

    Attributes:
        pool: the common one.
        title: pool and reader in words.
        entries: a policy that has no reader stands in the section of each; one that needs a pool of its own (a
            retriever in it) stands beside those of the common pool.
        datasets: what any of them was to be run on.
    """

    pool: str
    title: str
    slug: str
    entries: tuple[Entry, ...]
    datasets: tuple[str, ...]


class Results:
    """A summary, as the tables, figures and the page look it up.

    Attributes:
        policies, pools, datasets, metrics: names in the order in which they are shown.
        metric: the one that ranks the policies.
        baseline: the label that the others are compared with, or None.
        upper: the label of the policy that is drawn as the upper line, or None.
    """

    def __init__(self, summary: Mapping[str, Any]) -> None:
        self.summary = summary
        self.spec: Mapping[str, Any] = summary.get("spec") or {}
        self.baseline: str | None = summary.get("baseline")
        self._cells: dict[Key, Mapping[str, Any]] = {
            (cell["policy"], cell["pool"], cell["dataset"]): cell for cell in summary["cells"]
        }
        self._given = {str(entry.get("label")): entry for entry in self._listed("policies")}
        datasets = (entry.get("label") or entry.get("name") for entry in self._listed("datasets"))
        self.policies = _ordered(self._given, (key[0] for key in self._cells))
        self.datasets = _ordered(datasets, (key[2] for key in self._cells))
        self.pools = _ordered((), (key[1] for key in self._cells))
        found = _ordered((), (name for cell in self._cells.values() for name in cell.get("metrics") or {}))
        self.metrics = _ordered(FIRST_METRICS, found)
        self.metric = self.metrics[0] if self.metrics else "em"
        upper = (self.spec.get("evaluate") or {}).get("oracle")
        self.upper: str | None = upper if upper in self.policies else None
        self._unpriced = {
            pool.get("name")
            for pool in self._listed("pools")
            if pool.get("members") and all(member.get("output_price") is None for member in pool["members"])
        }
        self._averages = {(one["policy"], one["pool"]): one for one in summary.get("averages") or ()}
        self.paired: list[Mapping[str, Any]] = list(summary.get("paired") or ())

    def cell(self, policy: str, pool: str, dataset: str) -> Mapping[str, Any] | None:
        """The cell, or None where it was not run."""
        cell = self._cells.get((policy, pool, dataset))
        return cell if cell is not None and cell.get("status", "run") == "run" and cell.get("n") else None

    def note(self, policy: str, pool: str, dataset: str) -> str | None:
        """What is said about a cell, run or not."""
        return (self._cells.get((policy, pool, dataset)) or {}).get("note")

    def value(self, policy: str, pool: str, dataset: str, what: str) -> Estimate | None:
        """A metric, or a quantity of the cell itself (`raw_cost`, `calls`, …); None where there is none.

        What members cost is unknown, and not nothing, in a pool in which none has a price.
        """
        if what in ("raw_cost", "members_usd") and pool in self._unpriced:
            return None
        cell = self.cell(policy, pool, dataset) or {}
        metrics = cell.get("metrics") or {}
        return Estimate.of(metrics[what] if what in metrics else cell.get(what))

    def mean(self, entry: Entry, what: str, datasets: Sequence[str]) -> float | None:
        """The unweighted mean over data sets; None where one of them has none."""
        values = [self.value(entry.policy, entry.pool, name, what) for name in datasets]
        means = [value.mean for value in values if value is not None]
        return sum(means) / len(means) if means and len(means) == len(values) else None

    def run_on(self, entry: Entry, datasets: Iterable[str]) -> tuple[str, ...]:
        """Those of the data sets that a policy was run on."""
        return tuple(name for name in datasets if self.cell(entry.policy, entry.pool, name) is not None)

    def average(self, entry: Entry, metric: str, datasets: Sequence[str]) -> tuple[Estimate, tuple[str, ...]] | None:
        """A metric's average over data sets, and those that it is over."""
        given = self._averages.get((entry.policy, entry.pool))
        value = None if given is None else Estimate.of((given.get("metrics") or {}).get(metric))
        if given is not None and value is not None:
            return value, tuple(given.get("over") or ())
        over = self.run_on(entry, datasets)
        mean = self.mean(entry, metric, over)
        return None if mean is None else (Estimate(mean), over)

    def oracle(self, section: Section, dataset: str, metric: str) -> float | None:
        """What the best member for each question would reach; None where that is not known."""
        pools = {entry.pool for entry in section.entries}
        found = [
            _number(one.get("mean"))
            for one in self.summary.get("oracle") or ()
            if one["pool"] in pools and (one["dataset"], one["metric"]) == (dataset, metric)
        ]
        return max((value for value in found if value is not None), default=None)

    def oracle_mean(self, section: Section, metric: str) -> float | None:
        values = [self.oracle(section, name, metric) for name in section.datasets]
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known and len(known) == len(values) else None

    def given(self, policy: str) -> Mapping[str, Any]:
        """The policy's entry of the spec: name, options, …"""
        return self._given.get(policy) or {}

    def is_upper(self, policy: str) -> bool:
        """Whether it is an upper line and no contender: the one that the spec names, or the same with other options."""
        if self.upper is None:
            return False
        name = self.given(self.upper).get("name")
        return policy == self.upper or (name is not None and self.given(policy).get("name") == name)

    def reader(self, policy: str) -> str | None:
        """Who turns a reply into the answer: `member`, `base`, or None where the spec does not say."""
        given = self.given(policy)
        return given.get("answer_by") or (given.get("options") or {}).get("answer_by")

    def members(self, there: Set[str]) -> tuple[str, ...]:
        """Members in the order of their pools."""
        listed = [member for pool in self._listed("pools") for member in pool.get("members") or ()]
        return _ordered((member.get("name") for member in listed), sorted(there))

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """One for each pool and reader."""
        there = {key[:2] for key in self._cells}
        pairs = [(policy, pool) for policy in self.policies for pool in self.pools if (policy, pool) in there]
        common = self._common_pools(pairs)
        readers = _ordered((), (self.reader(policy) for policy in self.policies))
        made = []
        for pool in common:
            for reader in readers if len(readers) > 1 else (None,):
                shown = [
                    (policy, its_pool)
                    for policy, its_pool in pairs
                    if (its_pool == pool or its_pool not in common)
                    and (reader is None or self.reader(policy) in (None, reader))
                ]
                times = Counter(policy for policy, _ in shown)
                entries = [Entry(p, at, p if times[p] == 1 else f"{p} ({at})") for p, at in shown]
                entries.sort(key=lambda entry: self.is_upper(entry.policy))
                own = sorted({entry.pool for entry in entries if entry.pool != pool})
                title = f"pool {pool}" + (f" (and {', '.join(own)} for what needs its own)" if own else "")
                title += "" if reader is None else f", answer by the {reader}"
                slug = "-".join(part for part in (pool if len(common) > 1 else "", reader or "") if part)
                datasets = tuple(d for d in self.datasets if any((e.policy, e.pool, d) in self._cells for e in entries))
                made.append(Section(pool, title, slug, tuple(entries), datasets))
        return tuple(made)

    def keys(self) -> Iterator[Key]:
        """Every cell that was run."""
        for policy, pool, dataset in self._cells:
            if self.cell(policy, pool, dataset) is not None:
                yield policy, pool, dataset

    def _common_pools(self, pairs: Sequence[tuple[str, str]]) -> tuple[str, ...]:
        """The evaluation's own, else those that most policies run on."""
        named = (self.spec.get("evaluate") or {}).get("pool") or ()
        named = {named} if isinstance(named, str) else set(named)
        there = [pool for pool in self.pools if pool in named]
        policies = Counter(pool for _, pool in pairs)
        most = max(policies.values(), default=0)
        return tuple(there or (pool for pool in self.pools if policies[pool] == most))

    def _listed(self, name: str) -> list[Mapping[str, Any]]:
        return [entry for entry in self.spec.get(name) or () if isinstance(entry, Mapping)]


def read_summary(directory: Path) -> Results:
    """The summary of a run directory.

    Raises:
        ConfigError: there is none, or it is not one.
    """
    path = directory / "summary.json"
    try:
        summary = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} is not there; `antiphon evaluate --out {directory}` writes it") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON ({error}); run the same `antiphon evaluate` again") from None
    try:
        return Results(summary)
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path} is not a summary of an evaluation ({type(error).__name__}: {error}); run the same "
            "`antiphon evaluate` again"
        ) from None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _ordered(first: Iterable[Any], found: Iterable[Any]) -> tuple[str, ...]:
    """What was found, each once: in the order of `first`, then as it comes."""
    there = dict.fromkeys(name for name in found if isinstance(name, str))
    ahead = [name for name in dict.fromkeys(first) if name in there]
    return (*ahead, *(name for name in there if name not in ahead))
