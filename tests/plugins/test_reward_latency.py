"""The latency term: by descriptors or as measured, against a ceiling or a window, in pools drawn for a rollout too."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from antiphon.contracts import MemberView, RewardTerm
from antiphon.descriptor import Descriptor
from antiphon.errors import ConfigError
from antiphon.reward import Composition, compose
from antiphon.types import Attempt, Call, Shown, Task, Trajectory, Usage
from antiphon_plugins.rewards import Latency


def call(
    member: str, tokens: int = 0, *, round: int = 1, waited: float = 0.0, told: float = 0.0, ok: bool = True
) -> Call:
    attempt = Attempt("a:m", "ok" if ok else "timeout", told, Usage(1, tokens))
    return Call(member, "q", attempt.outcome, "r" if ok else None, attempts=(attempt,), round=round, latency_s=waited)


def trajectory(*calls: Call) -> Trajectory:
    return Trajectory("t", Task("why?", golden_answers=("x",)), "p", "x", "answer", calls=calls)


def view(name: str, latency: tuple[float, float] | None) -> MemberView:
    said = {} if latency is None else {"latency": {"first_token_s": latency[0], "tokens_per_s": latency[1]}}
    return MemberView(Descriptor.of({"name": name, "description": "d", "model": name, **said}), None)


POOL = [view("quick", (0.25, 100)), view("slow", (1.0, 10))]


def latency(**options: Any) -> Latency:
    made = Latency(**options)
    made.bind(POOL)
    return made


def test_it_is_a_reward_term() -> None:
    assert isinstance(Latency(), RewardTerm)


def test_seconds_by_descriptor_are_the_slowest_of_each_round_added_up() -> None:
    # round 1: quick 0.25 + 50 / 100 = 0.75, slow 1 + 20 / 10 = 3; round 2: quick 0.25
    asked = trajectory(call("quick", 50), call("slow", 20), call("quick", 0, round=2))
    assert latency().raw(asked) == pytest.approx(3.25)
    assert latency().raw(trajectory()) == 0


def test_a_failed_call_counts_its_first_token() -> None:
    assert latency().raw(trajectory(call("slow", 50, ok=False))) == 1.0


def test_measured_seconds_are_those_waited_or_those_recorded() -> None:
    live, replayed = call("quick", waited=2.0, told=1.5), call("quick", round=2, waited=0.001, told=4.0)
    assert Latency(by="measured").raw(trajectory(live, replayed)) == pytest.approx(6.0)


def test_a_ceiling_gives_a_straight_line_and_needs_no_window() -> None:
    # slow, 20 tokens: 3 s
    assert latency(ceiling_s=12.0)(trajectory(call("slow", 20))) == pytest.approx(0.75)
    assert latency(ceiling_s=2.0)(trajectory(call("slow", 20))) == 0
    assert latency(ceiling_s=2.0)(trajectory()) == 1


def test_without_one_it_is_placed_in_its_window_as_cost_is() -> None:
    # by measured seconds 0, 100, 400, so sqrt 0, 10, 20: q05 = 1, q95 = 19; 16 s: 1 - (4 - 1) / 18
    term = Latency(by="measured")
    assert term(trajectory()) == 0.5
    term.commit([(trajectory(call("m", waited=seconds)), 0.5) for seconds in (0.0, 100.0, 400.0)])
    assert term(trajectory(call("m", waited=16.0))) == pytest.approx(1 - 3 / 18)
    again = Latency(by="measured")
    again.load_state_dict(json.loads(json.dumps(term.state_dict())))
    assert again.state_dict() == term.state_dict() == {"window": [0.0, 10.0, 20.0]}


def test_in_a_drawn_pool_it_is_the_real_member_who_takes_time() -> None:
    drawn = replace(trajectory(call("Tovbo", 20)), shown=Shown({"Tovbo": "slow"}))
    assert latency().raw(drawn) == pytest.approx(3.0)


def test_a_member_without_latency_is_named_with_both_remedies() -> None:
    with pytest.raises(ConfigError, match=r'needs the latency of vague; .*profile.* or set by = "measured"'):
        Latency().bind([*POOL, view("vague", None)])
    Latency(by="measured").bind([view("vague", None)])
    with pytest.raises(ConfigError, match="knows no latency of 'stranger'"):
        latency().raw(trajectory(call("stranger")))


@pytest.mark.parametrize(
    ("options", "says"),
    [({"by": "guess"}, "by is one of"), ({"ceiling_s": 0}, "ceiling_s"), ({"size": 0}, "latency reward: needs size")],
)
def test_options_that_do_not_hold_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Latency(**options)


def test_it_composes_by_name_beside_cost() -> None:
    from antiphon.registry import Registry

    uses = [
        {"term": "outcome"},
        {"term": "latency", "weight": 0.5, "needs": ["outcome"], "options": {"ceiling_s": 12.0}},
    ]
    reward = compose(Composition.of({"terms": uses}), Registry.load(only=[]), members=POOL)
    assert reward(trajectory(call("slow", 20))).total == pytest.approx(1 + 0.5 * 0.75)
