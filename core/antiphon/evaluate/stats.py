"""Intervals and tests over questions: percentile bootstrap, and sign-flip permutation of paired differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from antiphon.errors import MissingExtra

if TYPE_CHECKING:
    from numpy import ndarray

    Array = ndarray[Any, Any]
    Values = Array | Sequence[float]

RESAMPLES = 2000
FLIPS = 10_000
SEED = 0
EXACT = 12
"""Differences other than 0 up to which all sign patterns are tried, 4,096 of them, and p is exact."""

_MOST_DRAWS = 200_000_000  # of one test; beyond it there are fewer flips
_CHUNK = 4_000_000  # numbers held at once


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and its 95 % interval; None for all where there is nothing to average."""

    mean: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Paired:
    """A mean difference on common questions, its 95 % interval, and the two-sided p that it is 0.

    None for all but `n` where there are no common questions.
    """

    difference: float | None
    low: float | None
    high: float | None
    p: float | None
    n: int


def numpy() -> Any:
    """The module numpy.

    Raises:
        MissingExtra: it is not installed.
    """
    try:
        import numpy
    except ImportError:
        raise MissingExtra("an evaluation's statistics", "evaluate") from None
    return numpy


def interval(values: Values) -> Interval:
    """The mean of the values, one per question, and the 2.5th and 97.5th percentile of its bootstrap distribution."""
    array = _array(values)
    return around(float(array.mean()), means(array)) if len(array) else Interval(None, None, None)


def around(mean: float, drawn: Values) -> Interval:
    """An interval from means that have been drawn."""
    np = numpy()
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Interval(mean, float(low), float(high))


def means(values: Values, stream: int = 0) -> Array:
    """`RESAMPLES` means of as many values drawn with replacement, always the same for the same values and stream.

    Where few values differ (exact match has two), how often each is drawn is drawn instead, from the multinomial
    distribution that it has: the same in law, and quick for any number of questions.
    """
    np, array = numpy(), _array(values)
    rng, n = np.random.default_rng((SEED, stream)), len(array)
    distinct, counts = np.unique(array, return_counts=True)
    if len(distinct) * 8 <= n:
        return cast("Array", rng.multinomial(n, counts / n, size=RESAMPLES) @ distinct / n)
    at_once = max(1, _CHUNK // n)
    chunks = [min(at_once, RESAMPLES - done) for done in range(0, RESAMPLES, at_once)]
    parts = [array[rng.integers(0, n, size=(size, n))].mean(axis=1) for size in chunks]
    return cast("Array", np.concatenate(parts))


def paired(differences: Values) -> Paired:
    """Judge differences, one per question."""
    if not len(differences):
        return Paired(None, None, None, None, 0)
    found = interval(differences)
    return Paired(found.mean, found.low, found.high, sign_flip(differences), len(differences))


def sign_flip(differences: Values) -> float:
    """Two-sided p of the mean difference if each difference could as well have had the other sign.

    Exact where at most `EXACT` differences are not 0; else from `FLIPS` random patterns (fewer for very many distinct
    differences), counting the observed one among them, so that p is never 0.
    """
    np, array = numpy(), _array(differences)
    array = array[array != 0]
    if not len(array):
        return 1.0
    sizes, counts = np.unique(np.abs(array), return_counts=True)
    enough = abs(float(array.sum())) - 1e-9 * float(sizes @ counts)  # sums of floats differ by their order alone
    if len(array) <= EXACT:
        patterns = (np.arange(2 ** len(array))[:, None] >> np.arange(len(array))) & 1
        sums = (1 - 2 * patterns) @ np.abs(array)
        return float((np.abs(sums) >= enough).mean())
    rng, flips = np.random.default_rng(SEED), int(min(FLIPS, max(RESAMPLES, _MOST_DRAWS // len(sizes))))
    at_once, extreme = max(1, _CHUNK // len(sizes)), 0
    for done in range(0, flips, at_once):
        kept = rng.binomial(counts, 0.5, size=(min(at_once, flips - done), len(sizes)))
        extreme += int((np.abs((2 * kept - counts) @ sizes) >= enough).sum())
    return (extreme + 1) / (flips + 1)


def _array(values: Values) -> Array:
    return cast("Array", numpy().asarray(values, dtype=float))
