"""verl's shards become the weights that transformers and peft load, and checkpoints let go of what is heavy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl")
pytest.importorskip("peft")

import torch

from antiphon.train.checkpoint import SHARDS, Checkpoints
from antiphon.train.verl_weights import merge


def saved(network: Any, source: Path, folder: Path, meta: dict[str, Any] | None = None) -> Path:
    """A checkpoint as verl's FSDP manager leaves it, of one rank."""
    folder.mkdir(parents=True)
    torch.save(network.state_dict(), folder / "model_world_size_1_rank_0.pt")
    (folder / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": 1}))
    if meta is not None:
        (folder / "lora_train_meta.json").write_text(json.dumps(meta))
    (folder / "huggingface").mkdir()
    for file in source.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, folder / "huggingface" / file.name)
    return folder


def model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.fixture(autouse=True)
def the_same_weights_each_time() -> None:
    torch.manual_seed(0)


def same(one: Any, other: Any) -> bool:
    """Up to the rounding of weights that were saved in bfloat16."""
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        return torch.allclose(one(ids).logits, other(ids).logits, atol=2e-2)


def test_a_whole_model(tiny_policy: Path, tmp_path: Path) -> None:
    network = model(tiny_policy)
    for weight in network.parameters():
        weight.data += 0.05 * torch.randn(weight.shape)
    out = tmp_path / "out"
    out.mkdir()
    merge(saved(network, tiny_policy, tmp_path / "actor"), out, base="tiny")
    assert {path.name for path in out.iterdir()} >= {"model.safetensors", "config.json", "tokenizer.json"}
    assert same(model(out), network)
    assert not same(model(out), model(tiny_policy))


def test_an_adapter(tiny_policy: Path, tmp_path: Path) -> None:
    import peft

    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    network = peft.get_peft_model(model(tiny_policy), config)
    for name, weight in network.named_parameters():
        if "lora_B" in name:
            weight.data.normal_(0, 0.2)
    out = tmp_path / "out"
    out.mkdir()
    meta = {"r": 4, "lora_alpha": 8, "task_type": "CAUSAL_LM"}
    merge(saved(network, tiny_policy, tmp_path / "actor", meta), out, base="tiny")
    assert {path.name for path in out.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    assert json.loads((out / "adapter_config.json").read_text())["base_model_name_or_path"] == "tiny"
    assert same(peft.PeftModel.from_pretrained(model(tiny_policy), str(out)), network)
    assert not same(model(tiny_policy), network)


def test_a_checkpoint_that_is_kept_for_good_loses_verls_shards(tmp_path: Path) -> None:
    def fill(part: Path) -> None:
        (part / "model.safetensors").write_text("weights")
        (part / "state.pt").write_text("state")
        (part / f"{SHARDS}1" / "actor").mkdir(parents=True)
        (part / f"{SHARDS}1" / "actor" / "optim.pt").write_text("heavy")

    kept = Checkpoints(tmp_path, keep=1)
    kept.save(1, fill, best=True)
    kept.save(2, fill)
    assert {path.name for path in (tmp_path / "step-000001").iterdir()} == {"model.safetensors"}
    assert (tmp_path / "step-000002" / f"{SHARDS}1").is_dir()
