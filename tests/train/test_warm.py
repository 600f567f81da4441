"""The supervised warm start: what it leaves in its folder, and what Ctrl-C and a termination signal leave of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from antiphon import card
from antiphon.contracts import MemberView
from antiphon.errors import ConfigError
from antiphon.train.folder import open_folder
from antiphon.train.prepare import prepare
from antiphon.train.report import summary
from antiphon.train.signals import run_cancellable
from antiphon.train.spec import load_spec
from antiphon.train.warm import Warmed, warm_start
from antiphon.train.writers import read_rows
from antiphon.types import Call, Task

pytest.importorskip("peft")

CONFIG = """
[members.Absent]
description = "Never replies."
adapter = "function"
model = "lessons:wait"
price = { input = 0, output = 0 }

[pools.sums]
members = ["Calculator"]

[pools.absent]
members = ["Absent"]
"""

SPEC = """
[data]
dataset = "arithmetic"
options = {{ n = 6 }}

[environment]
pool = "sums"

[policy]
name = "router_r1"

[model]
base = "{base}"
dtype = "float32"
threads = 1

[lora]
rank = 2

[train]
writers = []

[demonstrations]
teacher = "{teacher}"

[sft]
batch = 2
"""

LESSONS = """
import asyncio
import sys


async def wait(text):
    print("asked", file=sys.stderr, flush=True)
    await asyncio.get_running_loop().create_future()


def asks(task, members, calls):
    return f"<think>I ask.</think><search>{members[0].name}: {task.question}</search>"


def knows(task, members, calls):
    return f"<think>I know.</think><answer>{task.golden_answers[0]}</answer>"
"""


def asks(task: Task, members: Sequence[MemberView], calls: Sequence[Call]) -> str:
    """Asks the first member once, and knows better."""
    if not calls:
        return f"<think>I ask.</think><search>{members[0].name}: {task.question}</search>"
    return f"<think>So.</think><answer>{(task.golden_answers or ('',))[0]}</answer>"


@pytest.fixture
def spec(tiny_policy: Path, tmp_path: Path) -> Path:
    (tmp_path / "antiphon.toml").write_text(CONFIG)
    (tmp_path / "lessons.py").write_text(LESSONS)
    (tmp_path / "lesson.toml").write_text(SPEC.format(base=tiny_policy, teacher=f"{__name__}:asks"))
    return tmp_path / "lesson.toml"


def warmed(spec: Path, out: Path, told: list[str] | None = None) -> Warmed:
    told = [] if told is None else told
    return warm_start(
        prepare(load_spec(spec, ()), config_file=spec.parent / "antiphon.toml"),
        out,
        on_bound=lambda most: told.append(f"at most {most.rollouts} rollouts, {most.calls} calls"),
        on_played=lambda done, total: told.append(f"{done}/{total} played"),
        on_demonstrated=lambda found, steps: told.append(f"{len(found.examples)} examples, {steps} steps"),
        on_step=lambda row: told.append(f"step {row['step']}"),
    )


def test_the_weights_come_with_their_card_metrics_and_demonstrations(
    spec: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out, told = tmp_path / "out", list[str]()
    made = warmed(spec, out, told)
    assert told.pop(0) == "at most 6 rollouts, 24 calls"
    assert told == [*(f"{n}/6 played" for n in range(1, 7)), "6 examples, 3 steps", "step 1", "step 2", "step 3"]
    assert made.weights == out / "checkpoints" / "step-000003"
    assert {path.name for path in made.weights.iterdir()} >= {"adapter_model.safetensors", "card.json"}
    known = card.read(made.weights)
    assert known is not None
    assert (known.steps, known.results) == (3, {"loss": made.row["loss"]})
    assert [member.name for member in known.pool] == ["Calculator"]
    taught = {"teacher": f"{__name__}:asks", "asked": 6, "kept": 6, "correct": True}
    assert known.demonstrations == taught
    assert (known.fine_tuning["lr"], known.fine_tuning["batch"]) == (1e-3, 2)
    assert (known.algorithm, known.reward, known.rollouts, known.start) == ({}, None, {}, None)
    text = (made.weights / "README.md").read_text()
    assert "fine-tuned on demonstrations for the policy `router_r1`" in text
    assert f"- demonstrations: teacher {__name__}:asks, asked 6, kept 6, correct True\n" in text
    assert "- fine-tuning: lr 0.001, " in text
    assert "algorithm" not in text
    assert "reward" not in text
    assert [row["step"] for row in read_rows(out)] == [1, 2, 3]
    assert len((out / "rollouts" / "step-000000.jsonl").read_text().splitlines()) == 6
    assert "Loading weights" not in capfd.readouterr().err


def test_what_was_fine_tuned_is_in_the_folder_and_in_the_report(spec: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    warmed(spec, out)
    made = json.loads((out / "spec.json").read_bytes())
    assert made["spec"] == load_spec(spec, ()).model_dump(mode="json")
    assert set(made) == {"identity", "spec", "antiphon"}
    (found,) = summary([out])["runs"]
    assert (found["steps"], found["planned"]) == (3, None), "train.steps is of reinforcement learning"
    prepared = prepare(load_spec(spec, ()), config_file=spec.parent / "antiphon.toml")
    with (
        pytest.raises(ConfigError, match="made of something else: demonstrations: only before; sft: only before"),
        open_folder(out, prepared, resume=True),
    ):
        raise AssertionError("no run of reinforcement learning")


def test_a_folder_that_holds_weights_is_refused(spec: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    kept = warmed(spec, out).weights / "adapter_model.safetensors"
    before = kept.read_bytes()
    with pytest.raises(ConfigError, match=r"out holds weights already; choose another folder \(--out\)"):
        warmed(spec, out)
    assert kept.read_bytes() == before


@pytest.mark.parametrize(
    ("number", "pool", "teacher", "steps", "seen"),
    [
        pytest.param(signal.SIGTERM, "absent", "asks", 1, "asked", id="terminated while the teacher plays"),
        pytest.param(signal.SIGINT, "sums", "knows", 10**6, "step 10/", id="interrupted while it learns"),
    ],
)
def test_a_signal_ends_it_and_says_how_to_begin_again(
    spec: Path, tmp_path: Path, number: int, pool: str, teacher: str, steps: int, seen: str
) -> None:
    given = ["--set", f"environment.pool={pool}", "--set", f"demonstrations.teacher=lessons:{teacher}"]
    given += ["--set", f"sft.steps={steps}", "--out", str(tmp_path / "out")]
    command = [sys.executable, "-m", "antiphon", "train", "sft", str(spec), *given]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tmp_path)}
    environment["ANTIPHON_CONFIG"] = str(tmp_path / "antiphon.toml")
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    before = list[str]()
    while not (line := process.stderr.readline()).startswith(seen):
        assert line, f"it ended before {seen!r}: {''.join(before)}"
        before.append(line)
    process.send_signal(number)
    _, said = process.communicate()
    left = [line for line in said.splitlines() if line and not line.startswith(("asked", "step "))]
    again = f"antiphon train sft {spec} {' '.join(given)}"
    assert (process.returncode, left) == (
        130,
        [f"stopped, and no weights are kept; begin again with: {again}", "antiphon: interrupted"],
    )
    assert not (tmp_path / "out" / "checkpoints").exists()


def test_what_is_cancelled_cleans_up_and_everything_else_is_as_with_asyncio() -> None:
    """A signal that comes too late to cancel anything still counts; errors and results pass."""
    ended = list[str]()

    async def interrupted(times: int = 1) -> None:
        try:
            for _ in range(times):
                signal.raise_signal(signal.SIGTERM)
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0)
            ended.append("cleaned up")

    async def too_late() -> None:
        signal.raise_signal(signal.SIGINT)

    async def result(value: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt):
        run_cancellable(interrupted())
    assert ended == ["cleaned up"]
    with pytest.raises(KeyboardInterrupt):
        run_cancellable(interrupted(2), gently=lambda: ended.append("asked"))
    assert ended == ["cleaned up", "asked", "cleaned up"]
    with pytest.raises(KeyboardInterrupt):
        run_cancellable(too_late())
    with pytest.raises(LookupError):
        run_cancellable(result(LookupError()))
    assert run_cancellable(result(3)) == 3
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before
