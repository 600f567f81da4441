"""A checkpoint's weights leave a run with their card: as an adapter, or merged, and say the same either way."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from antiphon import Orchestrator
from antiphon.card import read
from antiphon.cli import run as antiphon
from antiphon.errors import ConfigError
from antiphon.registry import default_registry
from antiphon.train.card import make, write
from antiphon.train.checkpoint import Checkpoints
from antiphon.train.export import checkpoint, export

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

PROMPT = {"prompt": "{{members}} {{question}}", "style": "none"}


@pytest.fixture
def base(tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Llama of one layer with random weights, in a model store of its own."""
    folder = tmp_path / "home" / "models" / "tiny"
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=512,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.3,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path / "home"))
    return folder


@pytest.fixture
def a_run(base: Path, tmp_path: Path, scripted_pool: Any) -> Path:
    """A run with checkpoints of steps 1 and 2: adapters whose random weights change what the model says."""
    registry = default_registry()
    policy = registry.policy("router_r1", grammar=registry.grammar("router_r1", **PROMPT))
    settings = {"rank": 4, "alpha": 32.0}

    def fill(folder: Path, step: int) -> None:
        torch.manual_seed(step)
        network = transformers.AutoModelForCausalLM.from_pretrained(base)
        lora = peft.LoraConfig(
            r=4, lora_alpha=32, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM"
        )
        peft.get_peft_model(network, lora).save_pretrained(folder)
        (folder / "state.pt").write_bytes(b"an optimiser")
        write(
            folder,
            make(
                name=f"step {step}",
                base=base,
                policy=policy,
                members=scripted_pool(["A"]).members,
                grammar_options=PROMPT,
                lora=settings,
                limits={"turn_tokens": 12},
                steps=step,
            ),
        )

    kept = Checkpoints(tmp_path / "run" / "checkpoints")
    kept.save(1, lambda folder: fill(folder, 1), best=True)
    kept.save(2, lambda folder: fill(folder, 2))
    return tmp_path / "run"


@pytest.fixture
def said(scripted_pool: Any) -> Callable[[Path], tuple[int, ...]]:
    """`said(model)`: what the policy says with these weights, as token ids."""

    def say(model: Path) -> tuple[int, ...]:
        with Orchestrator(model=str(model), pool=scripted_pool(["A"])) as orchestrator:
            trajectory = orchestrator.ask("Where?")
        assert trajectory.error is None
        first = next(segment for segment in trajectory.segments if segment.kind == "policy")
        return first.token_ids or ()

    return say


def test_the_best_checkpoint_is_taken_unless_a_step_is_named(a_run: Path) -> None:
    assert checkpoint(a_run).name == "step-000001"
    assert checkpoint(a_run, 2).name == "step-000002"
    with pytest.raises(ConfigError, match="keeps no checkpoint of step 3"):
        checkpoint(a_run, 3)
    with pytest.raises(ConfigError, match="has no checkpoint yet"):
        checkpoint(a_run / "checkpoints")


def test_adapter_and_merged_model_load_by_their_folder_and_say_the_same(
    a_run: Path, base: Path, tmp_path: Path, said: Any
) -> None:
    source = checkpoint(a_run, 2)
    adapter = export(source, tmp_path / "adapter")
    merged = export(source, tmp_path / "merged", merge=True)
    assert not (adapter / "state.pt").exists()
    assert read(adapter) == read(source)
    card = read(merged)
    assert card is not None
    assert card.steps == 2
    assert (card.lora or {})["merged"] is True
    assert not (merged / "adapter_config.json").exists()
    loaded = transformers.AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)
    plain = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    ids = torch.tensor([[5, 6, 7, 8]])
    untrained = plain(ids).logits
    with_adapter = peft.PeftModel.from_pretrained(plain, str(adapter))
    ours, theirs = loaded(ids).logits, with_adapter(ids).logits
    assert (ours - theirs).abs().max() < 0.1 * (untrained - theirs).abs().max()  # bf16 rounds
    assert len(said(merged)) == len(said(adapter)) == 12


def test_a_base_that_is_another_one_is_not_merged_into(a_run: Path, base: Path, tmp_path: Path) -> None:
    from antiphon.train.card import weights_hash

    weights_hash.cache_clear()  # the process has hashed the folder before
    network = transformers.AutoModelForCausalLM.from_pretrained(base)
    with torch.no_grad():
        network.lm_head.weight.add_(1.0)
    network.save_pretrained(base)
    with pytest.raises(ConfigError, match="has other weights than the tiny that was trained"):
        export(checkpoint(a_run), tmp_path / "merged", merge=True)
    assert not (tmp_path / "merged").exists()


def test_what_cannot_be_exported_is_said(a_run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is there already"):
        export(checkpoint(a_run), tmp_path)
    bare = tmp_path / "bare"
    shutil.copytree(checkpoint(a_run), bare)
    (bare / "card.json").unlink()
    with pytest.raises(ConfigError, match=r"has no card\.json"):
        export(bare, tmp_path / "out")
    with pytest.raises(ConfigError, match="holds no weights"):
        export(a_run / "checkpoints" / "nothing", tmp_path / "out")


def test_the_command_says_what_went_where(a_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert antiphon(["train", "export", str(a_run), "--step", "2", "--out", str(out)]) == 0
    assert f"step-000002 of {a_run} is now in {out}" in capsys.readouterr().out
    assert antiphon(["models", "show", str(out)]) == 0
    assert capsys.readouterr().out.startswith("# step 2\n")
