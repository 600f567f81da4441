"""The page of the results' folder: every table in words, made from the files that are kept there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import causes

from antiphon.evaluate.report.tables import p_value
from antiphon.evaluate.store import SUMMARY, read_json

TITLES = {
    "nq": "NQ, the paper's own 500 questions, its six LLMs",
    "nq-cost": "NQ, the same questions and LLMs, judged by `contains`, at several prices of a point",
    "evouna-nq": "NQ, 499 of the same questions, five systems of 2023",
    "evouna-triviaqa": "TriviaQA, 1,999 questions, five systems of 2023",
    "nq-base": "NQ, the paper's own 500 questions, with a base model",
    "multihop": "HotpotQA and MuSiQue, 500 questions each, with a base model",
}

SHORT = {
    "nq": "NQ, the paper's six",
    "nq-cost": "NQ, the paper's six",
    "evouna-nq": "NQ, five of 2023",
    "evouna-triviaqa": "TriviaQA, five of 2023",
    "test_split": "NQ and TriviaQA, LLMRouter's nine, test split",
    "ten_folds": "NQ and TriviaQA, LLMRouter's nine, 10-fold",
    "ten_folds_nq": "NQ, LLMRouter's nine, 10-fold",
}

ELSEWHERE = [("PopQA, 2WikiMultihopQA, Bamboogle", "every policy that asks LLMs", "no answers to them were recorded")]


def page(out: Path, bandit: Path, command: str) -> str:
    """What stands in the results' folder, in words and tables.

    Args:
        bandit: what benchmarks/routers/bandit.py wrote; without it, less is said of the bandit.
    """
    summaries = {name: read_json(out / name / SUMMARY) for name in TITLES if (out / name / SUMMARY).is_file()}
    human = {name: read_json(file) for name in summaries if (file := out / name / "judged.json").is_file()}
    matrix = read_json(out / "llmrouter9.json") if (out / "llmrouter9.json").is_file() else {}
    parts = [INTRODUCTION.format(command=command, **read_json(out / "checks.json")), _short(summaries, human, matrix)]
    limits = {summary["spec"]["evaluate"]["limit"] for summary in summaries.values()} - {None}
    if limits:
        parts.append(f"**Only the first {min(limits)} questions of a set: no result.**")
    parts.append(causes.section(out, bandit, SHORT, _table))
    for name, summary in summaries.items():
        parts += [f"## {TITLES[name]}"]
        parts += [f"![{TITLES[name]}]({name}/{path.relative_to(out / name)})" for path in _plots(out / name)]
        parts += [_metrics(summary), _paired(summary)]
        if name in human:
            parts += [
                "Human judgements of the replies, proper questions that all five were judged on:",
                _judged(human[name]),
            ]
    if matrix:
        parts += _matrix(matrix)
    missing = [(cell["policy"], cell["note"]) for cell in _cells(summaries, "nq") if cell["status"] != "run"]
    rows = [("NQ", label, why) for label, why in missing] + ELSEWHERE
    if "multihop" not in summaries:
        why = "needs a base model (--model); none was named"
        rows.append(("HotpotQA, MuSiQue", "Direct, CoT, RAG over the pooled supporting passages", why))
    parts += ["## Not run", _table(("data set", "policy", "why"), rows)]
    return "\n\n".join(parts) + "\n"


def _plots(folder: Path) -> list[Path]:
    """Cost against quality."""
    return sorted((folder / "figures").glob("frontier-*.svg"))


def _cells(summaries: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return summaries[name]["cells"] if name in summaries else []


def _matrix(matrix: dict[str, Any]) -> list[str]:
    own, every, nq = matrix["test_split"], matrix["ten_folds"], matrix["ten_folds_nq"]
    return [
        "## LLMRouter's nine LLMs, NQ and TriviaQA together: a matrix of scores without replies",
        f"Its own split: {own['questions']} questions, learnt from {own['learnt_from']}.",
        _judged(own["rows"]),
        f"Ten folds over all {every['questions']}:",
        _judged(every["rows"]),
        f"Ten folds over the {nq['questions']} of NQ alone:",
        _judged(nq["rows"]),
    ]


INTRODUCTION = """\
# The paper's baselines on recorded answers

Made by `{command}`. Each policy chooses members in real rollouts; members answer from what they were recorded to say.
A member's reply is the answer, reduced in one way for all: its last `<answer>` span, else the whole reply. (The paper's
query-based routers let a base model read the reply and answer. Its numbers are therefore not set beside these.)

What is trained never sees the question it is asked: "10-fold" learns from the questions of the other nine folds, by
the hash of the question. k = 20 was fixed before anything was run; other values of k, and the cost weight, are shown,
not chosen from. Intervals: 95 %, bootstrap over questions. p: two-sided sign-flip permutation test on common
questions, not corrected for many comparisons.

Checked first, on all {replies} recorded replies of the paper's six LLMs: our F1 equals the file's own on {f1_equal},
and our price times tokens equals its cost on {cost_equal}. (The file's token counts were derived from its costs: the
second shows that the pipeline is whole, not what was paid.) `members.json` holds the means straight from the file.

Exact match and F1 measure the form of a reply too. Of 500 replies LLaMA-3.1-70B put the answer into a span in 214,
LLaMA-3.1-8B in 333, the others in nearly all; by `contains` the order of the LLMs is another one.

In each folder: `summary.json`, `tables/`, `figures/`, `rows.jsonl.gz` (a line a rollout: who was asked, metrics, cost).
Trajectories and the report to browse them in are too large to keep here;
`python benchmarks/paper-offline/run.py --work DIR` leaves them in DIR.

## In short

The best single LLM is chosen on other questions than it is judged on; KNN is the router of k = 20."""


def _short(summaries: dict[str, Any], human: dict[str, Any], matrix: dict[str, Any]) -> str:
    """Best single, router and upper line, side by side: one line for each set and way of judging."""
    rows = []
    for name, metric, oracle in (("nq", "em", "Oracle (EM)"), ("nq-cost", "contains", "Oracle (contains)")):
        cells = {cell["policy"]: cell for cell in _cells(summaries, name)}
        if cells:
            labels = ("Best single LLM, 10-fold", "KNN Router, 10-fold", oracle)
            rows.append((SHORT[name], metric, *(_interval(cells[label]["metrics"][metric]) for label in labels)))
    for name, mark in (("evouna-nq", ""), ("evouna-triviaqa", ", 10-fold")):
        found = {line["policy"]: line for line in human.get(name, ())}
        if found:
            labels = (f"Best single LLM{mark}", f"KNN Router{mark}", "Oracle (judged)")
            rows.append((SHORT[name], "human judgement", *(_interval(found[label]) for label in labels)))
    for name in ("test_split", "ten_folds"):
        found = {line["policy"]: line for line in matrix[name]["rows"]} if matrix else {}
        if found:
            labels = ("Best single LLM", "KNN Router", "Oracle")
            rows.append((SHORT[name], "recorded score", *(_interval(found[label]) for label in labels)))
    return _table(("questions and LLMs", "judged by", "best single LLM", "KNN Router", "oracle"), rows)


def _metrics(summary: dict[str, Any]) -> str:
    metrics = summary["spec"]["evaluate"]["metrics"]
    priced = any(member["output_price"] is not None for pool in summary["spec"]["pools"] for member in pool["members"])
    rows = []
    for cell in summary["cells"]:
        if cell["status"] == "run":
            values = [_interval(cell["metrics"][name]) for name in metrics]
            cost = [f"{cell['raw_cost']['mean']:.1f}"] if priced else []
            top = ", ".join(f"{name} {share:.0%}" for name, share in list(cell["share"].items())[:2])
            rows.append((cell["dataset"], cell["policy"], *values, *cost, top))
    return _table(("data set", "policy", *metrics, *(["raw cost"] if priced else []), "asks most"), rows)


def _paired(summary: dict[str, Any]) -> str:
    metric = summary["spec"]["evaluate"]["metrics"][0]
    rows = [
        (
            one["dataset"],
            one["policy"],
            f"{one['difference']:+.3f}",
            f"{one['low']:+.3f} to {one['high']:+.3f}",
            p_value(one["p"]),
        )
        for one in summary["paired"]
        if one["metric"] == metric
    ]
    return _table(("data set", f"{metric} less that of {summary['baseline']}", "difference", "95 %", "p"), rows)


def _judged(lines: list[dict[str, Any]]) -> str:
    rows = []
    for line in lines:
        paired = line.get("paired")
        against = ("", "")
        if paired is not None:
            low, high = paired["low"], paired["high"]
            against = (f"{paired['difference']:+.3f} ({low:+.3f} to {high:+.3f})", p_value(paired["p"]))
        rows.append((line["policy"], line["n"], _interval(line), *against))
    base = next(line["paired_with"] for line in lines if "paired_with" in line)
    return _table(("policy", "questions", "score", f"less {base}", "p"), rows)


def _interval(value: dict[str, float]) -> str:
    return f"{value['mean']:.3f} ({value['low']:.3f} to {value['high']:.3f})"


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(str(value) for value in line) + " |" for line in lines)
