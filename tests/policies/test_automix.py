"""AutoMix: trusted answers stand, doubtful ones go on, and what a point is worth moves the line between them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import ConfigError
from antiphon.generators.scripted import ScriptedGenerator
from antiphon.rollout import Rollout
from antiphon.types import Call, Task
from antiphon_policies.automix import AutoMix, verdict

from .conftest import row

POOL = [
    {"name": "Small", "price": {"input": 0, "output": 1}},
    {"name": "Middle", "price": {"input": 0, "output": 5}},
    {"name": "Large", "price": {"input": 0, "output": 10}},
]
YES, NO = "Correct", "Incorrect."


async def run(
    scripted_pool: Any, replies: list[Any], texts: tuple[str, ...] = (), **options: Any
) -> tuple[Any, list[str]]:
    pool = scripted_pool(POOL, replies)
    trajectory = await Rollout(Task("Who {x}?"), pool, ScriptedGenerator(texts)).run(AutoMix(samples=2, **options))
    assert trajectory.error is None
    return trajectory, [asked[0] for asked in pool.asked]


async def test_it_reaches_the_oracle_where_members_know_what_they_know(scripted_pool: Any) -> None:
    """Small knows half of the answers and says so; Large knows all: every answer is right, and half are cheap."""
    asked_large = 0
    for known in (True, False) * 5:
        replies = ["right", YES, YES] if known else ["wrong", NO, NO, "right"]
        trajectory, asked = await run(scripted_pool, replies)
        assert trajectory.answer == "right"
        asked_large += "Large" in asked
    assert asked_large == 5


async def test_a_trusted_answer_stands_and_a_doubtful_one_goes_on(scripted_pool: Any) -> None:
    trajectory, asked = await run(scripted_pool, ["Bo", YES, NO])
    assert (trajectory.answer, asked) == ("Bo", ["Small"] * 3)
    assert trajectory.notes == ("automix: Small answered; confidence 0.5",)
    trajectory, asked = await run(scripted_pool, ["Bo", YES, NO, "Di"], threshold=0.6)
    assert (trajectory.answer, asked) == ("Di", ["Small"] * 3 + ["Large"])
    verified = trajectory.calls[1]
    assert verified.member == "Small"


async def test_the_verifier_sees_question_and_answer(scripted_pool: Any) -> None:
    pool = scripted_pool(POOL, ["<answer>{Bo}</answer>", YES])
    await Rollout(Task("Who {x}?"), pool).run(AutoMix(samples=1))
    assert pool.asked[1][1][-1].content.endswith("Question: Who {x}?\nAnswer: {Bo}\nVerdict:")


async def test_the_base_model_verifies_where_it_is_told_to(scripted_pool: Any) -> None:
    trajectory, asked = await run(scripted_pool, ["Bo", "Di"], (NO, NO), verifier="base")
    assert (trajectory.answer, asked) == ("Di", ["Small", "Large"])


async def test_a_chain_of_three_and_calls_that_fail(scripted_pool: Any) -> None:
    order = ["Small", "Middle", "Large"]
    trajectory, asked = await run(scripted_pool, ["Bo", NO, NO, Call("", "", "timeout"), "Di"], order=order)
    assert (trajectory.answer, asked) == ("Di", ["Small"] * 3 + ["Middle", "Large"])
    trajectory, _ = await run(scripted_pool, ["Bo", NO, NO, Call("", "", "timeout")])
    assert trajectory.answer == "Bo"  # better than none


async def test_what_a_point_is_worth_moves_the_line(scripted_pool: Any, tmp_path: Path) -> None:
    """Large is expected to score 0.75, the answer of Small 0.5, and 128 tokens of Large cost 0.00128 USD: 25 points,
    worth it from 0.0000512 USD a point."""
    scores = tmp_path / "scores.jsonl"
    rows = [row(f"Question {at}?", "Large", float(at % 4 > 0)) for at in range(8)]
    scores.write_text("".join(json.dumps(one) + "\n" for one in rows), "utf-8")
    for usd, answer in ((0.0, "Bo"), (0.00005, "Bo"), (0.000053, "Di")):
        given: dict[str, Any] = {"scores": str(scores), "folds": 0, "usd_per_point": usd}
        trajectory, _ = await run(scripted_pool, ["Bo", YES, NO, "Di"], **given)
        assert trajectory.answer == answer


@pytest.mark.parametrize(
    ("text", "right"),
    [("Correct", True), ("**Incorrect**, since", False), ("It is correct.", True), ("not sure", None), ("", None)],
)
def test_verdicts(text: str, right: bool | None) -> None:
    assert verdict(text) is right


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": "Small"}, "order is a list of members' names"),
        ({"samples": 0}, "samples is a whole number"),
        ({"threshold": 2}, "threshold is between 0 and 1"),
        ({"verifier": "bas"}, "not 'bas'; did you mean 'base'"),
        ({"usd_per_point": -1}, "usd_per_point is USD a question"),
    ],
)
def test_settings_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AutoMix(**options)
