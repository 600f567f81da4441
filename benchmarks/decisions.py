"""Decisions a second over recorded answers, and whether memory stays constant: what evaluating a policy offline costs.

A recorded pool of four members and 1,000 questions is made in a temporary folder. A policy that asks one of them
answers `--n` tasks through the real `Orchestrator`, in batches whose trajectories are dropped. Memory is the resident
set of the process after the first tenth, and the most that it is after that.

    python benchmarks/decisions.py [--json] [--n 100000] [--policy cheapest] [--batch 1000] [--concurrency 64]
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from _counting import question, resident_mb

from antiphon import Orchestrator
from antiphon.descriptor import Descriptor
from antiphon.registry import Registry
from antiphon.types import Task, Trajectory

QUESTIONS = 1000
SIZES = {"Tiny-1B": 1, "Small-7B": 7, "Middle-27B": 27, "Large-70B": 70}


@dataclass(frozen=True)
class Result:
    """One run. `growth_mb`: what the resident set grew by after the first tenth of the decisions."""

    n: int
    policy: str
    wall_s: float
    decisions_per_s: float
    cpu_s: float
    warm_mb: float
    peak_mb: float
    growth_mb: float
    right: float
    by_member: dict[str, int]


def recording(path: Path, seed: int) -> list[Descriptor]:
    """Write the replies, right more often the larger the member; the members that replay them."""
    rng = random.Random(seed)
    with path.open("w", encoding="utf-8") as file:
        for number in range(QUESTIONS):
            for name, size in SIZES.items():
                right = rng.random() < 0.3 + size / 140
                said = f"<answer>{number if right else -number}</answer>" + " because it is so" * rng.randint(0, 20)
                row = {"question_id": str(number), "dataset": "bench", "question": question(number)}
                more = {"golden_answers": [str(number)], "llm": name, "response": said, "score": float(right)}
                tokens = {"input_tokens": rng.randint(20, 60), "output_tokens": rng.randint(5, 120), "latency_s": 1.0}
                file.write(json.dumps({**row, **more, **tokens}) + "\n")
    return [
        Descriptor.of(
            {
                "name": name,
                "description": "replays",
                "parameters_b": size,
                "adapter": "recorded",
                "model": name,
                "options": {"path": str(path)},
                "price": {"input": size / 100, "output": size / 100},
            }
        )
        for name, size in SIZES.items()
    ]


def tasks(n: int, seed: int) -> Iterator[Task]:
    rng = random.Random(seed)
    for index in range(n):
        number = rng.randrange(QUESTIONS)
        yield Task(question(number), f"task-{index}", golden_answers=(str(number),), dataset="bench")


def measure(args: argparse.Namespace) -> Result:
    by_member: Counter[str] = Counter()
    right = done = 0
    warm = highest = 0.0

    def count(trajectory: Trajectory) -> None:
        nonlocal right, done
        if trajectory.stop != "answer":
            raise SystemExit(f"{trajectory.task.id} went wrong: {trajectory.stop}, {trajectory.error}")
        by_member[trajectory.calls[0].member] += 1
        right += trajectory.answer in (trajectory.task.golden_answers or ())
        done += 1

    with tempfile.TemporaryDirectory() as folder:
        pool = recording(Path(folder) / "replies.jsonl", args.seed)
        with Orchestrator(pool=pool, policy=args.policy, registry=Registry.load([]), seed=args.seed) as orchestrator:
            orchestrator.ask(Task(question(1), "first"))  # imports, and the file is read
            source = tasks(args.n, args.seed)
            started, cpu = time.perf_counter(), time.process_time()
            while batch := list(islice(source, args.batch)):
                orchestrator.batch(batch, concurrency=args.concurrency, on_result=count)
                now = resident_mb()
                if done <= args.n / 10:
                    warm = now
                highest = max(highest, now)
            wall, cpu = time.perf_counter() - started, time.process_time() - cpu
    warm = warm or highest
    return Result(
        n=args.n,
        policy=args.policy,
        wall_s=round(wall, 2),
        decisions_per_s=round(args.n / wall, 1),
        cpu_s=round(cpu, 2),
        warm_mb=round(warm, 1),
        peak_mb=round(highest, 1),
        growth_mb=round(max(0.0, highest - warm), 1),
        right=round(right / args.n, 4),
        by_member=dict(by_member),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--n", type=int, default=100_000, help="decisions")
    parser.add_argument("--policy", default="cheapest")
    parser.add_argument("--batch", type=int, default=1000, help="decisions whose trajectories are in memory at once")
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    result = measure(args := parser.parse_args())
    print(
        f"{result.n:,} decisions of {result.policy} in {result.wall_s:.1f} s: {result.decisions_per_s:,.0f} a second, "
        f"{result.cpu_s:.1f} s of CPU; {result.warm_mb:.0f} MB after a tenth, {result.peak_mb:.0f} MB at most "
        f"({result.growth_mb:+.1f} MB)"
    )
    if args.json:
        print(json.dumps({"benchmark": "decisions", **asdict(result)}))


if __name__ == "__main__":
    main()
