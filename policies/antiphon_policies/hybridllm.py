"""HybridLLM: is the small LLM's answer about as good as the large one's? (Ding et al., arXiv 2404.14618)."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from ._decision import POINT
from ._descent import Parameters, arrays_of, fit_labels, linear, tensor, tensors_of
from ._examples import Array, Arrays, Data, Inputs
from ._pair import PairRouter, advantage, only, pair_of, with_pair


class HybridLLM(PairRouter):
    """Asks the small (weak) member where its answer is likely not to be worse than that of the large (strong) one."""

    name = "hybridllm"

    class Settings(PairRouter.Settings):
        """Attributes:
        hidden: width of the hidden layer.
        drop: most points of quality that may be lost against always asking the large one, on the validation part.
        """

        hidden: Annotated[int, Field(ge=1)] = 64
        drop: Annotated[float, Field(ge=0)] = 0.0

    @classmethod
    def fit(cls, data: Data, settings: Any) -> Arrays:
        import numpy as np
        import torch

        pair = pair_of(data, settings, cls.name)
        gap = quality_gap(data.train.scores, pair)
        relaxed = relaxation(gap[np.isfinite(gap)])
        label, label_held = (
            tensor(np.where(np.isfinite(some), some <= relaxed, np.nan))
            for some in (gap, quality_gap(data.validation.scores, pair))
        )
        rng = torch.Generator().manual_seed(settings.seed)
        start = {
            "in": linear(rng, data.train.vectors.shape[1], settings.hidden),
            "in_bias": torch.zeros(settings.hidden),
            "out": linear(rng, settings.hidden, 1)[:, 0] * 0.1,
            "out_bias": torch.logit(torch.nanmean(label).clamp(0.02, 0.98)),
        }

        trained = fit_labels(data, (label, label_held), start, _logit, _error, settings=settings)
        arrays = with_pair(arrays_of(trained), pair, 0.0)
        arrays["llms"] = np.array([len(data.profiles)])
        held = Inputs(data.validation.vectors, data.profiles, data.llm_vectors, data.validation.texts)
        gains = advantage(cls.predict(arrays, held), pair)
        arrays["threshold"] = np.array([threshold(gains, data.validation.scores, pair, settings.drop)])
        return arrays

    @classmethod
    def predict(cls, arrays: Arrays, inputs: Inputs) -> Array:
        import numpy as np
        import torch

        parameters = tensors_of({name: arrays[name] for name in ("in", "in_bias", "out", "out_bias")})
        with torch.no_grad():
            small = _logit(parameters, tensor(inputs.vectors)).numpy()
        raw = np.zeros((len(small), int(arrays["llms"][0])))
        raw[:, int(arrays["pair"][0])] = small
        return only(raw, arrays["pair"])


def quality_gap(scores: Array, pair: tuple[int, int]) -> Array:
    """How much better the large one did, (questions,); NaN where either has no score."""
    found: Array = scores[:, pair[1]] - scores[:, pair[0]]
    return found


def relaxation(gaps: Array) -> float:
    """The least t of the most balanced labels `gap <= t`: it maximises the mean difference of two labels."""
    import numpy as np

    candidates = np.unique(np.concatenate([[0.0], gaps[gaps >= 0]]))
    shares = np.array([(gaps <= t).mean() for t in candidates])
    return float(candidates[np.argmax(shares * (1 - shares))])


def threshold(gains: Array, scores: Array, pair: tuple[int, int], drop: float) -> float:
    """The highest advantage of the large one that has to be reached, so that held-out questions lose at most `drop`
    points against always asking it, a standard error included: the luckiest of many thresholds would promise too much.
    """
    import numpy as np

    known = np.isfinite(quality_gap(scores, pair))
    gains, small, large = gains[known], scores[known, pair[0]], scores[known, pair[1]]
    if not len(gains):
        return 0.0
    order = np.argsort(gains, kind="stable")  # the least advantage goes to the small one first
    losses = np.concatenate([[0.0], (large - small)[order]])
    lost, squares = np.cumsum(losses) / len(gains), np.cumsum(losses**2) / len(gains)
    error = np.sqrt(np.maximum(squares - lost**2, 0.0) / len(gains))
    allowed = np.flatnonzero(lost + error <= drop * POINT + 1e-12)
    to_small = int(allowed.max())
    sorted_gains = gains[order]
    return float(sorted_gains[to_small]) if to_small < len(gains) else float("inf")


def _logit(parameters: Parameters, x: Any) -> Any:
    import torch

    return torch.relu(x @ parameters["in"] + parameters["in_bias"]) @ parameters["out"] + parameters["out_bias"]


def _error(logits: Any, labels: Any) -> Any:
    import torch

    known = torch.isfinite(labels)
    return torch.nn.functional.binary_cross_entropy_with_logits(logits[known], labels[known])
