"""Why a learned router lies below the best single LLM: for every row that does, with its whole interval, what the kept
rows show of the cause. A cause is only named where its own figures bear it out; else the row says that none was found.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from judged import ALONE, BASELINE, CHOOSERS, LEARNED, PARTS

from antiphon.evaluate.stats import interval
from antiphon.evaluate.store import read_json
from antiphon_policies._decision import POINT

ROUTERS = frozenset({*LEARNED, "knn", "frugalgpt", "c2mabv"})
"""Policies that learn whom to ask."""

HUMAN, RECORDED = "judged", "score"
"""The metrics of tables that are no rollout's answers: human judgement, and the score in the file."""

DRAWS, SEED = 50, 0
CHANCE = 0.05
"""A p above this: too few questions to tell."""

Rows = Mapping[str, Mapping[str, Any]]
"""Task -> the row kept of it."""


@dataclass(frozen=True)
class Judged:
    """One set of questions, judged in one way.

    Attributes:
        policies: label -> name and options.
        rows: label -> its rows.
        members: name -> quoted output price, in the pool's order.
        paired: label -> difference from the baseline, with its interval and p.
        others: the same set judged in other ways, by metric.
    """

    name: str
    title: str
    metric: str
    baseline: str
    policies: Mapping[str, tuple[str, Mapping[str, Any]]]
    rows: Mapping[str, Rows]
    members: Mapping[str, float | None]
    paired: Mapping[str, Mapping[str, Any]]
    others: dict[str, Judged] = field(default_factory=dict)

    @property
    def how(self) -> str:
        return {HUMAN: "human judgement", RECORDED: "recorded score"}.get(self.metric, self.metric)

    def learnt(self, label: str) -> str:
        """The metric that a policy learns."""
        metric = self.policies[label][1].get("metric")
        return str(metric or (HUMAN if HUMAN in (self.metric, *self.others) else RECORDED))

    def by(self, metric: str) -> Judged:
        return self.others.get(metric, self)

    def score(self, label: str, task: str) -> float | None:
        value = self.rows[label][task]["metrics"].get(self.metric)
        return None if value is None else float(value)

    def routers(self) -> list[str]:
        """The labels of the learned routers that were judged."""
        return [label for label, (name, _) in self.policies.items() if name in ROUTERS and label in self.paired]

    def below(self) -> list[str]:
        """The routers whose difference from the baseline lies below zero with its whole interval."""
        return [label for label in self.routers() if self.paired[label]["high"] < 0]

    def above(self) -> list[str]:
        """The same above zero."""
        return [label for label in self.routers() if self.paired[label]["low"] > 0]

    @cached_property
    def alone(self) -> dict[str, str]:
        """Member -> the label of the policy that asks it alone."""
        return {options["member"]: label for label, (name, options) in self.policies.items() if name == "single"}

    @cached_property
    def matrix(self) -> tuple[list[str], Any]:
        """Members, cheapest first as in a tie, and what each scores alone, (questions, members)."""
        places = {name: place for place, name in enumerate(self.members)}
        names = sorted(self.alone, key=lambda name: (self.members[name] or 0.0, places[name]))
        values = ([self.score(self.alone[name], task) for name in names] for task in self.rows[self.baseline])
        return names, np.array([row for row in values if None not in row], dtype=float)

    @cached_property
    def costs(self) -> dict[str, float]:
        """Member -> mean raw cost of a reply."""
        return {name: mean(row["raw_cost"] for row in self.rows[label].values()) for name, label in self.alone.items()}


# ---- what is kept ---------------------------------------------------------------------------------------------------


def kept(out: Path, titles: Mapping[str, str]) -> list[Judged]:
    """Every table of `out` that has rows of learned routers.

    Args:
        titles: name of a set -> what it is called.
    """
    found: list[Judged] = []
    for name, title in titles.items():
        if (out / name / "rows.jsonl.gz").is_file():
            found += _of_run(out / name, title)
    file = out / "llmrouter9-rows.jsonl.gz"
    if file.is_file():
        found += _of_matrix(read_json(out / "llmrouter9.json"), list(_lines(file)), titles)
    return found


def _of_run(folder: Path, title: str) -> list[Judged]:
    summary = read_json(folder / "summary.json")
    rows: dict[str, dict[str, Any]] = {}
    for row in sorted(_lines(folder / "rows.jsonl.gz"), key=lambda row: row["index"]):
        rows.setdefault(row["policy"], {})[row["task_id"]] = row
    policies = {one["label"]: (one["name"], one["options"]) for one in summary["spec"]["policies"]}
    members = {one["name"]: one["output_price"] for pool in summary["spec"]["pools"] for one in pool["members"]}
    metric = summary["spec"]["evaluate"]["metrics"][0]
    paired = {metric: {one["policy"]: one for one in summary["paired"] if one["metric"] == metric}}
    if (folder / "judged.json").is_file():
        paired[HUMAN] = _paired(read_json(folder / "judged.json"))
    given = (summary["baseline"], policies, rows, members)
    return _together([Judged(folder.name, title, one, *given, by_label) for one, by_label in paired.items()])


def _of_matrix(tables: Mapping[str, Any], kept_rows: Sequence[Any], titles: Mapping[str, str]) -> list[Judged]:
    found = []
    for part in PARTS:
        chosen = {one["policy"]: one for one in kept_rows if one["part"] == part}
        rows = {
            label: {
                str(at): {"index": at, "asked": [asked], "metrics": {RECORDED: score}}
                for at, (asked, score) in enumerate(zip(one["asked"], one["score"], strict=True))
            }
            for label, one in chosen.items()
        }
        members = {one["asked"][0]: 0.0 for label, one in chosen.items() if label == ALONE.format(one["asked"][0])}
        alone: dict[str, tuple[str, Mapping[str, Any]]] = {
            ALONE.format(name): ("single", {"member": name}) for name in members
        }
        given = (BASELINE, {**alone, **CHOOSERS}, rows, members)
        found.append(Judged(part, titles[part], RECORDED, *given, _paired(tables[part]["rows"])))
    return found


def _together(tables: list[Judged]) -> list[Judged]:
    for one in tables:
        one.others.update({other.metric: other for other in tables if other is not one})
    return tables


def _paired(lines: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {line["policy"]: line["paired"] for line in lines if "paired" in line}


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


# ---- causes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cause:
    """A cause in words, and what tells whether it is the one: figures where they bear it out, else None."""

    words: str
    shown: Callable[[Judged, str, Mapping[str, Any]], str | None]


@dataclass(frozen=True)
class Finding:
    """A row below the best single LLM, and its cause; None: none was found."""

    table: Judged
    label: str
    cause: Cause | None
    figures: str


def findings(tables: Sequence[Judged], streams: Mapping[str, Any]) -> list[Finding]:
    """One for each row of a learned router below the best single LLM.

    Args:
        streams: what `benchmarks/routers/bandit.py` found on recorded questions, by set.
    """
    found = []
    for table in tables:
        for label in table.below():
            tried = ((cause, cause.shown(table, label, streams)) for cause in CAUSES)
            cause, figures = next(((cause, shown) for cause, shown in tried if shown is not None), (None, ""))
            found.append(Finding(table, label, cause, figures))
    return found


def elsewhere(table: Judged, label: str) -> tuple[int, int, int]:
    """Questions on which another member answered than the best single one; and how many of these were won and lost."""
    asked = won = lost = 0
    for task, theirs in table.rows[table.baseline].items():
        ours = table.rows[label].get(task)
        if ours is None or ours["asked"][-1:] == theirs["asked"][-1:]:
            continue
        pair = table.score(label, task), table.score(table.baseline, task)
        if pair[0] is not None and pair[1] is not None:
            asked, won, lost = asked + 1, won + (pair[0] > pair[1]), lost + (pair[0] < pair[1])
    return asked, won, lost


def exploring(table: Judged, label: str, streams: Mapping[str, Any]) -> str | None:
    """It loses less at the end of the stream than at its start, against always asking the member of the most worth."""
    name, options = table.policies[label]
    if name != "c2mabv":
        return None
    learnt, usd = table.by(table.learnt(label)), options.get("usd_per_point")
    best = _worth_most(learnt, usd)
    rows = [row for row in table.rows[label].values() if learnt.score(label, row["task_id"]) is not None]
    fifth = len(rows) // 5
    ends = rows[:fifth], rows[-fifth:]
    lost = [mean(_points_lost(learnt, label, learnt.alone[best], row["task_id"], usd) for row in end) for end in ends]
    if lost[1] >= lost[0]:
        return None
    shares = [mean(row["asked"][0] == best for row in end) for end in ends]
    words = (
        f"in the first and the last fifth of the questions it loses {lost[0]:.1f} and {lost[1]:.1f} points a question "
        f"({learnt.how}{'' if usd is None else ', and cost at the price of a point'}) against always asking {best}, "
        f"which it asks on {shares[0]:.0%} and {shares[1]:.0%}"
    )
    stream = streams.get(table.name)
    if stream and learnt.metric == stream["metric"] and usd is None:
        passes = stream["64 at once"]["reward_by_pass"]
        words += (
            f"; put {len(passes)} times over, it scores {', '.join(f'{one:.3f}' for one in passes)} "
            f"({stream['best_single'][0]} alone {stream['best_single'][1]:.3f})"
        )
    return words


def _points_lost(table: Judged, label: str, other: str, task: str, usd: float | None) -> float:
    """Of one question, against another policy: points of the score, and cost in points where a point has a price."""
    scores = table.score(label, task), table.score(other, task)
    points = ((scores[1] or 0.0) - (scores[0] or 0.0)) / POINT
    if usd is None:
        return points
    return points + (table.rows[label][task]["raw_cost"] - table.rows[other][task]["raw_cost"]) / (usd * 1e6)


def priced(table: Judged, label: str, streams: Mapping[str, Any]) -> str | None:
    """What it saves for a point that it loses is at least what a point was said to be worth."""
    _, options = table.policies[label]
    usd, weight = options.get("usd_per_point"), options.get("cost_weight")
    if usd is None and not weight:  # what nobody paid attention to may not have been recorded
        return None
    ours, theirs = (mean(row["raw_cost"] for row in table.rows[one].values()) for one in (label, table.baseline))
    points, saved = -table.paired[label]["difference"] / POINT, theirs - ours
    if usd is not None and saved > 0 and saved / points >= usd * 1e6:
        return (
            f"costs {ours:.1f} in place of {theirs:.1f}: saves {saved / points:.2f} for each of {points:.1f} points, "
            f"where a point was worth {usd * 1e6:g}"
        )
    if weight:
        tokens = [
            mean(table.members[row["asked"][0]] or 0.0 for row in table.rows[one].values())
            for one in (label, table.baseline)
        ]
        if tokens[0] < tokens[1]:
            words = f"a token of whom it asks costs {tokens[0]:.2f} in place of {tokens[1]:.2f} (USD per million)"
            more = ", since who is cheaper by the token says more" if ours > theirs else ""
            return f"{words}, and a reply {ours:.1f} in place of {theirs:.1f}{more}"
    return None


def other_score(table: Judged, label: str, streams: Mapping[str, Any]) -> str | None:
    """By the score that it learns, it is not below."""
    learnt = table.learnt(label)
    if learnt == table.metric or learnt not in table.others:
        return None
    other = table.others[learnt]
    against = other.paired[label]
    if against["high"] < 0:
        return None
    _, won, lost = elsewhere(other, label)
    return (
        f"by {other.how}: {against['difference']:+.3f} ({against['low']:+.3f} to {against['high']:+.3f}), "
        f"{won} won and {lost} lost"
    )


def few_votes(table: Judged, label: str, streams: Mapping[str, Any]) -> str | None:
    """As many questions drawn at random, in place of the nearest ones, lose as much."""
    name, options = table.policies[label]
    if name != "knn":
        return None
    learnt = table.by(table.learnt(label))
    k, usd = int(options.get("k", 20)), options.get("usd_per_point")
    lost, others, ties = _by_random_votes(learnt, k, usd)
    middle = float(lost.mean())
    against = learnt.paired[label]
    if against["high"] < middle:
        return None
    asked = elsewhere(learnt, label)[0] / len(learnt.matrix[1])
    by = "" if learnt is table else f"by {learnt.how}, which it learns: {against['difference']:+.3f}; "
    return (
        f"{by}{k} questions drawn at random in place of the nearest: {middle:+.3f} "
        f"({np.percentile(lost, 2.5):+.3f} to {np.percentile(lost, 97.5):+.3f} over {DRAWS} draws), another member on "
        f"{others:.0%} of the questions (the nearest: {asked:.0%}); several members share the most votes on {ties:.0%}"
    )


def worth(table: Judged, label: str, streams: Mapping[str, Any]) -> str | None:
    """Points at the price it was told, and cost: counted together, its interval reaches the best single LLM's."""
    usd = table.policies[label][1].get("usd_per_point")
    if usd is None:
        return None
    apart = interval([-_points_lost(table, label, table.baseline, task, usd) for task in table.rows[label]])
    if apart.high is None or apart.high < 0:
        return None
    return f"points and cost together, in points a question: {apart.mean:+.2f} ({apart.low:+.2f} to {apart.high:+.2f})"


def chance(table: Judged, label: str, streams: Mapping[str, Any]) -> str | None:
    """The exact test does not tell it from nothing, whatever the bootstrap says of a handful of differences."""
    p = table.paired[label]["p"]
    return f"p {p:.3f}, by the exact test, over {table.paired[label]['n']} questions" if p > CHANCE else None


CAUSES = (
    Cause("It was told to: a point was given a price, and it saves at least what the lost points are worth.", priced),
    Cause(
        "It learns while it is judged: it starts with nothing, and pays for trying members; the longer it goes on, the "
        "less it loses a question.",
        exploring,
    ),
    Cause(
        "It learns another score than it is judged by here: human judgement, by which replies are as good that hold "
        "no golden answer word for word. By what it learns it does not lose.",
        other_score,
    ),
    Cause(
        "A vote of so few questions is noise: the highest of several noisy means is often not the best member's, and "
        "where several share the most votes, the cheapest or first in the pool is asked, not the best. The nearest "
        "questions say hardly more than random ones do.",
        few_votes,
    ),
    Cause(
        "It was told to: a point was given a price. It saves less than the lost points are worth, but not for certain: "
        "the interval of points and cost together reaches the best single LLM.",
        worth,
    ),
    Cause("Too few questions differ to tell: the bootstrap's interval is too narrow for a handful.", chance),
)
"""In the order in which they are tried."""


def _by_random_votes(table: Judged, k: int, usd: float | None) -> tuple[Any, float, float]:
    """The loss of k-nearest-neighbours that does not know which questions are near: against the best member in all,
    of each of `DRAWS`; the share of questions on which it asks another; and on which several share the most votes."""
    names, scores = table.matrix
    rng, rows = np.random.default_rng(SEED), np.arange(len(scores))
    cost = np.zeros(len(names)) if usd is None else np.array([table.costs[name] for name in names])
    point = 1.0 if usd is None else usd * 1e6 / POINT
    best = scores.mean(axis=0).argmax()
    lost, others, ties = [], [], []
    for _ in range(DRAWS):
        drawn = rng.integers(0, len(scores) - 1, size=(len(scores), k))
        drawn += drawn >= rows[:, None]  # never the question itself
        worth = np.round(point * scores[drawn].mean(axis=1) - cost, 12)
        chosen = worth.argmax(axis=1)
        lost.append(float((scores[rows, chosen] - scores[:, best]).mean()))
        others.append(float((chosen != best).mean()))
        ties.append(float(((worth == worth.max(axis=1, keepdims=True)).sum(axis=1) > 1).mean()))
    return np.array(lost), mean(others), mean(ties)


def _worth_most(table: Judged, usd: float | None) -> str:
    """The member that is best alone; with a price of a point, the one of the highest worth."""
    names, scores = table.matrix
    worth = scores.mean(axis=0)
    if usd is not None:
        worth = usd * 1e6 / POINT * worth - np.array([table.costs[name] for name in names])
    return names[int(worth.argmax())]


# ---- in words -------------------------------------------------------------------------------------------------------


def section(out: Path, bandit: Path, titles: Mapping[str, str], table_of: Callable[..., str]) -> str:
    """The part of the page that says why.

    Args:
        out: the results' folder; `bandit`: what benchmarks/routers/bandit.py wrote.
        table_of: makes a Markdown table of a head and rows.
    """
    streams = read_json(bandit)["recorded"] if bandit.is_file() else {}
    tables = kept(out, titles)
    found = findings(tables, streams)
    counts = Counter(one.table.how for one in found)
    counted = ", ".join(f"{count} by {how}" for how, count in counts.items()) or "none"
    standing = [
        (table.title, table.how, len(table.routers()), len(table.below()), len(table.above()), ", ".join(table.above()))
        for table in tables
    ]
    parts = [STANDING, table_of(STANDING_HEAD, standing), INTRODUCTION.format(count=len(found), counted=counted)]
    for cause in (*CAUSES, None):
        rows = [_line(one) for one in found if one.cause is cause]
        if rows:
            parts += [f"**{cause.words if cause else 'No cause was found.'}**", table_of(HEAD, rows)]
    return "\n\n".join(parts)


STANDING = """\
## Who beats the best single LLM

Rows of learned routers whose paired interval lies below and above the best single LLM's with its whole length; the
others do not beat it and do not lose. On NQ's five LLMs of 2023 all are chosen by human judgement, and the best by
that, Bing Chat, is the lowest of the five by `contains`: the rows above it there are no feat."""

STANDING_HEAD = ("questions and LLMs", "judged by", "learned routers", "below", "above", "which")

INTRODUCTION = """\
## Below the best single LLM, and why

{count} rows of learned routers lie below the best single LLM with their whole interval ({counted}). Each stands here
under its cause, with the figures that show it, computed from the rows in these folders by `causes.py`; a cause is named
only where they do. "Asks another on": questions on which another member answers than the best single one; "won" and
"lost" count those of them where the score is higher and lower. Costs are raw: millionths of a USD."""

HEAD = ("questions and LLMs", "judged by", "policy", "less best single", "asks another on", "won : lost", "figures")


def _line(one: Finding) -> tuple[Any, ...]:
    against = one.table.paired[one.label]
    asked, won, lost = elsewhere(one.table, one.label)
    return (
        one.table.title,
        one.table.how,
        one.label,
        f"{against['difference']:+.3f} ({against['low']:+.3f} to {against['high']:+.3f})",
        f"{asked} of {against['n']}",
        f"{won} : {lost}",
        one.figures,
    )
