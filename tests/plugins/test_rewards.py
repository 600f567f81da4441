"""Format, outcome and cost, and golden vectors of both compositions, worked out by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from antiphon.config import load_config
from antiphon.contracts import MemberView, RewardTerm
from antiphon.descriptor import Descriptor, Price
from antiphon.errors import ConfigError
from antiphon.reward import Reward, compose
from antiphon.types import Attempt, Call, Shown, Task, Trajectory, Usage
from antiphon_plugins.metrics import F1, ExactMatch
from antiphon_plugins.rewards import Cost, Format, Outcome

# ---- what is scored -----------------------------------------------------------------------------------------------


def call(
    member: str, output_tokens: int, *, charged: float = 0.0, ok: bool = True, priced_as: str | None = None
) -> Call:
    attempt = Attempt("a:m", "ok" if ok else "timeout", 0.0, Usage(100, output_tokens), charged, priced_as=priced_as)
    return Call(member, "q", "ok" if ok else "timeout", "reply" if ok else None, (attempt,))


def trajectory(
    *calls: Call,
    answer: str | None = "Paris",
    problems: tuple[str, ...] = (),
    golden: tuple[str, ...] | None = ("Paris",),
) -> Trajectory:
    task = Task("capital of France?", golden_answers=golden)
    return Trajectory("t", task, "p", answer, "answer", calls=calls, format_problems=problems)


class Terms:
    """The built-in terms by name, with the metric as an object."""

    def __init__(self, metric: Any = None) -> None:
        self.metric = metric or ExactMatch()

    def reward_term(self, name: str, **options: Any) -> RewardTerm:
        if name == "outcome":
            return Outcome(self.metric)
        return {"format": Format, "cost": Cost}[name](**options)


def view(name: str, output: float | None) -> MemberView:
    descriptor = Descriptor.of({"name": name, "description": "d", "model": name})
    return MemberView(descriptor, None if output is None else Price(output=output))


POOL = [view("small", 0.25), view("large", 1.0)]


# ---- the terms ----------------------------------------------------------------------------------------------------


def test_they_are_reward_terms_in_the_order_format_outcome_cost() -> None:
    terms = [Format(), Outcome(ExactMatch()), Cost()]
    assert all(isinstance(term, RewardTerm) for term in terms)
    assert [term.name for term in sorted(terms, key=lambda term: term.priority)] == ["format", "outcome", "cost"]


def test_format_is_minus_one_where_the_grammar_found_a_problem() -> None:
    assert Format()(trajectory()) == 0
    assert Format()(trajectory(problems=("no_think",))) == -1


def test_outcome_grades_the_answer_field_and_nothing_else() -> None:
    assert Outcome(ExactMatch())(trajectory(answer="paris.")) == 1
    assert Outcome(F1())(trajectory(answer="Paris France")) == pytest.approx(2 / 3)
    assert Outcome(ExactMatch())(trajectory(answer=None)) == 0


@pytest.mark.parametrize("golden", [None, ()])
def test_outcome_without_golden_answers_says_which_task(golden: tuple[str, ...] | None) -> None:
    with pytest.raises(ConfigError, match="task 'task' has no golden answers"):
        Outcome(ExactMatch())(trajectory(golden=golden))


def test_raw_cost_is_price_per_million_times_output_tokens() -> None:
    cost = Cost()
    cost.bind(POOL)
    # 0.25 * 100 + 1.0 * 64; a failed call has no T_out
    assert cost.raw(trajectory(call("small", 100), call("large", 64), call("large", 50, ok=False))) == 89.0
    assert cost.raw(trajectory()) == 0.0


def test_another_model_that_answered_counts_at_its_own_price_where_the_pool_knows_it() -> None:
    cost = Cost(prices={"small": 0.25, "large": 1.0})
    assert cost.raw(trajectory(call("large", 64, priced_as="small"))) == 16.0
    assert cost.raw(trajectory(call("large", 64, priced_as="stranger"))) == 64.0


def test_without_any_price_the_charge_of_the_served_reply_counts_in_the_same_unit() -> None:
    # 64 tokens at USD 0.5 a million are charged USD 0.000032
    assert Cost().raw(trajectory(call("m", 64, charged=32e-6))) == pytest.approx(32.0)


def test_charged_counts_every_attempt_failed_ones_too() -> None:
    both = trajectory(call("m", 64, charged=32e-6), call("m", 0, charged=1e-6, ok=False))
    assert Cost(unit="charged", prices={"m": 9.0}).raw(both) == pytest.approx(33.0)


def test_an_unpriced_member_is_refused_by_name_unless_its_price_is_given() -> None:
    with pytest.raises(ConfigError, match="needs a price of free; price it, or set alpha to 0"):
        Cost().bind([view("free", None), *POOL])
    Cost(prices={"free": 1.0}).bind([view("free", None), *POOL])
    Cost(unit="charged").bind([view("free", None)])


@pytest.mark.parametrize(
    "options", [{"window": "future"}, {"unit": "euro"}, {"size": 0}, {"low": 95, "high": 5}, {"eps": 0}, {"neutral": 2}]
)
def test_options_that_do_not_hold_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="cost reward"):
        Cost(**options)


# ---- pools drawn for a rollout ------------------------------------------------------------------------------------


def shown(*calls: Call, scale: float = 1.0, **prices: float) -> Trajectory:
    """A trajectory whose pool showed `small` as "Tovbo" and `large` as "Wimbo"."""
    return replace(trajectory(*calls), shown=Shown({"Tovbo": "small", "Wimbo": "large"}, prices, scale))


def test_a_drawn_pool_counts_at_its_shown_prices_divided_by_their_scale() -> None:
    cost = Cost()
    cost.bind(POOL)
    # 8 times the prices of POOL: 2 * 100 + 8 * 64 = 712, over 8
    drawn = shown(call("Tovbo", 100), call("Wimbo", 64), scale=8.0, Tovbo=2.0, Wimbo=8.0)
    assert cost.raw(drawn) == pytest.approx(89.0)
    # swapped prices, the same scale: 8 * 100 + 2 * 64 = 928, over 8
    swapped = shown(call("Tovbo", 100), call("Wimbo", 64), scale=8.0, Tovbo=8.0, Wimbo=2.0)
    assert cost.raw(swapped) == pytest.approx(116.0)
    # no scale: as shown
    assert cost.raw(shown(call("Tovbo", 100), Tovbo=2.0, Wimbo=8.0)) == pytest.approx(200.0)


def test_a_member_that_was_shown_no_price_counts_at_the_one_given() -> None:
    # 3 * 8 a token as it would have been shown, over 8
    assert Cost(prices={"small": 3.0}).raw(shown(call("Tovbo", 10), scale=8.0)) == pytest.approx(30.0)


def test_what_was_charged_in_a_drawn_pool_is_divided_by_its_scale_too() -> None:
    drawn = shown(call("Tovbo", 100, charged=8e-6), scale=4.0, Tovbo=2.0)
    assert Cost(unit="charged").raw(drawn) == pytest.approx(2.0)


# ---- the window ---------------------------------------------------------------------------------------------------


def filled(window: Any, *output_tokens: int, size: int = 1000) -> Cost:
    """A cost term at price 1 whose window holds sqrt of these raw costs."""
    cost = Cost(window=window, prices={"m": 1.0}, size=size)
    cost.commit([(trajectory(call("m", tokens)), 0.5) for tokens in output_tokens])
    return cost


def test_past_percentiles_by_hand() -> None:
    # sqrt: 0, 10, 20. Ranks of 5 % and 95 % over three values: 0.1 and 1.9 -> q05 = 1, q95 = 19
    cost = filled("past", 0, 100, 400)
    # sqrt(raw) = 10: 1 - (10 - 1) / 18
    assert cost(trajectory(call("m", 100))) == pytest.approx(0.5)
    # sqrt(raw) = 4: 1 - (4 - 1) / 18
    assert cost(trajectory(call("m", 16))) == pytest.approx(1 - 3 / 18)
    # below q05 and above q95 it is clipped
    assert cost(trajectory()) == 1
    assert cost(trajectory(call("m", 400))) == 0
    assert cost(trajectory(call("m", 40_000))) == 0


def test_with_current_takes_its_own_value_in_by_hand() -> None:
    # 0 and 10 committed, 20 now: 0, 10, 20 as above; (20 - 1) / 18 is clipped
    assert filled("with_current", 0, 100)(trajectory(call("m", 400))) == 0
    # 0 and 20 committed, 10 now
    assert filled("with_current", 0, 400)(trajectory(call("m", 100))) == pytest.approx(0.5)
    # under "past" the same trajectory is measured by 0 and 20 alone: q05 = 1, q95 = 19
    assert filled("past", 0, 400)(trajectory(call("m", 100))) == pytest.approx(0.5)


@pytest.mark.parametrize("window", ["past", "with_current"])
def test_neutral_while_there_is_no_spread(window: Any) -> None:
    assert Cost(window=window, prices={"m": 1.0})(trajectory(call("m", 100))) == 0.5  # an empty window
    assert filled(window, 100, 100)(trajectory(call("m", 100))) == 0.5
    assert filled("past", 100)(trajectory(call("m", 900))) == 0.5  # one value: the smallest is the largest


def test_the_window_forgets_the_oldest() -> None:
    assert filled("past", 0, 100, 400, size=2).state_dict() == {"window": [10.0, 20.0]}


def test_past_takes_every_trajectory_in_and_with_current_only_those_paid_for() -> None:
    step: list[Any] = [(trajectory(call("m", 100)), None), (trajectory(call("m", 400)), 0.5)]
    past, current = Cost(prices={"m": 1.0}), Cost(window="with_current", prices={"m": 1.0})
    past.commit(step)
    current.commit(step)
    assert past.state_dict() == {"window": [10.0, 20.0]}
    assert current.state_dict() == {"window": [20.0]}


@pytest.mark.parametrize("window", ["past", "with_current"])
def test_scores_of_a_step_do_not_depend_on_their_order(window: Any) -> None:
    cost = filled(window, 0, 100, 400)
    step = [trajectory(call("m", tokens)) for tokens in (9, 49, 225)]
    forth, back = [cost(t) for t in step], [cost(t) for t in reversed(step)]
    assert forth == back[::-1]


def test_the_state_is_json_and_goes_on_where_it_was() -> None:
    cost = filled("past", 0, 100, 400)
    again = Cost(prices={"m": 1.0})
    again.load_state_dict(json.loads(json.dumps(cost.state_dict())))
    probe = trajectory(call("m", 64))
    assert again(probe) == cost(probe)
    assert again.state_dict() == cost.state_dict()


# ---- golden vectors -----------------------------------------------------------------------------------------------
#
# Both compositions at alpha = 0.4, over the window 0, 10, 20 (so that q05 = 1 and q95 = 19 under "past").
#
# One call to `large` (USD 1 per million) with T_out = 100: sqrt(raw) = 10.
#   past:          R_cost = 1 - (10 - 1) / 18 = 0.5
#   with_current:  0, 10, 10, 20: ranks 0.15 and 2.85: q05 = 1.5, q95 = 18.5; R_cost = 1 - 8.5 / 17 = 0.5
# One call to `small` (0.25) with T_out = 64: sqrt(16) = 4.
#   past:          R_cost = 1 - 3 / 18 = 5/6
#   with_current:  0, 4, 10, 20: q05 = 0.15 * 4 = 0.6, q95 = 10 + 0.85 * 10 = 18.5; R_cost = 1 - 3.4 / 17.9
# No call: 0.
#   past:          R_cost = 1 (clipped)
#   with_current:  0, 0, 10, 20: q05 = 0, q95 = 18.5; R_cost = 1

LARGE, SMALL = call("large", 100), call("small", 64)
BRANCHES: list[tuple[str, Trajectory, float, float]] = [
    # name, trajectory, total under "paper", total under "released"
    ("malformed, right answer", trajectory(LARGE, problems=("nested",)), -1.0, -1.0),
    ("malformed, no answer, no call", trajectory(answer=None, problems=("no_answer",)), -1.0, -1.0),
    # paper pays the cost term for a wrong answer: 0.4 * 0.5; released pays nothing
    ("wrong", trajectory(LARGE, answer="Lyon"), 0.2, 0.0),
    ("wrong, no call", trajectory(answer="Lyon"), 0.4, 0.0),
    ("well-formed without an answer", trajectory(LARGE, answer=None), 0.2, 0.0),
    # 0.6 * 1 + 0.4 * 0.5
    ("right, dear", trajectory(LARGE), 0.8, 0.8),
    # 0.6 + 0.4 * 5/6 and 0.6 + 0.4 * (1 - 3.4 / 17.9)
    ("right, cheap", trajectory(SMALL), 0.6 + 0.4 * 5 / 6, 0.6 + 0.4 * (1 - 3.4 / 17.9)),
    ("right, no call", trajectory(), 1.0, 1.0),
]


def made(name: str, alpha: float = 0.4, metric: Any = None, window: Sequence[float] = (0.0, 10.0, 20.0)) -> Reward:
    reward = compose(load_config().reward(name), Terms(metric), members=POOL, alpha=alpha)
    if alpha:
        reward.load_state_dict({"cost": {"window": list(window)}})
    return reward


@pytest.mark.parametrize(("name", "scored", "paper", "released"), BRANCHES, ids=[row[0] for row in BRANCHES])
def test_golden_vectors(name: str, scored: Trajectory, paper: float, released: float) -> None:
    assert made("paper")(scored).total == pytest.approx(paper)
    assert made("released")(scored).total == pytest.approx(released)


def test_released_with_f1_pays_the_cost_term_for_a_partly_right_answer() -> None:
    # F1 of "Paris France" against "Paris" is 2/3: 0.6 * 2/3 + 0.4 * 0.5; of "Lyon" it is 0, and nothing is paid
    assert made("released", metric=F1())(trajectory(LARGE, answer="Paris France")).total == pytest.approx(0.6)
    assert made("released", metric=F1())(trajectory(LARGE, answer="Lyon")).total == 0


# Both at alpha = 0, 0.6 and 1, over each window; R_cost by hand.
#
# Window 0, 10, 20 under "past": q05 = 1, q95 = 19.
#   sqrt(raw) = 10: 0.5, under both (see above).
#   sqrt(raw) = 30 (DEAREST): past (30 - 1) / 18 > 1, clipped: 0. with_current: 0, 10, 20, 30: ranks 0.15 and 2.85:
#     q05 = 1.5, q95 = 28.5; 28.5 / 27 > 1, clipped: 0.
# Window 10, 20, 30: past: q05 = 11, q95 = 29.
#   sqrt(raw) = 0: past (0 - 11) / 18 < 0, clipped: 1. with_current: 0, 10, 20, 30: q05 = 1.5: clipped: 1.
# No window: past: 0.5. with_current: the one value is lowest and highest: 0.5.
# Window 10, 10, and sqrt(raw) = 10: no spread: 0.5 under both.
# Window 10, 10, and sqrt(raw) = 20 (DEARER): past: no spread: 0.5. with_current: 10, 10, 20: ranks 0.1 and 1.9:
#   q05 = 10, q95 = 19; 10 / 9 > 1, clipped: 0.
# Window 10, 10 + 1e-7, and sqrt(raw) = 0: past: the spread 0.9e-7 is below eps = 1e-6: 0.5. with_current: 0, 10, 10:
#   q05 = 1: clipped: 1.
DEARER, DEAREST = call("large", 400), call("large", 900)
SPREAD = [0.0, 10.0, 20.0]
VECTORS: list[tuple[str, list[float], Trajectory, tuple[float, ...], tuple[float, ...]]] = [
    # name, window, trajectory, totals under "paper" and under "released" at alpha = 0, 0.6, 1
    ("malformed", SPREAD, trajectory(problems=("nested",)), (-1, -1, -1), (-1, -1, -1)),
    ("no answer", SPREAD, trajectory(LARGE, answer=None), (0, 0.3, 0.5), (0, 0, 0)),
    ("wrong", SPREAD, trajectory(LARGE, answer="Lyon"), (0, 0.3, 0.5), (0, 0, 0)),
    ("wrong, clipped dear", SPREAD, trajectory(DEAREST, answer="Lyon"), (0, 0, 0), (0, 0, 0)),
    ("wrong, clipped cheap", [10.0, 20.0, 30.0], trajectory(answer="Lyon"), (0, 0.6, 1), (0, 0, 0)),
    ("right", SPREAD, trajectory(LARGE), (1, 0.7, 0.5), (1, 0.7, 0.5)),
    ("right, clipped dear", SPREAD, trajectory(DEAREST), (1, 0.4, 0), (1, 0.4, 0)),
    ("right, clipped cheap", [10.0, 20.0, 30.0], trajectory(), (1, 1, 1), (1, 1, 1)),
    ("right, no window", [], trajectory(LARGE), (1, 0.7, 0.5), (1, 0.7, 0.5)),
    ("wrong, no window", [], trajectory(LARGE, answer="Lyon"), (0, 0.3, 0.5), (0, 0, 0)),
    ("right, no spread", [10.0, 10.0], trajectory(LARGE), (1, 0.7, 0.5), (1, 0.7, 0.5)),
    ("right, spread by its own value", [10.0, 10.0], trajectory(DEARER), (1, 0.7, 0.5), (1, 0.4, 0)),
    ("right, spread below eps", [10.0, 10.0000001], trajectory(), (1, 0.7, 0.5), (1, 1, 1)),
]


@pytest.mark.parametrize(("name", "window", "scored", "paper", "released"), VECTORS, ids=[row[0] for row in VECTORS])
def test_golden_vectors_at_each_alpha(
    name: str, window: list[float], scored: Trajectory, paper: tuple[float, ...], released: tuple[float, ...]
) -> None:
    for alpha, *totals in zip((0.0, 0.6, 1.0), paper, released, strict=True):
        rewards = made("paper", alpha, window=window), made("released", alpha, window=window)
        assert [reward(scored).total for reward in rewards] == pytest.approx(totals)


def test_with_f1_at_zero_released_pays_nothing_and_paper_pays_the_cost_term() -> None:
    # F1 of "Lyon" is 0; R_cost = 0.5, so paper earns 0.6 * 0.5
    wrong = trajectory(LARGE, answer="Lyon")
    assert made("paper", 0.6, F1())(wrong).total == pytest.approx(0.3)
    assert made("released", 0.6, F1())(wrong).total == 0
    # 2/3 right: 0.4 * 2/3 + 0.6 * 0.5 under both
    half = trajectory(LARGE, answer="Paris France")
    for name in ("paper", "released"):
        assert made(name, 0.6, F1())(half).total == pytest.approx(0.4 * 2 / 3 + 0.3)


@pytest.mark.parametrize(("metric", "right"), [("em", 1.0), ("f1", 1.0), ("strict_em", 0.0)])
def test_the_outcome_takes_em_f1_and_strict_em_by_name(metric: str, right: float) -> None:
    # without its sign, -5 is another number to a strict reader alone
    assert Outcome(metric)(trajectory(answer="5", golden=("-5",))) == right


@pytest.mark.parametrize("name", ["paper", "released"])
def test_at_alpha_zero_only_format_and_outcome_count_and_no_price_is_needed(name: str) -> None:
    reward = compose(load_config().reward(name), Terms(), members=[view("free", None)])
    assert reward.names == ("format", "outcome")
    assert [reward(scored).total for _, scored, *_ in BRANCHES] == [-1, -1, 0, 0, 0, 1, 1, 1]
    assert reward.state_dict() == {}


def test_at_alpha_one_paper_pays_cost_alone_and_released_still_asks_for_a_right_answer() -> None:
    assert made("paper", 1.0)(trajectory(LARGE, answer="Lyon")).total == pytest.approx(0.5)
    assert made("released", 1.0)(trajectory(LARGE, answer="Lyon")).total == 0
    assert made("released", 1.0)(trajectory(LARGE)).total == pytest.approx(0.5)


def test_the_windows_that_the_two_compositions_keep() -> None:
    step = [scored for _, scored, *_ in BRANCHES]
    for name, entered in (
        # sqrt(raw) of all eight, in sample order
        ("paper", [10.0, 0.0, 10.0, 0.0, 10.0, 10.0, 4.0, 0.0]),
        # of the three right ones
        ("released", [10.0, 4.0, 0.0]),
    ):
        reward = made(name)
        reward.commit([(scored, reward(scored)) for scored in step])
        assert reward.state_dict() == {"cost": {"window": [0.0, 10.0, 20.0, *entered]}}


def test_a_nan_never_comes_out() -> None:
    assert all(math.isfinite(made(name)(scored).total) for name in ("paper", "released") for _, scored, *_ in BRANCHES)


def test_the_terms_come_through_the_registry_with_a_metric_by_name() -> None:
    from antiphon.registry import Registry

    reward = compose(load_config().reward("paper"), Registry.load(only=[]), members=POOL, alpha=0.4)
    # an empty window is neutral: 0.6 * 1 + 0.4 * 0.5
    assert reward(trajectory(LARGE)).total == pytest.approx(0.8)
