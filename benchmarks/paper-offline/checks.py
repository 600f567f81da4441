"""What has to be so before the figures are believed: our F1 and our costs are those of the recorded files."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

from antiphon.answers import answer_span
from antiphon.catalogue import Catalogue
from antiphon.config import load_config
from antiphon.names import fold
from antiphon.registry import Registry
from antiphon.types import Usage

FILE = "recorded/routerr1_nq.jsonl"
_SPAN = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def checked(data: Path, registry: Registry) -> dict[str, Any]:
    """How many of the 3,000 replies of the paper's six LLMs agree with the file, in F1 and in cost.

    The file's F1 is that of the last `<answer>` span, 0 without one. Its token counts were derived from its costs, so
    that the costs show that the pipeline is whole, and nothing about what was really paid.
    """
    f1 = registry.metric("f1")
    priced = {}
    for descriptor in Catalogue.of(registry, load_config(overrides={"defaults": {"data": str(data)}})).pool(
        "paper-recorded"
    ):
        pricing = registry.pricing(descriptor.pricing, **descriptor.pricing_args)
        priced.update({fold(name): (pricing, descriptor) for name in (descriptor.name, *descriptor.aliases)})
    counts = {"replies": 0, "f1_equal": 0, "cost_equal": 0}
    for row in rows(data / FILE):
        spans = _SPAN.findall(row["response"] or "")
        ours = f1(spans[-1], row["golden_answers"]) if spans else 0.0
        pricing, descriptor = priced[fold(row["llm"])]
        cost = pricing.cost(Usage(0, row["output_tokens"]), descriptor) * 1e6
        counts["replies"] += 1
        counts["f1_equal"] += abs(ours - row["score"]) < 1e-9
        counts["cost_equal"] += abs(cost - row["cost"]) < 1e-6
    return counts


def members(data: Path, registry: Registry) -> dict[str, Any]:
    """Per-member means over the 500 questions, and the oracles, straight from the file: no pool, no policy, no rollout.

    `f1_file` is the file's own score; em and f1 are of our reduction (the last span, else the whole reply).
    """
    em, f1 = registry.metric("em"), registry.metric("f1")
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    best: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in rows(data / FILE):
        answer = answer_span(row["response"] or "")
        scores = {
            "em": em(answer, row["golden_answers"]) if answer is not None else 0.0,
            "f1": f1(answer, row["golden_answers"]) if answer is not None else 0.0,
            "f1_file": row["score"],
        }
        extra = {
            "raw_cost": row["cost"],
            "output_tokens": row["output_tokens"],
            "has_answer_span": float(bool(_SPAN.search(row["response"] or ""))),
        }
        for name, value in {**scores, **extra}.items():
            values[row["llm"]][name].append(value)
        for name, value in scores.items():
            best[name][row["question_id"]] = max(best[name][row["question_id"]], value)
    return {
        "questions": len(best["em"]),
        "members": {
            llm: {name: round(mean(some), 6) for name, some in columns.items()} for llm, columns in values.items()
        },
        "oracle": {name: round(mean(some.values()), 6) for name, some in best.items()},
    }
