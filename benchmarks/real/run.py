"""Trains and evaluates on what real LLMs answered, stage by stage: `python benchmarks/real/run.py [--list] [STAGE …]`.

Needs the recorded data: ANTIPHON_DATA names them. Everything lies in `runs/real` under the repository's root; see
`benchmarks/chamber/run.py`, whose stages these are.
"""

from __future__ import annotations

import json
import os
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "chamber"), str(HERE)]

from stages import ROOT, Evaluation, Home, Stage, Training, main  # noqa: E402

from antiphon_policies._scores import question_key  # noqa: E402

CHAMBER = HERE.parent / "chamber"
HOME = Home(HERE, ROOT / "runs" / "real", "REAL_RUNS")
HELD_BACK = 210
"""Questions at the end of the training set that validation has to itself."""


def _main(seed: int) -> Training:
    """From a warm start that met no member's name, with the members' own: who is worth asking is found by asking.

    Where names are drawn anew (a trial of 13 steps is in the results), all that tells the members apart is what
    their descriptions say, and a warm start that asks at random has not learnt to go by that.
    """
    named = ("environment.randomise.names=false", "algorithm.lr=1e-4")
    return Training(start="warm", settings=(*named, f"train.seed={seed}"))


def _drawn(start: str | None = None) -> Training:
    """Members by names drawn anew from those of the chamber, from the weights that the package brings, which look up
    names so: a small policy spells right whom it asks, be it new to it.

    The last step's weights are taken: validation shows the members under their own names, in one order.
    """
    router = tomllib.loads((CHAMBER / "train" / "router.toml").read_text("utf-8"))
    member = tomllib.loads((CHAMBER / "antiphon.toml").read_text("utf-8"))["grammars"]["router_r1"]["member"]
    names = json.dumps(router["environment"]["randomise"]["names"])
    shown = (f"environment.randomise.names={names}", f"policy.grammar_options.member={json.dumps(member)}")
    begins = ("model.start=antiphon_policies:weights/antiphon-135m",) if start is None else ()
    step = None if start is None else 24
    return Training(start=start, settings=(*shown, *begins, "algorithm.lr=1e-4"), step=step)


STAGES: dict[str, Stage] = {
    "warm": Training(),
    "main-1": _main(1),
    "main-2": _main(2),
    "drawn-warm": _drawn(),
    "drawn-1": _drawn("drawn-warm"),
    "sft": Training("train/sft.toml"),
    "reader": Training("train/reader.toml"),
    "same-members": Evaluation("same-members.toml"),
    "unseen-members": Evaluation("unseen-members.toml"),
    "unseen-drawn": Evaluation("unseen-drawn.toml", "short"),
    "unseen-opponents": Evaluation("unseen-opponents.toml"),
}
"""In the order of what matters most."""


def split() -> None:
    """Files of the questions: of training, of validation, and those of the test that the same members were asked."""
    if (given := os.environ.get("ANTIPHON_DATA")) is None:
        sys.exit("name the recorded data: ANTIPHON_DATA")
    data = Path(given)
    recorded = {key for file in (data / "recorded").glob("evouna_nq-*.jsonl") for key, _ in _lines(file)}
    training = list(_lines(data / "qa_train" / "nq.jsonl"))
    test = [(key, line) for key, line in _lines(data / "qa" / "nq.jsonl") if key in recorded]
    HOME.runs.mkdir(parents=True, exist_ok=True)
    for name, rows in (("train", training[:-HELD_BACK]), ("validation", training[-HELD_BACK:]), ("test", test)):
        (HOME.runs / f"{name}.jsonl").write_text("".join(line for _, line in rows), "utf-8")


def _lines(file: Path) -> Iterator[tuple[str, str]]:
    """The words of each question, and its line."""
    for line in file.read_text("utf-8").splitlines(keepends=True):
        yield question_key(json.loads(line)["question"]), line


if __name__ == "__main__":
    split()
    # Teachers are named by their module; the commands are processes of their own.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    main(HOME, STAGES, (__doc__ or "").partition("\n")[0])
