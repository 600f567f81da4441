"""Routers between a weak and a strong member: who they are, what the thresholds are set to, and that they are met."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import numpy as np
import torch

from antiphon.errors import ConfigError
from antiphon.types import Task
from antiphon_policies.hybridllm import HybridLLM, relaxation, threshold
from antiphon_policies.routellm import RouteLLM, battles_lost

from .conftest import questions, row, views

pytestmark = pytest.mark.usefixtures("no_embedder")
TFIDF = {"features": "tfidf"}
UNSEEN = questions(90, seed=7)


@pytest.fixture
def pair_scores(tmp_path: Path) -> str:
    """The Musician is always right, the Geographer about rivers alone, the Physicist never."""
    path = tmp_path / "pair.jsonl"
    rows = []
    for topic, question in questions(150):
        rows += [row(question, "Musician", 1.0), row(question, "Physicist", 0.0)]
        rows.append(row(question, "Geographer", float(topic == "rivers")))
    path.write_text("".join(json.dumps(one) + "\n" for one in rows), "utf-8")
    return str(path)


def asked(policy: Any) -> list[tuple[str, str]]:
    return [(topic, policy.choose(Task(question), views())) for topic, question in UNSEEN]


def right(made: list[tuple[str, str]]) -> float:
    """Share of questions where the cheap member was asked just where it is as good."""
    return sum((member == "Geographer") == (topic == "rivers") for topic, member in made) / len(made)


def test_hybridllm_asks_the_small_one_where_it_is_as_good(pair_scores: str) -> None:
    made = asked(HybridLLM(scores=pair_scores, folds=0, training=TFIDF))
    assert {member for _, member in made} == {"Geographer", "Musician"}
    assert right(made) >= 0.95


def test_a_lower_quality_target_asks_the_small_one_more_often(pair_scores: str) -> None:
    shares = []
    for drop in (0.0, 20.0, 100.0):
        made = asked(HybridLLM(scores=pair_scores, folds=0, training={**TFIDF, "drop": drop}))
        shares.append(sum(member == "Geographer" for _, member in made))
    assert shares[0] < shares[1] < shares[2] == len(UNSEEN)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.6, 1.0])
def test_routellm_keeps_to_the_wished_share_of_strong_calls(pair_scores: str, share: float) -> None:
    policy = RouteLLM(scores=pair_scores, folds=0, training={**TFIDF, "strong_share": share})
    known = [policy.choose(Task(question), views()) for _, question in questions(150)]
    assert known.count("Musician") / len(known) == pytest.approx(share, abs=0.02)


def test_routellm_spends_the_strong_calls_where_they_win(pair_scores: str) -> None:
    """Two questions in three are not on rivers: with that share, the strong one gets just those."""
    assert right(asked(RouteLLM(scores=pair_scores, folds=0, training={**TFIDF, "strong_share": 0.66}))) >= 0.9


@pytest.mark.parametrize("policy", [HybridLLM, RouteLLM])
def test_what_a_point_is_worth_decides_between_the_two(policy: Any, pair_scores: str) -> None:
    """The strong one costs 0.0004 USD a question, the weak one 0.00002; where it wins, it wins 100 points."""
    made = {usd: asked(policy(scores=pair_scores, folds=0, usd_per_point=usd, training=TFIDF)) for usd in (0, 1e-5, 1)}
    assert {member for _, member in made[0]} == {"Geographer"}
    assert right(made[1e-5]) >= 0.85
    assert sum(member == "Musician" for topic, member in made[1] if topic != "rivers") >= 0.6 * len(UNSEEN)


def test_where_nothing_decides_the_strong_one_is_asked(topical: Any) -> None:
    policy = RouteLLM(scores=topical(150, shuffled=True), folds=0, training=TFIDF)
    assert sum(member == "Physicist" for _, member in asked(policy)) >= 0.9 * len(UNSEEN)
    policy = HybridLLM(scores=topical(150, shuffled=True), folds=0, training=TFIDF, usd_per_point=1)
    assert sum(member == "Physicist" for _, member in asked(policy)) >= 0.9 * len(UNSEEN)


def test_the_two_can_be_named_and_one_may_be_missing(pair_scores: str, tmp_path: Path) -> None:
    named = {**TFIDF, "weak": "Physicist", "strong": "Geographer"}
    RouteLLM.train(views(), tmp_path / "r", scores=pair_scores, options=named)
    policy = RouteLLM(path=str(tmp_path / "r"))
    assert {member for _, member in asked(policy)} <= {"Physicist", "Geographer"}
    some = [view for view in views() if view.name != "Geographer"]
    assert policy.choose(Task("Which rivers?"), some) == "Physicist"
    with pytest.raises(ConfigError, match="none of the members that it chooses among is in this pool"):
        policy.choose(Task("Which rivers?"), [view for view in views() if view.name == "Musician"])
    for wrong, message in (
        ({"weak": "Musicin"}, "nobody with scores in this pool is called 'Musicin'.*did you mean 'Musician'"),
        ({"weak": "Musician", "strong": "Musician"}, "weak and strong are both 'Musician'; name two"),
    ):
        with pytest.raises(ConfigError, match=message):
            RouteLLM.train(views(), tmp_path / "r", scores=pair_scores, options={**TFIDF, **wrong})


@pytest.mark.parametrize("policy", [HybridLLM, RouteLLM])
def test_of_members_that_cost_alike_the_weak_one_is_the_best(policy: Any, pair_scores: str) -> None:
    """The Physicist, who is never right, comes before the Geographer in this pool."""
    pool = views(dict.fromkeys(("Geographer", "Physicist", "Musician"), 0.0))[::-1]
    chosen = policy(scores=pair_scores, folds=0, training=TFIDF)
    assert {chosen.choose(Task(question), pool) for _, question in UNSEEN} == {"Geographer", "Musician"}


def test_the_likelihood_of_battles_by_hand() -> None:
    """One question: A beats B and C, which tie; strengths 1, 0, 0: softplus(-1) twice, ln 2 once."""
    lost = battles_lost(torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[1.0, 0.2, 0.2]]))
    assert float(lost) == pytest.approx((2 * 0.3132617 + 0.6931472) / 3, abs=1e-6)
    unknown = battles_lost(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, float("nan")]]))
    assert float(unknown) == 0


def test_the_relaxation_balances_the_labels_by_hand() -> None:
    """gap <= t holds for 1/4, 2/4 and 4/4 of these at t = 0, 0.2 and 0.6: the most balanced is 0.2."""
    assert relaxation(np.array([-0.5, 0.2, 0.6, 0.6])) == 0.2


def test_the_threshold_by_hand() -> None:
    """Sorted by advantage, giving questions to the small one loses 0, 0, 1, 1 of 4, so after three 0.25 with a standard
    error of 0.217, and after four 0.5 with 0.25."""
    gains, scores = np.array([0.1, 0.2, 0.3, 0.4]), np.array([[1, 1], [0, 0], [0, 1], [0, 1]])
    assert threshold(gains, scores, (0, 1), 0) == 0.3
    assert threshold(gains, scores, (0, 1), 46) == 0.3
    assert threshold(gains, scores, (0, 1), 47) == 0.4
    assert threshold(gains, scores, (0, 1), 75) == float("inf")
