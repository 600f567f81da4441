"""A batch of scored samples as tensors, and the figures of an update."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from antiphon.train.algorithms import kl, masked_mean

if TYPE_CHECKING:
    from antiphon.train.packing import Row
    from antiphon.train.samples import Sample


@dataclass(frozen=True, slots=True)
class Scored:
    """A sample with what it earned. Samples of one `group` answer the same question, and are compared."""

    sample: Sample
    reward: float
    group: str


@dataclass(slots=True)
class Batch:
    """Tensors of [samples, response tokens]; those that are None are filled in where the algorithm needs them.

    Attributes:
        rewards: [samples].
        mask: True for the tokens to learn from.
        policy: True for the tokens that the policy wrote; the same but for an ablation.
        last: True for the last token to learn from in each sample: it earns the reward.
        sampled: log-probabilities in the rollout; NaN where there are none.
        current: those of the network before the first step; NaN where it has not been asked.
        old: the same, where they are needed before the loss.
        values: of the network before the first step.
    """

    samples: tuple[Sample, ...]
    groups: tuple[str, ...]
    rewards: Tensor
    mask: Tensor
    policy: Tensor
    last: Tensor
    sampled: Tensor
    current: Tensor
    advantages: Tensor
    old: Tensor | None = None
    reference: Tensor | None = None
    values: Tensor | None = None
    returns: Tensor | None = None

    @classmethod
    def of(cls, batch: Sequence[Scored], *, mask_information: bool, device: torch.device) -> Self:
        samples = tuple(scored.sample for scored in batch)
        shape = (len(samples), max(len(sample.response_ids) for sample in samples))
        policy = torch.zeros(shape, dtype=torch.bool)
        there = torch.zeros(shape, dtype=torch.bool)
        sampled = torch.full(shape, torch.nan)
        for index, sample in enumerate(samples):
            size = len(sample.response_ids)
            there[index, :size] = True
            policy[index, :size] = torch.tensor(sample.mask, dtype=torch.bool)
            if sample.logprobs is not None:
                sampled[index, :size] = torch.tensor(sample.logprobs)
        mask = policy if mask_information else there
        empty = torch.full(shape, torch.nan)
        return cls(
            samples,
            tuple(scored.group for scored in batch),
            torch.tensor([scored.reward for scored in batch], dtype=torch.float32, device=device),
            mask.to(device),
            policy.to(device),
            (mask & (mask.flip(1).cumsum(1).flip(1) == 1)).to(device),
            sampled.masked_fill(~policy, torch.nan).to(device),
            empty.to(device),
            torch.zeros(shape, device=device),
        )

    @property
    def spoken(self) -> Tensor:
        """[samples], True where there is something to learn from."""
        return self.mask.any(1)

    def blank(self) -> Tensor:
        """A new [samples, response tokens] of zeros."""
        return torch.zeros_like(self.advantages)

    def figures(self) -> dict[str, float]:
        """What the batch says of the policy before the update; see `antiphon.train.learner.Learner.update`."""
        figures = {"tokens": float(self.policy.sum())}
        seen = self.policy & ~self.sampled.isnan()
        if seen.any():
            figures["entropy"] = -masked_mean(self.sampled, seen).item()
        asked = seen & ~self.current.isnan()
        if asked.any():
            figures["mismatch"] = masked_mean((self.sampled - self.current).abs(), asked).item()
        if self.reference is not None:
            asked = self.mask & ~self.current.isnan()
            figures["kl"] = masked_mean(kl(self.current, self.reference, "k3"), asked).item()
        if self.mask.sum() > 1:
            figures["advantage_std"] = self.advantages[self.mask].std().item()
        if self.values is not None and self.returns is not None and self.mask.sum() > 1:
            errors, returns = (self.returns - self.values)[self.mask], self.returns[self.mask]
            if (spread := returns.var()) > 0:
                figures["value_explained"] = 1 - (errors.var() / spread).item()
        return figures


def put(into: Tensor, row: Row, values: Tensor) -> None:
    """Write what belongs to the scored tokens of a row to their places in [samples, response tokens]."""
    into[row.samples, row.tokens] = values.detach()


class Figures:
    """Weighted means by name."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = defaultdict(float)
        self._counts: dict[str, float] = defaultdict(float)

    def add(self, name: str, total: float, count: float = 1.0) -> None:
        """`total` over `count` things."""
        self._sums[name] += total
        self._counts[name] += count

    def means(self) -> dict[str, float]:
        return {name: total / self._counts[name] for name, total in self._sums.items() if self._counts[name]}
