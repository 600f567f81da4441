"""Training runs, in this process and in processes that are killed: real rollouts, real updates, a tiny model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import ConfigError, GeneratorError
from antiphon.train.writers import read_rows
from antiphon.types import Trajectory

pytest.importorskip("peft")

CONFIG = """
[pools.sums]
members = ["Calculator"]

[limits]
turn_tokens = 12
rounds = 1
"""

SPEC = """
[train]
steps = 5
tasks = 2
samples = 2
writers = []
rollouts_every = 2
seed = 3

[data]
dataset = "arithmetic"
options = {{ n = 6 }}

[environment]
pool = "sums"

[policy]
grammar_options = {{ prompt = "{{{{members}}}} Question: {{{{question}}}}" }}

[model]
base = "{base}"
dtype = "float32"
threads = 1

[lora]
rank = 2

[algorithm]
algorithm = "ppo"
lr = 1e-2

[validation]
every = 2
tasks = 2
"""

FIXED = ("reward", "em", "calls", "tokens", "kl", "entropy", "policy_loss", "value_loss", "val_reward")
"""Metrics that no clock decides."""


@pytest.fixture
def spec(tiny_policy: Path, tmp_path: Path) -> Path:
    (tmp_path / "antiphon.toml").write_text(CONFIG)
    (tmp_path / "run.toml").write_text(SPEC.format(base=tiny_policy))
    return tmp_path / "run.toml"


def train(spec: Path, out: Path, *settings: str, resume: bool = False) -> Any:
    from antiphon.train.prepare import prepare
    from antiphon.train.run import train
    from antiphon.train.spec import load_spec

    prepared = prepare(load_spec(spec, settings), config_file=spec.parent / "antiphon.toml")
    return train(prepared, out, resume=resume, listener=Silent())


class Silent:
    """Counts what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    async def ready(self, setup: Any, done: int | None) -> None:
        self.told.append("ready")

    def rolled(self, done: int, total: int) -> None:
        return

    def step(self, row: Mapping[str, Any]) -> None:
        self.told.append(f"step {row['step']}")

    def stopping(self) -> None:
        self.told.append("stopping")


def started(spec: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "antiphon", "train", str(spec), "--out", str(out), *more]
    environment = {**os.environ, "ANTIPHON_CONFIG": str(spec.parent / "antiphon.toml"), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def read_until(process: subprocess.Popen[str], beginning: str) -> None:
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line)
        if line.startswith(beginning):
            return
    raise AssertionError(f"it ended before {beginning!r}: {''.join(seen)}")


def fixed(out: Path) -> dict[int, dict[str, Any]]:
    return {row["step"]: {key: row[key] for key in FIXED if key in row} for row in read_rows(out)}


def test_a_run_keeps_metrics_rollouts_and_checkpoints(spec: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ended = train(spec, out)
    assert (ended.end, ended.step) == ("done", 5)
    rows = {row["step"]: row for row in read_rows(out)}
    assert list(rows) == [0, 1, 2, 3, 4, 5]
    assert set(rows[1]) > {
        "reward",
        "reward_format",
        "format_ok",
        "em",
        "cost",
        "calls",
        "kl",
        "tokens_per_s",
        "left_s",
    }
    assert [step for step, row in rows.items() if "val_em" in row] == [0, 2, 4, 5]
    assert rows[5]["left_s"] == 0
    files = sorted(path.name for path in (out / "rollouts").iterdir())
    assert files == ["step-000001.jsonl", "step-000002.jsonl", "step-000004.jsonl"]
    kept = [Trajectory.from_json(line) for line in (out / "rollouts" / files[0]).read_text().splitlines()]
    assert len(kept) == 4
    assert len({trajectory.task.id for trajectory in kept}) == 2
    assert len({trajectory.segments[1].text for trajectory in kept}) == 4, "every sample draws its own tokens"
    latest = out / "checkpoints" / (out / "checkpoints" / "latest").read_text().strip()
    assert latest.name == "step-000005"
    assert {path.name for path in latest.iterdir()} > {"adapter_model.safetensors", "state.pt", "card.json"}


def test_a_killed_run_goes_on_as_if_it_had_not_been(spec: Path, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(spec, whole)
    process = started(spec, killed)
    read_until(process, "step 3")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    train(spec, killed, resume=True)
    before, after = fixed(whole), fixed(killed)
    assert list(after) == list(before)
    for step, row in before.items():
        assert after[step] == pytest.approx(row, rel=1e-3, abs=1e-5, nan_ok=True), step


def test_the_first_interrupt_finishes_the_step_and_says_how_to_go_on(spec: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = started(spec, out, "--steps", "500")
    read_until(process, "step 1")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130, said
    last = read_rows(out)[-1]["step"]
    assert f"go on with: antiphon train {spec} --out {out} --steps 500 --resume" in said
    assert (out / "checkpoints" / "latest").read_text().strip() == f"step-{last:06d}"
    assert train(spec, out, f"train.steps={last + 1}", resume=True).step == last + 1
    assert json.loads((out / "spec.json").read_bytes())["spec"]["train"]["steps"] == last + 1


def test_what_ended_and_the_last_row_are_printed_as_json(spec: Path, tmp_path: Path) -> None:
    process = started(spec, tmp_path / "out", "--steps", "1", "--json")
    out, said = process.communicate()
    assert process.returncode == 0, said
    result = json.loads(out)
    assert (result["end"], result["step"], result["last"]["step"]) == ("done", 1, 1)


def test_a_folder_is_of_one_run(spec: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(ConfigError, match="holds no run to resume"):
        train(spec, out, resume=True)
    train(spec, out, "train.steps=1")
    with pytest.raises(ConfigError, match=r"holds a run; go on with it \(--resume\)"):
        train(spec, out)
    with pytest.raises(ConfigError, match=r"made of something else: train.seed: 3 before, 4 now"):
        train(spec, out, "train.seed=4", resume=True)


def test_a_run_that_could_not_begin_leaves_its_folder_free(spec: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(ConfigError, match="nowhere"):
        train(spec, out, "model.start=nowhere")
    assert train(spec, out, "train.steps=1").end == "done"


def test_rollouts_are_sampled_and_scored_at_the_temperature_of_the_spec(spec: Path, tmp_path: Path) -> None:
    entropy = {}
    for temperature in (0.05, 1.0):
        train(spec, tmp_path / str(temperature), "train.steps=1", f"train.temperature={temperature}")
        row = read_rows(tmp_path / str(temperature))[-1]
        assert row["mismatch"] < 1e-4
        entropy[temperature] = row["entropy"]
    assert entropy[0.05] < 0.9 * entropy[1.0]


def test_many_failures_end_the_run_with_the_reason_of_the_first(spec: Path, tmp_path: Path) -> None:
    with pytest.raises(GeneratorError, match=r"step 0: 2 of 2 rollouts failed.*leaves no room in 8"):
        train(spec, tmp_path / "out", "model.max_context=8")


def test_a_collapse_ends_the_run_with_a_checkpoint(spec: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ended = train(spec, out, "collapse.window=2", "checkpoints.every=100")
    assert (ended.end, ended.step) == ("collapse", 2)
    assert "well-formed" in ended.why
    assert (out / "checkpoints" / "step-000002" / "state.pt").is_file()
