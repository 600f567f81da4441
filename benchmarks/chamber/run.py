"""Trains and evaluates on the chamber, stage by stage: `python benchmarks/chamber/run.py [--list] [STAGE …]`.

Everything lies in `runs/chamber` under the repository's root: a stage whose result is there is not run again, and one
that was cut off goes on. A stage's own settings can be changed by `--set`, as with `antiphon train`.
"""

from __future__ import annotations

import json
from pathlib import Path

from stages import ROOT, Evaluation, Home, Recording, Stage, Training, main

HOME = Home(Path(__file__).parent, ROOT / "runs" / "chamber", "CHAMBER_RUNS")
SHORT = 12
"""Steps of the ablations' runs."""

SMALL = ("environment.randomise.names=false", "demonstrations.tasks=340", f"train.steps={SHORT}", "train.samples=4",
         "algorithm.lr=1e-4", f"validation.every={SHORT}", "validation.tasks=32")  # fmt: skip
"""The ablations' setting: members keep their names, so that there is something to go by without descriptors."""

COMPACT = 'policy.grammar_options.member="{{output_price}}: {{name}}"'
NO_DESCRIPTORS = 'policy.grammar_options.member="{{name}}"'

FORMAT_LESS = json.dumps([{"term": "outcome", "options": {"metric": "em"}}]).replace('":', '" =')


FEW = "data.options.wordings=2"
"""What a warm start learns from, so that reinforcement learning has something left to learn."""


def _warm(*settings: str) -> Training:
    return Training(settings=(FEW, *settings))


def _cost(alpha: float, start: str = "main-1") -> Training:
    """Under `released` a wrong answer is never paid for being cheap, so that asking nobody is no way out.

    What has learned at alpha = 0 is sure whom to ask under one order of the members, so that the samples of a question
    would all ask the same twin: each sees an order of its own. The last step's weights are taken: at the first
    validation there is no cost to compare with, so that its reward says nothing.
    """
    steps = 32
    reward = ("reward.name=released", f"reward.alpha={alpha}", "validation.best=reward", "validation.every=8")
    train = (f"train.steps={steps}", "train.samples=4", "train.seed=3", "algorithm.lr=1e-4")
    return Training(start=start, settings=(*reward, *train, "environment.randomise.each_sample=true"), step=steps)


def _small_warm(*settings: str) -> Training:
    return _warm(*SMALL, *settings)


def _small(start: str, *settings: str) -> Training:
    """One run of the ablations, judged as it ended."""
    return Training(start=start, settings=(*SMALL, "train.seed=3", *settings), step=SHORT)


STAGES: dict[str, Stage] = {
    "default-warm": Training(settings=("demonstrations.tasks=800",)),
    "default": _cost(0.9, start="default-warm"),
    "warm": _warm(),
    "main-1": Training(start="warm"),
    "replies": Recording("chamber", "chamber", ("split=train",), questions=500),
    "routers": Evaluation("routers.toml"),
    "out-of-the-box": Evaluation("out-of-the-box.toml"),
    "default-warm-judged": Evaluation("default-warm.toml"),
    "sft": Training("train/sft.toml"),
    "reader": Training("train/reader.toml"),
    "opponents": Evaluation("opponents.toml"),
    "reader-behind-best": Evaluation("reader-behind-best.toml"),
    "main-2": Training(start="warm", settings=("train.seed=2",)),
    "router": Evaluation("router.toml"),
    "unseen": Evaluation("unseen.toml"),
    "unseen-shuffled": Evaluation("unseen.toml", "shuffled"),
    "cost-0.6": _cost(0.6),
    "cost-0.9": _cost(0.9),
    "cost": Evaluation("cost.toml"),
    "cost-swapped": Evaluation("cost.toml", "swapped"),
    "small-warm": _small_warm(),
    "small": _small("small-warm"),
    "no-format": _small("small-warm", f"reward.terms={FORMAT_LESS}"),
    "no-mask": _small("small-warm", "algorithm.mask_information=false"),
    "compact-warm": _small_warm(COMPACT),
    "compact": _small("compact-warm", COMPACT),
    "no-descriptors-warm": _small_warm(NO_DESCRIPTORS),
    "no-descriptors": _small("no-descriptors-warm", NO_DESCRIPTORS),
    "without-owl-warm": _small_warm('environment.randomise.absent=["Owl"]'),
    "added": _small("without-owl-warm", f"environment.randomise.joins.Owl={SHORT // 2}"),
    "ablations": Evaluation("ablations.toml", "templates"),
}
"""In the order of what matters most."""


if __name__ == "__main__":
    main(HOME, STAGES, (__doc__ or "").partition("\n")[0])
