"""`antiphon record` killed and interrupted while it works: a real process, a real server that counts every request."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from antiphon.testing.server import FaultServer, HTTPReply, Received

KILLS, CONCURRENCY, SAMPLES = 20, 8, 2
MEMBERS = ("one", "two")
QUESTIONS = 200

Key = tuple[str, str]  # question, member
Start = Callable[..., subprocess.Popen[str]]  # server, key


def committed(path: Path) -> Counter[Key]:
    """Samples with a reply by question and member: whole lines alone."""
    if not path.exists():
        return Counter()
    whole = path.read_bytes().rpartition(b"\n")[0]
    rows = [json.loads(line) for line in whole.splitlines()]
    kept = Counter((row["question"], row["llm"]) for row in rows if row["outcome"] == "ok")
    assert len(rows) == kept.total()
    return kept


def requests(server: FaultServer, run: str, begun: int = 0) -> Counter[Key]:
    """What one run asked. By its key, since the server may read what a killed run had sent only later."""
    own = [received for received in server.requests[begun:] if received.headers["authorization"] == f"Bearer {run}"]
    return Counter((received.query, str(received.model)) for received in own)


@pytest.fixture
def command(tmp_path: Path) -> Start:
    """Starts the command in a directory of its own, against a server, with a key of its own."""
    rows = [{"id": f"q{n}", "question": f"question {n}?", "golden_answers": ["x"]} for n in range(QUESTIONS)]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ANTIPHON_")}

    def start(server: FaultServer, run: str = "the-only-run", stderr: int = subprocess.PIPE) -> subprocess.Popen[str]:
        members = "".join(
            f'[members.{name}]\ndescription = "x"\nadapter = "openai"\nmodel = "{name}"\napi_base = "{server.url}"\n'
            'api_key_env = "KEY_OF_THIS_RUN"\nprice = { input = 1, output = 1 }\n'
            for name in MEMBERS
        )
        (tmp_path / "antiphon.toml").write_text(f"[pools.mine]\nmembers = {json.dumps(MEMBERS)}\n{members}")
        arguments = [
            *("record", "--pool", "mine", "--data-file", "questions.jsonl", "--out", "replies.jsonl", "--json"),
            *("--samples", str(SAMPLES), "--concurrency", str(CONCURRENCY)),
        ]
        return subprocess.Popen(
            [sys.executable, "-m", "antiphon.cli", *arguments],
            cwd=tmp_path,
            env={**environment, "KEY_OF_THIS_RUN": run},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )

    return start


def wait_for(server: FaultServer, count: int, process: subprocess.Popen[str], run: str = "the-only-run") -> None:
    """Until the server has had so many requests of this run."""
    give_up, begun = time.monotonic() + 300, len(server.requests)
    while requests(server, run, begun).total() < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < give_up
        time.sleep(0.003)


@pytest.mark.slow
def test_twenty_kills_lose_nothing_and_repeat_no_more_than_was_in_flight(command: Start, tmp_path: Path) -> None:
    rng, path = random.Random(7), tmp_path / "replies.jsonl"

    # No run is answered more often than it may be: however late it is killed, there is work left for the next.
    enough = [rng.randint(1, 40) for _ in range(KILLS)]
    left = {f"run-number-{number}": count + rng.randint(0, 10) for number, count in enumerate(enough)}
    delays = random.Random(8)
    total = QUESTIONS * len(MEMBERS) * SAMPLES

    def reply(received: Received) -> HTTPReply:
        run = received.headers["authorization"].removeprefix("Bearer ")
        left[run] = left.get(run, total) - 1
        return HTTPReply.says("<answer>x</answer>", delay_s=delays.uniform(0.001, 0.03), silent=left[run] < 0)

    with FaultServer(reply) as server:
        before = Counter[Key]()
        for number in range(KILLS):
            run = f"run-number-{number}"
            process = command(server, run)
            wait_for(server, enough[number], process, run)
            time.sleep(rng.uniform(0, 0.02))
            process.kill()
            process.communicate()
            after = committed(path)
            sent = requests(server, run)
            assert not before - after, "what was committed is still there"
            for key, count in sent.items():
                assert before[key] + count <= SAMPLES, f"{key} was asked again though it has its replies"
            assert (sent - (after - before)).total() <= CONCURRENCY
            before = after
        assert before.total() > KILLS
        process = command(server, "last-run")
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        assert json.loads(out)["recorded"] == total
        kept = committed(path)
        assert (kept.total(), len(kept), set(kept.values())) == (total, QUESTIONS * len(MEMBERS), {SAMPLES})
        assert len(server.requests) - total <= KILLS * CONCURRENCY


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_keeps_what_is_in_flight_and_says_how_to_go_on(
    number: signal.Signals, command: Start, tmp_path: Path
) -> None:
    stopping = threading.Event()

    def reply(_: Received) -> HTTPReply:
        held = len(server.requests) > 12
        return HTTPReply.says("<answer>x</answer>", until=stopping.is_set if held else None)

    with FaultServer(reply) as server:
        process = command(server)
        wait_for(server, 12 + CONCURRENCY, process)
        process.send_signal(number)
        assert process.stderr is not None
        while "stopping" not in (line := process.stderr.readline()):
            assert line, "it ended without a word"
        assert f"stopping: waiting for {CONCURRENCY} calls in flight" in line
        stopping.set()
        out, err = process.communicate(timeout=300)
        assert (process.returncode, json.loads(out)["interrupted"]) == (130, True), err
        assert "the same command goes on from here" in err
        assert json.loads(out)["recorded"] == committed(tmp_path / "replies.jsonl").total() == len(server.requests)


def test_a_second_interruption_drops_what_is_in_flight(command: Start, tmp_path: Path) -> None:
    with FaultServer(HTTPReply(silent=True)) as server:
        process = command(server)
        wait_for(server, CONCURRENCY, process)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        while "stopping" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=300)
        assert process.returncode == 130
        assert committed(tmp_path / "replies.jsonl").total() == 0


def test_a_terminal_sees_how_far_it_is_what_was_spent_and_what_is_to_come(command: Start) -> None:
    with FaultServer(HTTPReply.says("<answer>x</answer>", usage=(5000, 5000), delay_s=0.01)) as server:
        master, slave = pty.openpty()
        process = command(server, stderr=slave)
        os.close(slave)
        shown = b""
        with contextlib.suppress(OSError):  # how a terminal says that its last user has gone
            while piece := os.read(master, 65536):
                shown += piece
        os.close(master)
        assert process.wait(timeout=300) == 0, shown
    assert re.search(rb"\d+/800", shown)
    assert re.search(rb"\$\d\.\d+ spent, about \$\d\.\d+ to come", shown)
    assert b"800/800" in shown
