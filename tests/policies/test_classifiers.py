"""Elo, SVM and TO-Router: their arithmetic by hand, and beside the library's own."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import numpy as np
import torch

from antiphon_policies._examples import Data, Inputs, Part, Profile
from antiphon_policies.elo import Elo, ratings
from antiphon_policies.svm import SVM
from antiphon_policies.to_router import soft_labels

NAN = math.nan


def data(vectors: Any, scores: Any) -> Data:
    part = Part(tuple("q" for _ in vectors), np.array(vectors, dtype=np.float32), np.array(scores), np.array(scores))
    return Data(part, part, tuple(Profile(name, name, None, None) for name in "ABC"[: len(scores[0])]))


def inputs(vectors: Any) -> Inputs:
    found = np.array(vectors, dtype=np.float32)
    profiles = tuple(Profile(name, name, None, None) for name in "AB")
    return Inputs(vectors=found, profiles=profiles, llm_vectors=None, texts=tuple("q" for _ in found))


def test_ratings_are_the_logarithm_of_the_odds() -> None:
    """Three wins to one: ln 3 apart. A draw is half a win each, and who never lost has a rating all the same."""
    wins = np.array([[[0.0, 3.0], [1.0, 0.0]], [[0.0, 0.5], [0.5, 0.0]], [[0.0, 4.0], [0.0, 0.0]]])
    found = ratings(wins, ridge=1e-6)
    assert found[0, 0] - found[0, 1] == pytest.approx(math.log(3), abs=1e-4)
    assert found[1].tolist() == pytest.approx([0, 0])
    assert found[2, 0] - found[2, 1] > 5
    assert np.isfinite(ratings(wins, ridge=1.0)).all()


def test_likeness_of_questions_weighs_battles_and_a_gamma_of_one_does_not() -> None:
    """A wins twice on questions of one kind, B three times on those of another; C has no score anywhere."""
    east, west = [1.0, 0.0], [0.0, 1.0]
    fought = data([east] * 2 + [west] * 3, [[1.0, 0.0, NAN]] * 2 + [[0.0, 1.0, NAN]] * 3)
    near = Elo.predict(Elo.fit(fought, Elo.Settings()), inputs([east, west]))
    assert near.argmax(axis=1).tolist() == [0, 1]
    assert near[:, 2].tolist() == pytest.approx([0, 0])
    blind = Elo.predict(Elo.fit(fought, Elo.Settings(gamma=1)), inputs([east, west]))
    assert blind.argmax(axis=1).tolist() == [1, 1]
    assert blind[0] == pytest.approx(blind[1])


def test_what_an_svm_keeps_gives_the_margins_of_the_library() -> None:
    from sklearn.svm import SVC

    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(80, 6)).astype(np.float32)
    first = vectors[:, 0] + 0.3 * rng.normal(size=80) > 0
    scores = np.stack([first, ~first], axis=1).astype(float)
    arrays = SVM.fit(data(vectors, scores), SVM.Settings(c=2.0))
    own = SVC(C=2.0, kernel="rbf", gamma=1 / 6, class_weight="balanced").fit(vectors, first)
    unseen = rng.normal(size=(20, 6)).astype(np.float32)
    assert SVM.predict(arrays, inputs(unseen))[:, 0] == pytest.approx(own.decision_function(unseen), abs=1e-4)
    assert len(arrays["support"]) < 80


def test_an_svm_without_a_difference_says_nothing() -> None:
    arrays = SVM.fit(data([[1.0, 0.0]] * 4, [[1.0, 1.0]] * 4), SVM.Settings())
    assert SVM.predict(arrays, inputs([[0.0, 1.0]])).tolist() == [[0.0, 0.0]]


def test_soft_labels_by_hand() -> None:
    """exp(1 / 0.5) : exp(0) among those that have a score."""
    [labels] = soft_labels(torch.tensor([[1.0, NAN, 0.0]]), 0.5).tolist()
    assert labels == pytest.approx([math.e**2 / (1 + math.e**2), 0, 1 / (1 + math.e**2)])
