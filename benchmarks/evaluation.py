"""A whole evaluation of recorded single-round decisions: how many a second, and whether memory stays constant.

`antiphon.evaluate` runs a policy over `--n` questions that come one by one, against a recorded pool of two members, in
a temporary folder: asked, judged, committed to disk and summarised. Memory is the resident set of the process after the
first tenth, and the most that it is after that, the summary included.

    python benchmarks/evaluation.py [--json] [--n 100000] [--policy cheapest] [--concurrency 64]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace

from _counting import question, resident_mb

from antiphon.evaluate.run import Evaluation, Progress
from antiphon.evaluate.spec import make_spec
from antiphon.hookspecs import hookimpl
from antiphon.registry import Registry
from antiphon.types import Task

RECORDED = 1000
MEMBERS = {"Small": 7, "Large": 70}


@dataclass(frozen=True)
class Result:
    """One run. `growth_mb`: what the resident set grew by after the first tenth."""

    n: int
    wall_s: float
    decisions_per_s: float
    cpu_s: float
    summary_s: float
    warm_mb: float
    peak_mb: float
    growth_mb: float
    em: float


def lay_out(folder: Path) -> None:
    """The configuration and the recorded replies: the small member is right on every second question."""
    tables = ["[pools.bench]", f"members = {json.dumps(list(MEMBERS))}", 'adapter = "recorded"']
    tables.append('options = { path = "replies.jsonl" }')
    for name, size in MEMBERS.items():
        price = f"price = {{ input = {size / 100}, output = {size / 100} }}"
        tables += [f"[members.{name}]", 'description = "replays"', f"parameters_b = {size}", 'model = "m"', price]
    (folder / "antiphon.toml").write_text("\n".join(tables), "utf-8")
    with (folder / "replies.jsonl").open("w", encoding="utf-8") as file:
        for number in range(RECORDED):
            for name in MEMBERS:
                said = number if name == "Large" or number % 2 else "no idea"
                row = {"question": question(number), "llm": name, "response": f"<answer>{said}</answer>"}
                file.write(json.dumps({**row, "input_tokens": 20, "output_tokens": 5 + number % 50}) + "\n")


def questions(n: int) -> Iterator[Task]:
    for index in range(n):
        number = index % RECORDED
        yield Task(question(number), f"q{index}", golden_answers=(str(number),), dataset="bench")


def measure(args: argparse.Namespace) -> Result:
    registry = Registry.load([], local={"bench": SimpleNamespace(antiphon_datasets=hookimpl(antiphon_datasets))})
    spec = make_spec(
        {
            "evaluate": {"pool": "bench", "metrics": ["em", "f1"], "concurrency": args.concurrency},
            "policies": [{"name": args.policy}],
            "datasets": [{"name": "bench", "options": {"n": args.n}}],
        },
        "the benchmark",
    )
    warm = highest = 0.0

    def watch(progress: Progress) -> None:
        nonlocal warm, highest
        if progress.done % 500 == 0 or progress.done == progress.total:
            highest = max(highest, resident_mb())
            if progress.done <= args.n / 10:
                warm = highest

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lay_out(folder)
        config = folder / "antiphon.toml"
        with Evaluation(spec, folder / "run", config_file=config, registry=registry) as evaluation:
            started, cpu = time.perf_counter(), time.process_time()
            evaluation.run(watch)
            wall, cpu = time.perf_counter() - started, time.process_time() - cpu
            started = time.perf_counter()
            cell = evaluation.summarise()["cells"][0]
            summary, highest = time.perf_counter() - started, max(highest, resident_mb())
    if cell["n"] != args.n or cell["status"] != "run":
        raise SystemExit(f"it went wrong: {cell['n']} of {args.n} questions, {cell['status']}: {cell['note']}")
    return Result(
        n=args.n,
        wall_s=round(wall, 2),
        decisions_per_s=round(args.n / wall, 1),
        cpu_s=round(cpu, 2),
        summary_s=round(summary, 2),
        warm_mb=round(warm or highest, 1),
        peak_mb=round(highest, 1),
        growth_mb=round(max(0.0, highest - (warm or highest)), 1),
        em=cell["metrics"]["em"]["mean"],
    )


def antiphon_datasets() -> dict[str, object]:
    return {"bench": questions}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--n", type=int, default=100_000, help="questions")
    parser.add_argument("--policy", default="cheapest")
    parser.add_argument("--concurrency", type=int, default=64)
    for name in [name for name in os.environ if name.startswith("ANTIPHON_")]:
        del os.environ[name]
    result = measure(args := parser.parse_args())
    print(
        f"{result.n:,} decisions evaluated in {result.wall_s:.1f} s: {result.decisions_per_s:,.0f} a second, "
        f"{result.cpu_s:.1f} s of CPU; the summary took {result.summary_s:.1f} s; "
        f"{result.warm_mb:.0f} MB after a tenth, {result.peak_mb:.0f} MB at most ({result.growth_mb:+.1f} MB)"
    )
    if args.json:
        print(json.dumps({"benchmark": "evaluation", **asdict(result)}))


if __name__ == "__main__":
    main()
