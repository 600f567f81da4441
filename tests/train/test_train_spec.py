"""A spec holds or says in one clear sentence what does not; it needs no torch."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from antiphon.errors import ConfigError
from antiphon.tables import Table
from antiphon.train.collapse import CollapseSettings
from antiphon.train.engines import ENGINES, engine
from antiphon.train.environment import Randomise
from antiphon.train.lora import LoraSettings
from antiphon.train.settings import AlgorithmSettings
from antiphon.train.sft import SFTSettings
from antiphon.train.spec import (
    CheckpointSettings,
    Data,
    Demonstrations,
    EnvironmentSettings,
    ModelSettings,
    PolicySettings,
    RewardSettings,
    RunSettings,
    TrainSpec,
    Validation,
    load_spec,
    make_spec,
)

SMALLEST = {"data": {"dataset": "arithmetic"}, "model": {"base": "tiny"}}


def made(settings: tuple[str, ...] = (), **tables: object) -> TrainSpec:
    return make_spec({**SMALLEST, **tables}, "spec.toml", settings=settings)


def test_the_smallest_spec_names_questions_and_a_model() -> None:
    spec = made()
    assert (spec.train.engine, spec.train.steps, spec.model.lora) == ("local", 100, True)
    assert spec.validation_data is None


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"train": {"stepz": 3}}, r"spec.toml: unknown key 'train.stepz'; did you mean 'steps'\?"),
        ({"modle": {}}, r"unknown key 'modle'; did you mean 'model'\?"),
        ({"train": {"steps": 0}}, "train.steps"),
        ({"model": {}}, "'model.base' is missing"),
        ({"reward": {"name": "paper", "terms": []}}, "give the `name` of a composition, or the `terms`"),
        ({"reward": {"terms": [{"trem": "em"}]}}, r"reward: unknown key 'terms.0.trem'; did you mean 'term'\?"),
        ({"limits": {"round": 2}}, r"unknown key 'round'; did you mean 'rounds'\?"),
        ({"environment": {"randomise": {"price_scale": [2, 1]}}}, "price_scale is \\[lowest, highest\\]"),
        ({"algorithm": {"algorithm": "sarsa"}}, "algorithm.algorithm"),
    ],
)
def test_what_does_not_hold_is_named(tables: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        made(**tables)


def test_settings_go_over_the_file() -> None:
    spec = made(("train.steps=7", "model.base=other", "train.out='x = 1'", "validation.every=3", "collapse.kl=false"))
    assert (spec.train.steps, spec.model.base, spec.train.out) == (7, "other", "x = 1")
    assert spec.validation == Validation(every=3)
    assert spec.collapse == CollapseSettings(kl=None)
    with pytest.raises(ConfigError, match=r"--set train\.steps: write table.key=value"):
        made(("train.steps",))


def test_paths_of_a_file_are_relative_to_it(tmp_path: Path) -> None:
    file = tmp_path / "runs.toml"
    file.write_text('[data]\ndataset = "questions.jsonl"\n[model]\nbase = "smol"\nstart = "./warm"\n')
    spec = load_spec(file)
    assert spec.data.dataset == str(tmp_path / "questions.jsonl")
    assert (spec.model.base, spec.model.start) == ("smol", str(tmp_path / "warm"))
    assert load_spec(file, ["model.start=./here"]).model.start == "./here", "of the command line: as it is"


def test_validation_takes_what_it_does_not_say_from_the_training_data() -> None:
    data = {"dataset": "chamber", "split": "train", "options": {"hops": 2}}
    validation = made(data=data, validation={"split": "validation", "tasks": 9}).validation_data
    assert validation is not None
    assert (validation.dataset, validation.split, validation.limit) == ("chamber", "validation", 9)
    assert validation.options == {"hops": 2}


def test_an_engine_is_found_by_name_or_refused() -> None:
    with pytest.raises(ConfigError, match=r"no training engine is called 'lokal'; did you mean 'local'\?"):
        engine("lokal")
    for name in ENGINES:
        assert callable(engine(name))


def test_reading_a_spec_loads_no_torch(tmp_path: Path) -> None:
    file = tmp_path / "spec.toml"
    file.write_text('[data]\ndataset = "arithmetic"\n[model]\nbase = "tiny"\n')
    code = (
        "import sys; from pathlib import Path; from antiphon.train.spec import load_spec; "
        f"load_spec(Path({str(file)!r})); print([m for m in ('torch', 'transformers', 'peft') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


PAGE = (Path(__file__).parents[2] / "docs/reference/training-config.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


HOW_TO = (Path(__file__).parents[2] / "docs/how-to/train.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("block", [*BLOCKS, *re.findall(r"```toml\n(.*?)```", HOW_TO, re.DOTALL)])
def test_a_file_shown_loads(block: str, tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(block)
    assert load_spec(tmp_path / "spec.toml").model.base


SHOWN = [tomllib.loads(block) for block in BLOCKS]
MODELS: dict[str, type[Table]] = {
    "train": RunSettings,
    "data": Data,
    "environment": EnvironmentSettings,
    "policy": PolicySettings,
    "model": ModelSettings,
    "lora": LoraSettings,
    "reward": RewardSettings,
    "algorithm": AlgorithmSettings,
    "validation": Validation,
    "checkpoints": CheckpointSettings,
    "collapse": CollapseSettings,
    "demonstrations": Demonstrations,
    "sft": SFTSettings,
}


def test_the_reference_shows_every_table() -> None:
    assert {*MODELS, "limits", "verl"} == set(TrainSpec.model_fields) == set(SHOWN[0])
    assert set(Randomise.model_fields) == set(SHOWN[0]["environment"]["randomise"])


@pytest.mark.parametrize("table", MODELS)
def test_the_reference_shows_every_key_and_its_default(table: str) -> None:
    shown = {**SHOWN[1].get(table, {}), **SHOWN[0][table]}
    text = BLOCKS[0].partition(f"[{table}]")[2].partition("\n[")[0]
    fields = MODELS[table].model_fields
    assert set(shown) == set(fields)
    for key, field in fields.items():
        line = re.search(rf"^{key} = .*", text, re.MULTILINE)
        if line is not None and "(default" not in line[0] and isinstance(field.default, bool | int | float | str):
            assert shown[key] == field.default, key
