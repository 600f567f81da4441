"""The paper's offline evaluation: its baselines on what LLMs were recorded to answer; no key, no network, no GPU.

    python benchmarks/paper-offline/run.py [--data DIR] [--work DIR] [--out DIR] [--sets [NAME …]] [--limit N] [--json]

Writes tables, figures, summaries and rows into --out. The report with a trajectory behind every number stays in --work,
since it is large. Rows whose input was not recorded say "not run" and why. With --sets, the others stay as they are in
--out; with none named, nothing is run, and the page alone is made again from what is kept there.
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
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import checks
import judged
import page

from antiphon.evaluate import report
from antiphon.evaluate.run import Evaluation
from antiphon.evaluate.spec import load_spec
from antiphon.evaluate.store import SUMMARY, read_json, write_json
from antiphon.evaluate.store import rows as rows_of
from antiphon.registry import Registry, default_registry
from antiphon_policies._scores import question_key

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "paper-offline"
BANDIT = HERE.parent / "results" / "routers" / "bandit.json"
COMMAND = "make paper-offline"
JUDGED = {"evouna-nq": "evouna_nq-*.jsonl", "evouna-triviaqa": "evouna_triviaqa-*.jsonl"}
"""Sets whose replies people have judged -> the files with the judgements."""

MATRIX = "llmrouter9"
SETS = ("nq", "nq-cost", *JUDGED, MATRIX)
WITH_A_MODEL = ("nq-base", "multihop")

MODEL = "needs a base model (--model); none was named"
REPLAY = "its parts were never put to the LLMs: replaying whole answers by question id would be no decomposition"
NOT_RUN = {
    "SFT": "needs a base model fine-tuned on the training answers",
    "RAG": "needs a base model and the corpus of its data set",
    "Search-R1": "needs weights trained to search, and a corpus",
    "AutoMix": "its members judge their own answers, and what they would say was not recorded; the chamber has its row",
    "Causal-LM Router": "fine-tunes a base model in every fold: hours on two cores; the chamber has its row",
    "Prompt LLM*": REPLAY,
    "KNN Router*": REPLAY,
    "Router-R1": f"needs trained weights; {REPLAY}",
}
"""The paper's other rows on NQ, and why there is no number."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("ANTIPHON_DATA"))
    parser.add_argument("--work", type=Path, help="where runs are kept, and gone on with [default: a temporary one]")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--sets", nargs="*", metavar="NAME", help=f"of {', '.join((*SETS, *WITH_A_MODEL))}")
    parser.add_argument("--limit", type=int, help="the first N questions of each set")
    parser.add_argument("--model", help="base model of the rows that need one: a configured name or a folder")
    parser.add_argument("--without", nargs="*", default=[], metavar="POLICY", help="leave these policies out")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    sets = options.sets if options.sets is not None else [*SETS, *(WITH_A_MODEL if options.model else ())]
    if unknown := [name for name in sets if name not in (*SETS, *WITH_A_MODEL)]:
        parser.error(f"no set is called {', '.join(unknown)}; there are {', '.join((*SETS, *WITH_A_MODEL))}")
    result: dict[str, Any] = {"out": options.out.name}
    if sets and (options.data is None or not options.data.is_dir()):
        print(json.dumps({"status": "not run", "note": "name the recorded data: --data DIR, or ANTIPHON_DATA"}))
        return 0 if options.data is None else 1
    if sets:
        with tempfile.TemporaryDirectory() as temporary:
            work = options.work or Path(temporary)
            work.mkdir(parents=True, exist_ok=True)
            if options.model:
                os.environ["ANTIPHON_MODEL"] = options.model
            without = frozenset(options.without)
            result |= evaluate(options.data.resolve(), work.resolve(), options.out, options.limit, sets, without)
    text = page.page(options.out, BANDIT, COMMAND)
    (options.out / "README.md").write_text(text, "utf-8")
    print(json.dumps(result) if options.json else text)
    return 0


def evaluate(
    data: Path, work: Path, out: Path, limit: int | None, sets: Sequence[str], without: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Check, run, judge, and write everything but the page into `out`.

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
    write_json(out / "checks.json", check)
    write_json(out / "members.json", checks.members(data, registry))
    missing = not_run(sets, without)
    started = time.monotonic()
    rollouts = 0
    for name in sets:
        if name == MATRIX:
            matrix, chosen = judged.score_matrix(
                data / "recorded/llmrouter9_nq_triviaqa.jsonl", work, registry, limit, without
            )
            write_json(out / f"{MATRIX}.json", matrix)
            write_rows(out / f"{MATRIX}-rows.jsonl.gz", chosen)
        else:
            human = judged.judgements(sorted((data / "recorded").glob(JUDGED[name]))) if name in JUDGED else None
            summary = run(name, work, out, limit, missing, registry, without, human)
            rollouts += sum(cell["rows"] for cell in summary["cells"] if "rows" in cell)
    return {"check": check, "rollouts": rollouts, "wall_s": round(time.monotonic() - started, 1)}


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


def not_run(names: Sequence[str], without: frozenset[str]) -> dict[str, str]:
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
    human: judged.Matrix | None,
) -> dict[str, Any]:
    """Run one spec, add the rows that were not run, write its report, and copy what is small into `out`.

    Args:
        human: what people said of the replies, where they did.
    """
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
    write_rows(target / "rows.jsonl.gz", slim_rows(work / name, human))
    if human is not None:
        write_json(target / "judged.json", judged.judged(work / name, human, summary["baseline"]))
    found: dict[str, Any] = read_json(target / SUMMARY)
    return found


def slim_rows(run: Path, human: judged.Matrix | None) -> list[dict[str, Any]]:
    """Who asked whom, what came of it and what it cost, by policy and question; with `judged` among the metrics where
    people judged it. (Who answered what is in the recorded files; times are of one machine on one day.)"""
    kept = ("policy", "dataset", "task_id", "index", "asked", "stop", "metrics", "raw_cost", "tokens")
    found = []
    for row in rows_of(run):
        value = None if human is None else judged.judgement(row, human)
        slim = {name: getattr(row, name) for name in kept}
        found.append(slim if value is None else {**slim, "metrics": {**row.metrics, "judged": value}})
    return sorted(found, key=lambda row: (row["policy"], row["dataset"], row["index"]))


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """JSON lines, the same bytes for the same rows."""
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    sys.exit(main())
