"""The paper's offline evaluation: its baselines on what LLMs were recorded to answer; no key, no network, no GPU.

    python benchmarks/paper-offline/run.py [--data DIR] [--work DIR] [--out DIR] [--limit N] [--json]

Writes tables, figures, summaries and rows into --out. The report with a trajectory behind every number stays in --work,
since it is large. Rows whose input was not recorded say "not run" and why.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import checks
import judged

from antiphon.evaluate import report
from antiphon.evaluate.report.tables import p_value
from antiphon.evaluate.run import Evaluation
from antiphon.evaluate.spec import load_spec
from antiphon.evaluate.store import SUMMARY, read_json, write_json
from antiphon.evaluate.store import rows as rows_of
from antiphon.registry import Registry, default_registry
from antiphon_policies._scores import question_key

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "paper-offline"
COMMAND = "make paper-offline"
RUNS = ("nq", "evouna-nq", "evouna-triviaqa")

WITH_A_MODEL = ("nq-base", "multihop")

MODEL = "needs a base model (--model); none was named"
REPLAY = "its parts were never put to the LLMs: replaying whole answers by question id would be no decomposition"
NOT_RUN = {
    "SFT": "needs a base model fine-tuned on the training answers",
    "RAG": "needs a base model and the corpus of its data set",
    "Search-R1": "needs weights trained to search, and a corpus",
    "AutoMix": "its members judge their own answers, and what they would say to that was not recorded",
    "Causal-LM Router": "fine-tunes a base model in every fold: hours on two cores",
    "Prompt LLM*": REPLAY,
    "KNN Router*": REPLAY,
    "Router-R1": f"needs trained weights; {REPLAY}",
}
"""The paper's other rows on NQ, and why there is no number."""

ELSEWHERE = [("PopQA, 2WikiMultihopQA, Bamboogle", "every policy that asks LLMs", "no answers to them were recorded")]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("ANTIPHON_DATA"))
    parser.add_argument("--work", type=Path, help="where runs are kept, and gone on with [default: a temporary one]")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--limit", type=int, help="the first N questions of each set")
    parser.add_argument("--model", help="base model of the rows that need one: a configured name or a folder")
    parser.add_argument("--without", nargs="*", default=[], metavar="POLICY", help="leave these policies out")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.data is None or not options.data.is_dir():
        print(json.dumps({"status": "not run", "note": "name the recorded data: --data DIR, or ANTIPHON_DATA"}))
        return 0 if options.data is None else 1
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        if options.model:
            os.environ["ANTIPHON_MODEL"] = options.model
        names = (*RUNS, *WITH_A_MODEL) if options.model else RUNS
        without = frozenset(options.without)
        result = evaluate(options.data.resolve(), work.resolve(), options.out, options.limit, names, without)
    print(json.dumps(result) if options.json else (options.out / "README.md").read_text("utf-8"))
    return 0


def evaluate(
    data: Path, work: Path, out: Path, limit: int | None, names: tuple[str, ...], without: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Check, run, judge, and write everything into `out`.

    Raises:
        SystemExit: the checks do not hold; nothing was run.
    """
    registry = default_registry()
    os.environ.update(ANTIPHON_DATA=str(data), PAPER_OFFLINE=str(work))
    check = checks.checked(data, registry)
    if not check["replies"] == check["f1_equal"] == check["cost_equal"]:
        sys.exit(f"our F1 or our costs are not those of the file: {check}; nothing was run")
    prepare(data, work)
    out.mkdir(parents=True, exist_ok=True)
    missing = not_run(names, without)
    started = time.monotonic()
    summaries = {name: run(name, work, out, limit, missing, registry, without) for name in names}
    wall_s = time.monotonic() - started
    write_json(out / "members.json", checks.members(data, registry))
    human = {
        name: judged.judged(
            work / name, judged.judgements(sorted((data / "recorded").glob(files))), summaries[name]["baseline"]
        )
        for name, files in (("evouna-nq", "evouna_nq-*.jsonl"), ("evouna-triviaqa", "evouna_triviaqa-*.jsonl"))
    }
    write_json(out / "judged.json", human)
    matrix = judged.score_matrix(data / "recorded/llmrouter9_nq_triviaqa.jsonl", work, registry, limit, without)
    write_json(out / "llmrouter9.json", matrix)
    (out / "README.md").write_text(page(check, summaries, human, matrix, missing, limit), "utf-8")
    rollouts = sum(cell["rows"] for summary in summaries.values() for cell in summary["cells"] if "rows" in cell)
    return {"check": check, "rollouts": rollouts, "wall_s": round(wall_s, 1), "out": out.name}


def prepare(data: Path, work: Path) -> None:
    """Data sets of the questions that EVOUNA has (those of the paper's 500, and its own of TriviaQA, each once), and
    the corpus of the supporting passages of HotpotQA and MuSiQue.

    EVOUNA splits its golden answers at `/`, which leaves empty ones in a few rows; these are dropped.
    """
    recorded = data / "recorded"
    nq = {question_key(row["question"]) for path in recorded.glob("evouna_nq-*.jsonl") for row in checks.rows(path)}
    ours = [row for row in checks.rows(data / "qa/nq.jsonl") if question_key(row["question"]) in nq]
    trivia: dict[str, dict[str, Any]] = {}
    for path in sorted(recorded.glob("evouna_triviaqa-*.jsonl")):
        for row in checks.rows(path):
            golden = [answer for answer in row["golden_answers"] if answer.strip()]
            question = {"id": row["question_id"], "question": row["question"], "golden_answers": golden}
            trivia.setdefault(question_key(row["question"]), question)
    passages: dict[str, dict[str, str]] = {}
    for name in ("hotpotqa", "musique"):
        for row in checks.rows(data / f"qa_train/{name}.jsonl"):
            for passage in row["golden_context"]:
                title, _, text = passage.partition("\n")
                passages.setdefault(passage, {"title": title, "text": text.strip()})
    kept = {"nq": ours, "triviaqa": list(trivia.values()), "passages": list(passages.values())}
    for name, questions in kept.items():
        (work / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions), "utf-8")


def not_run(names: tuple[str, ...], without: frozenset[str]) -> dict[str, str]:
    """The rows of NQ that have no number, and why."""
    left_out = {
        policy.label: "left out of this run (--without)"
        for policy in load_spec(HERE / "nq.toml").policies
        if policy.name in without
    }
    base = () if "nq-base" in names else load_spec(HERE / "nq-base.toml").policies
    return {**left_out, **{policy.label: MODEL for policy in base}, **NOT_RUN}


def run(
    name: str,
    work: Path,
    out: Path,
    limit: int | None,
    missing: dict[str, str],
    registry: Registry,
    without: frozenset[str],
) -> dict[str, Any]:
    """Run one spec, add the rows that were not run, write its report, and copy what is small into `out`."""
    spec = load_spec(HERE / f"{name}.toml", overrides={"limit": limit})
    spec = spec.model_copy(update={"policies": tuple(one for one in spec.policies if one.name not in without)})
    with Evaluation(spec, work / name, config_file=HERE / "antiphon.toml", registry=registry) as evaluation:
        end = evaluation.run()
        if end != "done":
            sys.exit(f"{name}: {end} after {evaluation.done} of {evaluation.total} rollouts; the same --work goes on")
        summary = evaluation.summarise(command=COMMAND)
    if name == "nq":
        where = {"pool": "paper-recorded", "dataset": "nq", "n": 0, "metrics": {}, "status": "not run"}
        summary["cells"] += [{"policy": label, **where, "note": why} for label, why in missing.items()]
        write_json(work / name / SUMMARY, summary)
    report.write(work / name)
    target = out / name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for folder in ("tables", "figures"):
        if (work / name / folder).is_dir():  # without matplotlib there are no figures
            shutil.copytree(work / name / folder, target / folder)
    for file in ("spec.json", SUMMARY):
        shutil.copy(work / name / file, target / file)
    (target / "rows.jsonl.gz").write_bytes(gzip.compress(slim_rows(work / name), mtime=0))
    found: dict[str, Any] = read_json(target / SUMMARY)
    return found


def slim_rows(run: Path) -> bytes:
    """Who asked whom, what came of it and what it cost, by policy and question. (Who answered what is in the recorded
    files; times are of one machine on one day.)"""
    kept = ("policy", "dataset", "task_id", "asked", "stop", "metrics", "raw_cost", "tokens")
    found = ({name: getattr(row, name) for name in kept} for row in rows_of(run))
    ordered = sorted(found, key=lambda row: (row["policy"], row["dataset"], row["task_id"]))
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ordered).encode()


# ---- the page -----------------------------------------------------------------------------------------------------

TITLES = {
    "nq": "NQ, the paper's own 500 questions, its six LLMs",
    "evouna-nq": "NQ, 499 of the same questions, five systems of 2023",
    "evouna-triviaqa": "TriviaQA, 1,999 questions, five systems of 2023",
    "nq-base": "NQ, the paper's own 500 questions, with a base model",
    "multihop": "HotpotQA and MuSiQue, 500 questions each, with a base model",
}


def page(
    check: dict[str, Any],
    summaries: dict[str, Any],
    human: dict[str, Any],
    matrix: dict[str, Any],
    missing: dict[str, str],
    limit: int | None,
) -> str:
    """What stands in the results' folder, in words and tables."""
    parts = [INTRODUCTION.format(command=COMMAND, **check), _short(summaries, human, matrix)]
    if limit is not None:
        parts.append(f"**Only the first {limit} questions of each set: no result.**")
    for name, summary in summaries.items():
        parts += [f"## {TITLES[name]}", _metrics(summary), _paired(summary)]
        if name in human:
            parts += [
                "Human judgements of the replies, proper questions that all five were judged on:",
                _judged(human[name]),
            ]
    parts.append("## LLMRouter's nine LLMs, NQ and TriviaQA together: a matrix of scores without replies")
    parts.append(
        f"Its own split: {matrix['test_split']['questions']} questions, "
        f"learnt from {matrix['test_split']['learnt_from']}."
    )
    parts += [_judged(matrix["test_split"]["rows"]), f"Ten folds over all {matrix['ten_folds']['questions']}:"]
    parts += [_judged(matrix["ten_folds"]["rows"])]
    parts += [f"Ten folds over the {matrix['ten_folds_nq']['questions']} of NQ alone:"]
    parts += [_judged(matrix["ten_folds_nq"]["rows"]), "## Not run"]
    rows = [("NQ", label, why) for label, why in missing.items()] + ELSEWHERE
    if "multihop" not in summaries:
        rows.append(("HotpotQA, MuSiQue", "Direct, CoT, RAG over the pooled supporting passages", MODEL))
    parts.append(_table(("data set", "policy", "why"), rows))
    return "\n\n".join(parts) + "\n"


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
    cells = {cell["policy"]: cell for cell in summaries["nq"]["cells"]}
    for metric, mark in (("em", ""), ("contains", " (contains)")):
        labels = (f"Best single LLM{mark}, 10-fold", f"KNN Router{mark}, 10-fold", f"Oracle ({metric})")
        labels = (*labels[:2], labels[2].replace("(em)", "(EM)"))
        rows.append(("NQ, the paper's six", metric, *(_interval(cells[label]["metrics"][metric]) for label in labels)))
    judged_sets = [
        ("NQ, five of 2023", human["evouna-nq"], "", "Oracle (judged)"),
        ("TriviaQA, five of 2023", human["evouna-triviaqa"], ", 10-fold", "Oracle (judged)"),
        ("NQ and TriviaQA, LLMRouter's nine, test split", matrix["test_split"]["rows"], "", "Oracle"),
        ("NQ and TriviaQA, LLMRouter's nine, 10-fold", matrix["ten_folds"]["rows"], "", "Oracle"),
    ]
    for title, lines, mark, oracle in judged_sets:
        found = {line["policy"]: line for line in lines}
        how = "human judgement" if oracle != "Oracle" else "recorded score"
        labels = (f"Best single LLM{mark}", f"KNN Router{mark}", oracle)
        rows.append((title, how, *(_interval(found[label]) for label in labels)))
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


if __name__ == "__main__":
    sys.exit(main())
