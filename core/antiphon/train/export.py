"""Weights out of a run's checkpoint, to be used elsewhere: an adapter, or a whole model that it is merged into."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from antiphon import card, models
from antiphon.card import Card
from antiphon.errors import ConfigError, MissingExtra, did_you_mean
from antiphon.train.card import weights_hash, write
from antiphon.train.checkpoint import Checkpoints
from antiphon.train.lora import save_weights

_ADAPTER, _MODEL = "adapter_config.json", "config.json"


def checkpoint(run: Path, step: int | None = None) -> Path:
    """A run's checkpoint: of a step, else the best by validation, else the latest.

    Raises:
        ConfigError: there is none; says which there are.
    """
    kept = Checkpoints(run / "checkpoints")
    there = {path.name: path for path in kept.all}
    if step is not None:
        name = f"step-{step:06d}"
        if name not in there:
            raise ConfigError(f"{run} keeps no checkpoint of step {step}{did_you_mean(name, there)}")
        return there[name]
    found = kept.best or kept.latest
    if found is None:
        raise ConfigError(f"{run} has no checkpoint yet; is it the folder of a training run?")
    return found


def export(source: Path, out: Path, *, merge: bool = False) -> Path:
    """Copy a checkpoint's weights with their card into a new folder, which appears whole or not at all.

    Args:
        merge: add the adapter to its base: a Hugging Face folder in bf16 that needs no peft.

    Raises:
        ConfigError: there are no weights or no card in it, `out` is there already, or the base is not there or not the
            one that was trained.
        MissingExtra: merging needs torch, transformers and peft.
    """
    weights, known = _weights(source), card.read(source)
    known = known or card.read(weights)
    if known is None:
        raise ConfigError(f"{source} has no {card.FILE}; export a checkpoint that `antiphon train` made")
    if out.exists():
        raise ConfigError(f"{out} is there already; choose another folder")
    part = out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    if merge and (weights / _ADAPTER).is_file():
        save_weights(_merged(weights, known), part)
        known = known.model_copy(update={"lora": {**(known.lora or {}), "merged": True}})
    else:
        part.mkdir(parents=True)
        for file in sorted(weights.iterdir()):
            if file.is_file() and file.suffix != ".pt":
                shutil.copy(file, part / file.name)
    write(part, known)
    part.rename(out)
    return out


def _weights(source: Path) -> Path:
    """The folder of the weights: the checkpoint itself, or one in it."""
    for name in (_ADAPTER, _MODEL):
        if found := sorted(source.rglob(name), key=lambda path: len(path.parts)):
            return found[0].parent
    raise ConfigError(f"{source} holds no weights ({_ADAPTER} or {_MODEL}, with *.safetensors)")


def _merged(weights: Path, known: Card) -> Any:
    """The base with the adapter added, in fp32 so that nothing is rounded twice."""
    try:
        import peft
        import torch
        import transformers
    except ImportError:
        raise MissingExtra("merging an adapter", "local") from None
    base = models.find(known.base.name)
    if weights_hash(base) != known.base.hash:
        raise ConfigError(
            f"{base} has other weights than the {known.base.name} that was trained (SHA-256 {known.base.hash}); put "
            "that one into the model store"
        )
    with models.no_bars():
        network: Any = transformers.AutoModelForCausalLM.from_pretrained(
            str(base), dtype=torch.float32, local_files_only=True
        )
    adapted: Any = peft.PeftModel.from_pretrained(network, str(weights))
    return adapted.merge_and_unload()
