"""Elo router: ratings of the LLMs from who did better than whom, on questions like this one most of all (Bradley and
Terry 1952; the similarity-weighted ranking of RouteLLM, arXiv 2406.18665, section 4.2)."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from ._examples import Array, Arrays, Data, Inputs
from ._learned import Learned

STEPS = 30
"""Newton steps at most; fewer than ten are usual."""


class Elo(Learned):
    """Asks the member of the highest rating on this question."""

    name = "elo"

    class Settings(Learned.Settings):
        """Attributes:
        gamma: a battle weighs gamma^(1 + s), where s is its question's similarity to the asked one over that of the
            most similar; 1: the same ratings for every question, as in an arena.
        ridge: pulls ratings towards the mean, in battles; someone who never lost has a rating all the same.
        """

        gamma: Annotated[float, Field(ge=1)] = 10.0
        ridge: Annotated[float, Field(gt=0)] = 1.0

    @classmethod
    def fit(cls, data: Data, settings: Any) -> Arrays:
        """What was fought over: questions' vectors, and wins (questions, LLMs, LLMs): the row's over the column's, a
        half each for a draw."""
        import numpy as np

        scores = data.train.scores
        both = np.isfinite(scores)[:, :, None] & np.isfinite(scores)[:, None, :]
        wins = np.where(scores[:, :, None] > scores[:, None, :], 1.0, 0.0)
        wins += np.where(scores[:, :, None] == scores[:, None, :], 0.5, 0.0)
        wins = np.where(both & ~np.eye(scores.shape[1], dtype=bool), wins, 0.0)
        return {
            "vectors": data.train.vectors,
            "wins": wins.astype(np.float32),
            "gamma": np.array([settings.gamma]),
            "ridge": np.array([settings.ridge]),
        }

    @classmethod
    def predict(cls, arrays: Arrays, inputs: Inputs) -> Array:
        """Ratings in natural logarithms of odds (x 400 / ln 10: Elo points)."""
        import numpy as np

        similarity = _unit(inputs.vectors) @ _unit(arrays["vectors"]).T
        similarity = similarity / np.maximum(similarity.max(axis=1, keepdims=True), 1e-9)
        weights = arrays["gamma"][0] ** np.clip(similarity, -1, 1)  # gamma^(1 + s) but for a common factor
        weights *= weights.shape[1] / weights.sum(axis=1, keepdims=True)
        wins = np.einsum("qn,nij->qij", weights, arrays["wins"], optimize=True)
        return ratings(wins, float(arrays["ridge"][0]))


def ratings(wins: Array, ridge: float) -> Array:
    """Bradley-Terry ratings, (questions, LLMs), of the highest penalised likelihood of the wins, by Newton's method.

    Args:
        wins: (questions, LLMs, LLMs).
        ridge: of the penalty ridge / 2 * |ratings|^2.
    """
    import numpy as np

    battles = wins + wins.transpose(0, 2, 1)
    found = np.zeros(wins.shape[:2])
    diagonal = np.eye(wins.shape[1])
    for _ in range(STEPS):
        win = 1 / (1 + np.exp(found[:, None, :] - found[:, :, None]))
        gradient = (wins - battles * win).sum(axis=2) - ridge * found
        curvature = battles * win * (1 - win)
        hessian = diagonal * (curvature.sum(axis=2) + ridge)[:, :, None] - curvature
        step = np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0]
        found += np.clip(step, -1, 1)
        if np.abs(step).max() < 1e-6:
            break
    return found


def _unit(vectors: Array) -> Array:
    import numpy as np

    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
