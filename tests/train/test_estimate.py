"""What a run takes is told before anybody is asked: bounds worked out by hand, expectations from a step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from antiphon.contracts import MemberView
from antiphon.descriptor import Descriptor
from antiphon.limits import Limits
from antiphon.testing import ScriptedGenerator
from antiphon.train.estimate import CALIBRATION_TOKENS, Estimate, bound, expected, speed
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
    # 2 calls each: 160; a call of the dear one: 100 tokens in at $1 and 50 out at $8 per million: $0.0005.
    # 3 turns of 100 tokens: 24,000; calls x 150 tokens of members: 24,000. At 10 tokens/s: 2,400 s.
    most = bound(spec(), POOL, validation=5, tokens_per_s=10)
    assert most == Estimate(80, 160, 24_000, 24_000, 160 * 0.0005, 2400 / 3600)
    assert str(most) == (
        "80 rollouts, 160 calls, 24,000 tokens of the policy and 24,000 tokens of members, $0.08, 40 min"
    )


def test_what_is_done_does_not_come_again() -> None:
    # after step 4: 6 steps x 6 rollouts, validations after 8 and 10
    assert bound(spec(), POOL, done=4, validation=5).rollouts == 36 + 10
    assert bound(spec(), POOL, done=4, validation=5).hours is None


def test_limits_of_money_and_tokens_bound_it_too() -> None:
    assert bound(spec(max_cost_usd=0.01), POOL).usd == 0.01
    assert bound(spec(), setup(view("dear", 8.0), max_cost_usd=0.0001)).usd == 60 * 0.0001
    assert bound(spec(), setup(view("dear", 8.0), policy_tokens=120)).policy_tokens == 60 * 120
    assert bound(spec(), setup(view("dear", 8.0, max_output_tokens=10))).usd == 120 * (100 + 80) / 1e6


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
