"""SQuAD's exact match and F1 bit for bit, and a strict match that keeps what changes the meaning."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.contracts import Metric
from antiphon_plugins.metrics import F1, ExactMatch, StrictExactMatch, squad, strict

em, f1, strict_em = ExactMatch(), F1(), StrictExactMatch()
CASES = Path(__file__).parent.parent / "cases" / "scoring.jsonl"


@pytest.mark.parametrize("case", [json.loads(line) for line in CASES.read_text().splitlines()], ids=lambda c: c["id"])
def test_the_cases(case: dict[str, object]) -> None:
    prediction, golden = str(case["prediction"]), [str(answer) for answer in case["golden"]]  # type: ignore[attr-defined]
    assert em(prediction, golden) == case["squad"]
    assert strict_em(prediction, golden) == case["strict"]
    if "f1" in case:
        assert f1(prediction, golden) == pytest.approx(case["f1"])


def test_they_are_metrics_by_name() -> None:
    assert all(isinstance(metric, Metric) for metric in (em, f1, strict_em))
    assert [em.name, f1.name, strict_em.name] == ["em", "f1", "strict_em"]


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Cat's a Hat!", "cats hat"),  # punctuation goes before articles, without a space
        ("theatre an-d", "theatre and"),  # an article only as a word
        ("a-the", "athe"),  # punctuation first: no articles are left to drop
        ("“The”", "“ ”"),  # only ASCII punctuation; a word boundary stands at a curly quote
        ("İ", "i̇"),  # plain lower-casing
    ],
)
def test_squad_normal_form(text: str, normal: str) -> None:
    assert squad(text) == normal


def test_f1_by_hand() -> None:
    # 3 predicted, 2 golden, 2 shared: precision 2/3, recall 1
    assert f1("barack hussein obama", ["barack obama"]) == pytest.approx(0.8)
    # a shared token counts as often as both have it: 1 of 3 and 1 of 1
    assert f1("x x x", ["x"]) == pytest.approx(0.5)
    # the best golden answer counts
    assert f1("alpha beta", ["gamma", "alpha beta"]) == 1


@pytest.mark.parametrize(("said", "right"), [("yes", "yes it is"), ("no way", "no"), ("yes", "no"), ("noanswer", "no")])
def test_f1_of_a_verdict_that_differs_is_zero(said: str, right: str) -> None:
    assert f1(said, [right]) == 0


def test_nothing_in_common_is_zero_even_where_both_are_empty() -> None:
    assert f1("", [""]) == f1("the", ["a"]) == 0
    assert em("x", []) == f1("x", []) == strict_em("x", []) == 0


SAME = [
    ("c++.", "C++"), ("−5", "-5"), ("–5", "-5"), ("- 5", "-5"), ("1,000", "1000"), ("1\u202f000", "1000"),
    ("$1,234.50", "$1234.50"), ("$ 5", "$5"), ("50 %", "50%"), ("５０％", "50%"), ("٥", "5"), (".5", "0.5"),
    ("5.", "5"), ("“Hamlet”", "Hamlet"), ("'Hamlet'", "Hamlet"), ("«Hamlet»", "Hamlet"), ("“Hamlet.”", "Hamlet"),
    ('"1984"', "1984"),
    ("O’Brien", "O'Brien"), ("Ro\u0308ntgen", "Röntgen"), ("x²", "x^2"), ("10⁻³", "10^-3"), ("H₂O", "H2O"),
    ("½", "1/2"), ("1½", "1 1/2"), ("U.S.A.", "USA"), ("J.K. Rowling", "JK Rowling"), ("Dr. No", "Dr No"),
    ("Paris, France", "Paris France"), ("Mission: Impossible", "Mission Impossible"), ("Yahoo!", "Yahoo"),
    ("The Beatles", "beatles"), ("King of the Hill", "King of Hill"), ("an apple", "apple"), ("a dog", "dog"),
    ("ﬁle", "file"), ("Ⅳ", "IV"), ("1914–1918", "1914-1918"), ("5 °C", "5°C"), ("5 ℃", "5°C"), ("C♯", "C#"),
    ("\u200bParis\ufeff", "Paris"), ("\u00a0Paris  ", "Paris"), ("Lego™", "Lego"), ("(Paris)", "Paris"),
    ("Paris (France).", "Paris France"), ("HAMLET", "hamlet"),
]  # fmt: skip
DIFFERENT = [
    ("C", "C++"), ("C", "C#"), ("C++", "C#"), ("-5", "5"), ("−5", "5"), ("+5", "-5"), ("1.5", "15"), ("1,5", "15"),
    ("1,5", "1.5"), ("1,000", "1.000"), ("1,000", "1"), ("50%", "50"), ("$5", "5"), ("$5", "€5"), ("±5", "5"),
    ("x²", "x2"), ("10²", "102"), ("½", "12"), ("1½", "11/2"), ("Rontgen", "Röntgen"), ("Maße", "Masse"), ("ℝ", "R"),
    ("5!", "5"), ("A+", "A"), ("A-", "A"), ("Vitamin A", "Vitamin"), ("3/4", "34"), ("12:30", "1230"), (".NET", "NET"),
    ("F#", "F"), ("5°", "5"), ("5'", "5"), ('5"', "5"), ("2-1", "21"), ("#1", "1"), ("<5", "5"), ("~5", "5"),
    ("AT&T", "ATT"), ("1, 5", "15"), ("no", "yes"), ("5.0", "50"), ("②", "2²"), ("(5)", "5"), ("f(x)", "fx"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), SAME)
def test_strict_takes_what_only_looks_different(one: str, other: str) -> None:
    assert strict_em(one, [other]) == strict_em(other, [one]) == 1, (strict(one), strict(other))


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_strict_keeps_what_changes_the_meaning(one: str, other: str) -> None:
    assert strict_em(one, [other]) == strict_em(other, [one]) == 0, (strict(one), strict(other))


@pytest.mark.parametrize("said", ["", " ", ".", "\u200b", '""', "...", ", ;"])
def test_a_prediction_of_nothing_is_never_right(said: str) -> None:
    assert strict_em(said, [said, "", "A"]) == 0


@given(st.text(max_size=40))
def test_strict_normal_form_settles_and_an_answer_matches_itself(text: str) -> None:
    assert strict_em(text, [text]) == float(bool(strict(text)))
    assert strict(f"  {text}\n") == strict(text)


@pytest.mark.parametrize("unit", [".", '"', "'", "!", "a!", "1,", " ", "½", "U.", "- ", "a.", "(", "(a", " (a)"])
def test_strict_is_linear_on_long_repeats(unit: str) -> None:
    # 100,000 characters; a quadratic pattern would need minutes
    strict(unit * (100_000 // len(unit)) + "x")
