"""LoRA adapters beside a base's linear layers, chosen row by row: two small products a layer, however many adapters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from antiphon.errors import ConfigError

Factors = Mapping[str, tuple[Any, Any]]
"""By the name of a linear layer: down [rank, in] and up [out, rank], the scale within `up`."""


class Adapters:
    """The adapters of one model. Nothing of the model is replaced: its linear layers get a forward hook."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self._names: list[str] = []
        self._layers: dict[str, _Layer] = {}
        self._choice = _Choice()

    def load(self, path: Path, name: str) -> None:
        """Read a LoRA adapter as peft saved it.

        Raises:
            ConfigError: it holds more than LoRA on linear layers.
            OSError, ValueError, RuntimeError, KeyError: it is broken, or made for another base.
        """
        self.put(name, read_factors(self._network, path))

    def put(self, name: str, factors: Factors) -> None:
        """Add an adapter, or replace its weights."""
        if name not in self._names:
            self._names.append(name)
        index = self._names.index(name)
        for key, (down, up) in factors.items():
            if key not in self._layers:
                self._layers[key] = _Layer(self._network.get_submodule(key), self._choice)
            self._layers[key].put(index, down, up)
        self._choice.use([])

    def use(self, names: Sequence[str]) -> None:
        """Which adapter each row of the next forward passes takes; a name that is not there: none."""
        self._choice.use([self._names.index(name) if name in self._names else -1 for name in names])


class _Choice:
    """The adapter of each row, and what layers of like ranks make of it."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.only: int | None = None  # the one adapter of all rows; -1: none
        self._masks: dict[tuple[int, ...], Any] = {}

    def use(self, rows: list[int]) -> None:
        if rows != self.rows:
            self.rows, self._masks = rows, {}
        self.only = rows[0] if len(set(rows)) == 1 else None if rows else -1

    def mask(self, owners: tuple[int, ...], like: Any) -> Any:
        """[rows, ranks]: 1 where a rank belongs to the row's adapter."""
        if owners not in self._masks:
            chosen, own = torch.tensor(self.rows), torch.tensor(owners)
            self._masks[owners] = (chosen[:, None] == own[None]).to(like)
        return self._masks[owners]


@dataclass(slots=True)
class _Weights:
    down: Any  # [in, ranks]
    up: Any  # [ranks, out]


class _Layer:
    """One linear layer's adapters, side by side: their ranks are columns of one matrix."""

    def __init__(self, linear: Any, choice: _Choice) -> None:
        self._choice, self._linear = choice, linear
        self._own: dict[int, _Weights] = {}
        self._all: _Weights | None = None
        self._owners: tuple[int, ...] = ()
        linear.register_forward_hook(self._add)

    def put(self, index: int, down: Any, up: Any) -> None:
        like = self._linear.weight
        self._own[index] = _Weights(down.to(like).t().contiguous(), up.to(like).t().contiguous())
        own = self._own.values()
        self._all = _Weights(torch.cat([w.down for w in own], 1), torch.cat([w.up for w in own]))
        self._owners = tuple(i for i, w in self._own.items() for _ in range(w.up.shape[0]))

    def _add(self, _linear: Any, inputs: tuple[Any, ...], output: Any) -> Any:
        only = self._choice.only
        weights = self._all if only is None else self._own.get(only)
        if weights is None:
            return output
        hidden = inputs[0] @ weights.down
        if only is None:
            hidden = hidden * self._choice.mask(self._owners, hidden)[:, None]
        width = output.shape[-1]
        return torch.addmm(output.reshape(-1, width), hidden.reshape(-1, hidden.shape[-1]), weights.up).view_as(output)


def read_factors(network: Any, path: Path) -> Factors:
    """The weights of an adapter in a folder, checked against the base `network`, which stays as it was."""
    from peft import PeftConfig, PeftModel

    config: Any = PeftConfig.from_pretrained(str(path))
    more = [key for key in ("use_dora", "modules_to_save", "trainable_token_indices") if getattr(config, key, None)]
    if str(getattr(config.peft_type, "value", config.peft_type)) != "LORA" or more or config.bias != "none":
        raise ConfigError(
            f"{path}: only plain LoRA adapters can be switched per request{f' (not {more[0]})' if more else ''}; "
            "merge this one instead"
        )
    device = str(network.device)
    adapted = PeftModel.from_pretrained(network, str(path), adapter_name="read", torch_device=device)
    try:
        return factors_of(adapted, "read")
    finally:
        adapted.unload()


def factors_of(adapted: Any, adapter: str) -> Factors:
    """The LoRA weights within a peft model, by the base's own names of its layers."""
    from peft.tuners import lora

    kind: Any = lora.LoraLayer
    factors = {}
    for name, layer in adapted.get_base_model().named_modules():
        if isinstance(layer, kind) and adapter in layer.scaling:
            if not isinstance(layer.get_base_layer(), torch.nn.Linear):
                raise ConfigError(
                    f"LoRA on {name!r}, which is no linear layer, cannot be switched per request; merge it"
                )
            down, up = layer.lora_A[adapter].weight, layer.lora_B[adapter].weight
            factors[name] = (down.detach(), up.detach() * layer.scaling[adapter])
    return factors
