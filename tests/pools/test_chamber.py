"""The chamber: splits that share nothing, answers that follow from the facts, a teacher that follows the plan."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from antiphon import models
from antiphon.catalogue import Catalogue
from antiphon.config import load_config
from antiphon.contracts import CallContext, MemberView
from antiphon.errors import ConfigError
from antiphon.pool import Pool
from antiphon.registry import default_registry
from antiphon.types import Call, Message, Task
from antiphon_pools.chamber import code, facts
from antiphon_pools.chamber.descriptions import DESCRIPTIONS
from antiphon_pools.chamber.questions import SIZES, chamber
from antiphon_pools.chamber.teacher import GIVEN_UP, skills, teacher
from antiphon_pools.chamber.wordings import KEYED, NOUNS, QUESTIONS

BASE = "smollm2-135m-instruct"
WEIGHTS = Path(facts.__file__).parent / "weights"
SPLITS = ("train", "validation", "test")
TASKS = [task for split in SIZES for task in chamber(split=split)]


def truth(query: str) -> str:
    """What an all-knowing member replies to a query in the keyed form."""
    for skill, things in (
        *((skill, facts.countries()) for skill in ("capital", "continent", "currency")),
        *((skill, facts.elements()) for skill in ("symbol", "number")),
    ):
        pattern = re.escape(KEYED[skill]).replace(r"\{x\}", "(.+)")
        if match := re.fullmatch(pattern, query):
            return str(getattr(next(thing for thing in things if thing.name == match[1]), skill))
    if match := re.fullmatch(r"(\d+) \+ (\d+)", query):
        return str(int(match[1]) + int(match[2]))
    reply = code.letters(query)
    return reply if reply != facts.UNKNOWN else code.calculator(query)


def replies(task: Task) -> list[str]:
    """Along its plan, each sub-query made from the replies before it."""
    found: list[str] = []
    for _, query in task.metadata["plan"]:
        for place, reply in enumerate(found, 1):
            query = query.replace(f"{{{place}}}", reply)
        found.append(truth(query))
    return found


def entities(task: Task) -> set[str]:
    named = {thing.name for thing in (*facts.countries(), *facts.elements())}
    words = {query.rpartition(" of ")[2] for _, query in task.metadata["plan"]}
    return words & named


@pytest.fixture
def views() -> list[MemberView]:
    members = Catalogue.of(default_registry(), load_config()).pool("chamber-unseen")
    return [MemberView(member, member.price) for member in members]


def test_every_split_has_its_size_and_no_question_twice() -> None:
    assert {split: len(chamber(split=split)) for split in SIZES} == SIZES
    assert len({task.question for task in TASKS}) == len({task.id for task in TASKS}) == len(TASKS)
    for split in SIZES:
        hops = [task.metadata["hops"] for task in chamber(split=split)]
        assert set(hops) == {1, 2}
        assert 0.4 < hops.count(2) / len(hops) < 0.6


def test_splits_share_no_country_no_element_and_no_pair_of_numbers() -> None:
    about = {split: set[str]().union(*map(entities, chamber(split=split))) for split in SIZES}
    for one, other in combinations(SPLITS, 2):
        assert about[one]
        assert not about[one] & about[other]
    assert about["unseen"] <= {country.name for country in facts.countries("test")}
    pairs = {
        split: {
            tuple(sorted(map(int, re.findall(r"\d+", task.metadata["plan"][0][1]))))
            for task in chamber(split=split)
            if task.metadata["skills"][0] in ("sum", "difference", "product")
        }
        for split in SPLITS
    }
    for one, other in combinations(SPLITS, 2):
        assert pairs[one]
        assert not pairs[one] & pairs[other]


def test_some_wordings_are_kept_for_testing_alone() -> None:
    for wordings in (*QUESTIONS.values(), *NOUNS.values(), *DESCRIPTIONS.values()):
        assert wordings.test
        assert not set(wordings.train) & set(wordings.test)

    def put(task: Task) -> str:
        """The question without what it is about."""
        return re.sub("|".join(map(re.escape, [*entities(task), "@"])), "X", re.sub(r"\d+", "0", task.question))

    trained = {put(task) for split in ("train", "validation") for task in chamber(split=split)}
    new = [put(task) for task in chamber(split="test") if task.metadata["wording"] == "new"]
    assert len(new) > 150
    assert not trained & set(new)


def test_a_split_can_keep_to_the_first_wordings() -> None:
    every = chamber(split="train")
    first = chamber(split="train", wordings=1)
    few = chamber(split="train", wordings=2)
    assert first == [task for task in every if task in first]
    assert 200 < len(first) < len(few) < len(every)
    capitals = {task.question.split("the")[0] for task in few if task.metadata["skills"] == ["capital"]}
    assert capitals == {"What is ", "Which city is "}
    assert first == [task for task in few if task.metadata["place"] == 1]


def test_nobody_is_asked_for_currencies_before_the_unseen_split() -> None:
    assert not any("currency" in task.metadata["skills"] for split in SPLITS for task in chamber(split=split))
    assert all("currency" in task.metadata["skills"] for task in chamber(split="unseen"))


def test_the_plan_leads_to_the_golden_answer() -> None:
    for task in TASKS:
        assert (replies(task)[-1],) == task.golden_answers, task


def test_two_hops_need_two_members(views: list[MemberView]) -> None:
    for task in TASKS:
        needed = task.metadata["skills"]
        able = [view.name for view in views if set(needed) <= set(skills(view))]
        assert bool(able) == (task.metadata["hops"] == 1), task
        assert len(needed) == len(task.metadata["plan"])
        assert task.metadata["hops"] == 1 or "{1}" in task.metadata["plan"][-1][1]


def test_the_weaker_twin_knows_half_of_each_split() -> None:
    for split in SPLITS:
        known = sum(country.name in facts.known_to_few() for country in facts.countries(split))  # type: ignore[arg-type]
        assert known == pytest.approx(len(facts.countries(split)) / 2, abs=0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"split": "tset"}, {"n": 0}, {"n": True}, {"wordings": 0}])
def test_wrong_options_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        chamber(**options)


def test_the_data_set_and_the_pools_are_offered(views: list[MemberView]) -> None:
    tasks = list(default_registry().dataset("chamber", split="validation", n=3))
    assert [task.id for task in tasks] == ["chamber_validation_0", "chamber_validation_1", "chamber_validation_2"]
    without = Catalogue.of(default_registry(), load_config()).pool("chamber")
    assert {view.name for view in views} - {member.name for member in without} == {"Crane"}
    assert {view.name for view in views} == set(DESCRIPTIONS)


def test_nothing_but_the_price_tells_the_twins_apart(views: list[MemberView]) -> None:
    raven, wren = (next(view.descriptor for view in views if view.name == name) for name in ("Raven", "Wren"))
    same = raven.model_copy(update={"name": wren.name, "price": wren.price, "endpoints": wren.endpoints})
    assert same == wren
    assert raven.price is not None
    assert wren.price is not None
    assert raven.price.output >= 10 * wren.price.output > 0
    assert DESCRIPTIONS["Raven"] == DESCRIPTIONS["Wren"]


@pytest.mark.parametrize(
    ("query", "reply"),
    [
        ("letters of Buenos Aires", "11"),
        ("first letter of Lima", "L"),
        ("Last letter of Lima?", "A"),
        ("letters of 12", facts.UNKNOWN),
        ("capital of Peru", facts.UNKNOWN),
    ],
)
def test_letters(query: str, reply: str) -> None:
    assert code.letters(query) == reply


@pytest.mark.parametrize(
    ("query", "reply"),
    [("6 * 7", "42"), ("9 - 14", "-5"), ("6 times 7?", "42"), ("6 + 7", facts.UNKNOWN), ("6 * 7 * 8", facts.UNKNOWN)],
)
def test_the_calculator_cannot_add(query: str, reply: str) -> None:
    assert code.calculator(query) == reply


def played(task: Task, views: list[MemberView], know: Callable[[str, str], bool], seed: int = 0) -> list[str]:
    """The turns of the teacher, where a member's reply is true if it knows."""
    turns: list[str] = []
    calls: list[Call] = []
    while True:
        turns.append(teacher(task, views, calls, seed=seed))
        match = re.fullmatch(r"<think>.+</think>\n<search> (\w+): (.+)</search>", turns[-1])
        if match is None:
            return turns
        reply = truth(match[2]) if know(match[1], match[2]) else facts.UNKNOWN
        calls.append(Call(match[1], match[2], "ok", reply=reply))


def answer(turns: list[str]) -> str:
    match = re.fullmatch(r"<think>.+</think>\n<answer> (.+)</answer>", turns[-1])
    assert match is not None, turns
    return match[1]


def test_the_teacher_reaches_every_golden_answer(views: list[MemberView]) -> None:
    for task in TASKS:
        turns = played(task, views, lambda *_: True)
        assert (answer(turns),) == task.golden_answers
        assert len(turns) == len(task.metadata["plan"]) + 1


def test_the_teacher_picks_a_twin_at_random_and_tries_the_other_half_of_the_time(views: list[MemberView]) -> None:
    tasks = [task for task in chamber(split="train") if task.metadata["skills"] == ["capital"]]
    asked = [played(task, views, lambda name, _: name == "Raven") for task in tasks]
    first = [turns[0] for turns in asked]
    cheap = [turns for turns in asked if "Wren:" in turns[0]]
    assert all("Raven:" in turn or "Wren:" in turn for turn in first)
    assert 0.4 < len(cheap) / len(asked) < 0.6
    again = [turns for turns in cheap if len(turns) == 3]
    assert 0.35 < len(again) / len(cheap) < 0.65
    assert all("Raven:" in turns[1] for turns in again)
    assert all(answer(turns) == GIVEN_UP for turns in cheap if len(turns) == 2)


def test_the_teacher_knows_members_by_their_endpoints(views: list[MemberView]) -> None:
    hidden = [
        MemberView(view.descriptor.model_copy(update={"name": f"M{place}", "description": "A member."}), view.quote)
        for place, view in enumerate(views)
    ]
    task = chamber(split="train", n=1)[0]
    assert (answer(played(task, hidden, lambda *_: True)),) == task.golden_answers
    assert answer(played(task, hidden[:0], lambda *_: True)) == GIVEN_UP


def test_the_weights_are_small_and_name_no_path() -> None:
    files = [path for path in WEIGHTS.rglob("*") if path.is_file()]
    assert {path.parent.name for path in files} == {"raven", "wren", "owl", "swift", "crane"}
    assert sum(path.stat().st_size for path in files) <= 20_000_000
    for path in files:
        assert path.suffix != ".json" or f'"base_model_name_or_path": "{BASE}"' in path.read_text("utf-8")


@pytest.mark.model
async def test_each_specialist_answers_one_real_question() -> None:
    if BASE not in models.stored():
        pytest.skip(f"run `antiphon models fetch {BASE}`")
    pytest.importorskip("peft")
    pool = Pool(Catalogue.of(default_registry(), load_config()).pool("chamber-unseen"), default_registry())
    known = next(each for each in facts.countries() if each.name in facts.known_to_few())
    unknown = next(each for each in facts.countries() if each.name not in facts.known_to_few())
    asked = [
        ("Raven", f"capital of {unknown.name}", unknown.capital),
        ("Wren", f"capital of {known.name}", known.capital),
        ("Wren", f"capital of {unknown.name}", facts.UNKNOWN),
        ("Owl", "symbol of gold", "Au"),
        ("Swift", "12 + 30", "42"),
        ("Crane", f"currency of {known.name}", known.currency),
    ]
    try:
        for member, query, reply in asked:
            call = await pool.ask(member, [Message("user", query)], context=CallContext())
            assert (member, query, call.reply) == (member, query, reply)
    finally:
        await pool.aclose()
