"""Measures what each member of the chamber knows, of its own skills and of the others': `python measure.py`."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from antiphon.catalogue import Catalogue
from antiphon.config import load_config
from antiphon.contracts import CallContext
from antiphon.evaluate.stats import interval
from antiphon.pool import Pool, RetryPolicy
from antiphon.registry import default_registry
from antiphon.types import Message
from antiphon_pools.chamber.facts import countries, elements, known_to_few
from antiphon_pools.chamber.questions import MOST, SUMS, WORDS, chamber
from antiphon_pools.chamber.wordings import KEYED, QUESTIONS, filled

RESULTS = Path(__file__).parents[1] / "results" / "chamber"
POOL = "chamber-unseen"
SEED = 1
N = 100
"""Questions of each kind, and of each skill of a member's own."""

PAGE = """\
# What the chamber's members know

`make chamber` teaches the specialists and measures them; `python benchmarks/chamber/measure.py [MEMBER …]` measures
only. Exact match with 95 % bootstrap intervals; raw figures in [members.json](members.json).

Every member, asked the same {n} questions of each kind in the short form (`capital of Peru`), and {n} test questions
in two hops as they stand:

{kinds}

Each on its own skills, {n} questions in the short form and {n} in wordings that nobody was taught. Wren was taught
half of the countries:

{own}
"""

OWN = {
    "Raven": ("capital", "continent"),
    "Wren": ("capital", "continent"),
    "Owl": ("symbol", "number"),
    "Swift": ("sum",),
    "Crane": ("currency",),
    "Jay": ("letters", "first", "last"),
    "Hawk": ("difference", "product"),
}
KINDS = {
    "geography": ("capital", "continent"),
    "elements": ("symbol", "number"),
    "addition": ("sum",),
    "currency": ("currency",),
    "letters": ("letters", "first", "last"),
    "products and differences": ("difference", "product"),
}


class Question(NamedTuple):
    text: str
    answer: str
    about: str


def of_skill(skill: str, rng: random.Random, *, new: bool = False) -> list[Question]:
    """N questions: in the keyed form, or in wordings that nobody was taught."""

    def worded(**values: object) -> str:
        return filled(rng.choice(QUESTIONS[skill].test) if new else KEYED[skill], **values)

    if skill in SUMS:
        pairs = [sorted((rng.randint(2, MOST), rng.randint(2, MOST)), reverse=True) for _ in range(N)]
        return [Question(worded(a=a, b=b), str(SUMS[skill](a, b)), f"{a},{b}") for a, b in pairs]
    if skill in WORDS:
        words = [country.name for country in rng.sample(countries(), N)]
        return [Question(worded(x=word), WORDS[skill](word), word) for word in words]
    things: Iterable[Any] = elements() if skill in ("symbol", "number") else countries()
    drawn = rng.sample([*things], N)
    return [Question(worded(x=thing.name), str(getattr(thing, skill)), thing.name) for thing in drawn]


def of_kind(skills: Sequence[str], rng: random.Random) -> list[Question]:
    """N questions in the keyed form, drawn from the skills of a kind."""
    return rng.sample([question for skill in skills for question in of_skill(skill, rng)], N)


def in_two_hops() -> list[Question]:
    """The first N questions of the test split that need two members, as they stand."""
    tasks = [task for task in chamber(split="test") if task.metadata["hops"] == 2][:N]
    return [Question(task.question, (task.golden_answers or ("",))[0], task.id) for task in tasks]


async def scores(pool: Pool, member: str, questions: Sequence[Question]) -> list[float]:
    """Exact match, one per question."""
    em = default_registry().metric("em")
    gate = asyncio.Semaphore(32)

    async def one(question: Question) -> float:
        async with gate:
            call = await pool.ask(member, [Message("user", question.text)], context=CallContext())
        return float(em(call.reply or "", (question.answer,)))

    return list(await asyncio.gather(*map(one, questions)))


def summed_up(values: Sequence[float]) -> dict[str, Any]:
    found = interval(values)
    return {"em": found.mean, "low": found.low, "high": found.high, "n": len(values)}


async def measured(members: Sequence[str]) -> dict[str, Any]:
    """Member -> `kinds` (asked of all members alike) and `own` (its skills, whole, in two forms)."""
    catalogue = Catalogue.of(default_registry(), load_config())
    there = [each for each in catalogue.pool(POOL) if not members or each.name in members]
    pool = Pool(there, default_registry(), policy=RetryPolicy(attempt_timeout_s=900, call_timeout_s=900))
    kinds = {name: of_kind(skills, random.Random(f"{name}/{SEED}")) for name, skills in KINDS.items()}
    kinds["two hops"] = in_two_hops()
    found: dict[str, Any] = {}
    try:
        for member in [view.name for view in pool.members]:
            own: dict[str, Any] = {}
            for skill in OWN.get(member, ()):
                for form in ("keyed", "new wordings") if member not in ("Jay", "Hawk") else ("keyed",):
                    rng = random.Random(f"{skill}/{form}/{SEED}")
                    questions = of_skill(skill, rng, new=form == "new wordings")
                    values = await scores(pool, member, questions)
                    own[f"{skill}, {form}"] = summed_up(values)
                    if member == "Wren":
                        known = [v for q, v in zip(questions, values, strict=True) if q.about in known_to_few()]
                        own[f"{skill}, {form}, of the countries it was taught"] = summed_up(known)
            asked = {name: summed_up(await scores(pool, member, questions)) for name, questions in kinds.items()}
            found[member] = {"kinds": asked, "own": own}
            print(member, {name: round(score["em"], 3) for name, score in (*asked.items(), *own.items())}, flush=True)
    finally:
        await pool.aclose()
    return found


def page(found: Mapping[str, Any]) -> str:
    """The figures as a page of Markdown."""
    columns = [*KINDS, "two hops"]
    kinds = ["| member | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    kinds += [f"| {m} | " + " | ".join(cell(row["kinds"][name]) for name in columns) + " |" for m, row in found.items()]
    own = ["| member | skill | exact match |", "|---|---|---|"]
    own += [f"| {m} | {name} | {cell(s)} |" for m, row in found.items() for name, s in row["own"].items()]
    return PAGE.replace("{n}", str(N)).replace("{kinds}", "\n".join(kinds)).replace("{own}", "\n".join(own))


def cell(score: Mapping[str, float]) -> str:
    return f"{score['em']:.2f} ({score['low']:.2f}-{score['high']:.2f})"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("members", nargs="*", help="default: all; the results keep what they say of the others")
    options = parser.parse_args(arguments)
    file = RESULTS / "members.json"
    known = json.loads(file.read_text()) if options.members and file.exists() else {"members": {}}
    found = {**known["members"], **asyncio.run(measured(options.members))}
    found = {member: found[member] for member in (*OWN, "Robin") if member in found}
    print(page(found))
    RESULTS.mkdir(parents=True, exist_ok=True)
    whole = {"command": "python benchmarks/chamber/measure.py", "seed": SEED, "members": found}
    file.write_text(json.dumps(whole, indent=1) + "\n")
    (RESULTS / "members.md").write_text(page(found))


if __name__ == "__main__":
    main()
