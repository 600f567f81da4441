"""How a local model's next token is drawn: temperature, top-p, top-k, and each request's own seed."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from antiphon.errors import GeneratorError, did_you_mean

_GREEDY = 1e-5  # a temperature below is none
_KNOWN = ("temperature", "top_p", "top_k", "seed")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn. A temperature of 0 is greedy; without a seed each run differs."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None

    @property
    def greedy(self) -> bool:
        return self.temperature < _GREEDY

    @property
    def cuts(self) -> bool:
        """Top-k or top-p leaves tokens out."""
        return not self.greedy and (self.top_k > 0 or self.top_p < 1)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Sampling:
        """Check sampling options.

        Raises:
            GeneratorError: an unknown option or a value out of range.
        """
        for key in options:
            if key not in _KNOWN:
                raise GeneratorError(f"unknown sampling option {key!r}{did_you_mean(key, _KNOWN)}")
        given = {key: value for key, value in options.items() if value is not None}
        try:
            made = cls(
                float(given.get("temperature", 1.0)),
                float(given.get("top_p", 1.0)),
                max(0, int(given.get("top_k", 0))),  # servers write -1 for "all"
                int(given["seed"]) if "seed" in given else None,
            )
        except (TypeError, ValueError) as error:
            raise GeneratorError(f"sampling options must be numbers: {error}") from None
        if not (math.isfinite(made.temperature) and made.temperature >= 0 and 0 < made.top_p <= 1):
            raise GeneratorError(
                f"temperature must be at least 0 and top_p within (0, 1], got {made.temperature:g} and {made.top_p:g}"
            )
        return made


def draw(scores: Any, samplings: Sequence[Sampling], sources: Sequence[Any]) -> list[tuple[int, float]]:
    """The next token of each row and its log-probability.

    The log-probability is under the policy as sampled, softmax(scores / temperature), before top-k and top-p cut it
    (what trainers recompute); for greedy decoding it is at temperature 1. A row draws one number of its own source and
    takes the token in whose share of the cumulative probability it falls, so that its company does not matter.

    Args:
        scores: [rows, vocabulary].
        sources: of each row, from `randomness`.
    """
    import torch

    greedy = [sampling.greedy for sampling in samplings]
    temperatures = [1.0 if cold else s.temperature for cold, s in zip(greedy, samplings, strict=True)]
    scores = scores.float()
    if any(temperature != 1.0 for temperature in temperatures):
        scores = scores / torch.tensor(temperatures)[:, None]
    probabilities = torch.softmax(scores, -1)
    kept = probabilities
    if any(sampling.cuts for sampling in samplings):
        kept = torch.stack([_cut(row, s) if s.cuts else row for row, s in zip(kept, samplings, strict=True)])
    shares = torch.cumsum(kept, -1, dtype=torch.float64)
    uniform = torch.cat([torch.rand(1, dtype=torch.float64, generator=source) for source in sources])[:, None]
    ids = torch.searchsorted(shares, uniform * shares[:, -1:], right=True)[:, 0]
    ids = ids.clamp_(max=scores.shape[-1] - 1)
    if any(greedy):
        ids = torch.where(torch.tensor(greedy), scores.max(-1).indices, ids)
    logprobs = probabilities.gather(-1, ids[:, None])[:, 0].log()
    return [(int(i), min(float(p), 0.0)) for i, p in zip(ids.tolist(), logprobs.tolist(), strict=True)]


def _cut(probabilities: Any, sampling: Sampling) -> Any:
    """One row's probabilities, 0 for what top-k and top-p leave out."""
    import torch

    if 0 < sampling.top_k < probabilities.numel():
        least = torch.topk(probabilities, sampling.top_k).values[-1]
        probabilities = probabilities.masked_fill(probabilities < least, 0.0)
    if sampling.top_p < 1:
        ordered, order = torch.sort(probabilities, descending=True)
        before = torch.cumsum(ordered, -1) - ordered
        beyond = before >= sampling.top_p * ordered.sum()  # what comes before already suffices
        probabilities = probabilities.index_fill(0, order[beyond], 0.0)
    return probabilities


def seed_at(seed: int, position: int) -> int:
    """The seed at a length of the context, 63 bits: so that a turn that is resumed goes on to new draws."""
    return (seed * 0x9E3779B97F4A7C15 + position) % (1 << 63)


def randomness(seed: int | None, position: int) -> Any:
    """A request's own source of randomness, at `position`: the length of the context."""
    import torch

    return torch.Generator().manual_seed(secrets.randbits(63) if seed is None else seed_at(seed, position))
