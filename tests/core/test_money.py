"""Budgets never overshoot, whatever runs at once; the price of tokens is what the price list says."""

import json
import math
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from antiphon.contracts import Request
from antiphon.descriptor import Price
from antiphon.errors import BudgetExceeded, ConfigError
from antiphon.money import Budget, Reservation, credible, estimated_usage, is_amount, most_usage, per_token
from antiphon.types import Message, Usage

CASES = [
    json.loads(line)
    for name in ("pricing.jsonl", "pricing_more.jsonl")
    for line in (Path(__file__).parent.parent / "cases" / name).read_text("utf-8").splitlines()
    if line
]
ROUNDING = 1e-9
amounts = st.floats(0, 10) | st.sampled_from([0.0, 1e-9, 1e-6, 0.1])
prices = st.just(0.0) | st.floats(0.001, 1000)
counts = st.integers(0, 10_000_000)


@st.composite
def usages(draw: st.DrawFn) -> Usage:
    given_ = draw(counts)
    return Usage(given_, draw(counts), draw(st.integers(0, given_)))


# ---- tokens ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [case for case in CASES if "usd" in case], ids=lambda case: case["id"])
def test_a_case_costs_what_it_says(case: dict[str, Any]) -> None:
    cost = per_token(Usage(**case["usage"]), Price.model_validate(case["price"]))
    assert cost == pytest.approx(case["usd"])


@given(usages(), prices, prices, st.none() | prices)
def test_a_cost_is_the_sum_of_its_parts(usage: Usage, given_: float, made: float, cached: float | None) -> None:
    price = Price(input=given_, output=made, cached_input=cached)
    fresh = usage.input_tokens - usage.cached_input_tokens
    expected = fresh * given_ + usage.cached_input_tokens * (given_ if cached is None else cached)
    assert per_token(usage, price) == pytest.approx((expected + usage.output_tokens * made) / 1e6)


@given(usages(), usages(), prices, prices)
def test_what_two_attempts_cost_is_what_their_usage_together_costs(
    a: Usage, b: Usage, given_: float, made: float
) -> None:
    price = Price(input=given_, output=made, cached_input=given_)
    assert per_token(a, price) + per_token(b, price) == pytest.approx(per_token(a + b, price))
    assert is_amount(per_token(a, price))


def test_an_absent_input_price_counts_as_nothing() -> None:
    assert per_token(Usage(1_000_000, 1_000_000), Price(output=0.3)) == pytest.approx(0.3)


@given(st.lists(st.text(min_size=1), min_size=1), st.sampled_from([1, 1000]), st.integers(1, 5000))
def test_no_tokeniser_makes_more_tokens_of_a_request_than_its_upper_bound(
    texts: list[str], times: int, most: int
) -> None:
    texts = [text * times for text in texts]  # short texts alone would hide behind the allowance for templates
    request = Request("m", tuple(Message("user", text) for text in texts), most, 1.0)
    bound = most_usage(request)
    assert bound.input_tokens >= sum(len(text.encode("utf-8", "surrogatepass")) for text in texts) + 4 * len(texts)
    assert bound.output_tokens == most
    guess = estimated_usage(request, "x" * most)
    assert guess.estimated
    assert guess.input_tokens <= bound.input_tokens


@given(st.builds(Usage, *[st.integers() | st.floats() | st.booleans() | st.text() | st.none()] * 3))
def test_what_is_credible_is_whole_and_in_bounds(usage: Usage) -> None:
    kept = credible(usage)
    if kept is not None:
        assert all(type(count) is int for count in (kept.input_tokens, kept.output_tokens, kept.cached_input_tokens))
        assert 0 <= kept.cached_input_tokens <= kept.input_tokens <= 10_000_000
        assert 0 <= kept.output_tokens <= 10_000_000


@given(usages())
def test_ordinary_usage_is_kept_as_it_is(usage: Usage) -> None:
    assert credible(usage) == usage


# ---- budgets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [-1, math.nan, math.inf, "5", True])
def test_a_limit_that_is_no_amount_is_refused(limit: Any) -> None:
    with pytest.raises(ConfigError, match="a budget is a finite number of USD"):
        Budget(limit)


@pytest.mark.parametrize("usd", [-0.1, math.nan, math.inf, None])
def test_a_reservation_that_is_no_amount_is_refused_and_changes_nothing(usd: Any) -> None:
    budget = Budget(1.0)
    with pytest.raises(BudgetExceeded, match="no amount"):
        budget.reserve(usd)
    assert (budget.reserved_usd, budget.left_usd) == (0, 1)


@pytest.mark.parametrize("usd", [-0.1, math.nan, math.inf, -math.inf, None])
def test_settling_what_is_no_amount_counts_all_that_was_reserved(usd: Any) -> None:
    budget = Budget(1.0, Budget(2.0))
    budget.settle(budget.reserve(0.25), usd)
    assert budget.parent is not None
    assert (budget.spent_usd, budget.parent.spent_usd, budget.reserved_usd) == (0.25, 0.25, 0)


def test_a_reservation_is_settled_once() -> None:
    budget = Budget(1.0)
    reservation = budget.reserve(0.5)
    for usd in (0.2, 0.4, 0.0):
        budget.settle(reservation, usd)
    assert (budget.spent_usd, budget.reserved_usd, budget.left_usd) == (0.2, 0, 0.8)


def test_what_is_charged_counts_whatever_is_left() -> None:
    budget = Budget(1.0, Budget(2.0))
    budget.charge(1.0)
    assert (budget.left_usd, budget.overspent) == (0, False)
    budget.charge(0.25)
    assert budget.parent is not None
    assert (budget.spent_usd, budget.left_usd, budget.overspent) == (1.25, 0, True)
    assert (budget.parent.spent_usd, budget.parent.left_usd, budget.parent.overspent) == (1.25, 0.75, False)
    with pytest.raises(BudgetExceeded):
        budget.reserve(0.0)


def test_an_exhausted_budget_says_what_is_left_and_still_takes_what_is_free() -> None:
    budget = Budget(0.3)
    for _ in range(3):  # 0.1 three times is more than 0.3 in floats, and must fit
        budget.settle(budget.reserve(0.1), 0.1)
    with pytest.raises(BudgetExceeded, match=r"needs up to \$0\.000100, \$0\.000000 of \$0\.300000 is left"):
        budget.reserve(0.0001)
    budget.reserve(0.0)
    assert budget.left_usd == pytest.approx(0)


def test_an_overrun_leaves_nothing_and_never_a_negative_rest() -> None:
    budget = Budget(1.0)
    budget.settle(budget.reserve(0.5), 3.0)  # the model that answered was a dearer one
    assert (budget.spent_usd, budget.left_usd) == (3.0, 0.0)


def test_a_refusal_by_the_parent_leaves_the_child_as_it_was() -> None:
    parent = Budget(0.1)
    child = Budget(1.0, parent)
    with pytest.raises(BudgetExceeded):
        child.reserve(0.5)
    assert (child.reserved_usd, child.left_usd, parent.reserved_usd) == (0, 0.1, 0)


class Budgets(RuleBasedStateMachine):
    """Two budgets that draw on one parent, reserved in and settled in any order."""

    @initialize(limits=st.tuples(amounts, amounts | st.none(), amounts))
    def open(self, limits: tuple[float, float | None, float]) -> None:
        self.parent = Budget(limits[2])
        self.children = [Budget(limit, self.parent) for limit in limits[:2]]
        self.held: list[tuple[int, Reservation]] = []
        self.spent = [0.0, 0.0]

    @rule(which=st.integers(0, 1), usd=amounts)
    def reserve(self, which: int, usd: float) -> None:
        child = self.children[which]
        fits = usd <= child.left_usd
        try:
            self.held.append((which, child.reserve(usd)))
        except BudgetExceeded:
            assert not fits

    @rule(pick=st.integers(0, 100), share=st.floats(0, 1))
    def settle(self, pick: int, share: float) -> None:
        if self.held:
            which, reservation = self.held.pop(pick % len(self.held))
            self.children[which].settle(reservation, reservation.usd * share)
            self.spent[which] += reservation.usd * share

    @invariant()
    def nothing_is_overdrawn_or_lost(self) -> None:
        if not hasattr(self, "parent"):
            return
        for budget in (*self.children, self.parent):
            if budget.limit_usd is not None:
                assert budget.spent_usd + budget.reserved_usd <= budget.limit_usd * (1 + ROUNDING) + ROUNDING
            assert budget.left_usd >= 0
        for which, child in enumerate(self.children):
            reserved = sum(reservation.usd for owner, reservation in self.held if owner == which)
            assert child.spent_usd == pytest.approx(self.spent[which])
            assert child.reserved_usd == pytest.approx(reserved, abs=ROUNDING)
        assert self.parent.spent_usd == pytest.approx(sum(self.spent))
        if not self.held:
            assert self.parent.reserved_usd == 0


TestBudgets = Budgets.TestCase


def test_threads_that_spend_at_once_stay_within_the_limit_and_nothing_is_lost() -> None:
    parent = Budget(0.5)
    spent: list[float] = []
    start = threading.Barrier(8)

    def spend(seed: int) -> None:
        budget = Budget(None, parent)
        start.wait()
        for step in range(200):
            most = 0.001 + (seed * 31 + step * 17) % 7 / 1000
            try:
                reservation = budget.reserve(most)
            except BudgetExceeded:
                continue
            budget.settle(reservation, most / 2)
            spent.append(most / 2)

    threads = [threading.Thread(target=spend, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert parent.spent_usd == pytest.approx(math.fsum(spent))
    assert 0.4 < parent.spent_usd <= 0.5 * (1 + ROUNDING)
    assert parent.reserved_usd == 0
