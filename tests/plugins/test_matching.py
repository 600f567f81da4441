"""Metrics for free text and for tasks that are not QA: what each takes for right, and what not."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.contracts import Metric
from antiphon.errors import ConfigError
from antiphon.registry import default_registry
from antiphon_plugins.matching import Choice, Contains, Numeric, chosen, numbers


@pytest.mark.parametrize("name", ["contains", "numeric", "choice"])
def test_they_are_metrics_by_name(name: str) -> None:
    metric = default_registry().metric(name)
    assert isinstance(metric, Metric)
    assert metric.name == name
    assert metric("", ["", "1", "A"]) == metric("1 A", []) == 0


# ---- contains -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "golden", "right"),
    [
        ("It was Paris, France.", "paris", 1),
        ("The answer: the Beatles!", "Beatles", 1),
        ("a party", "art", 0),  # whole words only
        ("12", "1", 0),
        ("New York City", "York City", 1),
        ("New  York", "new york", 1),
        ("York New", "New York", 0),  # in that order
        ("anything", "the", 0),  # nothing is left of it in the normal form
        ("", "x", 0),
    ],
)
def test_contains(said: str, golden: str, right: float) -> None:
    assert Contains()(said, ["no such thing", golden]) == right


def test_contains_as_a_plain_substring() -> None:
    assert Contains(words=False)("a party", ["art"]) == 1
    assert Contains(words=False)("anything", ["the", ""]) == 0


@given(st.text("ab c.", max_size=12), st.text("ab c.", max_size=12))
def test_what_stands_at_either_end_is_contained(one: str, other: str) -> None:
    said = f"{one} xyz {other}"
    assert Contains()(said, ["xyz"]) == 1
    assert Contains(words=False)(said, ["xyz"]) >= Contains()(said, [one])


# ---- numeric ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("42", [42]), ("The total is $1,234.50.", [Fraction("1234.5")]), ("-5", [-5]), ("−5", [-5]), ("3 - 5", [3, 5]),
        ("3-5", [3, 5]), ("-$5", [-5]), ("1e3", [1000]), ("3/4", [Fraction(3, 4)]), ("½", [Fraction(1, 2)]),
        ("1½", [Fraction(3, 2)]), ("50%", [50]), ("5.", [5]), (".5", [Fraction(1, 2)]), ("7/0, 8", [8]),
        ("10 km", [10]),        ("1,000", [1000]), ("1,00", [1, 0]), ("x5", []), ("none", []), ("9" * 5000, []),
    ],
)  # fmt: skip
def test_the_numbers_of_a_text(text: str, found: list[Fraction]) -> None:
    assert numbers(text) == found


@pytest.mark.parametrize(
    ("said", "golden", "right"),
    [
        ("3 apples and 4 pears make 7.", "7", 1),  # the last number counts
        ("7 is more than 4", "7", 0),
        ("$1,000", "1000.0", 1),
        ("0.3333333", "1/3", 1),
        ("0.333", "1/3", 0),
        ("-7", "7", 0),
        ("seven", "7", 0),
        ("7", "seven", 0),
        ("8", "7 or 8", 0),  # which of the two is not said
    ],
)
def test_numeric(said: str, golden: str, right: float) -> None:
    assert Numeric()(said, [golden]) == right


def test_the_tolerance_is_relative_and_checked() -> None:
    assert Numeric(tolerance=0.01)("101", ["100"]) == 1
    assert Numeric(tolerance=0.001)("101", ["100"]) == 0
    assert Numeric(tolerance=0)("0.1", ["1/10"]) == 1  # exact, not binary
    for bad in (-1, float("nan"), "1"):
        with pytest.raises(ConfigError, match="tolerance is a number of at least 0"):
            Numeric(tolerance=bad)  # type: ignore[arg-type]


@given(st.integers(-(10**30), 10**30))
def test_a_number_equals_itself_in_any_dress(number: int) -> None:
    for dress in (f"{number}", f"{number:,}", f"It is {number}.", f"{number}.0"):
        assert numbers(dress) == [number]


@given(st.text(max_size=60))
def test_any_text_can_be_read(text: str) -> None:
    assert all(isinstance(number, Fraction) for number in numbers(text))
    assert chosen(text) in {*"ABCDEFGHIJ", None}


# ---- choice -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"), ("b", "B"), ("(b)", "B"), (" B. ", "B"), ("**B**", "B"), ("B) Paris", "B"), ("(B) Paris", "B"),
        ("**B.** Paris", "B"), ("The answer is (C).", "C"), ("The answer is (d), since", "D"), ("Answer: **D**", "D"),
        ("answer: b", "B"), ("Option C is right", "C"), ("A) no. The answer is B", "B"),
        ("Answer: A. No, answer: B", "B"),
        ("A cat", None), ("I think so", None), ("the answer is a cat", None), ("K", None), ("answer is B's", None),
        ("Paris", None), ("", None), ("AB", None),
    ],
)  # fmt: skip
def test_the_letter_that_a_text_chooses(text: str, letter: str | None) -> None:
    assert chosen(text) == letter


def test_choice() -> None:
    assert Choice()("The answer is (B).", ["b"]) == 1
    assert Choice()("The answer is (B).", ["A", "C"]) == 0
    assert Choice()("no idea", ["no idea"]) == 0  # a golden answer that is no letter is matched by nothing


@pytest.mark.parametrize("unit", ["1,", "answer ", "(A", "1/", "-", "**", "1e", "½", " "])
def test_they_are_linear_on_long_repeats(unit: str) -> None:
    # 100,000 characters; a quadratic pattern would need minutes
    text = unit * (100_000 // len(unit)) + "x"
    assert chosen(text) in {*"ABCDEFGHIJ", None}
    assert len(numbers(text)) <= 100_000
