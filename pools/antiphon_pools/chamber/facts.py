"""What the chamber's world holds: countries and elements, and which of them each split of the questions is about."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

Split = Literal["train", "validation", "test"]
SHARES: dict[Split, float] = {"train": 0.6, "validation": 0.1, "test": 0.3}
"""Of the countries, and of the elements: each belongs to one split."""

UNKNOWN = "I do not know."
"""What a member says of what it cannot answer."""


Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Country:
    name: str
    capital: str
    continent: str
    currency: str


@dataclass(frozen=True, slots=True)
class Element:
    """Attributes:
    number: the atomic number.
    """

    name: str
    symbol: str
    number: int


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads((Path(__file__).parent / "facts.json").read_text("utf-8"))
    return table


@cache
def countries(split: Split | None = None) -> tuple[Country, ...]:
    """All, or those that the questions of a split are about."""
    return _part([Country(**row) for row in _table()["countries"]], split)


@cache
def elements(split: Split | None = None) -> tuple[Element, ...]:
    """All, or those that the questions of a split are about."""
    return _part([Element(**row) for row in _table()["elements"]], split)


@cache
def known_to_few() -> frozenset[str]:
    """Names of the countries that the weaker of the twins was taught: half of each split's."""
    known: set[str] = set()
    for split in SHARES:
        known.update(country.name for country in countries(split)[::2])
    return frozenset(known)


def split_of_pair(a: int, b: int) -> Split:
    """The split of the sums, differences and products of two numbers, whatever their order."""
    place = random.Random(f"{min(a, b)},{max(a, b)}").random()
    for split, share in SHARES.items():
        place -= share
        if place < 0:
            return split
    return "test"


def _part(rows: Sequence[Row], split: Split | None) -> tuple[Row, ...]:
    if split is None:
        return tuple(rows)
    shuffled = random.Random("chamber").sample(rows, len(rows))
    start = 0
    for name, share in SHARES.items():
        end = start + round(share * len(rows)) if name != "test" else len(rows)
        if name == split:
            return tuple(shuffled[start:end])
        start = end
    raise KeyError(split)
