"""Stages of training and evaluation: what each runs, where its result lies, and what is there already."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).parents[2]

GLIBC = {"MALLOC_MMAP_THRESHOLD_": str(2**20), "MALLOC_ARENA_MAX": "2"}
"""Has glibc give freed tensors back: two training runs side by side outgrew 23 GB without it."""


@dataclass(frozen=True, slots=True)
class Home:
    """Where specs and results are.

    Attributes:
        specs: a folder with `antiphon.toml`, `train/` and `evaluate/`.
        runs: the folder of all results.
        variable: the environment variable by which specs name it.
    """

    specs: Path
    runs: Path
    variable: str


class Stage(Protocol):
    """One step of the work."""

    def commands(self, home: Home, name: str, changes: Sequence[str]) -> list[list[str]]:
        """What to run, as arguments of `antiphon`."""
        ...

    def result(self, home: Home, name: str) -> Path:
        """What is there when it is done."""
        ...


@dataclass(frozen=True, slots=True)
class Training:
    """Fine-tuning (`sft`), or reinforcement learning from the weights of `start`.

    Attributes:
        step: whose weights are taken; None: the best by validation.
    """

    spec: str = "train/router.toml"
    start: str | None = None
    settings: tuple[str, ...] = ()
    step: int | None = None

    def commands(self, home: Home, name: str, changes: Sequence[str]) -> list[list[str]]:
        run, weights = home.runs / name, home.runs / "weights" / name
        settings = [f"--set={text}" for text in (*self.settings, *changes)]
        given = [str(home.specs / self.spec), "--out", str(run), *settings]
        if self.start is None:
            train = ["train", "sft", *given]
        else:
            resume = ["--resume"] if (run / "checkpoints" / "latest").exists() else []
            train = ["train", "run", *given, f"--set=model.start={home.runs / self.start}", *resume]
        done = self.start is None and (run / "checkpoints" / "latest").exists()
        step = [] if self.step is None else [f"--step={self.step}"]
        return [*([] if done else [train]), ["train", "export", str(run), "--out", str(weights), *step]]

    def result(self, home: Home, name: str) -> Path:
        return home.runs / "weights" / name


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A spec, under `antiphon.toml` with what another file adds to it."""

    spec: str
    added: str | None = None

    def commands(self, home: Home, name: str, changes: Sequence[str]) -> list[list[str]]:
        config = home.runs / f"{self.added or 'antiphon'}.toml"
        parts = ("antiphon", *([] if self.added is None else [self.added]))
        config.write_text("\n".join((home.specs / f"{part}.toml").read_text("utf-8") for part in parts), "utf-8")
        return [["evaluate", str(home.specs / "evaluate" / self.spec), "--out", str(home.runs / "evaluations" / name),
                 "--config", str(config)]]  # fmt: skip

    def result(self, home: Home, name: str) -> Path:
        return home.runs / "evaluations" / name / "summary.json"


@dataclass(frozen=True, slots=True)
class Recording:
    """What all members of a pool say to the first questions of a data set: what routers and readers learn from."""

    pool: str
    dataset: str
    options: tuple[str, ...]
    questions: int

    def commands(self, home: Home, name: str, changes: Sequence[str]) -> list[list[str]]:
        asked = ["--pool", self.pool, "--dataset", self.dataset, *(f"--option={text}" for text in self.options)]
        return [["record", *asked, "--limit", str(self.questions), "--out", str(self.result(home, name))]]

    def result(self, home: Home, name: str) -> Path:
        return home.runs / f"{name}.jsonl"


def run(home: Home, stages: Mapping[str, Stage], name: str, changes: Sequence[str]) -> None:
    """Run a stage to its result.

    Raises:
        SystemExit: a command of it failed.
    """
    stage, began = stages[name], time.monotonic()
    if stage.result(home, name).exists() and not isinstance(stage, Recording):
        print(f"{name}: there already", flush=True)
        return
    home.runs.mkdir(parents=True, exist_ok=True)
    environment = {**GLIBC, **os.environ, home.variable: str(home.runs)}
    for command in stage.commands(home, name, changes):
        config = [] if "--config" in command or "export" in command else ["--config", str(home.specs / "antiphon.toml")]
        full = [sys.executable, "-m", "antiphon", *command, *config]
        print(f"{name}: antiphon {' '.join(command)}", flush=True)
        done = subprocess.run(full, cwd=ROOT, env=environment, check=False)
        if done.returncode:
            sys.exit(f"{name}: exit status {done.returncode}; the same command goes on from here")
    seconds = round(time.monotonic() - began, 1)
    with (home.runs / "hours.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"stage": name, "seconds": seconds, "cores": len(os.sched_getaffinity(0))}) + "\n")
    print(f"{name}: {seconds} s", flush=True)


def main(home: Home, stages: Mapping[str, Stage], about: str, arguments: list[str] | None = None) -> None:
    """The command line of a script that has stages."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help="default: all, in order")
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="TABLE.KEY=VALUE")
    parser.add_argument("--list", action="store_true", help="name the stages and what is there of them")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.stages if name not in stages]:
        parser.error(f"no stage is called {', '.join(unknown)}; there are {', '.join(stages)}")
    for name in options.stages or stages:
        if options.list:
            print(f"{name:22}{'there' if stages[name].result(home, name).exists() else ''}")
        else:
            run(home, stages, name, options.changes)
