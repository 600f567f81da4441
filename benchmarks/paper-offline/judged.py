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

TRAINING = {name: {"features": "tfidf"} for name in LEARNED if name != "bert"}

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
        by_llm = matrix.get(question_key(row.question))
        if by_llm is not None and row.asked:
            found[row.policy][row.task_id] = by_llm[fold(row.asked[0])]
    return _table(found, baseline)


def score_matrix(
    path: Path, work: Path, registry: Registry, limit: int | None, without: frozenset[str]
) -> dict[str, Any]:
    """The policies' choices judged by a file that has scores and no replies: on the file's own test split, learnt from
    its train split; by ten folds over all of its questions; and by ten folds over those of NQ alone."""
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

    def judged_on(put: Sequence[Task], /, **fitted: Any) -> dict[str, Any]:
        asked = put[:limit]
        policies = _policies(llms, registry, {"scores": str(path), **fitted}, without)
        return {"questions": len(asked), "rows": _chosen(asked, llms, matrix, registry, policies)}

    test = [task for task in every if task.dataset == "test"]
    own = judged_on(test, questions=str(train), folds=0)
    return {
        "test_split": {**own, "learnt_from": len(learnt_from)},
        "ten_folds": judged_on(every, folds=10),
        "ten_folds_nq": judged_on(of_nq, questions=str(nq), folds=10),
    }


def _policies(
    llms: Sequence[str], registry: Registry, fitted: Mapping[str, Any], without: frozenset[str]
) -> dict[str, Policy]:
    return {
        "Random LLM": registry.policy("random"),
        **{f"{llm} alone": registry.policy("single", member=llm) for llm in llms},
        "Best single LLM": registry.policy("best_single", **fitted),
        "KNN Router": registry.policy("knn", **fitted),
        "KNN Router, k = 5": registry.policy("knn", **fitted, k=5),
        "KNN Router, k = 80": registry.policy("knn", **fitted, k=80),
        **{
            label: registry.policy(name, **fitted, training=TRAINING.get(name, {}))
            for name, label in LEARNED.items()
            if name not in without
        },
        "Oracle": registry.policy("oracle", scores=fitted["scores"]),
    }


def _chosen(
    tasks: Sequence[Task], llms: Sequence[str], matrix: Matrix, registry: Registry, policies: Mapping[str, Policy]
) -> list[dict[str, Any]]:
    """Whom each policy asks, in real rollouts whose members have nothing to say, and what the matrix says of it."""
    pool = [member(_silent, name=llm, description="Scores only.") for llm in llms]
    found: dict[str, dict[str, float]] = {}
    for label, policy in policies.items():
        with Orchestrator(pool=pool, policy=policy, registry=registry) as orchestrator:
            asked = [(one.task, one.calls[0].member) for one in orchestrator.batch(tasks)]
        found[label] = {task.id: matrix[question_key(task.question)][fold(llm)] for task, llm in asked}
    return _table(found, "Best single LLM")


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
