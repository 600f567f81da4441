"""The questions behind each number: a bounded sample of every cell's rows, with their trajectories."""

from __future__ import annotations

import hashlib
import heapq
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from antiphon.errors import ConfigError
from antiphon.evaluate.report._results import Key
from antiphon.evaluate.rows import Row
from antiphon.types import Call, Trajectory, Turn

MOST_IN_ALL = 2000
"""Trajectories in one page."""

MOST_TEXT = 1500
"""Characters of one text in the page: a reply, a thought."""

MOST_STEPS = 40
"""Turns and calls of one trajectory in the page."""

VERDICTS = ("right", "partly", "wrong")


@dataclass(slots=True)
class Question:
    """A chosen row, and what its trajectory did; None where the trajectory is not there."""

    row: Row
    did: dict[str, Any] | None = None


@dataclass(slots=True)
class Sample:
    """What the page holds of one cell.

    Attributes:
        counts: how many rollouts are right, partly right and wrong by the metric that ranks the policies.
        files: where all of the cell's trajectories lie: file to (first line, last line, how many), lines from 1.
        questions: the chosen ones, right ones first.
    """

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(VERDICTS, 0))
    files: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    questions: list[Question] = field(default_factory=list)


def sample(rows: Iterable[Row], metric: str, per_cell: int) -> dict[Key, Sample]:
    """Choose at most `per_cell` rollouts of every cell: as many right as wrong ones, where there are.

    The choice goes by a hash of the question's id: the same questions for every policy, in whatever order the run came
    to them. Memory is bounded by the choice, not by the run.
    """
    samples: dict[Key, Sample] = defaultdict(Sample)
    chosen: dict[tuple[Key, str], list[tuple[int, int, Row]]] = defaultdict(list)
    for number, row in enumerate(rows):
        key: Key = (row.policy, row.pool, row.dataset)
        cell, kind = samples[key], verdict(row.metrics.get(metric, 0.0))
        cell.counts[kind] += 1
        first, last, count = cell.files.get(row.file, (row.line, row.line, 0))
        cell.files[row.file] = (min(first, row.line), max(last, row.line), count + 1)
        digest = hashlib.blake2b(f"{row.task_id}/{row.seed}".encode(), digest_size=8).digest()
        ranked = (-int.from_bytes(digest), -number, row)  # the heap's least goes first: keep the smallest hashes
        heap = chosen[key, kind]
        if len(heap) < per_cell:
            heapq.heappush(heap, ranked)
        else:
            heapq.heappushpop(heap, ranked)
    per_cell = min(per_cell, max(2, MOST_IN_ALL // max(1, len(samples))))
    for key, cell in samples.items():
        by_kind = [[Question(row) for _, _, row in sorted(chosen[key, kind], reverse=True)] for kind in VERDICTS]
        cell.questions = _balanced(by_kind, per_cell)
    return dict(samples)


def attach(directory: Path, samples: Mapping[Key, Sample]) -> None:
    """Read the trajectories of the chosen questions, each file once.

    Raises:
        ConfigError: a trajectory does not hold, or is about another question; names file and line.
    """
    wanted: dict[str, dict[int, Question]] = defaultdict(dict)
    for cell in samples.values():
        for question in cell.questions:
            wanted[question.row.file][question.row.line] = question
    root = directory.resolve()
    for file, questions in wanted.items():
        path = (root / file).resolve()
        if not path.is_relative_to(root):
            raise ConfigError(f"{directory / 'rows.jsonl'} names {file!r}, which lies outside of {directory}")
        if not path.exists():
            continue
        with path.open("rb") as lines:
            for number, line in enumerate(islice(lines, max(questions)), start=1):
                if number in questions:
                    questions[number].did = _did(line, f"{directory / file}, line {number}", questions[number].row)


def verdict(value: float) -> str:
    """By a metric between 0 and 1."""
    return "right" if value >= 1 else "partly" if value > 0 else "wrong"


def _did(line: bytes, where: str, row: Row) -> dict[str, Any]:
    try:
        t = Trajectory.from_json(json.dumps(json.loads(line)["trajectory"]))
    except (ValueError, KeyError, TypeError, ConfigError) as error:
        raise ConfigError(f"{where} is not a trajectory ({error}); run the same `antiphon evaluate` again") from None
    if t.task.id != row.task_id:
        raise ConfigError(f"{where} is about question {t.task.id!r}, not {row.task_id!r} as rows.jsonl says")
    steps = [(turn.started_s, number, _turn(turn)) for number, turn in enumerate(t.turns)]
    steps += [(call.started_s, len(t.turns) + number, _call(call)) for number, call in enumerate(t.calls)]
    shown = [step for _, _, step in sorted(steps, key=lambda step: step[:2])]
    return {
        "steps": shown[:MOST_STEPS],
        "more": max(0, len(shown) - MOST_STEPS),
        "format": [_cut(problem) for problem in t.format_problems],
        "notes": [_cut(note) for note in t.notes],
        "error": t.error and _cut(t.error),
    }


def _turn(turn: Turn) -> dict[str, Any]:
    step: dict[str, Any] = {"kind": "policy", "tokens": turn.usage.output_tokens, "s": turn.latency_s}
    action = turn.action
    if action is None and turn.thinking == turn.text:  # a generation without a grammar
        return {**step, "does": "says", "text": _cut(turn.text)}
    step["thinks"] = _cut(turn.thinking)
    if action is None:
        return {**step, "does": "stops without an action", "text": _cut(turn.text)}
    if action.kind == "route":
        late = "" if turn.executed else " (not carried out: after the last round)"
        return {**step, "does": f"asks {action.member}{late}", "text": _cut(action.query)}
    if action.kind == "answer":
        return {**step, "does": "answers", "text": _cut(action.text)}
    return {**step, "does": f"invalid: {action.reason}", "text": _cut(action.detail)}


def _call(call: Call) -> dict[str, Any]:
    usage = call.usage
    return {
        "kind": "member",
        "member": call.member,
        "query": _cut(call.query),
        "reply": None if call.reply is None else _cut(call.reply),
        "truncated": call.truncated,
        "failed": None if call.ok else _cut(f"{call.outcome}: {call.error or 'no reason given'}"),
        "served": call.served_model if call.substituted else None,
        "tokens": usage and usage.output_tokens,
        "estimated": bool(usage and usage.estimated),
        "usd": call.cost_usd,
        "s": call.latency_s,
        "round": call.round,
    }


def _balanced(by_kind: list[list[Question]], most: int) -> list[Question]:
    """Take from each in turn until `most` are taken or none is left."""
    taken = [0] * len(by_kind)
    while sum(taken) < most and any(count < len(some) for count, some in zip(taken, by_kind, strict=True)):
        for index, some in enumerate(by_kind):
            if taken[index] < len(some) and sum(taken) < most:
                taken[index] += 1
    return [question for count, some in zip(taken, by_kind, strict=True) for question in some[:count]]


def _cut(text: str) -> str:
    left_out = len(text) - MOST_TEXT
    return text if left_out <= 0 else f"{text[:MOST_TEXT]}… [{left_out} more characters]"
