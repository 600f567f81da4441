"""The decisions benchmark runs, checks its own decisions, and does not grow with their number."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks/decisions.py"


def test_ten_times_the_decisions_take_no_more_memory() -> None:
    command = [sys.executable, str(SCRIPT), "--json", "--n", "4000", "--batch", "100", "--policy", "largest"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["benchmark"], last["by_member"]) == ("decisions", {"Large-70B": 4000})
    assert 0.6 < last["right"] <= 1  # 0.8 by the way the replies were made
    assert last["decisions_per_s"] > 0
    assert last["growth_mb"] < 3  # the trajectories alone, were they kept, would take twice as much
