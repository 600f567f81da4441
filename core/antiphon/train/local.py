"""The weights under training in this process, what updates them, and what speaks with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from antiphon.train.learner import Learner, Scored
from antiphon.train.live import LiveGenerator
from antiphon.train.lora import load_trainable, save_weights
from antiphon.train.start import start_of

if TYPE_CHECKING:
    from antiphon.train.spec import TrainSpec


class Trainee:
    """A model in training.

    Attributes:
        generator: speaks with the weights as the last `update` left them.
    """

    def __init__(self, network: Any, learner: Learner, generator: LiveGenerator) -> None:
        self._network, self._learner = network, learner
        self.generator = generator

    @classmethod
    def load(cls, spec: TrainSpec) -> Self:
        """Load what a spec says, as it is before the first step.

        Raises:
            ConfigError, MissingExtra: it is not there, or cannot be trained so.
        """
        network = network_of(spec)
        learner = Learner(network, spec.algorithm, temperature=spec.train.temperature, seed=spec.train.seed)
        model = spec.model
        generator = LiveGenerator(
            network,
            model.base,
            max_batch=model.max_batch,
            max_context=model.max_context,
            cache_tokens=model.cache_tokens,
            threads=model.threads,
        )
        return cls(network, learner, generator)

    def update(self, batch: Sequence[Scored]) -> dict[str, float]:
        """Learn from a step's rollouts; the metrics of `Learner.update`."""
        figures = self._learner.update(batch)
        self.generator.update()
        return figures

    def save(self, folder: Path) -> None:
        """Write the weights, as they are used elsewhere."""
        save_weights(self._network, folder)

    def state_dict(self) -> dict[str, Any]:
        return self._learner.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`.

        Raises:
            ConfigError: it is of other weights or of another algorithm.
        """
        self._learner.load_state_dict(state)
        self.generator.update()


def network_of(spec: TrainSpec) -> Any:
    """What a spec trains, at its start.

    Raises:
        ConfigError, MissingExtra: it is not there, or does not fit.
    """
    import torch

    model = spec.model
    if model.threads is not None:
        torch.set_num_threads(model.threads)
    return load_trainable(
        model.base,
        spec.lora if model.lora else None,
        dtype=model.dtype,
        device=model.device,
        start=start_of(model.start),
        seed=spec.train.seed,
    )
