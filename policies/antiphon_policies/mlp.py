"""MLP Router: a small network predicts each LLM's score from the question (the paper's baseline of that name; the
predictor of RouterBench, arXiv 2403.12031, section 4)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from pydantic import Field

from ._descent import Parameters, arrays_of, fit_labels, linear, scores_of, tensor, tensors_of
from ._examples import Array, Arrays, Data, Inputs
from ._learned import Learned


class MLP(Learned):
    """Asks the member of the highest score that two layers of perceptrons predict from the question's vector."""

    name = "mlp"

    class Settings(Learned.Settings):
        """Attributes: hidden: width of the hidden layer; dropout: of its units, in training."""

        hidden: Annotated[int, Field(ge=1)] = 128
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.2

    @classmethod
    def fit(cls, data: Data, settings: Any) -> Arrays:
        import torch

        start = torch.logit(tensor(_means(data.train.scores)).clamp(0.02, 0.98))
        return arrays_of(fit_perceptrons(data, scores_of(data), start, cross_entropy, settings))

    @classmethod
    def predict(cls, arrays: Arrays, inputs: Inputs) -> Array:
        import torch

        with torch.no_grad():
            predicted: Array = torch.sigmoid(perceptrons(tensors_of(arrays), tensor(inputs.vectors))).numpy()
        return predicted


def cross_entropy(logits: Any, scores: Any) -> Any:
    """Mean binary cross-entropy with scores from 0 to 1 as soft labels, over those that are recorded."""
    import torch

    known = torch.isfinite(scores)
    return torch.nn.functional.binary_cross_entropy_with_logits(logits[known], scores[known].clamp(0, 1))


def fit_perceptrons(
    data: Data, labels: tuple[Any, Any], start: Any, loss: Callable[[Any, Any], Any], settings: Any
) -> Parameters:
    """Two layers, trained.

    Args:
        labels: of the training and the validation part.
        start: what each LLM's output starts from, (LLMs,).
        loss: of outputs and labels.
        settings: `hidden`, `dropout`, and those of `descend`.
    """
    import torch

    rng = torch.Generator().manual_seed(settings.seed)
    layers = {
        "in": linear(rng, data.train.vectors.shape[1], settings.hidden),
        "in_bias": torch.zeros(settings.hidden),
        "out": linear(rng, settings.hidden, len(start)) * 0.1,
        "out_bias": start,
    }
    dropping = partial(perceptrons, dropout=settings.dropout)
    return fit_labels(data, labels, layers, perceptrons, loss, settings=settings, in_training=dropping)


def perceptrons(parameters: Parameters, x: Any, dropout: float = 0.0) -> Any:
    """Two layers: vectors (questions, width) to a number for each LLM, (questions, LLMs)."""
    import torch

    hidden = torch.relu(x @ parameters["in"] + parameters["in_bias"])
    hidden = torch.nn.functional.dropout(hidden, dropout, training=dropout > 0)
    return hidden @ parameters["out"] + parameters["out_bias"]


def _means(scores: Array) -> Array:
    import numpy as np

    return np.nan_to_num(np.nanmean(scores, axis=0), nan=0.5)
