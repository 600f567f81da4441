"""Packs samples into rows in which a beginning that they share stands once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from antiphon.train.samples import Sample


@dataclass(frozen=True, slots=True)
class Branch:
    """Tokens `start` to `end` of a row, and what they see: the row's tokens `path`, which end with themselves.

    Attributes:
        path: [tokens seen], indices into the row, in their order in the sample.
        later: [branch, branch], True where a column is later than its line: what a token does not see of its branch.
    """

    start: int
    end: int
    path: Tensor
    later: Tensor


@dataclass(frozen=True, slots=True)
class Row:
    """Samples as one row of T tokens, a tree: each sample is a path from its root.

    Attributes:
        ids: [1, T]; `positions` likewise: each token's place in its sample.
        branches: they make up the row, in order.
        at: [M], for each token that is scored: where in the row the context before it ends.
        targets: [M], its id.
        samples, tokens: [M], of which sample (its index) and which response token it is.
    """

    ids: Tensor
    positions: Tensor
    branches: tuple[Branch, ...]
    at: Tensor
    targets: Tensor
    samples: Tensor
    tokens: Tensor


def pack(samples: Sequence[tuple[int, Sample]], scored: Tensor, limit: int) -> Iterator[Row]:
    """Rows of at most `limit` tokens each, or of one sample.

    Args:
        samples: index and sample, each with a prompt.
        scored: [samples, tokens], by index and response token: which tokens are to be scored. Rows are made on its
            device.
    """
    builder = _Builder(scored)
    for index, sample in sorted(samples, key=lambda item: (item[1].prompt_ids, item[1].response_ids)):
        ids = [*sample.prompt_ids, *sample.response_ids]
        if builder.ids and len(builder.ids) + len(ids) - builder.shared(ids) > limit:
            yield builder.row()
            builder = _Builder(scored)
        builder.add(index, ids, len(sample.prompt_ids))
    if builder.ids:
        yield builder.row()


class _Builder:
    """A row in the making. Samples come sorted, so that each shares the most with the one before it."""

    def __init__(self, scored: Tensor) -> None:
        self._scored = scored
        self.ids: list[int] = []
        self._positions: list[int] = []
        self._branches: list[Branch] = []
        self._last: list[int] = []  # the ids of the sample before
        self._path: list[int] = []  # and where in the row they stand
        self._at: list[int] = []
        self._targets: list[int] = []
        self._samples: list[int] = []
        self._tokens: list[int] = []

    def shared(self, ids: Sequence[int]) -> int:
        """How many tokens at its beginning the row holds already."""
        same = 0
        for one, other in zip(ids, self._last, strict=False):
            if one != other:
                break
            same += 1
        return same

    def add(self, index: int, ids: list[int], prompt: int) -> None:
        shared, start = self.shared(ids), len(self.ids)
        self.ids += ids[shared:]
        self._positions += range(shared, len(ids))
        self._path = [*self._path[:shared], *range(start, len(self.ids))]
        self._last = ids
        if shared < len(ids):
            self._branches.append(self._branch(start))
        for token in self._scored[index].nonzero()[:, 0].tolist():
            self._at.append(self._path[prompt + token - 1])
            self._targets.append(ids[prompt + token])
            self._samples.append(index)
            self._tokens.append(token)

    def row(self) -> Row:
        lists = (self._at, self._targets, self._samples, self._tokens)
        return Row(
            self._tensor([self.ids]), self._tensor([self._positions]), tuple(self._branches), *map(self._tensor, lists)
        )

    def _branch(self, start: int) -> Branch:
        size, device = len(self.ids) - start, self._scored.device
        later = torch.ones(size, size, dtype=torch.bool, device=device).triu(1)
        return Branch(start, len(self.ids), self._tensor(self._path), later)

    def _tensor(self, values: list[int] | list[list[int]]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self._scored.device)
