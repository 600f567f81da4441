"""What learned routers cost (minutes to train, decisions a second) and are worth, beside LLMRouter's on one file.

Each method learns from EVOUNA's judgements of 2,646 questions of NQ and chooses for 446 others, one at a time and on
one thread. Questions' vectors are at hand for all (the embedder, or TF-IDF without it), so that decisions are timed and
not the reading of questions, which is given once. `--peer PYTHON` names an interpreter with `llmrouter-lib` 0.4.0:
its MLP and KNN routers then run on the same rows, split and vectors.

    python benchmarks/routers/run.py [--data DIR] [--peer PYTHON] [--only NAME ...] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from antiphon import record
from antiphon.catalogue import Catalogue
from antiphon.config import load_config
from antiphon.contracts import MemberView
from antiphon.names import fold
from antiphon.registry import Registry
from antiphon.types import Task
from antiphon_policies._features import fit_features
from antiphon_policies._learned import Learned
from antiphon_policies._scores import Scored, Scores

HERE = Path(__file__).parent
POOL, SCORES = "evouna-nq", "recorded/evouna_nq-*.jsonl"
TRAIN = "qa_train/nq.jsonl"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("ANTIPHON_DATA"))
    parser.add_argument("--peer", metavar="PYTHON", help="an interpreter that has llmrouter-lib 0.4.0")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="these methods alone")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.data is None or not options.data.is_dir():
        print(json.dumps({"status": "not run", "note": "name the recorded data: --data DIR, or ANTIPHON_DATA"}))
        return 0 if options.data is None else 1
    import torch

    torch.set_num_threads(1)
    result = measure(Path(options.data), options.peer, options.only)
    print(json.dumps(result) if options.json else "\n".join(_lines(result)))
    return 0


def measure(data: Path, peer: str | None, only: Sequence[str] | None) -> dict[str, Any]:
    """One run of all methods, the peer's last."""
    registry = Registry.load([])
    config = load_config(overrides={"defaults": {"data": str(data)}})
    pool = record.make_pool(Catalogue.of(registry, config), registry, POOL).members
    scores, train = str(data / SCORES), str(data / TRAIN)
    learnt = {row.key for row in Scores.read(scores, questions=train).rows}
    every = Scores.read(scores)
    test = [row for row in every.rows if row.key not in learnt]
    names = [name for name in registry.names("policy") if _chooses(registry.factory("policy", name))]
    rows = []
    started = time.perf_counter()
    features = fit_features([row.text for row in every.rows], "auto", 0)
    features([row.text for row in every.rows])
    reading_s = time.perf_counter() - started
    for name in names if not only else [name for name in names if name in only]:
        policy = registry.policy(name, scores=scores, questions=train, folds=0)
        rows.append(_measured(name, policy, test, pool))
    result: dict[str, Any] = {
        "questions": {"train": len(learnt), "test": len(test)},
        "features": features.facts["kind"],
        "reading_s": round(reading_s, 1),
        "rows": rows,
    }
    if peer is not None:
        vectors = features([row.text for row in every.rows])
        result["peer"] = _peer(peer, every.rows, learnt, vectors)
    return result


def _chooses(factory: Any) -> bool:
    """It learns from scores and chooses a member for a question."""
    return factory.__name__ == "KNN" or (isinstance(factory, type) and issubclass(factory, Learned))


def _measured(name: str, policy: Any, test: Sequence[Scored], pool: Sequence[MemberView]) -> dict[str, Any]:
    """Seconds to train (the first decision less a later one), decisions a second, mean score of what was chosen."""

    class Seen:  # knn chooses within a rollout
        def __init__(self) -> None:
            self.pool = tuple(pool)

        def note(self, text: str) -> None:
            return

    def choose(row: Scored) -> str:
        task = Task(row.text)
        if hasattr(policy, "cascade"):
            return str(policy.cascade(task, pool)[1].members[0])
        chosen = policy.choose(row.text, task, Seen()) if name == "knn" else policy.choose(task, pool)
        return str(chosen)

    started = time.perf_counter()
    choose(test[0])
    trained = time.perf_counter()
    asked = [choose(row) for row in test]
    took = time.perf_counter() - trained
    known = [row.scores[fold(member)] for member, row in zip(asked, test, strict=True) if fold(member) in row.scores]
    return {
        "method": name,
        "train_s": round(trained - started, 2),
        "decisions_per_s": round(len(test) / took, 1),
        "score": round(sum(known) / len(known), 4),
        "judged": len(known),
    }


def _peer(python: str, rows: Sequence[Scored], learnt: set[str], vectors: Any) -> list[dict[str, Any]]:
    """Hand the same rows, split and vectors to `peer.py`, and read what it measured."""
    import numpy as np

    with tempfile.TemporaryDirectory() as folder:
        given = [
            {"query": row.text, "embedding_id": place, "scores": dict(row.scores), "train": row.key in learnt}
            for place, row in enumerate(rows)
        ]
        (Path(folder) / "rows.json").write_text(json.dumps(given), "utf-8")
        np.save(Path(folder) / "vectors.npy", vectors)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # no network
        done = subprocess.run(
            [python, str(HERE / "peer.py"), folder], capture_output=True, text=True, check=False, env=environment
        )
    if done.returncode:
        sys.exit(f"{python} benchmarks/routers/peer.py failed: {done.stderr[-2000:]}")
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def _lines(result: dict[str, Any]) -> list[str]:
    head = f"features: {result['features']}, {result['reading_s']} s for all questions, once for all methods"
    lines = [head, "method          train s   decisions/s   score"]
    for row in [*result["rows"], *result.get("peer", [])]:
        lines.append(f"{row['method']:<15} {row['train_s']:>7}   {row['decisions_per_s']:>11}   {row['score']}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
