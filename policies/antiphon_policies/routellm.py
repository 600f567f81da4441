"""RouteLLM's matrix factorisation: who would win on this question, learnt from preferences (Ong et al., arXiv
2406.18665, section 4.2)."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from ._descent import Parameters, arrays_of, fit_labels, linear, scores_of, tensor, tensors_of
from ._examples import Array, Arrays, Data, Inputs
from ._pair import PairRouter, advantage, only, pair_of, with_pair


class RouteLLM(PairRouter):
    """Asks the strong member where it is likely enough to win against the weak one."""

    name = "routellm"

    class Settings(PairRouter.Settings):
        """Attributes:
        width: of the LLMs' embeddings.
        strong_share: the threshold is set so that this share of questions goes to the strong member; None: the strong
            one is asked where its probability to win is at least a half.
        """

        width: Annotated[int, Field(ge=1)] = 64
        strong_share: Annotated[float | None, Field(ge=0, le=1)] = None

    @classmethod
    def fit(cls, data: Data, settings: Any) -> Arrays:
        import numpy as np
        import torch

        pair = pair_of(data, settings, cls.name)
        rng = torch.Generator().manual_seed(settings.seed)
        width = data.train.vectors.shape[1]
        start = {
            "in": linear(rng, width, settings.width),
            "in_bias": torch.ones(settings.width),  # a question's part of 1: at first the LLMs' own strengths decide
            "llms": torch.randn(len(data.profiles), settings.width, generator=rng) * 0.1,
            "out": linear(rng, settings.width, 1)[:, 0],
        }
        arrays = arrays_of(fit_labels(data, scores_of(data), start, _strengths, battles_lost, settings=settings))
        threshold = 0.0
        if settings.strong_share is not None:
            both = np.concatenate([data.train.vectors, data.validation.vectors])
            gains = advantage(_strengths(tensors_of(arrays), tensor(both)).numpy(), pair)
            threshold = float(np.quantile(gains, 1 - settings.strong_share))
        return with_pair(arrays, pair, threshold)

    @classmethod
    def predict(cls, arrays: Arrays, inputs: Inputs) -> Array:
        strengths = _strengths(tensors_of(arrays), tensor(inputs.vectors)).numpy()
        return only(strengths, arrays["pair"])


def _strengths(parameters: Parameters, x: Any) -> Any:
    """delta(LLM, question) of the paper, (questions, LLMs)."""
    return (x @ parameters["in"] + parameters["in_bias"]) * parameters["out"] @ parameters["llms"].T


def battles_lost(strengths: Any, scores: Any) -> Any:
    """Mean negative log-likelihood of who won, for each two LLMs on each question (Bradley and Terry); a tie is half a
    win for both.

    Args:
        strengths, scores: (questions, LLMs); NaN: not recorded.
    """
    import torch

    gain = scores[:, :, None] - scores[:, None, :]
    each = torch.isfinite(gain) & torch.ones(gain.shape[1:]).triu(1).bool()
    odds = (strengths[:, :, None] - strengths[:, None, :])[each]
    if not len(odds):  # nobody answered what another answered
        return strengths.sum() * 0
    return torch.nn.functional.binary_cross_entropy_with_logits(odds, (1 + torch.sign(gain[each])) / 2)
