"""Parsing grows linearly to 1 MB of policy text: seconds at 100 KB and 1 MB, and how far their ratio is from ten.

    python benchmarks/parsing.py [--json] [--repeats N]

Each text is fed in chunks of a few characters, as a model streams it, and whole. `plain` is one long thought; `tags` is
full of tags that nest, so that every rule has work; `unmatched` of tags that never match; `brackets` of what may be the
start of a tag. `reply` is not parsed but made harmless, as a member's reply is before the policy reads it. `growth` is
time(1 MB) / time(100 KB) / 10: 1 is linear, 10 quadratic. Target: at most 1.5.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

from antiphon_plugins.grammars._replies import harmless
from antiphon_plugins.grammars.router_r1 import TAGS, RouterR1Grammar
from antiphon_plugins.grammars.tool_call import ToolCallGrammar

SMALL, LARGE = 100_000, 1_000_000
TARGET = 1.5
UNITS = {
    "plain": "The capital of Peru is Lima, I believe. ",
    "tags": "a <search>b: c</search> </think> <think>d <answer>e</answer> ",
    "unmatched": "<search></answer><information>",
    "brackets": "<answe <thin </sear <<<",
}


def text(unit: str, size: int) -> str:
    return ("<think>" + unit * (size // len(unit) + 1))[:size]


def parse(grammar: RouterR1Grammar | ToolCallGrammar, said: str, chunk: int) -> None:
    parser = grammar.parser(lambda name: name, ["Ann"], True)
    for start in range(0, len(said), chunk):
        parser.feed(said[start : start + chunk])
    parser.finish()


def seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def measured(make: Callable[[int], Callable[[], object]], repeats: int) -> dict[str, float]:
    """CPU seconds at both sizes (medians) and the growth between them (the median of ratios taken side by side)."""
    small, large = make(SMALL), make(LARGE)
    pairs = [(seconds(small), seconds(large)) for _ in range(repeats)]
    return {
        "s_100kb": statistics.median(pair[0] for pair in pairs),
        "s_1mb": statistics.median(pair[1] for pair in pairs),
        "growth": statistics.median(pair[1] / pair[0] for pair in pairs) / (LARGE / SMALL),
    }


def run(repeats: int) -> dict[str, dict[str, float]]:
    results = {}
    for grammar in (RouterR1Grammar(), ToolCallGrammar()):
        for kind, unit in UNITS.items():
            for chunk in (4, LARGE):

                def make(size: int, grammar=grammar, unit=unit, chunk=chunk) -> Callable[[], object]:
                    said = text(unit, size)
                    return lambda: parse(grammar, said, chunk)

                fed = "whole" if chunk == LARGE else f"by {chunk}"
                results[f"{grammar.name} {kind} {fed}"] = measured(make, repeats)
    for kind, unit in UNITS.items():

        def reply(size: int, unit=unit) -> Callable[[], object]:
            said = text(unit, size)
            return lambda: harmless(said, TAGS)

        results[f"reply {kind}"] = measured(reply, repeats)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    results = run(options.repeats)
    worst = max(result["growth"] for result in results.values())
    print(f"{'':34}{'100 KB':>10}{'1 MB':>10}{'growth':>9}")
    for name, result in results.items():
        print(f"{name:34}{result['s_100kb']:>9.3f}s{result['s_1mb']:>9.3f}s{result['growth']:>9.2f}")
    print(f"worst growth {worst:.2f} (target: at most {TARGET})")
    if options.json:
        print(json.dumps({"results": results, "worst_growth": worst, "target": TARGET, "met": worst <= TARGET}))


if __name__ == "__main__":
    main()
