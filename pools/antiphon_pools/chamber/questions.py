"""The data set `chamber`: questions in one and two hops about the chamber's facts, made from a fixed seed.

A task's metadata say `hops`, `skills` (in the order in which they are needed), `wording` (`seen` in training or `new`),
`place` (of its wording among those, from 1; the last of several) and `plan`: `[skill, sub-query]` pairs, where `{1}` in
a sub-query stands for the first reply, `{2}` for the second.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from antiphon.errors import ConfigError, did_you_mean
from antiphon.types import Task
from antiphon_pools.chamber.facts import Country, Element, Split, countries, elements, split_of_pair
from antiphon_pools.chamber.wordings import KEYED, NOUNS, QUESTIONS, Wordings, filled

SIZES = {"train": 2000, "validation": 200, "test": 400, "unseen": 200}
"""Split -> how many tasks. `unseen` asks for currencies, which no other split does, of the countries of `test`."""

MOST = 99
"""The largest number that a sum, difference or product is made of."""

Kind = tuple[str, ...]
"""A skill, or two: the second is put to the answer of the first; ("number", "sum", "number") adds two of them."""

# Kind -> how often it is asked, relative to the others of as many hops.
ONE_HOP: dict[Kind, float] = {
    ("capital",): 4,
    ("continent",): 2,
    ("symbol",): 2,
    ("number",): 2,
    ("sum",): 2,
    ("difference",): 1,
    ("product",): 1,
    ("letters",): 1,
    ("first",): 0.5,
    ("last",): 0.5,
}
TWO_HOPS: dict[Kind, float] = {
    ("capital", "letters"): 3,
    ("capital", "first"): 1.5,
    ("capital", "last"): 1.5,
    ("continent", "letters"): 1,
    ("symbol", "last"): 0.5,
    ("number", "sum"): 3,
    ("number", "difference"): 1.5,
    ("number", "product"): 1.5,
    ("number", "sum", "number"): 1.5,
}
UNSEEN: dict[Kind, float] = {
    ("currency",): 3,
    ("currency", "letters"): 1,
    ("currency", "first"): 1,
    ("currency", "last"): 1,
}

Wording = Literal["seen", "new"]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question in the making: what to call it inside another question, its answer, and how it is found out."""

    text: str
    answer: str
    plan: tuple[tuple[str, str], ...]


def chamber(*, split: str = "test", wordings: int | None = None, n: int | None = None) -> list[Task]:
    """Tasks of one split; the same at every call.

    Args:
        split: `train`, `validation` and `test` share no country, no element and no pair of numbers that one hop asks
            for; `test` and `unseen` put half of their questions in wordings that training never shows.
        wordings: only questions in the first so many wordings of each skill; None: in all.
        n: the first so many, in an order already random; None: all.

    Raises:
        ConfigError: there is no such split, or a number is no positive whole one.
    """
    if split not in SIZES:
        raise ConfigError(f"dataset 'chamber' has no split {split!r}{did_you_mean(split, SIZES)}; one of {[*SIZES]}")
    for name, number in (("wordings", wordings), ("n", n)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
            raise ConfigError(f"dataset 'chamber': {name} is a whole number of at least 1, got {number!r}")
    return [task for task in _tasks(split) if wordings is None or task.metadata["place"] <= wordings][:n]


@cache
def _tasks(split: str) -> tuple[Task, ...]:
    rng = random.Random(f"chamber/{split}")
    made: dict[str, Task] = {}
    while len(made) < SIZES[split]:
        kinds = UNSEEN if split == "unseen" else rng.choice((ONE_HOP, TWO_HOPS))
        kind = rng.choices([*kinds], [*kinds.values()])[0]
        wording: Wording = "new" if split in ("test", "unseen") and rng.random() < 0.5 else "seen"
        maker = _Maker(rng, split, wording)
        asked = maker.question(kind)
        if asked.answer == "A":  # an article to metrics that leave articles out
            continue
        metadata = {
            "hops": 1 if len(kind) == 1 else 2,
            "skills": [skill for skill, _ in asked.plan],
            "wording": wording,
            "place": maker.place,
            "plan": [list(step) for step in asked.plan],
        }
        id = f"chamber_{split}_{len(made)}"
        made.setdefault(asked.text, Task(asked.text, id, (asked.answer,), "chamber", metadata=metadata))
    return tuple(made.values())


class _Maker:
    """Makes a question of a split in one kind of wording.

    Attributes:
        place: of the wording that was chosen, from 1; the last of several.
    """

    def __init__(self, rng: random.Random, split: str, wording: Wording) -> None:
        self._rng, self._wording, self.place = rng, wording, 0
        self._split: Split = "test" if split == "unseen" else split  # type: ignore[assignment]

    def question(self, kind: Kind) -> _Asked:
        asked = self._one(kind[0]) if len(kind) == 1 else self._two(kind)
        return _Asked(asked.text[0].upper() + asked.text[1:], asked.answer, asked.plan)

    def _one(self, skill: str) -> _Asked:
        if skill in SUMS:
            return self._sum(skill)
        if skill in WORDS:
            word = self._rng.choice(self._words())
            text = filled(self._worded(QUESTIONS[skill]), x=f'"{word}"')
            return _Asked(text, WORDS[skill](word), ((skill, filled(KEYED[skill], x=word)),))
        return self._fact(skill, QUESTIONS[skill])

    def _two(self, kind: Kind) -> _Asked:
        inner = self._fact(kind[0], NOUNS[kind[0]])
        skill = kind[1]
        wordings = QUESTIONS[skill]
        if skill in WORDS:
            text = filled(self._worded(wordings), x=inner.text)
            return _Asked(text, WORDS[skill](inner.answer), (*inner.plan, (skill, filled(KEYED[skill], x="{1}"))))
        if len(kind) == 3:
            while (other := self._fact(kind[2], NOUNS[kind[2]])).plan == inner.plan:
                pass
            b, value, plan = other.text, int(other.answer), (*inner.plan, *other.plan)
        else:
            value = self._rng.randint(2, 12 if skill == "product" else min(MOST, max(2, int(inner.answer) - 1)))
            b, plan = str(value), inner.plan
        text = filled(self._worded(wordings), a=inner.text, b=b)
        step = filled(KEYED[skill], a="{1}", b="{2}" if len(kind) == 3 else b)
        return _Asked(text, str(SUMS[skill](int(inner.answer), value)), (*plan, (skill, step)))

    def _fact(self, skill: str, wordings: Wordings) -> _Asked:
        """A question or a noun phrase about a country or an element."""
        thing: Country | Element
        if skill in ("symbol", "number"):
            thing = self._rng.choice([each for each in elements(self._split) if 2 < each.number <= MOST])
        else:
            thing = self._rng.choice(countries(self._split))
        text = filled(self._worded(wordings), x=thing.name)
        return _Asked(text, str(getattr(thing, skill)), ((skill, filled(KEYED[skill], x=thing.name)),))

    def _sum(self, skill: str) -> _Asked:
        while True:
            a, b = self._rng.randint(2, MOST), self._rng.randint(2, MOST)
            if split_of_pair(a, b) == self._split:
                break
        if skill == "difference":
            a, b = max(a, b), min(a, b)
        text = filled(self._worded(QUESTIONS[skill]), a=a, b=b)
        return _Asked(text, str(SUMS[skill](a, b)), ((skill, filled(KEYED[skill], a=a, b=b)),))

    def _words(self) -> Sequence[str]:
        named: list[Country | Element] = [*countries(self._split), *elements(self._split)]
        return [each.name for each in named if " " not in each.name]

    def _worded(self, wordings: Wordings) -> str:
        known = wordings.train if self._wording == "seen" else wordings.test
        chosen = self._rng.choice(known)
        self.place = max(self.place, known.index(chosen) + 1)
        return chosen


SUMS: dict[str, Callable[[int, int], int]] = {
    "sum": lambda a, b: a + b,
    "difference": lambda a, b: a - b,
    "product": lambda a, b: a * b,
}
WORDS: dict[str, Callable[[str], str]] = {
    "letters": lambda text: str(sum(map(str.isalpha, text))),
    "first": lambda text: text[0].upper(),
    "last": lambda text: text[-1].upper(),
}
