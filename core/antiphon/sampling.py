"""How a local model's next token is drawn: temperature, top-p, top-k, and each request's own seed."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from antiphon.errors import GeneratorError, did_you_mean

_KNOWN = ("temperature", "top_p", "top_k", "seed")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn. A temperature of 0 is greedy; without a seed each run differs."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None

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


def draw(scores: Any, sampling: Sampling, random: Any) -> tuple[int, float]:
    """The next token and its log-probability.

    The log-probability is under the policy as sampled, softmax(scores / temperature), before top-k and top-p cut it
    (what trainers recompute); for greedy decoding it is at temperature 1.
    """
    import torch

    if sampling.temperature < 1e-5:
        logprobs = torch.log_softmax(scores, -1)
        token_id = int(torch.argmax(scores))
        return token_id, min(float(logprobs[token_id]), 0.0)
    logprobs = torch.log_softmax(scores / sampling.temperature, -1)
    kept = logprobs
    if 0 < sampling.top_k < kept.numel():
        kept = kept.masked_fill(kept < torch.topk(kept, sampling.top_k).values[-1], -math.inf)
    if sampling.top_p < 1:
        ordered, order = torch.sort(torch.softmax(kept, -1), descending=True)
        beyond = torch.cumsum(ordered, -1) - ordered >= sampling.top_p  # what comes before already suffices
        kept = kept.index_fill(0, order[beyond], -math.inf)
    token_id = int(torch.multinomial(torch.softmax(kept, -1), 1, generator=random))
    return token_id, min(float(logprobs[token_id]), 0.0)


def randomness(seed: int | None, position: int) -> Any:
    """A request's own source of randomness.

    It depends on `position`, the length of the context, so that a turn that is resumed goes on to new draws.
    """
    import torch

    mixed = secrets.randbits(63) if seed is None else (seed * 0x9E3779B97F4A7C15 + position) % (1 << 63)
    return torch.Generator().manual_seed(mixed)
