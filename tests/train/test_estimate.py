"""What a run takes is told before anybody is asked: bounds worked out by hand, expectations from a step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from antiphon.contracts import MemberView
from antiphon.descriptor import Descriptor
from antiphon.limits import Limits
from antiphon.testing import ScriptedGenerator
from antiphon.train.estimate import CALIBRATION_TOKENS, Estimate, bound, expected, judging_usd, played, speed
from antiphon.train.progress import duration, line
from antiphon.train.spec import make_spec
from antiphon.types import Message, Task


def view(name: str, output: float | None, **given: Any) -> MemberView:
    price = None if output is None else {"input": 1.0, "output": output}
    one = Descriptor.of({"name": name, "description": "Knows.", "model": "m", "price": price, **given})
    return MemberView(one, one.price)


def setup(*members: MemberView, **limits: Any) -> Any:
    given = {"rounds": 2, "turn_tokens": 100, "member_tokens": 50}
    return SimpleNamespace(limits=Limits(**{**given, **limits}), pool=SimpleNamespace(members=members), policy=None)


def spec(**train: Any) -> Any:
    data = {"data": {"dataset": "d"}, "model": {"base": "m"}, "validation": {"every": 4}}
    return make_spec({**data, "train": {"steps": 10, "tasks": 3, "samples": 2, **train}}, "a test")


POOL = setup(view("cheap", 0.1), view("dear", 8.0))


def test_the_bound_is_every_rollout_to_its_end_with_the_dearest_member() -> None:
    # 10 steps x 3 x 2 rollouts, and validations of 5 before the first step and after steps 4, 8 and 10: 60 + 20.
    # 2 calls each: 160; a call of the dear one: 388 tokens in at $1 and 50 out at $8 per million: $0.000788.
    # 3 turns of 100 tokens: 24,000; calls x 438 tokens of members: 70,080. At 10 tokens/s: 2,400 s.
    most = bound(spec(), POOL, validation=5, tokens_per_s=10)
    assert most == Estimate(80, 160, 24_000, 70_080, pytest.approx(160 * 0.000788), 2400 / 3600)  # type: ignore[arg-type]
    assert str(most) == (
        "80 rollouts, 160 calls, 24,000 tokens of the policy and 70,080 tokens of members, $0.13, 40 min"
    )


def test_what_members_are_told_before_the_query_counts() -> None:
    policy = SimpleNamespace(member_prompt="é" * 200)
    told = bound(spec(), SimpleNamespace(**{**vars(POOL), "policy": policy}))  # type: ignore[arg-type]
    assert told.member_tokens == 120 * (438 + 400)
    assert told.usd == pytest.approx(120 * (0.000788 + 400 / 1e6))


def test_judging_counts_and_may_go_beyond_the_limit_by_a_step_and_its_validation() -> None:
    free = setup(view("free", None))
    assert bound(spec(), free, validation=5, judging=lambda rollouts: rollouts / 10).usd == pytest.approx(8.0)
    limited = bound(spec(max_cost_usd=3.0), free, validation=5, judging=lambda rollouts: rollouts / 10)
    assert limited.usd == pytest.approx(3.0 + 0.6 + 0.5)


def test_the_longest_question_is_what_judging_is_taken_to_be_of() -> None:
    asked: list[Any] = []

    class Asks:
        def most_usd(self, scored: int, task: Task, answer_tokens: int) -> float:
            asked.append((scored, task.id, answer_tokens))
            return 0.5

    tasks = [Task("short?", "1"), Task("short?", "2", ("with", "answers")), Task("a bit longer?", "3")]
    assert judging_usd(Asks(), POOL, tasks)(7) == 0.5  # type: ignore[arg-type]
    assert asked == [(7, "2", 100)]


def test_so_many_rollouts_are_bounded_by_a_budget_of_their_own() -> None:
    assert (played(POOL, 3).calls, played(POOL, 3).usd) == (6, pytest.approx(6 * 0.000788))
    assert played(POOL, 3, 0.001).usd == 0.001


def test_what_is_done_does_not_come_again() -> None:
    # after step 4: 6 steps x 6 rollouts, validations after 8 and 10
    assert bound(spec(), POOL, done=4, validation=5).rollouts == 36 + 10
    assert bound(spec(), POOL, done=4, validation=5).hours is None


def test_limits_of_money_and_tokens_bound_it_too() -> None:
    assert bound(spec(max_cost_usd=0.01), POOL).usd == 0.01
    assert bound(spec(), setup(view("dear", 8.0), max_cost_usd=0.0001)).usd == 60 * 0.0001
    assert bound(spec(), setup(view("dear", 8.0), policy_tokens=120)).policy_tokens == 60 * 120
    assert bound(spec(), setup(view("dear", 8.0, max_output_tokens=10))).usd == pytest.approx(120 * (388 + 80) / 1e6)


def test_members_without_a_price_are_named() -> None:
    most = bound(spec(), setup(view("free", None)))
    assert most.usd == 0
    assert "$0 (without a price: free)" in str(most)


def test_a_step_tells_what_the_rest_will_take() -> None:
    row = {"step": 4, "calls": 1.5, "cost_usd": 0.001, "response_tokens": 40, "step_s": 30.0, "val_s": 10.0}
    rest = expected(spec(), POOL, row, validation=5)
    # 46 rollouts are left (as above): 69 calls, 1,840 tokens, $0.046; 6 steps of 30 s and 2 validations of 10 s
    assert (rest.rollouts, rest.calls, rest.policy_tokens, rest.member_tokens) == (46, 69, 1840, None)
    assert round(rest.usd, 6) == 0.046
    assert rest.hours == 200 / 3600


async def test_the_speed_is_measured_without_asking_anybody() -> None:
    generator = ScriptedGenerator(["word " * CALIBRATION_TOKENS] * 2)
    assert await speed(generator, POOL, [Task("one?", "1"), Task("two?", "2")]) > 0
    prompts = [request.messages for request in generator.requests]
    assert prompts == [(Message("user", "one?"),), (Message("user", "two?"),)], "a policy without a grammar"


def test_a_step_is_one_line() -> None:
    row = {"step": 12, "reward": 0.4123, "reward_format": -0.1, "reward_outcome": 0.5123, "format_ok": 0.975, "em": 0.5}
    said = line({**row, "kl": None, "tokens_per_s": 412.3, "left_s": 5000, "val_em": 0.25}).split("  ")
    assert said[:4] == ["step 12", "reward 0.412 (format -0.100, outcome +0.512)", "format 98%", "EM 0.500"]
    assert said[4:] == ["val EM 0.250", "tokens/s 412", "left 83 min"]
    assert [duration(s) for s in (45, 600, 36_000)] == ["45 s", "10 min", "10.0 h"]
