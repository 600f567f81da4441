"""Judges free text and tasks that are not QA: a golden string anywhere, equal numbers, the letter of a choice."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from fractions import Fraction

from antiphon.errors import ConfigError

from .metrics import squad

MOST_DIGITS = 300
"""Longer runs of digits are no number: they are not read."""

_NUMBER = re.compile(
    r"""(?<![\w.])(?P<sign>[-+])?[$€£¥₹]?
        (?P<whole>\d{1,3}(?:,\d{3})+(?!\d)|\d+)?
        (?P<part>\.\d+)?
        (?P<power>e[-+]?\d{1,3}(?!\w))?
        (?:\s?/\s?(?P<below>\d+(?![\d.])))?""",
    re.VERBOSE | re.IGNORECASE,
)
_MINUS = str.maketrans({"−": "-", "–": "-", "－": "-", "⁄": "/", "\u00a0": " ", "\u202f": " ", "\u2009": " "})
_MIXED = re.compile(r"(\d+)([¼-¾⅐-⅞])")
_ALONE = re.compile(r"\W*([A-Ja-j])\W*")
_ANSWERED = re.compile(
    r"\b(?i:answer|choice|option)\b(?i:\s+is)?\W{0,6}?(?i:\boption\s+)?"
    r"(?:[(\[](?P<bracketed>[A-Ja-j])[)\]]|(?P<capital>[A-J])(?![\w'’])|(?P<last>[a-j])(?=\W*\Z))"
)
_LEADS = re.compile(r"[\s*_]*(?:[(\[](?P<bracketed>[A-J])[)\]]|(?P<capital>[A-J])[*_]*[).:])(?=[\s*_]|\Z)")


class Contains:
    """1 where a golden answer stands anywhere in the prediction, both in SQuAD's normal form.

    It forgives whole sentences; it also rewards a reply that lists many candidates. Report it beside em, not instead.

    Args:
        words: whole words only (`art` is not in `party`). False: as a plain substring.
    """

    name = "contains"

    def __init__(self, *, words: bool = True) -> None:
        self._edge = " " if words else ""

    def __call__(self, prediction: str, golden: Sequence[str]) -> float:
        said = f"{self._edge}{squad(prediction)}{self._edge}"
        forms = (squad(answer) for answer in golden)
        return float(any(form and f"{self._edge}{form}{self._edge}" in said for form in forms))


class Numeric:
    """1 where the last number of the prediction equals a golden number.

    Grouped thousands, currency signs, per cent signs and units around a number are passed over (`50%` is 50); `3/4` is
    0.75. A golden answer that holds no number, or more than one, is matched by nothing.

    Args:
        tolerance: relative difference that still counts as equal; near 0 it is absolute.

    Raises:
        ConfigError: the tolerance is negative or no number.
    """

    name = "numeric"

    def __init__(self, *, tolerance: float = 1e-6) -> None:
        if not isinstance(tolerance, int | float) or not 0 <= tolerance < math.inf:
            raise ConfigError(f"metric numeric: tolerance is a number of at least 0, got {tolerance!r}")
        self._tolerance = Fraction(tolerance)

    def __call__(self, prediction: str, golden: Sequence[str]) -> float:
        found = numbers(prediction)
        if not found:
            return 0.0
        right = (numbers(answer) for answer in golden)
        return float(any(len(one) == 1 and self._equal(found[-1], one[0]) for one in right))

    def _equal(self, said: Fraction, right: Fraction) -> bool:
        return abs(said - right) <= self._tolerance * max(Fraction(1), abs(right))


class Choice:
    """1 where the prediction chooses the golden letter (A to J).

    A prediction chooses by its letter alone (`B`, `(b)`, `B.`), else by the last `answer is B`, else by the letter
    that it begins with (`B) Paris`). A golden answer is a letter in the same way.
    """

    name = "choice"

    def __call__(self, prediction: str, golden: Sequence[str]) -> float:
        said = chosen(prediction)
        return float(said is not None and any(said == chosen(answer) for answer in golden))


def numbers(text: str) -> list[Fraction]:
    """The numbers of a text, in order and exact."""
    plain = unicodedata.normalize("NFKC", _MIXED.sub(_improper, text.translate(_MINUS))).translate(_MINUS)
    return [number for match in _NUMBER.finditer(plain) if (number := _number(match)) is not None]


def _improper(match: re.Match[str]) -> str:
    """`1½` as `3/2`: the compatibility form would be `11/2`."""
    value = int(match[1]) + Fraction(unicodedata.numeric(match[2])).limit_denominator(10)
    return f"{value.numerator}/{value.denominator}"


def _number(match: re.Match[str]) -> Fraction | None:
    whole, part = match["whole"] or "", match["part"] or ""
    if not (whole or part) or len(match[0]) > MOST_DIGITS:
        return None
    value = Fraction(f"{whole.replace(',', '') or '0'}{part}{match['power'] or ''}")
    if match["below"] is not None:
        if int(match["below"]) == 0:
            return None
        value /= int(match["below"])
    return -value if match["sign"] == "-" else value


def chosen(text: str) -> str | None:
    """The letter that a text chooses, in upper case; None where it chooses none."""
    alone = _ALONE.fullmatch(text)
    if alone:
        return alone[1].upper()
    answered = list(_ANSWERED.finditer(text))
    match = answered[-1] if answered else _LEADS.match(text)
    return None if match is None else next(letter for letter in match.groups() if letter).upper()
