"""`antiphon evaluate` killed while it works: a real process, a real server that counts every request."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from antiphon.testing.server import FaultServer, HTTPReply, Received

pytest.importorskip("numpy")

KILLS, CONCURRENCY, QUESTIONS = 20, 8, 300
MEMBERS = {"small": 1, "large": 70}
POLICIES = {"cheapest": "small", "largest": "large"}

Key = tuple[str, str]  # question, member


def committed(directory: Path) -> Counter[Key]:
    """Rollouts that are kept, by question and the member that the policy asks: whole lines alone."""
    kept: Counter[Key] = Counter()
    for file in directory.glob("trajectories/*.jsonl"):
        for line in file.read_bytes().rpartition(b"\n")[0].splitlines():
            trajectory = json.loads(line)["trajectory"]
            assert trajectory["stop"] == "answer"
            kept[trajectory["task"]["question"], POLICIES[trajectory["policy"]]] += 1
    return kept


def requests(server: FaultServer, run: str, begun: int) -> Counter[Key]:
    """What one run asked. By its key, since the server may read what a killed run had sent only later."""
    own = [received for received in server.requests[begun:] if received.headers["authorization"] == f"Bearer {run}"]
    return Counter((received.query, str(received.model)) for received in own)


def start(directory: Path, run: str) -> subprocess.Popen[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ANTIPHON_")}
    environment["KEY_OF_THIS_RUN"] = run
    arguments = [
        *("evaluate", "--pool", "mine", "--policy", "cheapest", "--policy", "largest", "--out", "run", "--json"),
        *("--dataset", "jsonl:questions.jsonl", "--concurrency", str(CONCURRENCY)),
    ]
    command = [sys.executable, "-m", "antiphon.cli", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=directory, env=environment, text=True, **pipes)


@pytest.mark.slow
def test_twenty_kills_lose_nothing_and_repeat_no_more_than_was_in_flight(tmp_path: Path) -> None:
    rng = random.Random(11)
    rows = [{"id": f"q{n}", "question": f"question {n}?", "golden_answers": ["x"]} for n in range(QUESTIONS)]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    # No run is answered more often than it may be: however late it is killed, there is work left for the next.
    enough = [rng.randint(1, 25) for _ in range(KILLS)]
    left = {f"run-number-{number}": count + rng.randint(0, 10) for number, count in enumerate(enough)}
    delays = random.Random(12)

    def reply(received: Received) -> HTTPReply:
        run = received.headers["authorization"].removeprefix("Bearer ")
        left[run] = left.get(run, len(POLICIES) * QUESTIONS) - 1
        return HTTPReply.says("<answer>x</answer>", delay_s=delays.uniform(0.001, 0.03), silent=left[run] < 0)

    with FaultServer(reply) as server:
        members = "".join(
            f'[members.{name}]\ndescription = "x"\nadapter = "openai"\nmodel = "{name}"\napi_base = "{server.url}"\n'
            f'api_key_env = "KEY_OF_THIS_RUN"\nparameters_b = {size}\nprice = {{ input = {size}, output = {size} }}\n'
            for name, size in MEMBERS.items()
        )
        (tmp_path / "antiphon.toml").write_text(f"[pools.mine]\nmembers = {json.dumps(list(MEMBERS))}\n{members}")
        before = Counter[Key]()
        for number in range(KILLS):
            run = f"run-number-{number}"
            process, begun = start(tmp_path, run), len(server.requests)
            give_up = time.monotonic() + 300
            while requests(server, run, begun).total() < enough[number]:
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < give_up
                time.sleep(0.003)
            time.sleep(rng.uniform(0, 0.02))
            process.kill()
            process.communicate()
            after = committed(tmp_path / "run")
            sent = requests(server, run, begun)
            assert not before - after, "what was committed is still there"
            assert not before & sent, "what was committed is not asked again"
            assert (sent - (after - before)).total() <= CONCURRENCY
            before = after
        assert before.total() > KILLS
        process = start(tmp_path, "last-run")
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        assert {cell["policy"]: (cell["n"], cell["metrics"]["em"]["mean"]) for cell in json.loads(out)["cells"]} == {
            "cheapest": (QUESTIONS, 1.0),
            "largest": (QUESTIONS, 1.0),
        }
        kept = committed(tmp_path / "run")
        assert (len(kept), set(kept.values())) == (len(POLICIES) * QUESTIONS, {1})
        assert len(server.requests) - kept.total() <= KILLS * CONCURRENCY
