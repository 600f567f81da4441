"""The cascade: replies that convince are taken, others lead on; order and thresholds are the best for what a point is
worth, and noise makes no cascade."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import numpy as np

from antiphon.rollout import Rollout
from antiphon.types import Call, Task
from antiphon_policies.frugalgpt import FrugalGPT, _worth

from .conftest import PRICES, TOPICS, questions, views

pytestmark = pytest.mark.usefixtures("no_embedder")
SURE, LOST = "I am sure: it is this indeed.", "I do not know that."
MEMBERS = [{"name": name, "description": "d", "price": {"output": price}} for name, price in PRICES.items()]


async def rollout(policy: Any, replies: list[Any], scripted_pool: Callable[..., Any]) -> Any:
    trajectory = await Rollout(Task("Which atoms are there?"), scripted_pool(MEMBERS, replies)).run(policy)
    assert trajectory.error is None, trajectory.error
    return trajectory


async def test_it_goes_on_until_a_reply_convinces(topical: Any, scripted_pool: Callable[..., Any]) -> None:
    policy = FrugalGPT(scores=topical(), folds=0, usd_per_point=1)
    _, cascade = policy.cascade(Task("Which atoms are there?"), views())
    assert set(cascade.members) == set(PRICES)
    first = await rollout(policy, [SURE], scripted_pool)
    assert [call.member for call in first.calls] == [cascade.members[0]]
    assert first.answer == SURE
    last = await rollout(policy, [LOST, LOST, LOST], scripted_pool)
    assert [call.member for call in last.calls] == list(cascade.members)
    assert last.answer == LOST
    assert all("frugalgpt:" in note for note in last.notes)
    failed = await rollout(policy, [Call("x", "", "timeout"), SURE], scripted_pool)
    assert ([call.member for call in failed.calls], failed.answer) == (list(cascade.members[:2]), SURE)
    late = await rollout(policy, [LOST, LOST, Call("x", "", "timeout")], scripted_pool)
    assert (len(late.calls), late.answer) == (3, LOST)  # a reply that was not trusted is better than none
    nobody = await rollout(policy, [Call("x", "", "timeout")] * 3, scripted_pool)
    assert nobody.answer is None


async def test_it_reaches_the_oracle_where_replies_tell_who_is_right(
    topical: Any, scripted_pool: Callable[..., Any]
) -> None:
    policy, right = FrugalGPT(scores=topical(), folds=0, usd_per_point=1), 0
    unseen = questions(60, seed=7)
    for topic, question in unseen:
        _, cascade = policy.cascade(Task(question), views())
        replies = [SURE if member == TOPICS[topic] else LOST for member in cascade.members]
        trajectory = await Rollout(Task(question), scripted_pool(MEMBERS, replies)).run(policy)
        right += trajectory.answer == SURE
    assert right >= 0.95 * len(unseen)


def test_noise_makes_no_cascade(topical: Any) -> None:
    """All replies are the same: none tells whether it is right."""
    policy = FrugalGPT(scores=topical(shuffled=True, mute=True), folds=0)
    _, cascade = policy.cascade(Task("Which atoms are there?"), views())
    assert cascade.members == ("Physicist",)


@pytest.mark.parametrize(("usd", "first"), [(0.0, "Geographer"), (1e-6, "Geographer"), (1.0, None)])
def test_what_a_point_is_worth_decides_how_far_it_goes(usd: float, first: str | None, topical: Any) -> None:
    """A reply of the Musician costs 0.0004 USD, and a third of the questions is theirs: 33 points for that."""
    _, cascade = FrugalGPT(scores=topical(), folds=0, usd_per_point=usd).cascade(Task("Which atoms?"), views())
    if usd == 0:
        assert cascade.members == ("Geographer",)
    elif first is not None:
        assert cascade.members[0] == first
        assert "Musician" not in cascade.members
    else:
        assert len(cascade.members) == 3


def test_the_worth_of_a_cascade_by_hand() -> None:
    """Two members, fees 1 and 10, a right reply worth 100: trusted and right, trusted and wrong, gone on to right."""
    scores = np.array([[1.0, 1.0], [0.0, 1.0], [0.0, 1.0], [1.0, np.nan]])
    trusted = np.array([[0.9, 0.0], [0.8, 0.0], [0.2, 0.0], [0.1, 0.0]])
    worth = _worth(scores, trusted, np.array([1.0, 10.0]), 100.0, (0, 1), (0.5,))
    assert worth[:3].tolist() == [99.0, -1.0, 89.0]
    assert np.isnan(worth[3])


async def test_an_artefact_asks_the_same(topical: Any, tmp_path: Any, scripted_pool: Callable[..., Any]) -> None:
    scores = topical()
    FrugalGPT.train(views(), tmp_path / "r", scores=scores)
    made = [FrugalGPT(path=str(tmp_path / "r"), usd_per_point=1), FrugalGPT(scores=scores, folds=0, usd_per_point=1)]
    cascades = [policy.cascade(Task("Which atoms?"), views())[1] for policy in made]
    assert cascades[0] == cascades[1]
    trajectories = [await rollout(policy, [LOST, SURE], scripted_pool) for policy in made]
    assert trajectories[0].notes == trajectories[1].notes
