"""BERT Router: a small encoder, fine-tuned to predict each LLM's score (the paper's baseline of that name; as
RouteLLM's classifier, arXiv 2406.18665, section 4.2, but for any number of LLMs)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from antiphon import models
from antiphon.errors import ConfigError

from ._descent import Parameters, arrays_of, descend, linear, tensor, tensors_of
from ._examples import Array, Arrays, Data, Inputs
from ._features import EMBEDDER, Features, encoder, weights_hash
from ._learned import Learned
from .mlp import cross_entropy

LONGEST = 48
"""Tokens of a question that are read."""


class BERT(Learned):
    """Asks the member of the highest score that a fine-tuned sentence encoder predicts from the question's words."""

    name = "bert"

    class Settings(Learned.Settings):
        """Attributes: layers: of the encoder, from the top, that are fine-tuned; the others stay as they are."""

        layers: Annotated[int, Field(ge=1)] = 2
        lr: Annotated[float, Field(gt=0)] = 2e-4
        epochs: Annotated[int, Field(ge=1)] = 6
        batch: Annotated[int, Field(ge=1)] = 32
        patience: Annotated[int, Field(ge=1)] = 1

    @classmethod
    def features(cls, texts: Sequence[str], settings: Any) -> Features:
        """Hidden states below the layers that are fine-tuned: these are computed once and not in every epoch."""
        path = models.find(EMBEDDER)
        layers = len(encoder(path)[1].encoder.layer)
        if settings.layers > layers:
            raise ConfigError(f"policy bert: training: layers is {settings.layers}, and {EMBEDDER} has {layers}")
        return hidden_states(path, layers - settings.layers)

    @classmethod
    def restore(cls, facts: Any, arrays: Arrays, source: str) -> Features:
        path = models.find(EMBEDDER)
        if weights_hash(path) != facts["sha256"]:
            raise ConfigError(f"{source} was fine-tuned from other weights of {EMBEDDER} than those in {path}")
        return hidden_states(path, facts["below"])

    @classmethod
    def fit(cls, data: Data, settings: Any) -> Arrays:
        import numpy as np
        import torch

        path = models.find(EMBEDDER)
        network = encoder(path)[1]
        below = len(network.encoder.layer) - settings.layers
        rng = torch.Generator().manual_seed(settings.seed)
        means = np.nan_to_num(np.nanmean(data.train.scores, axis=0), nan=0.5)
        start = {
            f"{at}.{name}": value
            for at in range(below, len(network.encoder.layer))
            for name, value in network.encoder.layer[at].named_parameters()
        }
        start["out"] = linear(rng, network.config.hidden_size, len(data.profiles))
        start["out_bias"] = torch.logit(tensor(means).clamp(0.02, 0.98))
        y, y_held = tensor(data.train.scores), tensor(data.validation.scores)

        def loss(parameters: Parameters, batch: Any) -> Any:
            return cross_entropy(_logits(parameters, data.train.vectors[batch.numpy()], path), y[batch])

        def held_out(parameters: Parameters) -> Any:
            return cross_entropy(_in_parts(parameters, data.validation.vectors, path), y_held)

        return arrays_of(descend(start, loss, held_out, rows=len(y), settings=settings))

    @classmethod
    def predict(cls, arrays: Arrays, inputs: Inputs) -> Array:
        import torch

        with torch.no_grad():
            logits = _in_parts(tensors_of(arrays), inputs.vectors, models.find(EMBEDDER))
        predicted: Array = torch.sigmoid(logits).numpy()
        return predicted


def hidden_states(path: Path, below: int) -> Features:
    """Texts -> (texts, `LONGEST`, hidden size), what layer number `below` is given; 0 after a text's end."""
    facts = {"kind": "hidden", "model": EMBEDDER, "sha256": weights_hash(path), "below": below}
    return _Hidden(lambda texts: _states(texts, path, below), {}, facts)


class _Hidden(Features):
    """Hidden states as they are, not scaled to a length."""

    def __call__(self, texts: Sequence[str]) -> Array:
        return self._vectors(texts)


def _states(texts: Sequence[str], path: Path, below: int) -> Array:
    import numpy as np
    import torch

    tokenizer, network = encoder(path)
    found = np.zeros((len(texts), LONGEST, network.config.hidden_size), dtype=np.float32)
    order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
    for start in range(0, len(order), 64):
        places = order[start : start + 64]
        batch = tokenizer(
            [texts[at] for at in places], padding=True, truncation=True, max_length=LONGEST, return_tensors="pt"
        )
        with torch.inference_mode():
            states = network(**batch, output_hidden_states=True).hidden_states[below]
        states = (states * batch["attention_mask"].unsqueeze(-1)).numpy()
        found[places, : states.shape[1]] = states
    return found


def _in_parts(parameters: Parameters, states: Array, path: Path) -> Any:
    import torch

    return torch.cat([_logits(parameters, states[at : at + 64], path) for at in range(0, len(states), 64)])


def _logits(parameters: Parameters, states: Array, path: Path) -> Any:
    """The fine-tuned layers over the states, mean-pooled, (questions, LLMs)."""
    import torch

    network = encoder(path)[1]
    mask = (states != 0).any(axis=2)
    longest = max(int(mask.sum(axis=1).max()), 1)
    hidden = torch.as_tensor(states[:, :longest])
    real = torch.as_tensor(mask[:, :longest])
    hide = torch.where(real, 0.0, torch.finfo(torch.float32).min)[:, None, None, :]
    for at in sorted({int(name.partition(".")[0]) for name in parameters if not name.startswith("out")}):
        own = {name.partition(".")[2]: value for name, value in parameters.items() if name.startswith(f"{at}.")}
        made = torch.func.functional_call(network.encoder.layer[at], own, (hidden, hide))
        hidden = made[0] if isinstance(made, tuple) else made
    weight = real.unsqueeze(-1).float()
    pooled = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1)
    return pooled @ parameters["out"] + parameters["out_bias"]
