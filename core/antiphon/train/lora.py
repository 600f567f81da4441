"""The weights that training changes: LoRA adapters in fp32 over a frozen base, or the whole model."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from antiphon import models
from antiphon.errors import ConfigError, MissingExtra, first_line
from antiphon.tables import Count, Table

_TOKENIZER_FILES = ("tokenizer*", "special_tokens_map.json", "chat_template*", "vocab.json", "merges.txt")


class LoraSettings(Table):
    """Low-rank adapters (arXiv 2106.09685): W + alpha / rank * B A.

    Attributes:
        layers: the decoder layers that get one, counted from 0; None: all.
        targets: the linear maps that get one, by their names in the model ("q_proj", "v_proj"); None: all in a layer.
    """

    rank: Count = 16
    alpha: Count = 32
    layers: Annotated[tuple[int, ...], Field(min_length=1)] | None = None
    targets: Annotated[tuple[str, ...], Field(min_length=1)] | None = None


def load_trainable(
    model: str | Path,
    lora: LoraSettings | None,
    *,
    dtype: str = "auto",
    device: str = "cpu",
    start: str | Path | None = None,
    seed: int = 0,
) -> Any:
    """A network in training mode: with `lora` a peft model whose base is frozen, without the model itself.

    The base is read in `dtype` (see `antiphon.models.load`); LoRA weights are fp32 whatever the base is, so that small
    steps are not rounded away.

    Args:
        model: a name in the model store, or a Hugging Face folder.
        start: weights to start from: a folder of `save_weights`, of the same kind as asked for.
        seed: of LoRA's random start.

    Raises:
        ConfigError: model or start is not there, or does not fit; says what to do.
        MissingExtra: torch, transformers or peft is not installed.
    """
    try:
        import peft
        import torch
        import transformers
    except ImportError:
        raise MissingExtra("training", "local") from None
    path = models.find(start if lora is None and start is not None else model)
    try:
        with models.no_bars():
            network: Any = transformers.AutoModelForCausalLM.from_pretrained(
                str(path), dtype=models.torch_dtype(dtype, device), local_files_only=True
            )
        if lora is None:
            return network.to(device).train()
        if start is not None:
            network = peft.PeftModel.from_pretrained(network, str(_checked(start, lora)), is_trainable=True)
        else:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                network = peft.get_peft_model(network, _peft_config(network, lora))
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise ConfigError(f"{start or path}: cannot be loaded for training ({first_line(error)})") from None
    return network.to(device).train()


def _peft_config(network: Any, lora: LoraSettings) -> Any:
    import peft
    import torch

    linear = {
        name.rpartition(".")[2]
        for name, module in network.get_decoder().named_modules()
        if isinstance(module, torch.nn.Linear)
    }
    return peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=sorted(linear) if lora.targets is None else list(lora.targets),
        layers_to_transform=None if lora.layers is None else list(lora.layers),
        task_type="CAUSAL_LM",
    )


def _checked(start: str | Path, lora: LoraSettings) -> Path:
    """The folder to start from, where it holds an adapter of the rank and alpha asked for."""
    import peft

    folder = models.find(start)
    found: Any = peft.PeftConfig.from_pretrained(str(folder))
    if (found.r, found.lora_alpha) != (lora.rank, lora.alpha):
        raise ConfigError(
            f"{folder} holds LoRA weights of rank {found.r} and alpha {found.lora_alpha}, the settings ask for "
            f"{lora.rank} and {lora.alpha}; set both to what it holds"
        )
    return folder


def causal_parts(network: Any) -> tuple[Any, Any]:
    """The decoder (token ids to hidden states) and the head (hidden states to logits) of a network, LoRA in place."""
    model = network.get_base_model() if hasattr(network, "peft_config") else network
    return model.get_decoder(), model.get_output_embeddings()


def save_weights(network: Any, folder: Path, *, dtype: str = "bfloat16", adapter: str = "default") -> Path:
    """Write what was trained, in safetensors of `dtype`: an adapter, or a whole model with its tokeniser.

    The folder appears whole or not at all; one of that name is replaced. It names its base by the base's name alone.

    Args:
        adapter: which one, where a network has several.
    """
    folder = Path(folder)
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    if hasattr(network, "peft_config"):
        _write_adapter(network, unfinished, dtype, adapter)
    else:
        _write_model(network, unfinished, dtype)
    replaced = folder.with_name(f".{folder.name}.replaced")
    shutil.rmtree(replaced, ignore_errors=True)
    if folder.exists():
        folder.rename(replaced)
    unfinished.rename(folder)
    shutil.rmtree(replaced, ignore_errors=True)
    return folder


def _write_adapter(network: Any, folder: Path, dtype: str, adapter: str) -> None:
    import copy

    import peft
    import safetensors.torch

    # Not network.save_pretrained: it puts every adapter but "default" into a subfolder of its name.
    weights = peft.get_peft_model_state_dict(network, adapter_name=adapter)
    safetensors.torch.save_file(_cast(weights, dtype), folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = copy.copy(network.peft_config[adapter])
    config.base_model_name_or_path = Path(network.get_base_model().name_or_path).name
    config.inference_mode = True
    config.save_pretrained(str(folder))


def _write_model(network: Any, folder: Path, dtype: str) -> None:
    import torch

    source = Path(network.name_or_path)
    network.save_pretrained(str(folder), state_dict=_cast(network.state_dict(), dtype))
    network.config.__class__.from_pretrained(str(folder), dtype=getattr(torch, dtype)).save_pretrained(str(folder))
    for pattern in _TOKENIZER_FILES:
        for file in source.glob(pattern):
            shutil.copy(file, folder / file.name)


def _cast(weights: dict[str, Any], dtype: str) -> dict[str, Any]:
    import torch

    kind = getattr(torch, dtype)
    return {
        name: (value.detach().to(kind) if value.is_floating_point() else value.detach()).cpu().contiguous()
        for name, value in weights.items()
    }
