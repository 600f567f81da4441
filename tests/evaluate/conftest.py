"""A run directory as an evaluation leaves it, made up: rows and trajectories with known numbers and nasty texts."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from antiphon.evaluate.rows import Key, Row
from antiphon.evaluate.summary import summarise
from antiphon.types import Answer, Attempt, Call, Route, Task, Timings, Trajectory, Turn, Usage

MEMBERS = {"small-7b": 0.1, "wide-27b": 0.3, "large-70b": 0.9}
NASTY = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">&amp; |*_$\\"


def _trajectory(rng: random.Random, policy: str, dataset: str, place: int, right: bool) -> Trajectory:
    gold, question = f"gold {place}", f"Question {place} of {dataset}: {NASTY if place == 0 else 'who was it?'}"
    answer = gold if right else f"wrong {place}"
    count = {"direct": 0, "rounds": 1 + place % 3}.get(policy, 1)
    members = list(MEMBERS)
    asked = [members[min(call, 2)] if policy == "rounds" else members[2] for call in range(count)]
    calls, turns = [], []
    for number, member in enumerate(asked, start=1):
        tokens = rng.randint(10, 60)
        attempt = Attempt(
            f"scripted:{member}", "ok", 0.4, Usage(30, tokens), tokens * MEMBERS[member] / 1e6, member, member
        )
        said = f"I say {answer}. {NASTY if place == 0 else ''}"
        query = f"Part {number} of {question}"
        turns.append(
            Turn(f"<search>{member}: {query}</search>", "I had better ask.", Route(member, query), started_s=number)
        )
        calls.append(Call(member, query, "ok", said, (attempt,), round=number, started_s=number + 0.1, latency_s=0.4))
    turns.append(Turn(f"<answer>{answer}</answer>", "Now I know.", Answer(answer), started_s=9.0, usage=Usage(100, 20)))
    task = Task(question, f"{dataset}-{place}", (gold, "another"), dataset)
    return Trajectory(
        f"{policy}-{dataset}-{place}", task, policy, answer, "answer", (), tuple(turns), tuple(calls),
        policy_usage=Usage(100, 20), policy_cost_usd=0.00001, timings=Timings(0.0, 0.5 * count + 0.1, 0.1, 0.4 * count),
        rounds=count, notes=("chosen by rule",),
    )  # fmt: skip


def _row(key: Key, t: Trajectory, line: int) -> Row:
    right = float(t.answer == (t.task.golden_answers or ("",))[0])
    return Row(
        key.policy, key.pool, key.dataset, key.task, key.seed, t.task.question, t.task.golden_answers or (), t.answer,
        t.stop, True, {"em": right, "f1": max(right, 0.2 * (key.index % 2))},
        sum(MEMBERS[call.member] * call.usage.output_tokens for call in t.calls if call.usage), t.members_cost_usd,
        t.policy_cost_usd, len(t.calls), tuple(call.member for call in t.calls), t.rounds, len(t.calls) > 1,
        t.timings.wall_s, t.timings.members_s, 0, 0, 0, 0, "trajectories/0001.jsonl", line, key.index,
        tuple((30, call.usage.output_tokens) for call in t.calls if call.usage), tuple(None for _ in t.calls),
    )  # fmt: skip


def _spec(policies: Sequence[Mapping[str, Any]], datasets: Sequence[str], n: int) -> dict[str, Any]:
    return {
        "evaluate": {"metrics": ["em", "f1"], "seeds": [0], "baseline": "largest", "oracle": None},
        "policies": [{"options": {}, "pool": None, "pools": ["paper"], "answer_by": None, **one} for one in policies],
        "datasets": [{"name": name, "label": name, "questions": n} for name in datasets],
        "pools": [{"name": "paper", "members": [{"name": m, "output_price": p} for m, p in MEMBERS.items()]}],
    }


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """`make_run(n=…, skip=[(policy, dataset), …])`: three policies on two data sets, the first question a nasty one."""

    def make(n: int = 12, skip: Sequence[tuple[str, str]] = (), **changes: Any) -> Path:
        policies = [{"label": name, "name": name} for name in ("direct", "largest", "rounds")]
        datasets = ("nq", "hotpotqa")
        rng, rows, lines = random.Random(7), [], []
        for policy, chance in (("direct", 0.2), ("largest", 0.5), ("rounds", 0.7)):
            for dataset in datasets:
                for place in range(n):
                    if (policy, dataset) in skip:
                        continue
                    trajectory = _trajectory(rng, policy, dataset, place, rng.random() < chance)
                    key = Key(policy, "paper", dataset, trajectory.task.id, 0, place)
                    lines.append(f'{{"key": {key.to_json()}, "trajectory": {trajectory.to_json()}}}\n')
                    rows.append(_row(key, trajectory, len(lines)))
        directory = tmp_path / "run"
        (directory / "trajectories").mkdir(parents=True)
        (directory / "trajectories" / "0001.jsonl").write_text("".join(lines), "utf-8")
        (directory / "rows.jsonl").write_text("".join(f"{row.to_json()}\n" for row in rows), "utf-8")
        summary = summarise(rows, _spec(policies, datasets, n), command="antiphon evaluate run.toml --out run")
        (directory / "summary.json").write_text(json.dumps({**summary, **changes}), "utf-8")
        return directory

    return make
