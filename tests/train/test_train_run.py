"""Training runs, in this process and in processes that are killed: real rollouts, real updates, a tiny model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from antiphon import card
from antiphon.errors import ConfigError, GeneratorError
from antiphon.reward import RewardResult
from antiphon.train.card import described, weights_hash
from antiphon.train.checkpoint import Checkpoints, load_state
from antiphon.train.collect import Rolled
from antiphon.train.run import Run
from antiphon.train.writers import read_rows
from antiphon.types import Segment, Task, Trajectory

if TYPE_CHECKING:
    from antiphon.train.learner import Scored

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

[reward]
alpha = 0.5

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


def rewards(out: Path) -> Any:
    """The state of the reward, by split and term, in the latest checkpoint."""
    latest = Checkpoints(out / "checkpoints").latest
    assert latest is not None
    return load_state(latest)["rewards"]


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
    windows = rewards(whole)
    assert [len(windows[split]["cost"]["window"]) for split in ("train", "validation")] == [5 * 4, 4 * 2]
    assert rewards(killed) == windows, "the cost window goes on where it was"


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


CHANGES = {
    "grammar": ("", '[grammars.router_r1]\nmember = "{{name}}!"', r"grammar.template: \w+ before, \w+ now"),
    "policy": ("", '[policies.router_r1]\nmember_prompt = "Be brief."', "policy_options.member_prompt: only now"),
    "reward": (
        "[rewards.mine]\nterms = [{ term = 'cost', options = { size = 9 } }]",
        "[rewards.mine]\nterms = [{ term = 'cost', options = { size = 8 } }]",
        r"reward.terms.cost.options.size: 9 before, 8 now",
    ),
    "limits": ("rounds = 1", "rounds = 2", "limits.rounds: 1 before, 2 now"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_run_is_not_resumed_under_a_configuration_that_makes_it_another_one(
    spec: Path, tmp_path: Path, what: str
) -> None:
    before, now, said = CHANGES[what]
    config = spec.parent / "antiphon.toml"
    written = CONFIG if before in CONFIG else f"{CONFIG}\n{before}\n"
    config.write_text(written)
    settings = ("reward.name=mine", "reward.alpha=0") if what == "reward" else ()
    train(spec, tmp_path / "out", "train.steps=1", *settings)
    config.write_text(written.replace(before, now) if before else f"{written}\n{now}\n")
    with pytest.raises(ConfigError, match=rf"out was made of something else: .*{said}.*resume it with what it was"):
        train(spec, tmp_path / "out", "train.steps=2", *settings, resume=True)
    config.write_text(written)
    assert train(spec, tmp_path / "out", "train.steps=2", *settings, resume=True).end == "done"


def test_a_run_is_resumed_with_another_pool_and_says_what_is_different(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(spec, tmp_path / "out", "train.steps=1")
    assert "pool" not in capsys.readouterr().err
    price = "[members.Calculator]\nprice = { input = 0, output = 3 }\n"
    (spec.parent / "antiphon.toml").write_text(f"{CONFIG}\n{price}")
    assert train(spec, tmp_path / "out", "train.steps=2", resume=True).end == "done"
    said = capsys.readouterr().err
    assert "the pool is not the one of the training" in said
    assert "Calculator has another price" in said


def test_the_card_says_how_the_weights_were_made(spec: Path, tmp_path: Path) -> None:
    for out, *settings in (("first",), ("second", f"model.start={tmp_path / 'first'}")):
        train(spec, tmp_path / out, "train.steps=1", "train.temperature=0.5", *settings)
    first, second = (card.read(tmp_path / out / "checkpoints" / "step-000001") for out in ("first", "second"))
    assert first is not None
    assert second is not None
    assert first.rollouts == {"tasks": 2, "samples": 2, "temperature": 0.5}
    assert (first.algorithm["algorithm"], first.start, first.demonstrations, first.fine_tuning) == ("ppo", None, {}, {})
    hashed = weights_hash(tmp_path / "first" / "checkpoints" / "step-000000")  # the best by validation
    assert second.start == card.Base(name="first", hash=hashed)
    assert f"- start: first, SHA-256 {hashed}\n" in described(second)
    assert "- rollouts of a step: tasks 2, samples 2, temperature 0.5\n" in described(second)


def test_the_card_of_a_resumed_run_names_what_it_began_with(spec: Path, tmp_path: Path) -> None:
    start = f"model.start={tmp_path / 'first'}"
    train(spec, tmp_path / "first", "train.steps=1")
    train(spec, tmp_path / "second", "train.steps=1", start)
    train(spec, tmp_path / "first", "train.steps=2", resume=True)
    (tmp_path / "first" / "checkpoints" / "best").write_text("step-000002\n")
    train(spec, tmp_path / "second", "train.steps=2", start, resume=True)
    began, went_on = (card.read(tmp_path / "second" / "checkpoints" / f"step-00000{step}") for step in (1, 2))
    assert began is not None
    assert went_on is not None
    assert began.start is not None
    assert began.start == went_on.start
    assert began.start.hash != weights_hash(tmp_path / "first" / "checkpoints" / "step-000002")


def test_a_bound_that_nothing_measures_is_warned_of(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ("train.steps=1", "algorithm.kl_coefficient=0")
    train(spec, tmp_path / "default", *settings)
    assert "collapse.kl" not in capsys.readouterr().err
    train(spec, tmp_path / "asked", *settings, "collapse.kl=2.0")
    assert "collapse.kl never stops this run" in capsys.readouterr().err
    assert "kl" not in read_rows(tmp_path / "asked")[-1]


def test_a_rollout_in_which_the_policy_said_nothing_counts_in_its_groups_mean() -> None:
    """Dropped, it would leave the other one, which earned more, alone and without an advantage that is its own."""

    class Learns:
        def update(self, batch: Sequence[Scored]) -> dict[str, float]:
            self.batch = batch
            return {}

    prompt = Segment("prompt", "?", 0, (1, 2))
    said = Segment("policy", "!", 0, (3,), (-0.5,), trainable=True)
    run, learns = object.__new__(Run), Learns()
    run._trainee = learns  # type: ignore[assignment]
    rolled = [
        Rolled(
            Trajectory(str(at), Task("?"), "p", None, stop, spans),
            RewardResult(reward, {}, {}, ""),
            0,
            (),
        )
        for at, (stop, spans, reward) in enumerate([("answer", (prompt, said), 1.0), ("deadline", (prompt,), -1.0)])
    ]
    run._learn(rolled)
    assert [(each.group, each.reward, each.sample.mask) for each in learns.batch] == [("0", 1.0, [1]), ("0", -1.0, [])]


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
