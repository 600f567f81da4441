"""What learned routers' choices are worth on recorded scores, beside the best single LLM; no rollouts, one core.

Each method learns as in `make paper-offline` (the other nine folds, or the training questions) and chooses for all
questions left; the recorded score of whom it chooses is its score. TF-IDF reads the questions, but for BERT Router.

    python benchmarks/routers/choices.py [--data DIR] [--sets NAME ...] [--only METHOD ...] [--out FILE] [--json]

With --out, a line is added to FILE for each set and method as it is done.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from antiphon import record
from antiphon.catalogue import Catalogue
from antiphon.config import load_config
from antiphon.contracts import MemberView
from antiphon.evaluate import stats
from antiphon.registry import Registry
from antiphon_policies import frugalgpt
from antiphon_policies._decision import decide
from antiphon_policies._fitted import Fitted, learn
from antiphon_policies._scores import Scored, Scores, best, fold_of, mean_scores

FOLDS = 10


@dataclass(frozen=True)
class Set:
    """A recorded set. `questions`: those to learn from; None: ten folds."""

    pool: str
    scores: str
    metric: str | None = None
    questions: str | None = None


SETS = {
    "nq": Set("paper-recorded", "recorded/routerr1_nq.jsonl", metric="em"),
    "evouna-nq": Set("evouna-nq", "recorded/evouna_nq-*.jsonl", questions="qa_train/nq.jsonl"),
    "evouna-triviaqa": Set("evouna-triviaqa", "recorded/evouna_triviaqa-*.jsonl"),
}
METHODS = (
    "mlp",
    "routerdc",
    "graphrouter",
    "routellm",
    "hybridllm",
    "svm",
    "elo",
    "to_router",
    "forc",
    "frugalgpt",
    "bert",
)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("ANTIPHON_DATA"))
    parser.add_argument("--sets", nargs="*", default=list(SETS), choices=SETS, metavar="NAME")
    parser.add_argument("--only", nargs="*", default=METHODS, choices=METHODS, metavar="METHOD")
    parser.add_argument("--out", type=Path, metavar="FILE")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.data is None or not options.data.is_dir():
        print(json.dumps({"status": "not run", "note": "name the recorded data: --data DIR, or ANTIPHON_DATA"}))
        return 0 if options.data is None else 1
    rows = []
    for name in options.sets:
        for row in measured(name, SETS[name], Path(options.data), options.only):
            rows.append(row)
            if options.out is not None:
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
            if not options.json:
                print(json.dumps(row), flush=True)
    if options.json:
        print(json.dumps({"rows": rows}))
    return 0


def measured(name: str, what: Set, data: Path, methods: Sequence[str]) -> Iterator[dict[str, Any]]:
    """A row a method: mean score, and its paired difference from the best single LLM of the same training questions."""
    registry = Registry.load([])
    config = load_config(overrides={"defaults": {"data": str(data)}})
    pool = record.make_pool(Catalogue.of(registry, config), registry, what.pool).members
    questions = None if what.questions is None else str(data / what.questions)
    for method in methods:
        policy = registry.factory("policy", method)
        scores = Scores.read(str(data / what.scores), what.metric, replies=policy.needs_replies)
        members = scores.members(pool)
        settings = policy.Settings(**({} if method == "bert" else {"features": "tfidf"}))
        singles, chosen, started, slopes = [], [], time.process_time(), []
        for train, test in splits(scores, str(data / what.scores), what.metric, questions):
            single = best(mean_scores(train, members), pool)
            fitted = learn(policy, scores, train, pool, settings)
            slopes.append(fitted.calibration["slopes"].tolist())
            for row, member in zip(test, choices(fitted, test, pool, members), strict=True):
                pair = row.scores.get(members[single], math.nan), row.scores.get(members[member], math.nan)
                if not any(map(math.isnan, pair)):
                    singles.append(pair[0])
                    chosen.append(pair[1])
        paired = stats.paired([ours - theirs for ours, theirs in zip(chosen, singles, strict=True)])
        yield {
            "set": name,
            "method": method,
            "questions": len(chosen),
            "score": round(sum(chosen) / len(chosen), 4),
            "best_single": round(sum(singles) / len(singles), 4),
            **{key: round(value, 4) for key, value in asdict(paired).items()},
            "slope": round(sum(slope for _, slope in slopes) / len(slopes), 3),
            "cpu_s": round(time.process_time() - started, 1),
        }


def splits(
    scores: Scores, path: str, metric: str | None, questions: str | None
) -> Iterator[tuple[list[Scored], list[Scored]]]:
    """Training and test questions: one split, or ten."""
    if questions is not None:
        known = {row.key for row in Scores.read(path, metric, questions).rows}
        yield [row for row in scores.rows if row.key in known], [row for row in scores.rows if row.key not in known]
        return
    for fold in range(FOLDS):
        own = [fold_of(row.key, FOLDS) == fold for row in scores.rows]
        train = [row for row, is_own in zip(scores.rows, own, strict=True) if not is_own]
        test = [row for row, is_own in zip(scores.rows, own, strict=True) if is_own]
        if test:
            yield train, test


def choices(
    fitted: Fitted, rows: Sequence[Scored], pool: Sequence[MemberView], members: dict[str, str]
) -> Iterator[str]:
    """Whom the router asks (a cascade: whose reply it takes), by quality alone."""
    names = [profile.name for profile in fitted.profiles]
    texts = [row.text for row in rows]
    if fitted.policy is frugalgpt.FrugalGPT:
        cascade = frugalgpt.best_cascade(fitted, pool, None)
        for row in rows:
            *first, last = cascade.members
            for member, threshold in zip(first, cascade.thresholds, strict=True):
                reply = row.replies.get(members[member])
                if reply is not None and frugalgpt.trust(fitted, row.text, member, reply) >= threshold:
                    last = member
                    break
            yield last
    elif "threshold" in fitted.arrays:
        weak, strong = fitted.arrays["pair"]
        for raw in fitted.raw(texts):
            yield names[strong if raw[strong] - raw[weak] >= fitted.arrays["threshold"][0] else weak]
    else:
        for quality in fitted.quality(texts, pool):
            yield decide(quality, None, pool, None)


if __name__ == "__main__":
    sys.exit(main())
