"""Supervised fine-tuning and the weights it changes, on a tiny Llama with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("peft")
pytest.importorskip("transformers")

import torch
import transformers

from antiphon.errors import ConfigError
from antiphon.train.lora import LoraSettings, load_trainable, save_weights
from antiphon.train.sft import Example, SFTSettings, finetune

LORA = LoraSettings(rank=4, alpha=8)
EXAMPLES = [Example((5, n, 7, n + 20), (0, 0, 0, 1)) for n in range(10, 18)]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    folder = tmp_path_factory.mktemp("models") / "tiny"
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return folder


def said(network: Any, example: Example) -> int:
    """The likeliest token after all but the last."""
    network.eval()
    with torch.no_grad():
        return int(network(input_ids=torch.tensor([example.ids[:-1]])).logits[0, -1].argmax())


def trained(network: Any, **settings: Any) -> list[dict[str, float]]:
    rows: list[dict[str, float]] = []
    finetune(
        network,
        EXAMPLES,
        SFTSettings(**{"batch": 8, "steps": 60, "lr": 2e-2, **settings}),
        on_step=lambda step, row: rows.append({"step": step, **row}),
    )
    return rows


def test_lora_learns_the_tokens_under_the_mask_and_leaves_the_base(base: Path) -> None:
    network = load_trainable(base, LORA, seed=1)
    before = {name: value.clone() for name, value in network.named_parameters() if not value.requires_grad}
    rows = trained(network)
    assert [said(network, example) for example in EXAMPLES] == [example.ids[-1] for example in EXAMPLES]
    assert rows[-1]["loss"] < 0.1 < rows[0]["loss"]
    assert all(torch.equal(before[name], value) for name, value in network.named_parameters() if name in before)


def test_lora_weights_are_fp32_on_a_bf16_base(base: Path) -> None:
    network = load_trainable(base, LORA, dtype="bfloat16")
    kinds = {value.requires_grad: value.dtype for value in network.parameters()}
    assert kinds == {True: torch.float32, False: torch.bfloat16}


def test_layers_and_targets_say_where_adapters_go(base: Path) -> None:
    def where(lora: LoraSettings) -> set[str]:
        network = load_trainable(base, lora)
        return {
            name.split(".lora_")[0].split("layers.")[1] for name, p in network.named_parameters() if p.requires_grad
        }

    assert where(LoraSettings(layers=(1,), targets=("q_proj", "down_proj"))) == {
        "1.self_attn.q_proj",
        "1.mlp.down_proj",
    }
    assert {name.split(".")[0] for name in where(LORA)} == {"0", "1"}
    assert len(where(LoraSettings(layers=(1,)))) == 7


def test_the_loss_is_the_mean_over_learnt_tokens_however_a_batch_is_cut(base: Path) -> None:
    examples = [Example(tuple(range(1, n)), (0, 0, *[1] * (n - 3))) for n in (5, 6, 9, 12)]
    network = load_trainable(base, None, dtype="float32")
    with torch.no_grad():
        losses = [
            torch.nn.functional.cross_entropy(
                network(input_ids=torch.tensor([one.ids])).logits[0, 1:-1], torch.tensor(one.ids[2:]), reduction="sum"
            )
            for one in examples
        ]
    expected = float(sum(losses)) / sum(sum(one.mask) for one in examples)
    rows = []
    for micro_tokens in (1, 20, 1000):
        settings = SFTSettings(batch=4, steps=1, lr=1e-9, micro_tokens=micro_tokens)
        finetune(network, examples, settings, on_step=lambda _, row: rows.append(row))
    assert [row["loss"] for row in rows] == pytest.approx([expected] * 3, rel=1e-5)
    assert [row["grad_norm"] for row in rows] == pytest.approx([rows[0]["grad_norm"]] * 3, rel=1e-4)
    assert rows[0]["tokens"] == 2 + 3 + 6 + 9


def test_the_learning_rate_rises_and_falls(base: Path) -> None:
    rows = trained(load_trainable(base, LORA), steps=6, warmup=3, lr=0.3)
    assert [row["lr"] for row in rows] == pytest.approx([0.1, 0.2, 0.3, 0.225, 0.15, 0.075])
    rows = trained(load_trainable(base, LORA), steps=3, warmup=0, lr=0.3, schedule="constant")
    assert [row["lr"] for row in rows] == pytest.approx([0.3] * 3)


def test_the_same_seed_gives_the_same_run(base: Path) -> None:
    losses = [
        [row["loss"] for row in trained(load_trainable(base, LORA, seed=seed), steps=4, batch=2, seed=seed)]
        for seed in (3, 3, 4)
    ]
    assert losses[0] == losses[1] != losses[2]


def test_saved_adapters_are_bf16_name_no_path_and_go_on_from_where_they_were(base: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    network = load_trainable(base, LORA)
    trained(network)
    folder = save_weights(network, tmp_path / "out")
    assert save_weights(network, folder) == folder  # replaces it
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    assert {value.dtype for value in load_file(folder / "adapter_model.safetensors").values()} == {torch.bfloat16}
    assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == "tiny"
    again = load_trainable(base, LORA, start=folder)
    assert {value.dtype for value in again.parameters() if value.requires_grad} == {torch.float32}
    assert [said(again, example) for example in EXAMPLES] == [example.ids[-1] for example in EXAMPLES]


def test_full_weights_are_saved_as_a_model_of_their_own(base: Path, tmp_path: Path) -> None:
    network = load_trainable(base, None, dtype="float32")
    trained(network, lr=3e-3)
    folder = save_weights(network, tmp_path / "full")
    assert (folder / "tokenizer.json").is_file()
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    again = load_trainable(base, None, dtype="bfloat16", start=folder)
    assert {value.dtype for value in again.parameters()} == {torch.bfloat16}
    assert [said(again, example) for example in EXAMPLES] == [example.ids[-1] for example in EXAMPLES]


@pytest.mark.parametrize(("ids", "mask"), [((1, 2), (0,)), ((1, 2), (1, 0)), ((), ())])
def test_an_example_that_teaches_nothing_is_refused(ids: tuple[int, ...], mask: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="mask"):
        Example(ids, mask)


def test_what_does_not_fit_is_said(base: Path, tmp_path: Path) -> None:
    folder = save_weights(load_trainable(base, LORA), tmp_path / "out")
    with pytest.raises(ConfigError, match=r"rank 4 and alpha 8.*16 and 32"):
        load_trainable(base, LoraSettings(), start=folder)
    with pytest.raises(ConfigError, match="at least one example"):
        finetune(load_trainable(base, LORA), [])


def test_examples_that_do_not_fill_a_batch_have_a_step_of_their_own() -> None:
    assert [SFTSettings(batch=8).total_steps(examples) for examples in (308, 310, 712)] == [39, 39, 89]
    assert SFTSettings(batch=8, epochs=2).total_steps(308) == 78
    assert SFTSettings(batch=8, steps=5).total_steps(712) == 5
