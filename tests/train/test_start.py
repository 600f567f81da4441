"""Weights that training starts from: their grammar, prompt and base must be the run's; another pool is logged."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from antiphon import card
from antiphon.errors import ConfigError
from antiphon.generators._chat import load_chat
from antiphon.train.demonstrations import Speaker
from antiphon.train.prepare import prepare
from antiphon.train.spec import load_spec
from antiphon.train.start import check_start
from antiphon.train.warm import warm_start

pytest.importorskip("peft")

CONFIG = """
[pools.sums]
members = ["Calculator"]
"""

SPEC = """
[train]
steps = 1
tasks = 1
samples = 2
writers = []

[data]
dataset = "arithmetic"
options = {{ n = 2 }}

[environment]
pool = "sums"

[policy]
name = "router_r1"

[limits]
turn_tokens = 8

[model]
base = "{base}"
dtype = "float32"
threads = 1

[lora]
rank = 2

[demonstrations]
teacher = "antiphon.train.demonstrations:golden_answer"
correct = false
"""


@pytest.fixture
def spec(tiny_policy: Path, tmp_path: Path) -> Path:
    (tmp_path / "antiphon.toml").write_text(CONFIG)
    (tmp_path / "run.toml").write_text(SPEC.format(base=tiny_policy))
    return tmp_path / "run.toml"


@pytest.fixture
def start(spec: Path, tmp_path: Path, tiny_policy: Path) -> Path:
    """An adapter with the card that a run of this spec would give it."""
    from antiphon.train.lora import LoraSettings, load_trainable, save_weights

    prepared = prepare(load_spec(spec), config_file=spec.parent / "antiphon.toml")
    folder = save_weights(load_trainable(tiny_policy, LoraSettings(rank=2), dtype="float32"), tmp_path / "start")
    with_setup(spec, lambda setup: card_of(prepared, setup, folder))
    return folder


def card_of(prepared: Any, setup: Any, folder: Path) -> None:
    from antiphon.train.card import write

    write(folder, prepared.card(setup, "warm", steps=1, results={}))


def with_setup(spec: Path, do: Callable[[Any], None], *settings: str) -> None:
    """`do(setup)` of the spec."""
    prepared = prepare(load_spec(spec, settings), config_file=spec.parent / "antiphon.toml")

    async def inside() -> None:
        async with AsyncExitStack() as resources:
            do(prepared.setup(Speaker(load_chat(Path(prepared.spec.model.base), None), str), resources))

    asyncio.run(inside())


def checked(spec: Path, *settings: str) -> None:
    asked = load_spec(spec, settings).model
    with_setup(spec, lambda setup: check_start(asked, setup), *settings)


def configure(spec: Path, more: str) -> None:
    (spec.parent / "antiphon.toml").write_text(f"{CONFIG}\n{more}\n")


def test_weights_of_the_same_grammar_pool_and_base_are_a_start(
    spec: Path, start: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checked(spec, f"model.start={start}")
    checked(spec)
    assert capsys.readouterr().err == ""


def test_another_grammar_or_prompt_is_an_error_that_names_both_and_the_remedy(spec: Path, start: Path) -> None:
    said = (
        r"start was trained with grammar router_r1/1, template \w+, and would be used with grammar router_r1/1, "
        r"template \w+; take the former \(policy.grammar = 'router_r1', with .* card.json .*\), or weights trained with"
    )
    with pytest.raises(ConfigError, match=said):
        checked(spec, f"model.start={start}", "policy.grammar_options.style=compact")
    configure(spec, '[grammars.router_r1]\nstyle = "compact"')
    with pytest.raises(ConfigError, match=said):
        checked(spec, f"model.start={start}")


def test_other_base_weights_are_an_error_that_names_both(spec: Path, start: Path, tiny_policy: Path) -> None:
    import torch
    import transformers

    other = spec.parent / "other"
    shutil.copytree(tiny_policy, other)
    network: Any = transformers.AutoModelForCausalLM.from_pretrained(tiny_policy)
    with torch.no_grad():
        next(network.parameters()).add_(1.0)
    network.save_pretrained(other)
    with pytest.raises(ConfigError, match=r"start was trained on tiny \(SHA-256 \w+\), and model.base = .*other' has"):
        checked(spec, f"model.start={start}", f"model.base={other}")
    shutil.rmtree(start)
    shutil.copytree(other, start)  # a whole model that was trained on `tiny`, and is its own base now
    with_setup(spec, lambda setup: card_of(prepare(load_spec(spec)), setup, start))
    checked(spec, f"model.start={start}", f"model.base={other}", "model.lora=false")


def test_another_pool_is_logged(spec: Path, start: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configure(spec, "[members.Calculator]\nprice = { input = 0, output = 3 }")
    checked(spec, f"model.start={start}")
    assert "Calculator has another price" in capsys.readouterr().err


def test_weights_without_a_card_are_taken_as_they_are(spec: Path, start: Path) -> None:
    (start / card.FILE).unlink()
    configure(spec, '[grammars.router_r1]\nstyle = "compact"')
    checked(spec, f"model.start={start}")


@pytest.mark.parametrize("command", ["run", "sft"])
def test_no_training_begins_from_weights_of_another_prompt(spec: Path, start: Path, command: str) -> None:
    from antiphon.train.run import train

    configure(spec, '[grammars.router_r1]\nstyle = "compact"')
    prepared = prepare(load_spec(spec, [f"model.start={start}"]), config_file=spec.parent / "antiphon.toml")
    out = spec.parent / "out"
    nobody: Any = None  # is told: it does not begin
    begin: dict[str, Callable[[], Any]] = {
        "run": lambda: train(prepared, out, resume=False, listener=nobody),
        "sft": lambda: warm_start(
            prepared, out, on_bound=nobody, on_played=nobody, on_demonstrated=nobody, on_step=nobody
        ),
    }
    with pytest.raises(ConfigError, match="was trained with grammar"):
        begin[command]()
    assert not (out / "checkpoints").exists()
