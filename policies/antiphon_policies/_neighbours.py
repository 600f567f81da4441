"""Finds the questions most like a question: cosine of TF-IDF vectors (Salton and Buckley, "Term-weighting approaches in
automatic text retrieval", 1988), without a dependency."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from heapq import nlargest

from ._scores import words


class Neighbours:
    """An inverted index over texts. A word weighs tf * (ln((1 + N) / (1 + df)) + 1); vectors have length 1."""

    def __init__(self, texts: Sequence[str]) -> None:
        counts = [Counter(words(text)) for text in texts]
        holders = Counter(word for count in counts for word in count)
        self._rarity = {word: math.log((1 + len(texts)) / (1 + df)) + 1 for word, df in holders.items()}
        self._weights: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for place, count in enumerate(counts):
            for word, weight in self._vector(count).items():
                self._weights[word].append((place, weight))

    def nearest(self, text: str, k: int, without: int | None = None) -> list[int]:
        """The places of the `k` texts most like this one, nearest first; those that share no word are not among them.

        Args:
            without: a place that does not count.
        """
        likeness: dict[int, float] = defaultdict(float)
        for word, weight in self._vector(Counter(words(text))).items():
            for place, other in self._weights.get(word, ()):
                likeness[place] += weight * other
        if without is not None:
            likeness.pop(without, None)
        return nlargest(k, likeness, key=lambda place: (likeness[place], -place))

    def _vector(self, count: Counter[str]) -> dict[str, float]:
        weights = {word: times * self._rarity.get(word, 0.0) for word, times in count.items()}
        length = math.sqrt(sum(weight * weight for weight in weights.values()))
        return {word: weight / length for word, weight in weights.items() if weight} if length else {}
