"""What the runs on the chamber show, with intervals: `python benchmarks/chamber/analyse.py [--json]`.

Copies the raw rows and logs of what `run.py` has made so far into --out, and writes what all that is there shows:
`analysis.json` and `analysis.md`. So the figures can be made anew from what is kept; what was never run is left out.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from antiphon.evaluate import stats
from antiphon.evaluate.rows import Row
from antiphon_pools.chamber.questions import SIZES, chamber

ROOT = Path(__file__).parents[2]
ROUTERS = ("GRPO, seed 1", "GRPO, seed 2")
WARM, BEST, BEFORE = "Warm start", "Best member alone", "before reinforcement learning"
SHIPPED = {f"Out of the box, {BEFORE}": "default-warm-judged", "Out of the box": "out-of-the-box"}
"""What the package brings, each by itself in an evaluation."""
DEAR, CHEAP, UNSEEN = "Raven", "Wren", "Crane"
GEOGRAPHY = frozenset({"capital", "continent"})
TASKS = {task.id: task.metadata for split in SIZES for task in chamber(split=split)}

LOSSES = {
    "C2MAB-V, online": "it learns while it is judged, and pays for trying seven members",
    "AutoMix": "it knows the twins alone, and the plain base model, its verifier, takes what the cheap one says",
    "Cheapest member": "it asks one member whatever the question, and learns nothing",
    "Random member": "it learns nothing",
}
"""Why a policy may lie below the best member alone; the figures of `losses` show whether it is so."""

Rows = Mapping[str, Row]
"""The rollouts of a policy on a data set, by the question's id."""


KEPT_ROWS, HOURS = "rows.jsonl.gz", "hours.jsonl"
NO_WORDS = {"question": "", "golden": [], "answer": None}
"""Of rows that are kept without the data set's and the LLMs' own words."""


def read(directory: Path) -> dict[tuple[str, str], dict[str, Row]]:
    """(policy, data set) -> its rollouts, as kept; empty where the evaluation was not run."""
    found: dict[tuple[str, str], dict[str, Row]] = {}
    if (file := directory / KEPT_ROWS).is_file():
        for line in gzip.decompress(file.read_bytes()).splitlines():
            row = Row.from_json(json.dumps({**NO_WORDS, **json.loads(line)}))
            found.setdefault((row.policy, row.dataset), {})[row.task_id] = row
    return found


def of_dataset(directory: Path, dataset: str = "chamber") -> dict[str, Rows]:
    """Policy -> its rollouts on one data set."""
    return {policy: rows for (policy, name), rows in read(directory).items() if name == dataset}


# ---- measures of one rollout ----------------------------------------------------------------------------------------


def em(row: Row) -> float:
    return row.metrics["em"]


def calls(row: Row) -> float:
    return float(row.calls)


def raw_cost(row: Row) -> float:
    return row.raw_cost


def malformed(row: Row) -> float:
    return float(not row.format_ok)


def asks(member: str) -> Callable[[Row], float]:
    return lambda row: float(member in row.asked)


def last_asked(row: Row) -> str:
    return row.asked[-1] if row.asked else "nobody"


def cheap_twin_first(row: Row) -> float:
    """Of the twins, the cheap one was asked, and before the dear one."""
    twins = [name for name in row.asked if name in (CHEAP, DEAR)]
    return float(twins[:1] == [CHEAP])


def dear_after_cheap(row: Row) -> float:
    """The cheap twin was asked, and after it the dear one."""
    twins = [name for name in row.asked if name in (CHEAP, DEAR)]
    return float(CHEAP in twins and DEAR in twins[twins.index(CHEAP) :])


# ---- statistics -----------------------------------------------------------------------------------------------------


def hops(count: int) -> Callable[[str], bool]:
    return lambda task: TASKS[task]["hops"] == count


def worded(how: str) -> Callable[[str], bool]:
    return lambda task: TASKS[task]["wording"] == how


def about_countries(task: str) -> bool:
    return not GEOGRAPHY.isdisjoint(TASKS[task]["skills"])


def mean(
    rows: Rows, measure: Callable[[Row], float], where: Callable[[str], bool] = lambda _: True
) -> dict[str, float | None]:
    """Mean and 95 % interval over the questions of a kind."""
    return asdict(stats.interval([measure(row) for task, row in rows.items() if where(task)]))


def difference(many: Sequence[Rows], one: Rows, measure: Callable[[Row], float]) -> dict[str, Any]:
    """The paired difference, question by question: the mean of several runs against one; and the ratio of the means."""
    common = [task for task in one if all(task in rows for rows in many)]
    ours = [sum(measure(rows[task]) for rows in many) / len(many) for task in common]
    theirs = [measure(one[task]) for task in common]
    found = asdict(stats.paired([a - b for a, b in zip(ours, theirs, strict=True)]))
    return {**found, "ratio": sum(ours) / sum(theirs) if sum(theirs) else None}


def more_calls(rows: Rows) -> dict[str, float | None]:
    """Mean calls on two-hop questions less those on one-hop questions, whose questions are others."""
    two, one = ([calls(row) for task, row in rows.items() if hops(count)(task)] for count in (2, 1))
    if not one or not two:
        return {"mean": None, "low": None, "high": None}
    drawn = stats.means(two, 0) - stats.means(one, 1)
    return asdict(stats.around(sum(two) / len(two) - sum(one) / len(one), drawn))


# ---- what was asked for ---------------------------------------------------------------------------------------------


def policies(all_rows: Mapping[str, Rows]) -> dict[str, Any]:
    """Every policy on the held-out questions."""
    return {
        label: {
            "n": len(rows),
            "em": mean(rows, em),
            "em_one_hop": mean(rows, em, hops(1)),
            "em_two_hops": mean(rows, em, hops(2)),
            "em_new_wordings": mean(rows, em, worded("new")),
            "malformed": mean(rows, malformed),
            "calls_one_hop": mean(rows, calls, hops(1)),
            "calls_two_hops": mean(rows, calls, hops(2)),
            "more_calls_on_two_hops": more_calls(rows),
            "raw_cost": mean(rows, raw_cost),
            "no_call": mean(rows, lambda row: float(row.calls == 0)),
            "cheap_twin_first": mean(rows, cheap_twin_first, about_countries),
            "dear_after_cheap": mean(rows, dear_after_cheap, about_countries),
        }
        for label, rows in all_rows.items()
    }


def against_opponents(routers: Mapping[str, Rows], opponents: Mapping[str, Rows]) -> dict[str, Any]:
    """EM of the trained router, each seed and their mean, less that of its own warm start and of each opponent."""
    trained = {label: routers[label] for label in ROUTERS if label in routers}
    if not trained:
        return {}
    sides = {label: [rows] for label, rows in trained.items()}
    if len(trained) > 1:
        sides["mean of seeds"] = list(trained.values())
    others = {**({WARM: routers[WARM]} if WARM in routers else {}), **opponents}
    return {
        other: {side: difference(rows, theirs, em) for side, rows in sides.items()} for other, theirs in others.items()
    }


def losses(learned: Mapping[str, Rows]) -> dict[str, Any]:
    """Of what lies below the best member alone with its whole interval: when it loses, and whom it asks."""
    best = learned.get(BEST, {})
    found = {}
    for label, rows in learned.items():
        if label == BEST or difference([rows], best, em)["high"] >= 0:
            continue
        order = sorted(rows, key=lambda task: rows[task].index)
        fifth = max(1, len(order) // 5)
        first, last = (
            sum(em(best[task]) - em(rows[task]) for task in part) / fifth for part in (order[:fifth], order[-fifth:])
        )
        found[label] = {
            "lost_in_first_fifth": first,
            "lost_in_last_fifth": last,
            "asked": dict(Counter(last_asked(row) for row in rows.values()).most_common()),
            "lost": sum(em(best[task]) > em(row) for task, row in rows.items()),
            "lost_to_the_cheap_twin": sum(
                em(best[task]) > em(row) and last_asked(row) == CHEAP for task, row in rows.items()
            ),
        }
    return found


def unseen(described: Path, shuffled: Path) -> dict[str, Any]:
    """The member that joined by its descriptor alone, against each member wearing the words of another."""
    right, control = read(described), read(shuffled)
    found: dict[str, Any] = {}
    for (policy, dataset), rows in right.items():
        shares = {"em": mean(rows, em), "share": mean(rows, asks(UNSEEN))}
        if other := control.get((policy, dataset)):
            shares |= {"shuffled_em": mean(other, em), "shuffled_share": mean(other, asks(UNSEEN))}
            shares |= {"em_difference": difference([rows], other, em)}
            shares |= {"share_difference": difference([rows], other, asks(UNSEEN))}
        found.setdefault(policy, {})[dataset] = shares
    return found


def cost(own: Mapping[str, Rows], swapped: Mapping[str, Rows]) -> dict[str, Any]:
    """Each alpha beside alpha = 0, and the twins with each other's price."""
    first = next(iter(own.values()), None)
    found = policies(own)
    for label, rows in own.items():
        if first is not None and rows is not first:
            found[label]["raw_cost_less_alpha_0"] = difference([rows], first, raw_cost)
            found[label]["em_less_alpha_0"] = difference([rows], first, em)
        found[label]["asks_dear_twin"] = mean(rows, asks(DEAR), about_countries)
        found[label]["asks_cheap_twin"] = mean(rows, asks(CHEAP), about_countries)
        if other := swapped.get(label):
            found[label]["swapped_prices"] = {
                f"asks_{DEAR}_less_swapped": difference([rows], other, asks(DEAR)),
                "em": mean(other, em),
                f"asks_{DEAR}": mean(other, asks(DEAR), about_countries),
                f"asks_{CHEAP}": mean(other, asks(CHEAP), about_countries),
            }
    return found


def analyse(kept: Path) -> dict[str, Any]:
    """Everything that is there."""
    made = kept / "evaluations"
    routers, learned = of_dataset(made / "router"), of_dataset(made / "routers")
    opponents = {**learned, **of_dataset(made / "opponents"), **of_dataset(made / "reader-behind-best")}
    ablations = of_dataset(made / "ablations")
    whole = ablations.get("All of it")
    shipped = {label: rows for label, name in SHIPPED.items() for rows in of_dataset(made / name).values()}
    before, after = (shipped.get(label) for label in SHIPPED)
    measures = {"em": em, "malformed": malformed, "raw_cost": raw_cost} if before and after else {}
    return {
        "policies": policies({**opponents, **routers, **shipped}),
        "shipped_less_before": {name: difference([after], before, measure) for name, measure in measures.items()},
        "router_less_others": against_opponents(routers, opponents),
        "learned_less_best_member": {
            label: difference([rows], learned[BEST], em) for label, rows in learned.items() if label != BEST
        },
        "losses": losses(learned),
        "unseen_member": unseen(made / "unseen", made / "unseen-shuffled"),
        "cost": cost(of_dataset(made / "cost"), of_dataset(made / "cost-swapped")),
        "ablations": policies(ablations),
        "ablations_less_all_of_it": {
            label: difference([rows], whole, em) for label, rows in ablations.items() if whole and rows is not whole
        },
        "hours": hours(kept),
    }


def lines(file: Path) -> list[str]:
    return file.read_text("utf-8").splitlines() if file.is_file() else []


def hours(kept: Path) -> dict[str, float]:
    """Stage -> hours, its parts added up; of a run that was killed, those of its steps."""
    total: dict[str, float] = {}
    for line in lines(kept / HOURS):
        row = json.loads(line)
        total[row["stage"]] = total.get(row["stage"], 0.0) + row["seconds"] / 3600
    for file in sorted(kept.glob("training/*/metrics.jsonl")):
        steps = (json.loads(line) for line in lines(file))
        spent = sum(step.get("step_s", 0.0) + step.get("val_s", 0.0) for step in steps) / 3600
        if spent > total.get(stage := file.parent.name, 0.0):
            total[stage] = spent
    return {stage: round(spent, 3) for stage, spent in total.items()}


# ---- what is kept ---------------------------------------------------------------------------------------------------


def page(found: Mapping[str, Any]) -> str:
    """The figures in Markdown; what was not run is left out."""
    parts = [
        "# The chamber, measured\n",
        "Means with 95 % bootstrap intervals over questions; differences are paired.\n",
    ]
    for title, key in (("Held-out questions", "policies"), ("Cost", "cost"), ("Ablations", "ablations")):
        if found[key]:
            parts += [f"## {title}\n", _table(found[key])]
        if key == "cost":
            parts += _twins(found[key])
    if found["ablations_less_all_of_it"]:
        rows = ([label, shown_difference(each)] for label, each in found["ablations_less_all_of_it"].items())
        parts += ["EM of each, less that of all of it:\n", markdown(["", "difference"], rows)]
    if shipped := found["shipped_less_before"]:
        parts += [f"## Out of the box, less {BEFORE}\n"]
        parts += [markdown(["", "difference"], ([name, shown_difference(each)] for name, each in shipped.items()))]
    if found["router_less_others"]:
        parts += ["## EM of the trained router, less that of each other\n"]
        sides = list(next(iter(found["router_less_others"].values())))
        rows = (
            [other, *(shown_difference(by[side]) for side in sides)]
            for other, by in found["router_less_others"].items()
        )
        parts += [markdown(["", *sides], rows)]
    if found["learned_less_best_member"]:
        rows = ([label, shown_difference(each)] for label, each in found["learned_less_best_member"].items())
        parts += [f"## EM of the learned routers, less that of {BEST}\n", markdown(["", "difference"], rows)]
    if found["losses"]:
        rows = (
            [label, LOSSES.get(label, ""), f"{each['lost_in_first_fifth']:.3f}, {each['lost_in_last_fifth']:.3f}",
             f"{each['lost']}, {each['lost_to_the_cheap_twin']}",
             ", ".join(f"{name} {count}" for name, count in each["asked"].items())]
            for label, each in found["losses"].items()
        )  # fmt: skip
        head = ("", "why", "EM lost in the first, the last fifth", f"questions lost, to {CHEAP}", "whose reply it took")
        parts += [f"## Below {BEST}, and why\n", markdown(head, rows)]
    if found["unseen_member"]:
        columns = ("em", "shuffled_em", "share", "shuffled_share")
        paired = ("em_difference", "share_difference")
        rows = (
            [
                policy,
                dataset,
                *(shown_mean(each.get(key)) for key in columns),
                *(shown_difference(each.get(key)) for key in paired),
            ]
            for policy, by in found["unseen_member"].items()
            for dataset, each in by.items()
        )
        parts += [f"## {UNSEEN}, unseen in training\n", markdown(["", "questions", *columns, *paired], rows)]
    if found["hours"]:
        parts += ["## Hours\n", markdown(["stage", "hours"], ([k, f"{v:.2f}"] for k, v in found["hours"].items()))]
    return "\n".join(parts)


def _twins(by_policy: Mapping[str, Any]) -> list[str]:
    """Each alpha beside alpha = 0, and whom it asks about countries, by the twins' own prices and by each other's."""
    less = {label: each for label, each in by_policy.items() if "em_less_alpha_0" in each}
    keys = ("raw_cost_less_alpha_0", "em_less_alpha_0")
    found = [
        markdown(["", *keys], ([label, *(shown_difference(each[k]) for k in keys)] for label, each in less.items()))
    ]
    if not any("swapped_prices" in each for each in by_policy.values()):
        return found if less else []
    rows = (
        [label, shown_mean(each["asks_dear_twin"]), shown_mean(each["asks_cheap_twin"]),
         *(shown_mean(each.get("swapped_prices", {}).get(key)) for key in (f"asks_{DEAR}", f"asks_{CHEAP}", "em"))]
        for label, each in by_policy.items()
    )  # fmt: skip
    head = ("", DEAR, CHEAP, f"{DEAR}, prices swapped", f"{CHEAP}, prices swapped", "em, prices swapped")
    return [*found, "The share of questions about countries that each twin is asked:\n", markdown(head, rows)]


def _table(by_policy: Mapping[str, Any]) -> str:
    keys = ("em", "em_one_hop", "em_two_hops", "em_new_wordings", "malformed", "calls_one_hop", "calls_two_hops",
            "raw_cost", "no_call", "cheap_twin_first", "dear_after_cheap")  # fmt: skip
    rows = ([label, str(found["n"]), *(shown_mean(found[key]) for key in keys)] for label, found in by_policy.items())
    return markdown(["", "n", *keys], rows)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def shown_mean(found: Mapping[str, float | None] | None) -> str:
    if found is None or found["mean"] is None:
        return ""
    return f"{found['mean']:.3f} [{found['low']:.3f}, {found['high']:.3f}]"


def shown_difference(found: Mapping[str, Any] | None) -> str:
    if found is None or found["difference"] is None:
        return ""
    ratio = f", {found['ratio']:.2f} x" if found["ratio"] else ""
    return f"{found['difference']:+.3f} [{found['low']:+.3f}, {found['high']:+.3f}], p {found['p']:.2g}{ratio}"


def keep(runs: Path, out: Path, wordless: bool = False) -> None:
    """Copy the raw rows of the evaluations, specs and metrics of the training runs, and their hours; a row that is
    being written is left out.

    Args:
        wordless: leave out questions and answers: they are not ours to give.
    """
    out.mkdir(parents=True, exist_ok=True)
    for file in sorted(runs.glob("evaluations/*/rows.jsonl")):
        target = out / "evaluations" / file.parent.name
        target.mkdir(parents=True, exist_ok=True)
        rows = file.read_bytes()
        rows = rows[: rows.rfind(b"\n") + 1]
        if wordless:
            left = ({k: v for k, v in json.loads(line).items() if k not in NO_WORDS} for line in rows.splitlines())
            rows = "".join(json.dumps(row) + "\n" for row in left).encode()
        (target / KEPT_ROWS).write_bytes(gzip.compress(rows, mtime=0))
        shutil.copy(file.parent / "spec.json", target / "spec.json")
    for file in sorted(runs.glob("*/metrics.jsonl")):
        target = out / "training" / file.parent.name
        target.mkdir(parents=True, exist_ok=True)
        for name in ("metrics.jsonl", "spec.json"):
            if (file.parent / name).is_file():
                text = (file.parent / name).read_text("utf-8")
                (target / name).write_text(text.replace(str(runs.resolve()), f"runs/{runs.name}"), "utf-8")
    spent = dict.fromkeys([*lines(out / HOURS), *lines(runs / HOURS)])
    (out / HOURS).write_text("".join(f"{line}\n" for line in spent), "utf-8")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "chamber")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "chamber")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    options = parser.parse_args(arguments)
    keep(options.runs, options.out)
    found = analyse(options.out)
    (options.out / "analysis.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    (options.out / "analysis.md").write_text(page(found), "utf-8")
    print(json.dumps(found) if options.json else page(found))


if __name__ == "__main__":
    main()
