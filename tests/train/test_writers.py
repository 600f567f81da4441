"""A run's files: a row a step that survives a kill, nothing twice after a resume, and what others draw from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import ConfigError, MissingExtra
from antiphon.train import writers
from antiphon.train.writers import METRICS, open_writers, read_rows, rollout_files
from antiphon.types import Segment, Task, Trajectory

DID = Trajectory("1", Task("Where?"), "p", "Lima", "answer", (Segment("prompt", "You"), Segment("policy", "<think>")))


def a_run(folder: Path, steps: range, **options: Any) -> None:
    given = open_writers(folder, (), **options)
    for step in steps:
        given.step({"step": step, "reward": step / 10})
        given.rollouts(step, [DID])
    given.close()


def test_a_row_a_step_and_the_rollouts_read_back(tmp_path: Path) -> None:
    a_run(tmp_path, range(1, 4))
    assert read_rows(tmp_path) == [{"step": step, "reward": step / 10} for step in (1, 2, 3)]
    lines = rollout_files(tmp_path)[2].read_text().splitlines()
    assert [Trajectory.from_json(line) for line in lines] == [DID]


def test_steps_that_come_again_after_a_resume_are_there_once(tmp_path: Path) -> None:
    a_run(tmp_path, range(1, 6))
    a_run(tmp_path, range(4, 5), last=3)
    assert [row["step"] for row in read_rows(tmp_path)] == [1, 2, 3, 4]
    assert list(rollout_files(tmp_path)) == [1, 2, 3, 4]


def test_a_torn_last_line_is_left_out_and_cut_off_by_a_resume(tmp_path: Path) -> None:
    a_run(tmp_path, range(1, 4))
    with (tmp_path / METRICS).open("a") as file:
        file.write('{"step": 4, "rew')
    assert [row["step"] for row in read_rows(tmp_path)] == [1, 2, 3]
    a_run(tmp_path, range(4, 5), last=3)
    assert [json.loads(line)["step"] for line in (tmp_path / METRICS).read_text().splitlines()] == [1, 2, 3, 4]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    a_run(tmp_path, range(1, 3))
    (tmp_path / METRICS).write_text('{"reward": 1}\n{"step": 2}\n')
    with pytest.raises(ConfigError, match=r"metrics\.jsonl, line 1 is no row"):
        read_rows(tmp_path)


def test_a_new_run_does_not_write_over_another_one(tmp_path: Path) -> None:
    a_run(tmp_path, range(1, 3))
    with pytest.raises(ConfigError, match="holds a run of 2 steps; resume it"):
        open_writers(tmp_path, ())
    assert len(read_rows(tmp_path)) == 2


def test_a_number_that_ran_away_is_null(tmp_path: Path) -> None:
    given = open_writers(tmp_path, ())
    given.step({"step": 1, "kl": float("nan"), "loss": float("inf"), "why": "format"})
    given.close()
    (row,) = read_rows(tmp_path)
    assert row == {"step": 1, "kl": None, "loss": None, "why": "format"}
    assert writers.numbers(row) == {}


def test_a_writer_that_is_asked_for_and_not_there_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"writer 'mlflow'.*pip install 'antiphon\[watch\]'"):
        open_writers(tmp_path, ["mlflow"])
    open_writers(tmp_path).close()  # not asked for: the run goes on without
    with pytest.raises(ConfigError, match="no writer 'tensorbord'; did you mean 'tensorboard'"):
        open_writers(tmp_path, ["tensorbord"], last=0)


def test_a_writer_that_fails_does_not_end_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Full:
        def step(self, row: Any) -> None:
            raise OSError("disk full")

    given = writers.Writers(writers.JsonLines(tmp_path, None), {"full": Full()})  # type: ignore[dict-item]
    given.step({"step": 1})
    given.step({"step": 2})
    given.close()
    assert [row["step"] for row in read_rows(tmp_path)] == [1, 2]
    assert capsys.readouterr().err.count("disk full") == 1


def test_tensorboard_has_each_step_once_after_a_resume(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for steps, last in ((range(1, 4), None), (range(3, 5), 2)):
        given = open_writers(tmp_path, ["tensorboard"], last=last, config={"alpha": 0.5})
        for step in steps:
            given.step({"step": step, "reward": float(step)})
            given.rollouts(step, [DID])
        given.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("reward")] == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert events.Tags()["tensors"] == ["config/text_summary", "rollouts/text_summary"]


def test_mlflow_goes_on_with_the_same_run_after_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for steps, last in ((range(1, 3), None), (range(3, 4), 2)):
        given = open_writers(tmp_path, ["mlflow"], last=last, config={"reward": {"alpha": 0.5}})
        for step in steps:
            given.step({"step": step, "reward": float(step)})
            given.rollouts(step, [DID])
        given.close()
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("antiphon")
    (run,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(run.info.run_id, "reward")
    assert [(one.step, one.value) for one in history] == [(1, 1), (2, 2), (3, 3)]
    assert run.data.params == {"reward.alpha": "0.5"}


def test_weights_and_biases_writes_a_run_offline_without_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_SILENT", "true")
    given = open_writers(tmp_path, ["wandb"])
    given.step({"step": 1, "reward": 0.5})
    given.rollouts(1, [DID])
    given.close()
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
