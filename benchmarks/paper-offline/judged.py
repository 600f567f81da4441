"""Tables that are no rollout's answers: human judgements of whom a policy asked, and a matrix of bare scores."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from checks import rows

from antiphon.contracts import Policy
from antiphon.evaluate import stats
from antiphon.evaluate.rows import Row
from antiphon.evaluate.store import rows as rows_of
from antiphon.names import fold
from antiphon.orchestrator import Orchestrator
from antiphon.registry import Registry
from antiphon.types import Task
from antiphon_policies._scores import question_key
from antiphon_pools.adapters.function import member

LEARNED = {
    "mlp": "MLP Router",
    "bert": "BERT Router",
    "routerdc": "RouterDC",
    "graphrouter": "GraphRouter",
    "routellm": "RouteLLM",
    "hybridllm": "HybridLLM",
    "svm": "SVM Router",
    "elo": "Elo",
    "to_router": "TO-Router",
    "forc": "FORC",
}
"""The learned routers that need no replies, which are not there."""

BASELINE = "Best single LLM"

CHOOSERS: dict[str, tuple[str, dict[str, Any]]] = {
    BASELINE: ("best_single", {}),
    "KNN Router": ("knn", {}),
    "KNN Router, k = 5": ("knn", {"k": 5}),
    "KNN Router, k = 80": ("knn", {"k": 80}),
    **{label: (name, {"training": {} if name == "bert" else {"features": "tfidf"}}) for name, label in LEARNED.items()},
}
"""Label -> policy and options of what learns from scores alone."""

ALONE = "{} alone"
PARTS = ("test_split", "ten_folds", "ten_folds_nq")

Matrix = Mapping[str, Mapping[str, float]]
"""Question key -> folded LLM name -> score."""


def judgements(files: Sequence[Path]) -> Matrix:
    """Human judgements of the questions that are proper and judged for every LLM."""
    scores: dict[str, dict[str, float]] = defaultdict(dict)
    left_out = set()
    for path in files:
        for row in rows(path):
            key = question_key(row["question"])
            if row["improper"] or row["score"] is None:
                left_out.add(key)
            else:
                scores[key][fold(row["llm"])] = float(row["score"])
    return {key: by_llm for key, by_llm in scores.items() if key not in left_out}


def judged(run: Path, matrix: Matrix, baseline: str) -> list[dict[str, Any]]:
    """Mean judgement of the replies that each policy of a run got, with interval, and paired with the baseline."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for row in rows_of(run):
        value = judgement(row, matrix)
        if value is not None:
            found[row.policy][row.task_id] = value
    return _table(found, baseline)


def judgement(row: Row, matrix: Matrix) -> float | None:
    """What people said of the reply that became the answer; None where they did not, or nobody was asked."""
    by_llm = matrix.get(question_key(row.question))
    return None if by_llm is None or not row.asked else by_llm[fold(row.asked[-1])]


def score_matrix(
    path: Path, work: Path, registry: Registry, limit: int | None, without: frozenset[str]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The policies' choices judged by a file that has scores and no replies: on the file's own test split, learnt from
    its train split; by ten folds over all of its questions; and by ten folds over those of NQ alone.

    Returns:
        The tables of these `PARTS`, and whom each policy asked, question by question, with the score.
    """
    recorded = list(rows(path))
    matrix: dict[str, dict[str, float]] = defaultdict(dict)
    tasks: dict[str, Task] = {}
    for row in recorded:
        key = question_key(row["question"])
        matrix[key][fold(row["llm"])] = row["score"]
        tasks.setdefault(key, Task(row["question"], row["question_id"], tuple(row["golden_answers"]), row["split"]))
    every = list(tasks.values())
    train, nq = work / "train.jsonl", work / "nq-of-nine.jsonl"
    learnt_from = [task for task in every if task.dataset == "train"]
    of_nq = [task for task in every if task.id.startswith("nq_")]
    _write_questions(train, learnt_from)
    _write_questions(nq, of_nq)
    llms = list(dict.fromkeys(row["llm"] for row in recorded))
    chosen: list[dict[str, Any]] = []

    def judged_on(part: str, put: Sequence[Task], /, **fitted: Any) -> dict[str, Any]:
        asked = put[:limit]
        policies = _policies(llms, registry, {"scores": str(path), **fitted}, without)
        found: dict[str, dict[str, float]] = {}
        for label, members in _chosen(asked, llms, registry, policies).items():
            keys = [question_key(task.question) for task in asked]
            scores = [matrix[key][fold(llm)] for key, llm in zip(keys, members, strict=True)]
            chosen.append({"part": part, "policy": label, "asked": members, "score": scores})
            found[label] = {task.id: score for task, score in zip(asked, scores, strict=True)}
        return {"questions": len(asked), "rows": _table(found, BASELINE)}

    test = [task for task in every if task.dataset == "test"]
    own = judged_on("test_split", test, questions=str(train), folds=0)
    tables = {
        "test_split": {**own, "learnt_from": len(learnt_from)},
        "ten_folds": judged_on("ten_folds", every, folds=10),
        "ten_folds_nq": judged_on("ten_folds_nq", of_nq, questions=str(nq), folds=10),
    }
    return tables, chosen


def _policies(
    llms: Sequence[str], registry: Registry, fitted: Mapping[str, Any], without: frozenset[str]
) -> dict[str, Policy]:
    return {
        "Random LLM": registry.policy("random"),
        **{ALONE.format(llm): registry.policy("single", member=llm) for llm in llms},
        **{
            label: registry.policy(name, **fitted, **options)
            for label, (name, options) in CHOOSERS.items()
            if name not in without
        },
        "Oracle": registry.policy("oracle", scores=fitted["scores"]),
    }


def _chosen(
    tasks: Sequence[Task], llms: Sequence[str], registry: Registry, policies: Mapping[str, Policy]
) -> dict[str, list[str]]:
    """Whom each policy asks, question by question, in real rollouts whose members have nothing to say."""
    pool = [member(_silent, name=llm, description="Scores only.") for llm in llms]
    found: dict[str, list[str]] = {}
    for label, policy in policies.items():
        with Orchestrator(pool=pool, policy=policy, registry=registry) as orchestrator:
            found[label] = [one.calls[0].member for one in orchestrator.batch(tasks)]
    return found


def _silent(question: str) -> str:
    return "(no reply was recorded)"


def _table(found: Mapping[str, Mapping[str, float]], baseline: str) -> list[dict[str, Any]]:
    """A line a policy: n, mean and interval, and the paired difference from the baseline."""
    base = found[baseline]
    table = []
    for label, values in found.items():
        common = [name for name in values if name in base]
        paired = asdict(stats.paired([values[name] - base[name] for name in common]))
        line = {"policy": label, "n": len(values), **asdict(stats.interval(list(values.values())))}
        table.append(line if label == baseline else {**line, "paired_with": baseline, "paired": paired})
    return table


def _write_questions(path: Path, tasks: Sequence[Task]) -> None:
    path.write_text("".join(json.dumps({"id": task.id, "question": task.question}) + "\n" for task in tasks), "utf-8")
