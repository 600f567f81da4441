"""Trains a few tensors: AdamW, early stopping on a validation loss, one thread and fixed seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ._examples import Array, Arrays, Data

Parameters = dict[str, Any]
"""Name -> torch tensor."""


def descend(
    parameters: Parameters,
    loss: Callable[[Parameters, Any], Any],
    held_out: Callable[[Parameters], Any],
    *,
    rows: int,
    settings: Any,
) -> Parameters:
    """The parameters of the lowest validation loss, those given among them; what was given is not changed.

    Args:
        loss: of a batch, from the parameters and the batch's row numbers (a tensor).
        held_out: the validation loss.
        rows: how many there are to train on.
        settings: lr, weight_decay, epochs, batch, patience, seed.
    """
    import torch

    order = torch.Generator().manual_seed(settings.seed)
    current = {name: value.detach().clone().requires_grad_() for name, value in parameters.items()}
    optimiser = torch.optim.AdamW(current.values(), lr=settings.lr, weight_decay=settings.weight_decay)
    best, lowest, since = _copy(current), _value(held_out, current), 0
    for _ in range(settings.epochs):
        for batch in torch.randperm(rows, generator=order).split(settings.batch):
            optimiser.zero_grad()
            loss(current, batch).backward()
            optimiser.step()
        value = _value(held_out, current)
        if value < lowest - 1e-6:
            best, lowest, since = _copy(current), value, 0
        else:
            since += 1
            if since >= settings.patience:
                break
    return best


def fit_labels(
    data: Data,
    labels: tuple[Any, Any],
    start: Parameters,
    predict: Callable[[Parameters, Any], Any],
    loss: Callable[[Any, Any], Any],
    *,
    settings: Any,
    in_training: Callable[[Parameters, Any], Any] | None = None,
) -> Parameters:
    """`descend` from the questions' vectors to labels: the loss is of what is predicted for vectors, and their labels.

    Args:
        labels: of the training and the validation part; see `scores_of`.
        predict: (parameters, vectors) -> what `loss` compares with labels.
        in_training: in place of `predict` while it trains, such as with dropout.
    """
    x, x_held = tensor(data.train.vectors), tensor(data.validation.vectors)
    known, held = labels

    def of_batch(parameters: Parameters, batch: Any) -> Any:
        return loss((in_training or predict)(parameters, x[batch]), known[batch])

    def held_out(parameters: Parameters) -> Any:
        return loss(predict(parameters, x_held), held)

    return descend(start, of_batch, held_out, rows=len(x), settings=settings)


def scores_of(data: Data) -> tuple[Any, Any]:
    """Scores of the training and the validation part, (questions, LLMs); NaN where nothing was recorded."""
    return tensor(data.train.scores), tensor(data.validation.scores)


def tensor(array: Array) -> Any:
    """As float32."""
    import torch

    return torch.as_tensor(array, dtype=torch.float32)


def arrays_of(parameters: Parameters) -> Arrays:
    return {name: value.detach().numpy().copy() for name, value in parameters.items()}


def tensors_of(arrays: Arrays) -> Parameters:
    import torch

    return {name: torch.as_tensor(value) for name, value in arrays.items()}


def linear(generator: Any, inputs: int, outputs: int) -> Any:
    """Start weights (inputs, outputs), uniform as in torch's own linear layer."""
    import torch

    bound = inputs**-0.5
    return (torch.rand(inputs, outputs, generator=generator) * 2 - 1) * bound


@contextmanager
def reproducible(seed: int) -> Iterator[None]:
    """One torch thread, and torch's random numbers from a seed; both as before afterwards."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)


def _value(held_out: Callable[[Parameters], Any], parameters: Parameters) -> float:
    import torch

    with torch.no_grad():
        return float(held_out(parameters))


def _copy(parameters: Parameters) -> Parameters:
    return {name: value.detach().clone() for name, value in parameters.items()}
