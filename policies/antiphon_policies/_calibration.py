"""Turns what a method predicts into expected scores, and trusts it only as far as questions it has not seen confirm it.

A prediction x(q, l) of LLM l for question q is split into what it says of the question (d, the same for all LLMs) and
of the LLM on this question (r). The expected score is `mean(l) + a d(q) + b r(q, l)`, where a and b are the
least-squares slopes on the validation part, each shrunk by the positive-part rule of James and Stein (1961) with its
standard error over questions. Where nothing is confirmed, a = b = 0, and the router is the best single LLM.
"""

from __future__ import annotations

from collections.abc import Sequence

from ._examples import Array, Arrays


def fit(train: Array, train_scores: Array, held_out: Array, scores: Array, shrink: bool) -> Arrays:
    """The calibration, from predictions and scores (questions, LLMs) of both parts. NaN: not predicted, not scored.

    Args:
        shrink: False: slopes are taken as they are.
    """
    import numpy as np

    means = _column_means(train_scores)
    centre = _column_means(train)
    d, r = _parts(held_out - centre)
    missed = np.where(np.isfinite(held_out), scores - means, np.nan)
    question, member = _parts(missed)
    return {
        "means": means,
        "centre": centre,
        "slopes": np.array([_slope(d, question, shrink), _slope(r, member, shrink)]),
    }


def apply(calibration: Arrays, predicted: Array, columns: Sequence[int]) -> Array:
    """Expected scores, (questions, LLMs).

    Args:
        columns: of each column of `predicted`, its column in training; -1: an LLM that has joined since, whose mean is
            that of the others.
    """
    import numpy as np

    known = np.array(columns)
    means, centre = calibration["means"], calibration["centre"]
    usual, middle = _nanmean(means), _nanmean(centre)
    mean = np.where(known >= 0, means[known], usual)
    start = np.where(known >= 0, centre[known], middle)
    d, r = _parts(predicted - start)
    of_question, of_member = calibration["slopes"]
    return mean + of_question * d + of_member * r


def judge(calibration: Arrays, predicted: Array, train_scores: Array, scores: Array) -> dict[str, float]:
    """Mean scores on held-out questions: of the router's choice by quality alone, of the best single LLM of the
    training part, and of the oracle. (Training and calibration used these very questions: somewhat too good.)"""
    import numpy as np

    expected = apply(calibration, predicted, range(predicted.shape[1]))
    expected = np.where(np.isfinite(scores) & np.isfinite(expected), expected, -np.inf)
    rows = np.isfinite(expected).any(axis=1)
    picked = scores[rows, expected[rows].argmax(axis=1)]
    single = scores[:, int(np.nanargmax(_column_means(train_scores)))]
    return {
        "router": round(float(picked.mean()), 6) if len(picked) else float("nan"),
        "best_single": round(float(_nanmean(single)), 6),
        "oracle": round(float(_nanmean(np.nanmax(scores, axis=1))), 6),
    }


def _parts(values: Array) -> tuple[Array, Array]:
    """(questions, LLMs) -> the mean over LLMs, as a column, and what differs from it."""
    import numpy as np

    finite = np.isfinite(values)
    count = np.maximum(finite.sum(axis=1, keepdims=True), 1)
    common = np.where(finite, values, 0.0).sum(axis=1, keepdims=True) / count
    return np.where(finite, common, np.nan), values - common


def _slope(x: Array, y: Array, shrink: bool) -> float:
    """Of y on x through the origin, at least 0; standard error by question, since LLMs fail on the same ones."""
    import numpy as np

    both = np.isfinite(x) & np.isfinite(y)
    x, y = np.where(both, x, 0.0), np.where(both, y, 0.0)
    xy, xx = (x * y).sum(axis=1), (x * x).sum(axis=1)
    if xx.sum() <= 1e-12:
        return 0.0
    slope = float(xy.sum() / xx.sum())
    if slope <= 0 or not shrink:
        return max(slope, 0.0)
    error = float(((xy - slope * xx) ** 2).sum()) / float(xx.sum()) ** 2
    return slope * max(0.0, 1.0 - error / slope**2)


def _column_means(values: Array) -> Array:
    import numpy as np

    finite = np.isfinite(values)
    count = finite.sum(axis=0)
    total = np.where(finite, values, 0.0).sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _nanmean(values: Array) -> float:
    import numpy as np

    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("nan")
