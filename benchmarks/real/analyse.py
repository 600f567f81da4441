"""What the runs on real LLMs' recorded answers show, with intervals: `python benchmarks/real/analyse.py [--json]`."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "chamber"))

from analyse import (
    ROOT,
    ROUTERS,
    WARM,
    Rows,
    against_opponents,
    calls,
    em,
    hours,
    keep,
    malformed,
    markdown,
    mean,
    of_dataset,
    shown_difference,
    shown_mean,
)

EVALUATIONS = {
    "same-members": "The members of the training",
    "unseen-members": "The paper's six, unseen in training",
    "unseen-drawn": "The paper's six by short names, after training on names drawn anew",
}
OPPONENTS = {"unseen-members": "unseen-opponents", "unseen-drawn": "unseen-opponents"}
"""Where an evaluation has its opponents, if not with it."""


def policies(all_rows: Mapping[str, Rows]) -> dict[str, Any]:
    """Every policy on the held-out questions."""
    return {
        label: {
            "n": len(rows),
            "em": mean(rows, em),
            "f1": mean(rows, lambda row: row.metrics["f1"]),
            "contains": mean(rows, lambda row: row.metrics["contains"]),
            "malformed": mean(rows, malformed),
            "calls": mean(rows, calls),
            "asked": dict(Counter(member for row in rows.values() for member in row.asked).most_common()),
        }
        for label, rows in all_rows.items()
    }


def analyse(kept: Path) -> dict[str, Any]:
    """Everything that is there."""
    found: dict[str, Any] = {"hours": hours(kept)}
    made = kept / "evaluations"
    for name in EVALUATIONS:
        rows = {**of_dataset(made / name, "nq"), **of_dataset(made / OPPONENTS.get(name, name), "nq")}
        routers = {label: rows[label] for label in (WARM, *ROUTERS) if label in rows}
        others = {label: each for label, each in rows.items() if label not in routers}
        found[name] = {"policies": policies(rows), "router_less_others": against_opponents(routers, others)}
    return found


def page(found: Mapping[str, Any]) -> str:
    """The figures in Markdown; what was not run is left out."""
    parts = ["# Real LLMs' recorded answers\n", "Means with 95 % bootstrap intervals over questions.\n"]
    columns = ("em", "f1", "contains", "malformed", "calls")
    for name, title in EVALUATIONS.items():
        if not found[name]["policies"]:
            continue
        rows = (
            [label, str(each["n"]), *(shown_mean(each[column]) for column in columns)]
            for label, each in found[name]["policies"].items()
        )
        parts += [f"## {title}\n", markdown(["", "n", *columns], rows)]
        if against := found[name]["router_less_others"]:
            sides = list(next(iter(against.values())))
            rows = ([other, *(shown_difference(by[side]) for side in sides)] for other, by in against.items())
            parts += ["EM of the trained router, less that of each other:\n", markdown(["", *sides], rows)]
    if found["hours"]:
        parts += [markdown(["stage", "hours"], ([stage, f"{spent:.2f}"] for stage, spent in found["hours"].items()))]
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "real")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "real")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    options = parser.parse_args()
    keep(options.runs, options.out, wordless=True)
    found = analyse(options.out)
    (options.out / "analysis.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    (options.out / "analysis.md").write_text(page(found), "utf-8")
    print(json.dumps(found) if options.json else page(found))


if __name__ == "__main__":
    main()
