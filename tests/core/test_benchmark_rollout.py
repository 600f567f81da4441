"""The rollout benchmark runs, checks its own rollouts, and ends with one JSON object."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks/rollout.py"


def test_it_ends_with_the_ratio_of_each_size() -> None:
    command = [sys.executable, str(SCRIPT), "--json", "--rollouts", "3", "5", "--median", "0.02"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["benchmark"] == "rollout"
    assert [run["rollouts"] for run in last["runs"]] == [3, 5]
    for run in last["runs"]:
        assert last[f"ratio_{run['rollouts']}"] == run["ratio"] >= 1  # nothing is faster than its slowest rollout
        assert run["most_in_flight"] >= 1
