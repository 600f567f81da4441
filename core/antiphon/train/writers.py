"""Where a training run's figures go: JSON lines always; TensorBoard, Weights & Biases and MLflow where installed."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from antiphon.errors import ConfigError, MissingExtra, did_you_mean, first_line
from antiphon.log import warn
from antiphon.types import Trajectory, clean

METRICS, ROLLOUTS = "metrics.jsonl", "rollouts"
SHOWN_ROLLOUTS = 4
"""Rollouts of a step that are shown as text where a library shows texts; JSON lines keep all that are given."""


class Writer(Protocol):
    """Takes what a step has measured: a row has `step` (an integer) and numbers; others are left out."""

    def step(self, row: Mapping[str, Any]) -> None: ...

    def rollouts(self, step: int, trajectories: Sequence[Trajectory]) -> None: ...

    def close(self) -> None: ...


class Writers:
    """JSON lines first, then the others: one of those that fails is warned of and left alone, training goes on."""

    def __init__(self, lines: JsonLines, others: Mapping[str, Writer]) -> None:
        self._lines, self._others = lines, dict(others)

    def step(self, row: Mapping[str, Any]) -> None:
        self._lines.step(row)
        self._each(lambda writer: writer.step(row))

    def rollouts(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        self._lines.rollouts(step, trajectories)
        self._each(lambda writer: writer.rollouts(step, trajectories))

    def close(self) -> None:
        self._lines.close()
        self._each(lambda writer: writer.close())

    def _each(self, do: Callable[[Writer], None]) -> None:
        for name, writer in list(self._others.items()):
            try:
                do(writer)
            except Exception as error:
                del self._others[name]
                warn(
                    "antiphon.train", "a writer failed and is left out from here on", writer=name, why=first_line(error)
                )


def open_writers(
    folder: Path,
    names: Sequence[str] | None = None,
    *,
    last: int | None = None,
    config: Mapping[str, Any] | None = None,
) -> Writers:
    """The writers of a run.

    Args:
        folder: the run's.
        names: of `tensorboard`, `wandb`, `mlflow`; None: `tensorboard` if it is installed.
        last: the step that a resumed run goes on from: later rows and rollouts, which come again, are dropped. None: a
            new run.
        config: what the run is made of, for those that show it.

    Raises:
        ConfigError: an unknown name, or a new run in the folder of another one.
        MissingExtra: one that is asked for is not installed.
    """
    if names is None:
        names = ("tensorboard",) if importlib.util.find_spec("tensorboard") else ()
    for name in names:
        if name not in _MAKERS:
            raise ConfigError(f"no writer {name!r}{did_you_mean(name, _MAKERS)}")
        if not importlib.util.find_spec(name):
            raise MissingExtra(f"writer {name!r}", "watch")
    lines = JsonLines(folder, last)
    return Writers(lines, {name: _MAKERS[name](folder, last, dict(config or {})) for name in dict.fromkeys(names)})


# ---- JSON lines -----------------------------------------------------------------------------------------------------


class JsonLines:
    """`metrics.jsonl`, a row a step, on disk when `step` returns; `rollouts/step-000010.jsonl`, a trajectory a line."""

    def __init__(self, folder: Path, last: int | None) -> None:
        path = folder / METRICS
        rows = read_rows(folder) if path.exists() else []
        if rows and last is None:
            raise ConfigError(f"{folder} holds a run of {rows[-1]['step']} steps; resume it, or choose another folder")
        self._folder = folder
        (folder / ROLLOUTS).mkdir(parents=True, exist_ok=True)
        kept = [row for row in rows if last is not None and row["step"] <= last]
        replace_file(path, "".join(map(_line, kept)))
        for step, file in rollout_files(folder).items():
            if last is None or step > last:
                file.unlink()
        self._file = path.open("ab", buffering=0)

    def step(self, row: Mapping[str, Any]) -> None:
        self._file.write(_line(row).encode())
        os.fsync(self._file.fileno())

    def rollouts(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        text = "".join(f"{trajectory.to_json()}\n" for trajectory in trajectories)
        replace_file(self._folder / ROLLOUTS / f"step-{step:06d}.jsonl", text)

    def close(self) -> None:
        self._file.close()


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run, in order; a last line that a kill tore is left out.

    Raises:
        ConfigError: there is no run, or a line is damaged; names it.
    """
    path = folder / METRICS
    try:
        *lines, torn = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; is {folder} the folder of a training run?") from None
    rows = []
    for number, line in enumerate([*lines, torn] if torn else lines, 1):
        try:
            row = json.loads(line)
            rows.append({**row, "step": int(row["step"])})
        except (ValueError, KeyError, TypeError) as error:
            if number > len(lines):
                break
            raise ConfigError(f"{path}, line {number} is no row of a step ({error}); mend or remove it") from None
    return rows


def rollout_files(folder: Path) -> dict[int, Path]:
    """Step -> the file of its trajectories, in order."""
    found = {path.stem.removeprefix("step-"): path for path in (folder / ROLLOUTS).glob("step-*.jsonl")}
    return {step: found[name] for step, name in sorted((int(name), name) for name in found if name.isdecimal())}


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """What a row measures: its finite numbers but the step."""
    return {
        key: float(value)
        for key, value in row.items()
        if key != "step" and isinstance(value, int | float) and math.isfinite(value)
    }


def _line(row: Mapping[str, Any]) -> str:
    """One JSON line; a number that JSON has none for (a loss that ran away) becomes null."""
    plain = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()
    }
    return clean(json.dumps(plain, ensure_ascii=False, allow_nan=False)) + "\n"


def replace_file(path: Path, text: str) -> None:
    """Write it whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


# ---- what others draw -----------------------------------------------------------------------------------------------


class _TensorBoard:
    """Event files in `tensorboard/`: `tensorboard --logdir RUN`."""

    def __init__(self, folder: Path, last: int | None, config: dict[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        purge = None if last is None else last + 1
        self._writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=purge)
        if config and last is None:
            self._writer.add_text("config", _block(json.dumps(config, indent=1, default=str)), 0)

    def step(self, row: Mapping[str, Any]) -> None:
        for name, value in numbers(row).items():
            self._writer.add_scalar(name, value, row["step"])
        self._writer.flush()

    def rollouts(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        self._writer.add_text("rollouts", _block(_said(trajectories)), step)

    def close(self) -> None:
        self._writer.close()


class _WeightsAndBiases:
    """A run in `wandb/`; offline unless WANDB_API_KEY or WANDB_MODE says otherwise (`wandb sync` sends it later)."""

    def __init__(self, folder: Path, last: int | None, config: dict[str, Any]) -> None:
        import wandb

        mode: Any = os.environ.get("WANDB_MODE") or ("online" if os.environ.get("WANDB_API_KEY") else "offline")
        self._wandb: Any = wandb
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "antiphon"),
            name=folder.resolve().name,
            id=_identity(folder),
            resume="allow" if mode == "online" else None,
            dir=str(folder),
            mode=mode,
            config=config,
        )
        self._run.define_metric("*", step_metric="step")  # so that a step that comes again is drawn in its place

    def step(self, row: Mapping[str, Any]) -> None:
        self._run.log({**numbers(row), "step": row["step"]})

    def rollouts(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        columns = ["step", "question", "answer", "rollout"]
        shown = [[step, t.task.question, t.answer, _said([t])] for t in trajectories[:SHOWN_ROLLOUTS]]
        self._run.log({"rollouts": self._wandb.Table(columns=columns, data=shown), "step": step})

    def close(self) -> None:
        self._run.finish()


class _MLflow:
    """A run of experiment `antiphon` at MLFLOW_TRACKING_URI, else in `mlflow.db` and `mlflow/` of the folder."""

    def __init__(self, folder: Path, last: int | None, config: dict[str, Any]) -> None:
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        here = folder.resolve()
        remote = os.environ.get("MLFLOW_TRACKING_URI")
        self._metric: Any = Metric
        self._client: Any = MlflowClient(remote or f"sqlite:///{here / 'mlflow.db'}")
        experiment = self._experiment(None if remote else (here / "mlflow").as_uri())
        identity = _identity(folder)
        before = self._client.search_runs([experiment], f"tags.antiphon = '{identity}'") if last is not None else ()
        if before:
            self._run = before[0].info.run_id
            return
        self._run = self._client.create_run(experiment, tags={"antiphon": identity}, run_name=here.name).info.run_id
        params = [Param(key, str(value)[:500]) for key, value in _flat(config)]
        self._client.log_batch(self._run, params=params[:100])  # the most that one request takes

    def step(self, row: Mapping[str, Any]) -> None:
        now = int(time.time() * 1000)
        measured = [self._metric(name, value, now, row["step"]) for name, value in numbers(row).items()]
        self._client.log_batch(self._run, metrics=measured)

    def rollouts(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        self._client.log_text(self._run, _said(trajectories), f"{ROLLOUTS}/step-{step:06d}.txt")

    def close(self) -> None:
        self._client.set_terminated(self._run)

    def _experiment(self, artifacts: str | None) -> str:
        found = self._client.get_experiment_by_name("antiphon")
        return str(found.experiment_id if found else self._client.create_experiment("antiphon", artifacts))


_MAKERS: dict[str, Callable[[Path, int | None, dict[str, Any]], Writer]] = {
    "tensorboard": _TensorBoard,
    "wandb": _WeightsAndBiases,
    "mlflow": _MLflow,
}


def _identity(folder: Path) -> str:
    """By which a resumed run is found again."""
    path = folder / "run.id"
    if not path.exists():
        replace_file(path, uuid.uuid4().hex)
    return path.read_text()


def _said(trajectories: Sequence[Trajectory]) -> str:
    """The first rollouts as text, without the prompt."""
    parts = []
    for t in trajectories[:SHOWN_ROLLOUTS]:
        said = "".join(segment.text for segment in t.segments if segment.kind != "prompt")
        parts.append(f"Question: {t.task.question}\n{said}\n[{t.stop}; answer: {t.answer}]")
    return "\n\n".join(parts)


def _block(text: str) -> str:
    """As Markdown shows it word for word."""
    return "\n".join(f"    {line}" for line in text.splitlines())


def _flat(config: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for key, value in config.items():
        flat += _flat(value, f"{before}{key}.") if isinstance(value, Mapping) else [(f"{before}{key}", value)]
    return flat
