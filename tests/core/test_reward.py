"""The composer: weights, gates, needs, order, state; and that the shipped compositions are read as they are written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.config import load_config
from antiphon.descriptor import Price
from antiphon.errors import ConfigError, PluginError
from antiphon.reward import Composition, Reward, RewardResult, Use, compose
from antiphon.types import Call, Task, Trajectory

TRAJECTORY = Trajectory("t", Task("why?", golden_answers=("x",)), "p", "x", "answer")


class Term:
    """A term that gives what it was told to."""

    def __init__(self, name: str, value: float, priority: int, range: tuple[float, float] = (-1.0, 1.0)) -> None:
        self.name, self.value, self.priority, self.range = name, value, priority, range
        self.asked = 0

    def __call__(self, trajectory: Trajectory) -> float:
        self.asked += 1
        return self.value


class Terms:
    """A registry of ready-made terms; remembers the options that it was asked with."""

    def __init__(self, *terms: Any) -> None:
        self.terms = {term.name: term for term in terms}
        self.options: dict[str, Mapping[str, Any]] = {}

    def reward_term(self, name: str, **options: Any) -> Any:
        self.options[name] = options
        return self.terms[name]


def reward(uses: list[dict[str, Any]], *terms: Any, alpha: float = 0.0) -> Reward:
    return compose(Composition.of({"alpha": alpha, "terms": uses}), Terms(*terms))


def test_parts_are_weighted_values_and_add_up_to_the_total() -> None:
    uses = [{"term": "a", "weight": 2}, {"term": "b", "weight": "1-alpha"}, {"term": "c", "weight": "alpha"}]
    result = reward(uses, Term("a", 0.5, 0), Term("b", 1, 0), Term("c", 0.5, 0), alpha=0.25)(TRAJECTORY)
    # 2 * 0.5 + 0.75 * 1 + 0.25 * 0.5
    assert result.parts == {"a": 1.0, "b": 0.75, "c": 0.125}
    assert result.values == {"a": 0.5, "b": 1.0, "c": 0.5}
    assert result.total == 1.875
    assert result.explanation == "1.875 = a 2 x 0.5; b 0.75 x 1; c 0.25 x 0.5"


def test_a_gate_below_zero_ends_it_and_what_comes_after_is_not_even_asked() -> None:
    late = Term("late", 1, 20)
    result = reward([{"term": "late"}, {"term": "gate", "gate": True}], late, Term("gate", -1, 10))(TRAJECTORY)
    assert result.total == -1.0
    assert result.parts == {"gate": -1.0, "late": 0.0}
    assert "late" not in result.values
    assert late.asked == 0
    assert "late does not count: gate < 0" in result.explanation


@pytest.mark.parametrize("value", [0.0, 0.5])
def test_a_gate_of_zero_or_more_is_a_term_like_any_other(value: float) -> None:
    result = reward([{"term": "gate", "gate": True}, {"term": "late"}], Term("gate", value, 0), Term("late", 1, 1))
    assert result(TRAJECTORY).total == value + 1


def test_a_negative_term_that_is_no_gate_does_not_close() -> None:
    assert reward([{"term": "a"}, {"term": "b"}], Term("a", -1, 0), Term("b", 1, 1))(TRAJECTORY).total == 0


@pytest.mark.parametrize(("needed", "total"), [(0.0, 0.0), (0.4, 0.9)])
def test_a_term_is_paid_only_where_what_it_needs_is_above_zero(needed: float, total: float) -> None:
    uses = [{"term": "a"}, {"term": "b", "needs": ["a"]}]
    assert reward(uses, Term("a", needed, 0), Term("b", 0.5, 1))(TRAJECTORY).total == pytest.approx(total)


def test_a_need_that_was_itself_not_paid_is_not_met() -> None:
    uses = [{"term": "a"}, {"term": "b", "needs": ["a"]}, {"term": "c", "needs": ["b"]}]
    result = reward(uses, Term("a", 0, 0), Term("b", 1, 1), Term("c", 1, 2))(TRAJECTORY)
    assert result.values == {"a": 0.0}


def test_priority_orders_terms_and_equal_ones_stay_as_listed() -> None:
    uses = [{"term": "c"}, {"term": "a"}, {"term": "b"}]
    assert reward(uses, Term("a", 0, 1), Term("b", 0, 1), Term("c", 0, 2)).names == ("a", "b", "c")


def test_a_term_of_no_weight_is_left_out_unless_it_gates_or_is_needed() -> None:
    uses: list[dict[str, Any]] = [
        {"term": "gate", "gate": True, "weight": 0},
        {"term": "needed", "weight": 0},
        {"term": "idle", "weight": "alpha"},
        {"term": "paid", "needs": ["needed"]},
    ]
    terms = [Term("gate", 0, 0), Term("needed", 1, 1), Term("idle", 1, 2), Term("paid", 1, 3)]
    made = reward(uses, *terms)
    assert made.names == ("gate", "needed", "paid")
    assert made(TRAJECTORY).total == 1


def test_options_reach_the_factory() -> None:
    terms = Terms(Term("a", 0, 0))
    compose(Composition(terms=(Use(term="a", options={"metric": "f1"}),)), terms)
    assert terms.options == {"a": {"metric": "f1"}}


@pytest.mark.parametrize(
    ("uses", "says"),
    [
        ([{"term": "a"}, {"term": "a"}], "uses term 'a' twice"),
        ([{"term": "a", "needs": ["b"]}, {"term": "b"}], "needs 'b', which is not evaluated before it"),
        ([{"term": "b", "needs": ["missing"]}], "needs 'missing'"),
        ([{"term": "b", "needs": ["b"]}], "needs 'b'"),
    ],
)
def test_a_composition_that_does_not_hold_is_refused_before_anything_runs(uses: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        reward(uses, Term("a", 0, 0), Term("b", 0, 1))


@pytest.mark.parametrize("alpha", [-0.1, 1.1, float("nan")])
def test_alpha_lies_between_0_and_1(alpha: float) -> None:
    with pytest.raises(ConfigError, match="alpha"):
        compose(Composition(terms=(Use(term="a"),)), Terms(Term("a", 0, 0)), alpha=alpha)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"terms": []}, "rewards.mine: terms"),
        ({"alpha": 2, "terms": [{"term": "a"}]}, "alpha"),
        ({"terms": [{"term": "a", "wieght": 1}]}, "unknown key 'terms.0.wieght'; did you mean 'weight'?"),
        ({"terms": [{"term": "a", "weight": "beta"}]}, "weight"),
        ({"terms": [{"term": "a", "weight": float("inf")}]}, "weight"),
    ],
)
def test_data_that_is_no_composition_names_source_and_field(data: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Composition.of(data, source="rewards.mine")
    assert says in str(caught.value)


@pytest.mark.parametrize("value", [2.0, -2.0, float("nan"), True, "1", None])
def test_a_term_outside_its_range_is_named(value: Any) -> None:
    with pytest.raises(PluginError, match=r"reward term 'a' gave .* for trajectory 't'"):
        reward([{"term": "a"}], Term("a", value, 0))(TRAJECTORY)


class Counting(Term):
    """A term with state: how many trajectories it has seen, and how many of them counted."""

    def __init__(self, name: str, value: float, priority: int) -> None:
        super().__init__(name, value, priority)
        self.seen: list[tuple[str, float | None]] = []
        self.members: Any = None

    def commit(self, scored: Any) -> None:
        self.seen += [(trajectory.id, value) for trajectory, value in scored]

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.seen = state["seen"]

    def bind(self, members: Any) -> None:
        self.members = members


def test_commit_hands_each_trajectory_over_with_its_value_or_none_where_it_did_not_count() -> None:
    term = Counting("s", 0.5, 10)
    gate = Term("gate", 0, 0)
    made = reward([{"term": "gate", "gate": True}, {"term": "s"}], gate, term)
    first = made(TRAJECTORY)
    gate.value = -1
    made.commit([(TRAJECTORY, first), (TRAJECTORY, made(TRAJECTORY))])
    assert term.seen == [("t", 0.5), ("t", None)]


def test_scoring_changes_no_state() -> None:
    term = Counting("s", 0.5, 0)
    made = reward([{"term": "s"}], term)
    assert made(TRAJECTORY) == made(TRAJECTORY)
    assert term.seen == []


def test_state_goes_back_into_the_same_composition_only() -> None:
    made = reward([{"term": "s"}, {"term": "a"}], Counting("s", 0, 0), Term("a", 0, 1))
    made.commit([(TRAJECTORY, made(TRAJECTORY))])
    state = made.state_dict()
    again = reward([{"term": "s"}, {"term": "a"}], Counting("s", 0, 0), Term("a", 0, 1))
    again.load_state_dict(state)
    assert again.state_dict() == state == {"s": {"seen": [("t", 0.0)]}}
    with pytest.raises(ConfigError, match="load it into the composition"):
        reward([{"term": "a"}], Term("a", 0, 0)).load_state_dict(state)


def test_a_term_that_must_know_the_pool_is_told_before_the_first_trajectory() -> None:
    from antiphon.contracts import MemberView
    from antiphon.descriptor import Descriptor

    term = Counting("s", 0, 0)
    view = MemberView(Descriptor.of({"name": "m", "description": "d", "model": "m"}), Price(output=1))
    compose(Composition(terms=(Use(term="s"),)), Terms(term), members=[view])
    assert term.members == [view]
    compose(Composition(terms=(Use(term="s"),)), Terms(other := Counting("s", 0, 0)))
    assert other.members is None


def test_the_two_shipped_compositions_differ_in_what_the_cost_needs() -> None:
    by_term: Callable[[str], dict[str, Use]] = lambda name: {use.term: use for use in load_config().reward(name).terms}  # noqa: E731
    paper, released = by_term("paper"), by_term("released")
    assert [*paper] == [*released] == ["format", "outcome", "cost"]
    assert paper["format"].gate
    assert released["format"].gate
    assert (paper["cost"].needs, released["cost"].needs) == ((), ("outcome",))


def test_a_users_composition_adds_to_the_shipped_ones_and_may_replace_one() -> None:
    terms = {"terms": [{"term": "mine"}]}
    config = load_config(overrides={"rewards": {"mine": terms, "paper": terms}})
    assert config.reward("mine") == config.reward("paper") == Composition.of(terms)
    assert [use.term for use in config.reward("released").terms] == ["format", "outcome", "cost"]
    with pytest.raises(ConfigError, match="no reward is called 'papr'; did you mean 'paper'"):
        config.reward("papr")


@given(
    st.lists(st.tuples(st.floats(-1, 1), st.floats(-3, 3), st.booleans(), st.integers(0, 3)), min_size=1, max_size=6)
)
def test_the_total_is_always_the_sum_of_the_parts(rows: list[tuple[float, float, bool, int]]) -> None:
    uses = [{"term": f"t{i}", "weight": w, "gate": g} for i, (_, w, g, _) in enumerate(rows)]
    result: RewardResult = reward(uses, *(Term(f"t{i}", v, p) for i, (v, _, _, p) in enumerate(rows)))(TRAJECTORY)
    assert result.total == pytest.approx(sum(result.parts.values()))
    assert set(result.values) <= set(result.parts)


# ---- terms that ask members ---------------------------------------------------------------------------------------


class Asking(Term):
    """A term that asks before it can judge; it gives its value only for what it has been prepared for."""

    def __init__(self, name: str, value: float, priority: int) -> None:
        super().__init__(name, value, priority)
        self.pool: Any = None
        self.prepared: list[str] = []

    def attach(self, pool: Any) -> None:
        self.pool = pool

    async def prepare(self, trajectory: Trajectory) -> list[Call]:
        self.prepared.append(trajectory.id)
        return [Call("judge", "q", "ok", "10")]

    def __call__(self, trajectory: Trajectory) -> float:
        assert trajectory.id in self.prepared
        return super().__call__(trajectory)


def test_a_term_that_asks_is_prepared_before_its_value_is_taken_and_its_calls_are_handed_on(scripted_pool: Any) -> None:
    term, pool = Asking("s", 0.5, 0), scripted_pool(["Ann"])
    made = compose(Composition(terms=(Use(term="s", weight=2.0),)), Terms(term), pool=pool)
    result = asyncio.run(made.score(TRAJECTORY))
    assert (result.total, [call.member for call in result.calls]) == (1.0, ["judge"])
    assert term.pool is pool
    assert made.asks


@pytest.mark.parametrize("closing", [{"gate": True}, {}])
def test_nobody_is_asked_where_the_term_does_not_count(scripted_pool: Any, closing: dict[str, Any]) -> None:
    term = Asking("s", 0.5, 1)
    uses = [{"term": "first", **closing}, {"term": "s", "needs": ["first"] if not closing else []}]
    terms = Terms(Term("first", -1, 0), term)
    result = asyncio.run(compose(Composition.of({"terms": uses}), terms, pool=scripted_pool(["Ann"])).score(TRAJECTORY))
    assert (result.total, result.calls, term.prepared) == (-1.0, (), [])


def test_without_terms_that_ask_score_is_the_call_itself() -> None:
    made = reward([{"term": "a"}], Term("a", 0.5, 0))
    assert asyncio.run(made.score(TRAJECTORY)) == made(TRAJECTORY)
    assert not made.asks


def test_a_term_that_asks_needs_a_pool_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match="'s' asks a member of the pool, and no pool is given"):
        compose(Composition(terms=(Use(term="s"),)), Terms(Asking("s", 0, 0)))


def test_a_pool_tells_terms_its_members(scripted_pool: Any) -> None:
    term, pool = Counting("s", 0, 0), scripted_pool(["Ann"])
    compose(Composition(terms=(Use(term="s"),)), Terms(term), pool=pool)
    assert term.members == pool.members
