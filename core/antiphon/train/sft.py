"""Supervised fine-tuning: raise the probability of given tokens after given contexts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from antiphon.errors import ConfigError
from antiphon.tables import Count, Table
from antiphon.train.samples import Sample

OnStep = Callable[[int, Mapping[str, float]], None]
"""`on_step(step, row)`: step from 1; row: loss, grad_norm, lr, tokens (learnt ones of the batch)."""


@dataclass(frozen=True, slots=True)
class Example:
    """One token sequence.

    Attributes:
        mask: one per token: 1 where the token is to be learnt from those before it, else 0. The first cannot be.
    """

    ids: Sequence[int]
    mask: Sequence[int]

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.mask) or not any(self.mask[1:]):
            raise ConfigError(
                f"an example of {len(self.ids)} tokens has a mask of {len(self.mask)}, {sum(self.mask[1:])} of them 1 "
                "after the first: give a mask as long as the tokens, with a 1 in it"
            )


class SFTSettings(Table):
    """How to fine-tune.

    Attributes:
        warmup: steps in which the learning rate rises to `lr`.
        schedule: after that it falls to 0 in a line, or stays.
        batch: examples a step.
        steps: how many, in place of `epochs`.
        micro_tokens: most tokens that go through the network at once, a beginning that examples share counted once.
        clip: largest norm of the gradient.
        seed: of the order of the examples, a new one each epoch.
    """

    lr: Annotated[float, Field(gt=0)] = 1e-3
    warmup: Annotated[int, Field(strict=True, ge=0)] = 10
    schedule: Literal["linear", "constant"] = "linear"
    batch: Count = 32
    epochs: Count = 1
    steps: Count | None = None
    micro_tokens: Count = 2048
    clip: Annotated[float, Field(gt=0)] = 1.0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    seed: int = 0

    def total_steps(self, examples: int) -> int:
        """How many steps that is for so many examples."""
        return self.steps if self.steps is not None else self.epochs * -(-examples // self.batch)


def finetune(
    network: Any, examples: Sequence[Example], settings: SFTSettings | None = None, *, on_step: OnStep | None = None
) -> None:
    """Train what is trainable in `network` by AdamW on the mean negative log-likelihood of the learnt tokens.

    Raises:
        ConfigError: no examples, or an architecture that `antiphon.train.scoring.Scorer` refuses.
    """
    import torch

    from antiphon.train.packing import pack
    from antiphon.train.scoring import Scorer

    settings = settings or SFTSettings()
    if not examples:
        raise ConfigError("there is nothing to learn from: give at least one example")
    weights = [weight for weight in network.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=settings.lr, weight_decay=settings.weight_decay)
    total = settings.total_steps(len(examples))
    scorer = Scorer(network)
    for step, batch in zip(range(1, total + 1), _batches(examples, settings), strict=False):
        lr = settings.lr * _pace(step, total, settings)
        for group in optimizer.param_groups:
            group["lr"] = lr
        samples = [Sample([*one.ids[:1]], [*one.ids[1:]], [*one.mask[1:]], None) for one in batch]
        learnt = [torch.tensor(sample.mask, dtype=torch.bool, device=scorer.device) for sample in samples]
        scored = torch.nn.utils.rnn.pad_sequence(learnt, batch_first=True)
        tokens, loss = int(scored.sum()), 0.0
        with scorer.ready():
            for row in pack(list(enumerate(samples)), scored, settings.micro_tokens):
                part = -scorer(row).logprobs.sum() / tokens
                part.backward()
                loss += part.item()
        norm = torch.nn.utils.clip_grad_norm_(weights, settings.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if on_step is not None:
            on_step(step, {"loss": loss, "grad_norm": float(norm), "lr": lr, "tokens": tokens})


def _batches(examples: Sequence[Example], settings: SFTSettings) -> Iterator[list[Example]]:
    """Batches without end: each epoch holds every example once, in an order of its own."""
    rng = random.Random(settings.seed)
    while True:
        order = rng.sample(range(len(examples)), len(examples))
        for at in range(0, len(order), settings.batch):
            yield [examples[index] for index in order[at : at + settings.batch]]


def _pace(step: int, total: int, settings: SFTSettings) -> float:
    """The learning rate of a step, as a share of the highest."""
    if step < settings.warmup:
        return step / settings.warmup
    if settings.schedule == "constant":
        return 1.0
    return (total - step + 1) / (total - min(settings.warmup, total) + 1)
