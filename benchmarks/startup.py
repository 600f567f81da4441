"""What starting costs: CPU seconds, user and system, beyond Python's own start.

`python benchmarks/startup.py [--runs N] [--json]`: medians over N fresh processes of each kind, in turns, by
`resource.getrusage` of children, so that a busy machine slows them all alike. Exits 1 where a limit is passed.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys

CASES = {
    "bare": (["-c", "pass"], None),
    "import": (["-c", "from antiphon import Descriptor, Orchestrator"], 0.25),
    "help": (["-m", "antiphon.cli", "--help"], 0.15),
}
"""Name -> what Python is given, and the most CPU seconds it may take beyond `bare`."""


def cpu_seconds(arguments: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(runs: int) -> dict[str, float]:
    """Name -> median CPU seconds beyond `bare`; `bare` itself as it is."""
    for arguments, _ in CASES.values():
        cpu_seconds(arguments)  # once for nothing: byte code and file cache
    taken: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(runs):
        for name, (arguments, _limit) in CASES.items():
            taken[name].append(cpu_seconds(arguments))
    medians = {name: statistics.median(times) for name, times in taken.items()}
    return {name: median - (0 if name == "bare" else medians["bare"]) for name, median in medians.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=11)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    found = measure(options.runs)
    limits = {name: limit for name, (_, limit) in CASES.items() if limit is not None}
    ok = all(found[name] <= limit for name, limit in limits.items())
    if options.json:
        seconds = {f"{name}_s": round(value, 4) for name, value in found.items()}
        print(json.dumps({"benchmark": "startup", "runs": options.runs, **seconds, "limits_s": limits, "ok": ok}))
    else:
        print(f"Python's own start: {found['bare']:.3f} s of CPU")
        for name, limit in limits.items():
            print(f"{name}: {found[name]:.3f} s beyond it (at most {limit} s)")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
