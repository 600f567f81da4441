"""SVM router: a support vector machine (Cortes and Vapnik 1995) tells which LLM is the best on a question."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from ._examples import Array, Arrays, Data, Inputs
from ._learned import Learned


class SVM(Learned):
    """Asks the member of the largest margin in a machine of one class for each member, with a Gaussian kernel."""

    name = "svm"

    class Settings(Learned.Settings):
        """Attributes: c: what a training question on the wrong side costs; gamma: of the kernel, times 1 / width."""

        c: Annotated[float, Field(gt=0)] = 1.0
        gamma: Annotated[float, Field(gt=0)] = 1.0

    @classmethod
    def fit(cls, data: Data, settings: Any) -> Arrays:
        """One machine an LLM: does it do at least as well as all others? A question where that holds for all says
        nothing and is left out; the others weigh by how far the best is from the worst."""
        import numpy as np
        from sklearn.svm import SVC

        scores = data.train.scores
        spread = np.nanmax(scores, axis=1) - np.nanmin(scores, axis=1)
        told = spread > 0
        x, y, weights = data.train.vectors[told], scores[told], spread[told]
        gamma = settings.gamma / data.train.vectors.shape[1]
        support, coefficients, intercepts = x, np.zeros((scores.shape[1], len(x))), np.zeros(scores.shape[1])
        for column in range(scores.shape[1]):
            known = np.flatnonzero(np.isfinite(y[:, column]))
            best = y[known, column] >= np.nanmax(y[known], axis=1) if len(known) else np.zeros(0, dtype=bool)
            if best.all() or not best.any():
                continue
            machine = SVC(C=settings.c, kernel="rbf", gamma=gamma, class_weight="balanced", random_state=settings.seed)
            machine.fit(x[known], best, sample_weight=weights[known])
            coefficients[column, known[machine.support_]] = machine.dual_coef_[0]
            intercepts[column] = machine.intercept_[0]
        used = np.abs(coefficients).sum(axis=0) > 0
        return {
            "support": support[used],
            "coefficients": coefficients[:, used],
            "intercepts": intercepts,
            "gamma": np.array([gamma]),
        }

    @classmethod
    def predict(cls, arrays: Arrays, inputs: Inputs) -> Array:
        import numpy as np

        support = arrays["support"]
        distances = (inputs.vectors**2).sum(axis=1)[:, None] + (support**2).sum(axis=1) - 2 * inputs.vectors @ support.T
        kernel = np.exp(-arrays["gamma"][0] * np.maximum(distances, 0))
        margins: Array = kernel @ arrays["coefficients"].T + arrays["intercepts"]
        return margins
