"""Trains and evaluates on the chamber, stage by stage: `python benchmarks/chamber/run.py [--list] [STAGE …]`.

Everything lies in `runs/chamber` under the repository's root: a stage whose result is there is not run again, and one
that was cut off goes on. A stage's own settings can be changed by `--set`, as with `antiphon train`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RUNS = ROOT / "runs" / "chamber"
ROUTER = "train/router.toml"
SHORT = 20
"""Steps of the runs for cost and for ablations."""

NAMED = "environment.randomise.names=false"
"""The ablations' small setting: members keep their names, so that there is something to go by without descriptors."""

FORMAT_LESS = json.dumps([{"term": "outcome", "options": {"metric": "em"}}]).replace('":', '" =')


@dataclass(frozen=True, slots=True)
class Training:
    """Fine-tuning (`sft`), or reinforcement learning from the weights of `start`."""

    spec: str = ROUTER
    start: str | None = None
    settings: tuple[str, ...] = ()

    def commands(self, name: str, changes: Sequence[str]) -> list[list[str]]:
        run, weights = RUNS / name, RUNS / "weights" / name
        settings = [f"--set={text}" for text in (*self.settings, *changes)]
        given = [str(HERE / self.spec), "--out", str(run), *settings]
        if self.start is None:
            train = ["train", "sft", *given]
        else:
            resume = ["--resume"] if (run / "checkpoints" / "latest").exists() else []
            train = ["train", "run", *given, f"--set=model.start={RUNS / self.start}", *resume]
        done = self.start is None and (run / "checkpoints" / "latest").exists()
        return [*([] if done else [train]), ["train", "export", str(run), "--out", str(weights)]]

    def result(self, name: str) -> Path:
        return RUNS / "weights" / name


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A spec, under `antiphon.toml` with what another file adds to it."""

    spec: str
    added: str | None = None

    def commands(self, name: str, changes: Sequence[str]) -> list[list[str]]:
        config = RUNS / f"{self.added or 'antiphon'}.toml"
        parts = ("antiphon", *([] if self.added is None else [self.added]))
        config.write_text("\n".join((HERE / f"{part}.toml").read_text("utf-8") for part in parts), "utf-8")
        return [["evaluate", str(HERE / "evaluate" / self.spec), "--out", str(RUNS / "evaluations" / name),
                 "--config", str(config)]]  # fmt: skip

    def result(self, name: str) -> Path:
        return RUNS / "evaluations" / name / "summary.json"


@dataclass(frozen=True, slots=True)
class Recording:
    """What all members say to the training questions that learned routers and readers see."""

    questions: int

    def commands(self, name: str, changes: Sequence[str]) -> list[list[str]]:
        return [["record", "--pool", "chamber", "--dataset", "chamber", "--option", "split=train", "--limit",
                 str(self.questions), "--out", str(self.result(name))]]  # fmt: skip

    def result(self, name: str) -> Path:
        return RUNS / f"{name}.jsonl"


def _grpo(start: str, *settings: str, steps: int = SHORT) -> Training:
    return Training(ROUTER, start, (f"train.steps={steps}", *settings))


def _cost(alpha: float) -> Training:
    """Under `released` a wrong answer is never paid for being cheap, so that asking nobody is no way out."""
    return _grpo("main-1", "reward.name=released", f"reward.alpha={alpha}", "validation.best=reward", "train.seed=3")


def _short(start: str, *settings: str) -> Training:
    """One run of the ablations."""
    return _grpo(start, "train.seed=3", NAMED, *settings)


STAGES: dict[str, Training | Evaluation | Recording] = {
    "warm": Training(),
    "main-1": _grpo("warm", steps=40),
    "replies": Recording(questions=500),
    "sft": Training("train/sft.toml"),
    "reader": Training("train/reader.toml"),
    "opponents": Evaluation("opponents.toml"),
    "main-2": _grpo("warm", "train.seed=2", steps=40),
    "router": Evaluation("router.toml"),
    "unseen": Evaluation("unseen.toml"),
    "unseen-shuffled": Evaluation("unseen.toml", "shuffled"),
    "cost-0": _cost(0.0),
    "cost-0.6": _cost(0.6),
    "cost-0.9": _cost(0.9),
    "cost": Evaluation("cost.toml"),
    "cost-swapped": Evaluation("cost.toml", "swapped"),
    "warm-named": Training(settings=(NAMED,)),
    "short": _short("warm-named"),
    "no-format": _short("warm-named", f"reward.terms={FORMAT_LESS}"),
    "no-mask": _short("warm-named", "algorithm.mask_information=false"),
    "warm-compact": Training(settings=(NAMED, 'policy.grammar_options.style="compact"')),
    "compact": _short("warm-compact", 'policy.grammar_options.style="compact"'),
    "warm-no-descriptors": Training(settings=(NAMED, 'policy.grammar_options.style="none"')),
    "no-descriptors": _short("warm-no-descriptors", 'policy.grammar_options.style="none"'),
    "warm-without-owl": Training(settings=(NAMED, 'environment.randomise.absent=["Owl"]')),
    "added": _short("warm-without-owl", f"environment.randomise.joins.Owl={SHORT // 2}"),
    "ablations": Evaluation("ablations.toml"),
}
"""In the order of what matters most."""


def run(name: str, changes: Sequence[str]) -> None:
    """Run a stage to its result.

    Raises:
        SystemExit: a command of it failed.
    """
    stage, began = STAGES[name], time.monotonic()
    if stage.result(name).exists() and not isinstance(stage, Recording):
        print(f"{name}: there already", flush=True)
        return
    RUNS.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "CHAMBER_RUNS": str(RUNS)}
    for command in stage.commands(name, changes):
        config = [] if "--config" in command or "export" in command else ["--config", str(HERE / "antiphon.toml")]
        full = [sys.executable, "-m", "antiphon", *command, *config]
        print(f"{name}: antiphon {' '.join(command)}", flush=True)
        done = subprocess.run(full, cwd=ROOT, env=environment, check=False)
        if done.returncode:
            sys.exit(f"{name}: exit status {done.returncode}; the same command goes on from here")
    seconds = round(time.monotonic() - began, 1)
    with (RUNS / "hours.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"stage": name, "seconds": seconds, "threads": os.cpu_count()}) + "\n")
    print(f"{name}: {seconds} s", flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("stages", nargs="*", metavar="STAGE", help="default: all, in order")
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="TABLE.KEY=VALUE")
    parser.add_argument("--list", action="store_true", help="name the stages and what is there of them")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.stages if name not in STAGES]:
        parser.error(f"no stage is called {', '.join(unknown)}; there are {', '.join(STAGES)}")
    for name in options.stages or STAGES:
        if options.list:
            print(f"{name:22}{'there' if STAGES[name].result(name).exists() else ''}")
        else:
            run(name, options.changes)


if __name__ == "__main__":
    main()
