"""Every case of `tests/cases/grammar.jsonl`, through a real rollout: routes, answer, format, invalid actions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from antiphon.contracts import Capabilities
from antiphon.generators.scripted import ScriptedGenerator
from antiphon.rollout import Rollout
from antiphon.types import Invalid, Task, Trajectory
from antiphon_plugins.grammars.router_r1 import RouterR1Grammar
from antiphon_policies.router_r1 import RouterR1

CASES = [
    json.loads(line)
    for name in ("grammar.jsonl", "grammar_more.jsonl")
    for line in (Path(__file__).parent.parent / "cases" / name).read_text("utf-8").split("\n")
    if line.strip()
]

GENERATORS = {
    "stops": {},
    "a token a chunk": {"chunk_tokens": 1},
    "one chunk": {"chunk_tokens": 10_000},
    "ignores stops": {"ignore_stops": True},
    "withholds stops": {"capabilities": Capabilities(keeps_stop=False)},
    "no ids": {"capabilities": Capabilities(token_in=False, token_out=False, logprobs=False)},
    "no ids, withholds stops": {
        "capabilities": Capabilities(token_in=False, token_out=False, logprobs=False, keeps_stop=False)
    },
}


@pytest.mark.parametrize("backend", GENERATORS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['id']} {case['kind']}")
async def test_case(case, backend, scripted_pool):
    if backend == "ignores stops" and case.get("resumes", case["id"] == "grammar-10"):
        pytest.skip("a backend that does not stop does not resume")
    if backend == "no ids, withholds stops" and case.get("stray_stop"):
        pytest.skip("nobody can know which stop string such a backend withheld outside any block")
    pool = scripted_pool(case["pool"], case["replies"])
    rollout = Rollout(Task("A question?"), pool, ScriptedGenerator(case["policy"], **GENERATORS[backend]))
    trajectory = await rollout.run(RouterR1(RouterR1Grammar()))

    assert [[call.member, call.query] for call in trajectory.calls] == case["routes"]
    assert trajectory.answer == case["answer"]
    assert (-1 if trajectory.format_problems else 0) == case["format"], trajectory.format_problems
    assert sum(isinstance(turn.action, Invalid) for turn in trajectory.turns) == case["invalid"]
    assert [asked[0] for asked in pool.asked] == [member for member, _ in case["routes"]]
    assert Trajectory.from_json(trajectory.to_json()) == trajectory
