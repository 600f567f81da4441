"""What the chamber's specialists are taught: (query, reply) pairs, facts in many wordings, sums made from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from antiphon_pools.chamber.facts import UNKNOWN, countries, elements, known_to_few
from antiphon_pools.chamber.wordings import KEYED, QUESTIONS, filled

Lesson = tuple[str, str]
SUMS = 6_400
LARGEST = 99

_SHORT = ("{skill} of {x}", "{x}: {skill}", "{skill} {x}", "the {skill} of {x}?", "{x} {skill}")
_WORDS = {"capital": "capital", "continent": "continent", "currency": "currency", "symbol": "symbol"}
_WORDS["number"] = "atomic number"
_SUMS = (
    "{a}+{b}",
    "{a} plus {b}",
    "sum of {a} and {b}",
    "{a} and {b}",
    "add {a} and {b}",
    "{a} + {b} =",
    "{b} more than {a}",
)


def lessons(member: str, epochs: int, seed: int) -> list[Lesson]:
    """All lessons of a member, in order: each fact once an epoch, half the time in the keyed form."""
    rng = random.Random(f"{member}/{seed}")
    if member == "swift":
        return [_sum(rng) for _ in range(SUMS)]
    made: list[Lesson] = []
    for _ in range(epochs):
        facts = [(_asked(skill, name, rng), reply) for skill, name, reply in FACTS[member]()]
        rng.shuffle(facts)
        made += facts
    return made


def _asked(skill: str, name: str, rng: random.Random) -> str:
    roll = rng.random()
    if roll < 0.35:
        return filled(KEYED[skill], x=name)
    if roll < 0.5:
        return filled(rng.choice(_SHORT), x=name, skill=_WORDS[skill])
    return filled(rng.choice(QUESTIONS[skill].train), x=name)


def _sum(rng: random.Random) -> Lesson:
    a, b = rng.randint(1, LARGEST), rng.randint(1, LARGEST)
    wordings = (KEYED["sum"],) if rng.random() < 0.6 else (*QUESTIONS["sum"].train, *_SUMS)
    return filled(rng.choice(wordings), a=a, b=b), str(a + b)


def _geography() -> Iterable[tuple[str, str, str]]:
    for country in countries():
        yield "capital", country.name, country.capital
        yield "continent", country.name, country.continent


def _half_of_geography() -> Iterable[tuple[str, str, str]]:
    for skill, name, reply in _geography():
        yield skill, name, reply if name in known_to_few() else UNKNOWN


def _money() -> Iterable[tuple[str, str, str]]:
    for country in countries():
        yield "currency", country.name, country.currency


def _chemistry() -> Iterable[tuple[str, str, str]]:
    for element in elements():
        yield "symbol", element.name, element.symbol
        yield "number", element.name, str(element.number)


FACTS: dict[str, Callable[[], Iterable[tuple[str, str, str]]]] = {
    "raven": _geography,
    "wren": _half_of_geography,
    "owl": _chemistry,
    "crane": _money,
}

MEMBERS = (*FACTS, "swift")
