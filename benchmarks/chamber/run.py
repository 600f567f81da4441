"""Trains and evaluates on the chamber, stage by stage: `python benchmarks/chamber/run.py [--list] [STAGE …]`.

Everything lies in `runs/chamber` under the repository's root: a stage whose result is there is not run again, and one
that was cut off goes on. A stage's own settings can be changed by `--set`, as with `antiphon train`.
"""

from __future__ import annotations

import json
from pathlib import Path

from stages import ROOT, Evaluation, Home, Recording, Stage, Training, main

HOME = Home(Path(__file__).parent, ROOT / "runs" / "chamber", "CHAMBER_RUNS")
SHORT = 20
"""Steps of the runs for cost and for ablations."""

NAMED = "environment.randomise.names=false"
"""The ablations' small setting: members keep their names, so that there is something to go by without descriptors."""

COMPACT = 'policy.grammar_options.member="{{output_price}}: {{name}}"'
NO_DESCRIPTORS = 'policy.grammar_options.member="{{name}}"'

FORMAT_LESS = json.dumps([{"term": "outcome", "options": {"metric": "em"}}]).replace('":', '" =')


FEW = "data.options.wordings=2"
"""What a warm start learns from, so that reinforcement learning has something left to learn."""


def _warm(*settings: str) -> Training:
    return Training(settings=(FEW, *settings))


def _grpo(start: str, *settings: str, steps: int = SHORT) -> Training:
    return Training("train/router.toml", start, (f"train.steps={steps}", *settings))


def _cost(alpha: float) -> Training:
    """Under `released` a wrong answer is never paid for being cheap, so that asking nobody is no way out."""
    return _grpo("main-1", "reward.name=released", f"reward.alpha={alpha}", "validation.best=reward", "train.seed=3")


def _short(start: str, *settings: str) -> Training:
    """One run of the ablations."""
    return _grpo(start, "train.seed=3", NAMED, *settings)


STAGES: dict[str, Stage] = {
    "default": Training(settings=("demonstrations.tasks=800",)),  # the weights that the package brings
    "warm": _warm(),
    "main-1": Training(start="warm"),
    "replies": Recording("chamber", "chamber", ("split=train",), questions=500),
    "routers": Evaluation("routers.toml"),
    "sft": Training("train/sft.toml"),
    "reader": Training("train/reader.toml"),
    "opponents": Evaluation("opponents.toml"),
    "main-2": Training(start="warm", settings=("train.seed=2",)),
    "router": Evaluation("router.toml"),
    "unseen": Evaluation("unseen.toml"),
    "unseen-shuffled": Evaluation("unseen.toml", "shuffled"),
    "cost-0": _cost(0.0),
    "cost-0.6": _cost(0.6),
    "cost-0.9": _cost(0.9),
    "cost": Evaluation("cost.toml"),
    "cost-swapped": Evaluation("cost.toml", "swapped"),
    "warm-named": _warm(NAMED),
    "short": _short("warm-named"),
    "no-format": _short("warm-named", f"reward.terms={FORMAT_LESS}"),
    "no-mask": _short("warm-named", "algorithm.mask_information=false"),
    "warm-compact": _warm(NAMED, COMPACT),
    "compact": _short("warm-compact", COMPACT),
    "warm-no-descriptors": _warm(NAMED, NO_DESCRIPTORS),
    "no-descriptors": _short("warm-no-descriptors", NO_DESCRIPTORS),
    "warm-without-owl": _warm(NAMED, 'environment.randomise.absent=["Owl"]'),
    "added": _short("warm-without-owl", f"environment.randomise.joins.Owl={SHORT // 2}"),
    "ablations": Evaluation("ablations.toml"),
}
"""In the order of what matters most."""


if __name__ == "__main__":
    main(HOME, STAGES, (__doc__ or "").partition("\n")[0])
