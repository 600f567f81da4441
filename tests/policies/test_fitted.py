"""Policies fitted on recorded scores: what they learn, from which questions, and what they refuse."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from antiphon.contracts import Policy
from antiphon.errors import ConfigError
from antiphon.orchestrator import Orchestrator
from antiphon.registry import default_registry
from antiphon.rollout import Rollout
from antiphon.types import Task, Trajectory
from antiphon_policies._neighbours import Neighbours
from antiphon_policies._scores import Scores, fold_of, question_key, training
from antiphon_policies.hindsight import BestSingle, Oracle
from antiphon_policies.knn import KNN
from antiphon_pools.adapters.function import member as of_code

MEMBERS = [
    {"name": "Cheap", "aliases": ["c/cheap"], "price": {"output": 0.2}},
    {"name": "Middle", "price": {"output": 1.0}},
    {"name": "Dear", "model": "x/dear", "price": {"output": 4.0}},
]


def row(question: str, llm: str, score: float | None, **more: Any) -> dict[str, Any]:
    return {"question": question, "llm": llm, "score": score, **more}


def written(path: Path, rows: Sequence[Any]) -> str:
    path.write_text("\n".join(json.dumps(one) if not isinstance(one, str) else one for one in rows), "utf-8")
    return str(path)


async def run(scripted_pool: Callable[..., Any], policy: Policy, question: str, members: Any = None) -> Trajectory:
    assert isinstance(policy, Policy)
    pool = scripted_pool(members or MEMBERS, ["the reply"])
    return await Rollout(Task(question), pool).run(policy)


def asked(trajectory: Trajectory) -> list[str]:
    assert trajectory.error is None, trajectory.error
    return [call.member for call in trajectory.calls]


# ---- whom knn asks ------------------------------------------------------------------------------------------------


TOPICS = {"rivers": "Cheap", "physics": "Middle", "opera": "Dear"}


def topical(path: Path, n: int = 30, shuffle: bool = False) -> str:
    """A pool where the topic decides who is right; or, shuffled, nothing does."""
    rng = random.Random(5)
    rows = []
    for place in range(n):
        topic = rng.choice(sorted(TOPICS))
        question = f"What about {topic} is case {place} of {rng.choice(['Ada', 'Bo', 'Cy'])}?"
        right = rng.choice(sorted(TOPICS.values())) if shuffle else TOPICS[topic]
        rows += [row(question, name, float(name == right)) for name in TOPICS.values()]
    return written(path, rows)


@pytest.mark.parametrize(("topic", "right"), TOPICS.items())
async def test_the_member_that_did_best_nearby_is_asked(
    topic: str, right: str, scripted_pool: Callable[..., Any], tmp_path: Path
) -> None:
    policy = KNN(scores=topical(tmp_path / "s.jsonl"), k=5)
    trajectory = await run(scripted_pool, policy, f"Who wrote on {topic}?")
    assert (asked(trajectory), trajectory.answer, trajectory.notes) == ([right], "the reply", ())


async def test_members_are_known_by_name_alias_or_model(scripted_pool: Callable[..., Any], tmp_path: Path) -> None:
    scores = [row("A river?", "C/CHEAP", 0), row("A river?", "x/dear", 1), row("A river?", "stranger", 5)]
    policy = KNN(scores=written(tmp_path / "s.jsonl", scores), folds=0)
    assert asked(await run(scripted_pool, policy, "What river?")) == ["Dear"]
    policy = KNN(scores=written(tmp_path / "s.jsonl", [row("A river?", "stranger", 1)]), folds=0)
    trajectory = await run(scripted_pool, policy, "What river?")
    assert (trajectory.stop, trajectory.calls) == ("error", ())
    assert "s.jsonl has no scores of any member of this pool; it has those of stranger" in str(trajectory.error)


async def test_a_tie_goes_to_the_cheaper_and_a_price_can_weigh(
    scripted_pool: Callable[..., Any], tmp_path: Path
) -> None:
    tied = written(tmp_path / "t.jsonl", [row("A river?", name, 0.5) for name in ("Dear", "Middle", "Cheap")])
    assert asked(await run(scripted_pool, KNN(scores=tied, folds=0), "What river?")) == ["Cheap"]
    scores = [row("A river?", "Dear", 0.9), row("A river?", "Middle", 0.8), row("A river?", "Cheap", 0.5)]
    path = written(tmp_path / "s.jsonl", scores)
    for weight, member in ((0.0, "Dear"), (0.2, "Middle"), (2.0, "Cheap")):
        policy = KNN(scores=path, folds=0, cost_weight=weight)
        assert asked(await run(scripted_pool, policy, "What river?")) == [member]
    unpriced = [{**member, "price": None} if member["name"] == "Dear" else member for member in MEMBERS]
    trajectory = await run(scripted_pool, KNN(scores=path, folds=0, cost_weight=1), "What river?", unpriced)
    assert "policy knn: no price for Dear" in str(trajectory.error)


async def test_what_a_point_is_worth_decides_as_in_all_learned_routers(
    scripted_pool: Callable[..., Any], tmp_path: Path
) -> None:
    """Cheap, Middle and Dear score 0.5, 0.8 and 0.9; their replies of 100 tokens cost 0.02, 0.1 and 0.4 thousandths of
    a USD: Middle is worth it from 2.67e-6 USD a point, and Dear from 3e-5."""
    scored = {"Dear": 0.9, "Middle": 0.8, "Cheap": 0.5}
    path = written(
        tmp_path / "s.jsonl", [row("A river?", name, score, output_tokens=100) for name, score in scored.items()]
    )
    for usd, member in ((0, "Cheap"), (2.6e-6, "Cheap"), (2.7e-6, "Middle"), (2.9e-5, "Middle"), (3.1e-5, "Dear")):
        policy = KNN(scores=path, folds=0, usd_per_point=usd)
        assert asked(await run(scripted_pool, policy, "What river?")) == [member]
    unpriced = [{**member, "price": None} if member["name"] == "Dear" else member for member in MEMBERS]
    trajectory = await run(scripted_pool, KNN(scores=path, folds=0, usd_per_point=1), "What river?", unpriced)
    assert "policy knn: usd_per_point weighs prices, and there is none for Dear" in str(trajectory.error)


async def test_samples_of_one_question_count_with_their_mean(scripted_pool: Callable[..., Any], tmp_path: Path) -> None:
    scores = [row("A river?", "Dear", 1), row("A river?", "Dear", 0), row("A river?", "Cheap", 0.6)]
    scores += [row("A river?", "Middle", None)]
    path = written(tmp_path / "s.jsonl", scores)
    assert asked(await run(scripted_pool, KNN(scores=path, folds=0), "What river?")) == ["Cheap"]
    assert Scores.read(path).rows[0].scores == {"dear": 0.5, "cheap": 0.6}


async def test_a_question_without_a_shared_word_is_told(scripted_pool: Callable[..., Any], tmp_path: Path) -> None:
    path = written(tmp_path / "s.jsonl", [row("A river?", "Cheap", 0), row("A river?", "Middle", 1)])
    trajectory = await run(scripted_pool, KNN(scores=path, folds=0), "Xyzzy")
    assert asked(trajectory) == ["Middle"]
    assert trajectory.notes == ("knn: no recorded question shares a word with this one; all of them count",)


# ---- what a question may learn from -------------------------------------------------------------------------------


async def test_the_own_question_never_counts(scripted_pool: Callable[..., Any], tmp_path: Path) -> None:
    """Its own row says Dear; the only other one says Cheap. Spelling does not make it another question."""
    own, other = "Who dug the old canal?", "Who dug the new canal?"
    scores = [row(own, "Dear", 1), row(own, "Cheap", 0), row(other, "Dear", 0), row(other, "Cheap", 1)]
    path = written(tmp_path / "s.jsonl", scores)
    for question in (own, "who dug  the OLD canal"):
        for policy in (KNN(scores=path, folds=0), BestSingle(scores=path, folds=0)):
            assert asked(await run(scripted_pool, policy, question)) == ["Cheap"]


async def test_no_question_of_the_own_fold_counts(scripted_pool: Callable[..., Any], tmp_path: Path) -> None:
    """Questions of one fold say Dear, all others Cheap: whoever is of that fold never hears of Dear."""
    questions = [f"Who dug canal number {n}?" for n in range(60)]
    marked = fold_of(question_key(questions[0]), 10)
    scores = []
    for question in questions:
        own = fold_of(question_key(question), 10) == marked
        scores += [row(question, "Dear", float(own)), row(question, "Cheap", float(not own) / 2)]
    path = written(tmp_path / "s.jsonl", scores)
    same = [question for question in questions if fold_of(question_key(question), 10) == marked]
    assert 1 < len(same) < 20
    for question in same:
        for policy in (KNN(scores=path, k=1), BestSingle(scores=path)):
            assert asked(await run(scripted_pool, policy, question)) == ["Cheap"]


def test_folds_part_the_questions_and_stay_the_same() -> None:
    keys = [f"question {n}" for n in range(1000)]
    sizes = Counter(fold_of(key, 10) for key in keys)
    assert set(sizes) == set(range(10))
    assert min(sizes.values()) > 60
    assert [fold_of(key, 10) for key in keys[:5]] == [4, 2, 6, 6, 9]  # from SHA-256: the same on every machine


def test_training_rows(tmp_path: Path) -> None:
    scores = Scores.read(topical(tmp_path / "s.jsonl", 50))
    key = scores.rows[3].key
    assert len(training(scores.rows, key, 0)) == 49
    kept = training(scores.rows, key, 10)
    assert {fold_of(one.key, 10) for one in kept} == set(range(10)) - {fold_of(key, 10)}


async def test_only_the_questions_named_are_learnt_from(scripted_pool: Callable[..., Any], tmp_path: Path) -> None:
    scores = [row("A river?", "Dear", 1), row("A river?", "Cheap", 0), row("The river!", "Dear", 0)]
    path = written(tmp_path / "s.jsonl", [*scores, row("The river!", "Cheap", 1)])
    train = written(tmp_path / "q.jsonl", [{"question": "the RIVER"}])
    policy = KNN(scores=path, questions=train, folds=0)
    assert asked(await run(scripted_pool, policy, "What river?")) == ["Cheap"]
    with pytest.raises(ConfigError, match="no row has a score for any of the questions named"):
        KNN(scores=path, questions=written(tmp_path / "q.jsonl", [{"question": "other"}]))


# ---- best single, oracle ------------------------------------------------------------------------------------------


async def test_best_single_says_who_and_why(scripted_pool: Callable[..., Any], tmp_path: Path) -> None:
    scores = [row(f"Q{n}?", name, score) for n in range(4) for name, score in (("Cheap", 0.25), ("Middle", n % 2))]
    trajectory = await run(scripted_pool, BestSingle(scores=written(tmp_path / "s.jsonl", scores), folds=0), "Other?")
    assert asked(trajectory) == ["Middle"]
    assert trajectory.notes == ("best_single: Middle (0.5000 over 4 questions)",)


async def test_the_oracle_knows_this_very_question(scripted_pool: Callable[..., Any], tmp_path: Path) -> None:
    scores = [row("A river?", "Cheap", 0.1), row("A river?", "Dear", 0.2), row("A hill?", "Cheap", 1)]
    oracle = Oracle(scores=written(tmp_path / "s.jsonl", scores))
    assert asked(await run(scripted_pool, oracle, "a RIVER")) == ["Dear"]
    trajectory = await run(scripted_pool, oracle, "A lake?")
    assert "s.jsonl has no scores of the question 'A lake?'" in str(trajectory.error)


async def test_the_oracles_tie_goes_to_the_reply_that_cost_less(
    scripted_pool: Callable[..., Any], tmp_path: Path
) -> None:
    tokens = {"Cheap": 100, "Middle": 10, "Dear": 5}  # 20, 10 and 20 millionths of a USD
    scores = [row("A river?", name, 1, output_tokens=tokens[name]) for name in tokens]
    assert asked(await run(scripted_pool, Oracle(scores=written(tmp_path / "s.jsonl", scores)), "A river?")) == [
        "Middle"
    ]
    del scores[0]["output_tokens"]
    oracle = Oracle(scores=written(tmp_path / "t.jsonl", scores))
    assert asked(await run(scripted_pool, oracle, "A river?")) == ["Cheap"]


async def test_scores_can_be_judged_anew(scripted_pool: Callable[..., Any], tmp_path: Path) -> None:
    """The recorded score says Cheap; by exact match of the answer span it is Dear. No text: no score."""
    golden = {"golden_answers": ["Po"]}
    scores = [
        row("A river?", "Cheap", 1, response="It is the Po.", **golden),
        row("A river?", "Dear", 0, response="I say <answer>Po</answer>", **golden),
        row("A river?", "Middle", 1, response=None, **golden),
    ]
    path = written(tmp_path / "s.jsonl", scores)
    assert asked(await run(scripted_pool, Oracle(scores=path), "A river?")) == ["Cheap"]
    assert asked(await run(scripted_pool, Oracle(scores=path, metric="em"), "A river?")) == ["Dear"]
    assert Scores.read(path, "em").rows[0].scores == {"cheap": 0, "dear": 1}


# ---- how good they are ------------------------------------------------------------------------------------------


async def accuracy(scripted_pool: Callable[..., Any], policy: Policy, path: str) -> float:
    """Share of the recorded questions on which the member asked is right."""
    scores = Scores.read(path)
    right = 0.0
    for one in scores.rows:
        [member] = asked(await run(scripted_pool, policy, one.text))
        right += one.scores[member.casefold()]
    return right / len(scores.rows)


async def test_knn_finds_what_the_question_decides_and_nothing_where_it_does_not(
    scripted_pool: Callable[..., Any], tmp_path: Path
) -> None:
    path = topical(tmp_path / "topical.jsonl", 150)
    assert await accuracy(scripted_pool, Oracle(scores=path), path) == 1
    assert await accuracy(scripted_pool, KNN(scores=path), path) >= 0.95
    assert await accuracy(scripted_pool, BestSingle(scores=path), path) < 0.5

    path = topical(tmp_path / "shuffled.jsonl", 150, shuffle=True)
    single = await accuracy(scripted_pool, BestSingle(scores=path), path)
    assert abs(await accuracy(scripted_pool, KNN(scores=path), path) - single) < 0.1
    assert await accuracy(scripted_pool, Oracle(scores=path), path) == 1


def says(topic: str) -> Callable[[str], str]:
    """A member that is right about one topic, for the `function` adapter."""
    return lambda question: "right" if topic in question else "wrong"


def test_through_the_orchestrator_with_members_of_code(tmp_path: Path) -> None:
    """By name and from the configuration's options, whose paths are relative to its file."""
    topical(tmp_path / "scores.jsonl", 60)
    (tmp_path / "antiphon.toml").write_text('[policies.knn]\nscores = "scores.jsonl"\nk = 5\n', "utf-8")
    members = [
        of_code(says(topic), name=name, description="Knows one topic.", price={"input": 0, "output": 0})
        for topic, name in TOPICS.items()
    ]
    tasks = [Task(f"Tell me of {topic}", id=f"{topic}{n}") for topic in TOPICS for n in range(5)]
    with Orchestrator(pool=members, policy="knn", config=tmp_path / "antiphon.toml") as orchestrator:
        assert [trajectory.answer for trajectory in orchestrator.batch(tasks)] == ["right"] * len(tasks)


# ---- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "policy knn: k is a whole number of at least 1, got 0"),
        ({"k": True}, "k is a whole number"),
        ({"folds": 1}, "policy knn: folds is 0 .* or a whole number from 2, got 1"),
        ({"folds": -1}, "folds is 0"),
        ({"cost_weight": -0.1}, "cost_weight is a number of at least 0"),
        ({"cost_weight": float("nan")}, "cost_weight is a number of at least 0"),
        ({"cost_weight": 0.1, "usd_per_point": 1}, "cost_weight and usd_per_point both weigh cost; give one"),
        ({"usd_per_point": -1}, "policy knn: usd_per_point is USD a question"),
        ({"answer_by": "bse"}, "did you mean 'base'"),
        ({"scores": "no/such.jsonl"}, r"no/such\.jsonl: no such file; scores and questions name JSONL files"),
        ({"scores": []}, "list of score files is empty"),
        ({"metric": "exact"}, "there is no metric 'exact'"),
        ({"top": 3}, "takes no option 'top'"),
    ],
)
def test_settings_are_checked(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "s.jsonl", [row("A river?", "Cheap", 1)])
    with pytest.raises(ConfigError, match=message):
        default_registry().policy("knn", **{"scores": path, **options})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"s\.jsonl, line 2: not JSON"),
        ("[]", r"s\.jsonl, line 2: a row is a JSON object"),
        (row("", "Cheap", 1), r"line 2: question is ''; give a non-empty string"),
        (row("?", "Cheap", 1), r"line 2: question is '\?'"),
        (row("Q?", "", 1), r"line 2: llm is ''; give the name"),
        (row("Q?", "Cheap", "high"), "score is 'high'; give a number, or null"),  # type: ignore[arg-type]
    ],
)
def test_a_row_that_does_not_hold_is_named(line: Any, message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "s.jsonl", [row("A river?", "Cheap", 1), line])
    for make in (KNN, BestSingle, Oracle):
        with pytest.raises(ConfigError, match=message):
            make(scores=path)


def test_scores_without_texts_cannot_be_judged(tmp_path: Path) -> None:
    path = written(tmp_path / "s.jsonl", [row("A river?", "Cheap", 1, response=None)])
    with pytest.raises(ConfigError, match=r"s\.jsonl: no row has a score$"):
        KNN(scores=path, metric="em")
    path = written(tmp_path / "s.jsonl", [row("A river?", "Cheap", 1, response="Po")])
    with pytest.raises(ConfigError, match=r"line 1: metric 'em' needs a text `response` and a list"):
        KNN(scores=path, metric="em")


# ---- neighbours ---------------------------------------------------------------------------------------------------


def test_rare_words_weigh_more_and_lengths_do_not_count() -> None:
    texts = ["the canal", "the the the", "the hill", "the river", "the hill canal canal", "hills"]
    index = Neighbours(texts)
    assert index.nearest("The CANAL!", 2) == [0, 4]
    assert index.nearest("the canal", 9, without=0) == [4, 1, 2, 3]  # "river", in one text alone, parts most
    assert Neighbours(["canal", "canal canal canal"]).nearest("canal", 2) == [0, 1]  # alike: the first of equals
    assert index.nearest("xyzzy", 5) == Neighbours([]).nearest("x", 5) == []


def test_the_likeness_is_the_cosine_by_hand() -> None:
    """N = 2, each word in one text: all weigh ln(3/2) + 1, so counts decide."""
    index = Neighbours(["a a b", "c"])
    assert index._vector({"a": 2, "b": 1}) == pytest.approx({"a": 2 / 5**0.5, "b": 1 / 5**0.5})  # type: ignore[arg-type]
