"""Intervals and tests: right at every size, the same every time, exact where they can be."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

np = pytest.importorskip("numpy")

from antiphon.evaluate import stats  # noqa: E402


def test_nothing_to_average_is_none_and_one_value_has_no_width() -> None:
    assert stats.interval([]) == stats.Interval(None, None, None)
    assert stats.interval([0.25]) == stats.Interval(0.25, 0.25, 0.25)
    assert stats.paired([]) == stats.Paired(None, None, None, None, 0)
    assert stats.paired([0.5]) == stats.Paired(0.5, 0.5, 0.5, 1.0, 1)


def test_the_same_values_give_the_same_interval() -> None:
    values = [i % 7 / 7 for i in range(50)]
    assert stats.interval(values) == stats.interval(values)
    assert stats.sign_flip([v - 0.4 for v in values]) == stats.sign_flip([v - 0.4 for v in values])


@pytest.mark.parametrize("right", [20, 100, 250])
def test_the_interval_of_a_proportion_is_that_of_the_binomial(right: int) -> None:
    """Two distinct values of 500: how often each is drawn is drawn, not each value."""
    found = stats.interval([1.0] * right + [0.0] * (500 - right))
    spread = 1.96 * math.sqrt(right / 500 * (1 - right / 500) / 500)
    assert found.mean == right / 500
    assert found.low == pytest.approx(right / 500 - spread, abs=0.006)
    assert found.high == pytest.approx(right / 500 + spread, abs=0.006)


def test_drawing_values_and_drawing_counts_agree() -> None:
    rng = np.random.default_rng(5)
    few = rng.choice([0.0, 0.5, 1.0], size=400, p=[0.5, 0.2, 0.3])
    many = few + rng.uniform(0, 1e-9, size=400)  # as good as equal, yet all distinct: the other way is taken
    assert stats.means(few).std() == pytest.approx(stats.means(many).std(), rel=0.1)
    assert stats.interval(few).low == pytest.approx(stats.interval(many).low, abs=0.01)


@given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0]), max_size=9))
@settings(max_examples=60, deadline=None)
def test_p_is_exact_where_differences_are_few(differences: list[float]) -> None:
    total = abs(sum(differences))
    signs = itertools.product((-1, 1), repeat=len(differences))
    sums = [abs(sum(s * d for s, d in zip(each, differences, strict=True))) for each in signs]
    assert stats.sign_flip(differences) == pytest.approx(sum(s >= total - 1e-9 for s in sums) / len(sums))


def test_p_of_many_differences_is_near_the_normal_one_and_never_zero() -> None:
    differences = [1.0] * 60 + [-1.0] * 40 + [0.0] * 400
    z = 20 / math.sqrt(100)
    assert stats.sign_flip(differences) == pytest.approx(math.erfc((z - 0.1) / math.sqrt(2)), abs=0.015)
    assert stats.sign_flip([1.0] * 500) == pytest.approx(1 / (stats.FLIPS + 1))


def test_the_mean_difference_lies_in_its_interval() -> None:
    found = stats.paired([0.1 * (i % 5) - 0.1 for i in range(200)])
    assert found.n == 200
    assert found.low is not None
    assert found.low < found.difference < found.high  # type: ignore[operator]
    assert found.p is not None
    assert found.p < 0.01
