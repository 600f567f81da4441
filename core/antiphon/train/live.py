"""The policy under training as a generator: it speaks with the weights of the last `update`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from antiphon import models
from antiphon._adapters import factors_of
from antiphon.generators.transformers import ModelGenerator


class LiveGenerator(ModelGenerator):
    """Generates with a copy of a network's weights, brought up to date by `update` between steps.

    LoRA is merged into the copy, so that decoding costs what the base alone costs. The copy is separate: training may
    go on while it speaks.

    Args:
        network: what is trained: a transformers model, or a peft model with LoRA.
        tokenizer: a name in the model store or a Hugging Face folder: the tokeniser and chat template.
        adapter: which of the peft model's adapters speaks.
        dtype: of the copy; "auto": that of the network's base.
        options: those of `antiphon.models.adopt`: max_batch, max_context, cache_tokens, threads, chat_template.

    Raises:
        ConfigError: the tokeniser cannot be used, or LoRA lies on other than linear layers.
    """

    def __init__(
        self,
        network: Any,
        tokenizer: str | Path,
        *,
        adapter: str = "default",
        dtype: str = "auto",
        **options: Any,
    ) -> None:
        self._network, self._trained = network, adapter
        self._copy = _like(network, dtype)
        copy_weights(network, self._copy, adapter)
        local = models.adopt(self._copy, tokenizer, **options)
        super().__init__(f"live:{Path(tokenizer).name}", local)
        self._engine = local.engine

    def update(self) -> None:
        """Speak with the network's present weights from now on; call it when no rollout is under way.

        A generation under way goes on with the new weights, over keys and values of the old.
        """
        self._engine.change(lambda: copy_weights(self._network, self._copy, self._trained))


def copy_weights(network: Any, copy: Any, adapter: str = "default") -> None:
    """Write a network's weights into a plain model of the same architecture, LoRA merged.

    A merged weight is W + scale * B A, computed in float32 and rounded once.
    """
    adapted = hasattr(network, "peft_config")
    base = network.get_base_model() if adapted else network
    factors = factors_of(network, adapter) if adapted else {}
    own = {name.replace(".base_layer.", "."): weight for name, weight in base.named_parameters()}
    with torch.no_grad():
        for name, weight in copy.named_parameters():
            merged = own[name]
            if (layer := name.removesuffix(".weight")) in factors:
                down, up = factors[layer]
                merged = merged.float() + up.float() @ down.float()
            weight.copy_(merged)


def _like(network: Any, dtype: str) -> Any:
    """A plain model of the same architecture, not trained."""
    base = network.get_base_model() if hasattr(network, "peft_config") else network
    chosen = base.dtype if dtype == "auto" else getattr(torch, dtype)
    copy: Any = AutoModelForCausalLM.from_config(base.config, dtype=chosen, attn_implementation="sdpa")
    copy.generation_config = base.generation_config
    return copy.to(base.device).requires_grad_(False)
