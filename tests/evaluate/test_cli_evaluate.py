"""`antiphon evaluate` and `antiphon compare` as typed: results on standard output, the rest on standard error."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy")


CONFIG = """
[pools.mine]
members = ["Small", "Large"]

[pools.late]
members = ["Late"]

[members.Small]
description = "Knows every second answer."
parameters_b = 7
adapter = "function"
model = "members_of_test_evaluate:small"
price = { input = 0, output = 1 }

[members.Large]
description = "Knows every answer."
parameters_b = 70
adapter = "function"
model = "members_of_test_evaluate:large"
price = { input = 0, output = 10 }

[members.Late]
description = "Takes its time."
parameters_b = 70
adapter = "function"
model = "members_of_test_evaluate:late"
price = { input = 0, output = 10 }
"""

MEMBERS = """
import asyncio, pathlib
from antiphon import Reply, Usage

def small(text, context):
    print("a member that prints")
    number = int(context.task_id[1:])
    return Reply("<answer>%s</answer>" % (context.task_id if number % 2 else "no"), Usage(10, 100))

def large(text, context):
    return Reply("It is <answer>%s</answer>" % context.task_id, Usage(10, 100))

async def late(text, context):
    with open("asked", "a") as file:
        file.write(context.task_id + "\\n")
    if context.task_id != "q0":
        while not pathlib.Path("go").exists():
            await asyncio.sleep(0.01)
    return large(text, context)
"""

SPEC = """
[evaluate]
pool = "mine"
baseline = "Big"
metrics = ["em"]

[[policies]]
name = "largest"
label = "Big"

[[policies]]
name = "cheapest"

[[datasets]]
name = "jsonl"
label = "ours"
options = { path = "questions.jsonl" }
"""


Cli = Callable[..., Any]


@pytest.fixture
def project(directory: Path) -> Path:
    sys.modules.pop("members_of_test_evaluate", None)
    (directory / "members_of_test_evaluate.py").write_text(textwrap.dedent(MEMBERS))
    (directory / "antiphon.toml").write_text(CONFIG)
    (directory / "spec.toml").write_text(SPEC)
    questions = [{"id": f"q{n}", "question": f"Number {n}?", "golden_answers": [f"q{n}"]} for n in range(8)]
    (directory / "questions.jsonl").write_text("".join(json.dumps(one) + "\n" for one in questions))
    return directory


def test_a_file_runs_and_leaves_tables_figures_and_a_report(antiphon: Cli) -> None:
    ran = antiphon("evaluate", "spec.toml")
    assert ran.status == 0, ran.err
    assert ran.err.splitlines()[0] == "16 rollouts to run, in runs/spec: up to about $0.327680 for members"
    header, big, cheapest = ran.out.splitlines()
    assert header.split() == ["policy", "pool", "data", "set", "n", "em", "raw", "cost", "USD", "calls"]
    assert big.split() == ["Big", "mine", "ours", "8", "1.000", "(1.000", "to", "1.000)", "1000.0", "$0.001000", "1.00"]
    assert cheapest.split()[4] == "0.500"
    assert "16 of 16 rollouts done, $0.008800 spent" in ran.err
    assert "a member that prints" in ran.err
    there = {path.relative_to("runs/spec").parts[0] for path in Path("runs/spec").rglob("*")}
    assert {"spec.json", "rows.jsonl", "summary.json", "trajectories", "tables", "report.html"} <= there


def test_json_is_the_summary_and_running_again_asks_nothing(antiphon: Cli) -> None:
    first = antiphon("evaluate", "spec.toml", "--json", "--out", "a/b")
    assert first.out.count("\n") == 1
    assert first.json == json.loads(Path("a/b/summary.json").read_text())
    assert first.json["command"] == "antiphon evaluate spec.toml"
    assert [pair["difference"] for pair in first.json["paired"]] == [-0.5]
    Path("members_of_test_evaluate.py").unlink()  # nobody could be asked any more
    again = antiphon("evaluate", "spec.toml", "--json", "--out", "a/b")
    assert (again.status, again.json) == (0, first.json)
    assert "0 rollouts to run (16 of 16 are done)" in again.err


def test_show_reads_the_trajectories_of_a_run(antiphon: Cli) -> None:
    antiphon("evaluate", "spec.toml", "--limit", "3")
    file = "runs/spec/trajectories/0001.jsonl"
    shown = antiphon("show", file, "--index", "1", "--json").json
    row = json.loads(Path("runs/spec/rows.jsonl").read_text().splitlines()[1])
    assert (shown["task"]["id"], shown["policy"], shown["answer"]) == (row["task_id"], "largest", row["answer"])
    assert "It is <answer>" in antiphon("show", file, "--index", "1").out


def test_flags_do_without_a_file(antiphon: Cli) -> None:
    ran = antiphon(
        "evaluate", "--policy", "largest:Big", "--policy", "direct", "--answer-by", "member", "--pool", "mine",
        "--dataset", "jsonl:questions.jsonl", "--limit", "2", "--seeds", "0,1", "--metrics", "em,f1",
        "--baseline", "Big", "--out", "run", "--json", "--model", "x",
    )  # fmt: skip
    assert ran.status == 2  # there is no --model here: it belongs to a policy
    ran = antiphon(
        "evaluate", "--policy", "largest:Big", "--policy", "cheapest", "--answer-by", "member", "--pool", "mine",
        "--dataset", "jsonl:questions.jsonl", "--limit", "2", "--seeds", "0,1", "--metrics", "em,f1",
        "--baseline", "Big", "--out", "run", "--json",
    )  # fmt: skip
    assert ran.status == 0, ran.err
    spec = ran.json["spec"]
    assert [(policy["label"], policy["answer_by"]) for policy in spec["policies"]] == [
        ("Big", "member"),
        ("cheapest", "member"),
    ]
    assert (spec["evaluate"]["seeds"], spec["evaluate"]["metrics"]) == ([0, 1], ["em", "f1"])
    assert [cell["rows"] for cell in ran.json["cells"]] == [4, 4]
    assert "--policy largest:Big --policy cheapest --dataset jsonl:questions.jsonl" in ran.json["command"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name what to evaluate"),
        (("--policy", "largest"), "name what to evaluate"),
        (("--policy", "largest", "--dataset", "jsonl:questions.jsonl"), "--out DIR"),
        (("spec.toml", "--policy", "largest"), "leave --policy, --dataset and --answer-by out"),
        (("none.toml",), "none.toml"),
        (("spec.toml", "--seeds", "one"), "--seeds one"),
        (("spec.toml", "--seeds", "-1"), "seeds"),
        (("spec.toml", "--baseline", "big"), "no policy is labelled 'big'"),
        (("spec.toml", "--pool", "mines"), "did you mean 'mine'"),
        (("spec.toml", "--metrics", "emm"), "there is no metric 'emm'"),
    ],
)
def test_bad_input_is_one_line_and_status_2(antiphon: Cli, arguments: tuple[str, ...], message: str) -> None:
    ran = antiphon("evaluate", *arguments)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("antiphon: ")
    assert message in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("golden", ["null", "[]", '[""]', "[null]", '"x"', "[{}]", "[[]]"])
def test_golden_answers_that_do_not_hold_stop_it_before_anything_is_asked(antiphon: Cli, golden: str) -> None:
    with Path("questions.jsonl").open("a") as file:
        file.write(f'{{"id": "odd", "question": "?", "golden_answers": {golden}}}\n')
    ran = antiphon("evaluate", "spec.toml")
    assert (ran.status, ran.out) == (2, "")
    assert "odd" in ran.err
    assert ran.err.count("\n") == 1
    assert not list(Path().glob("runs/spec/trajectories/*"))


def test_a_budget_that_does_not_last_is_status_1_and_says_how_to_go_on(antiphon: Cli) -> None:
    ran = antiphon("evaluate", "spec.toml", "--max-cost", "0.0065", "--concurrency", "1")
    assert ran.status == 1
    assert "at most $0.006500 is spent" in ran.err
    assert "the same command with a higher --max-cost goes on from there" in ran.err
    assert "rollouts so far" in ran.err
    done = antiphon("evaluate", "spec.toml", "--max-cost", "1", "--json")
    assert (done.status, [cell["n"] for cell in done.json["cells"]]) == (0, [8, 8])


def test_another_spec_in_the_same_directory_is_refused_in_words(antiphon: Cli) -> None:
    antiphon("evaluate", "spec.toml", "--limit", "2")
    ran = antiphon("evaluate", "spec.toml", "--limit", "3")
    assert ran.status == 2
    assert "evaluate.limit: 2 before, 3 now" in ran.err


def test_what_has_no_price_is_named_before_anything_is_spent(antiphon: Cli) -> None:
    config = Path("antiphon.toml")
    config.write_text(config.read_text().replace("price = { input = 0, output = 10 }\n", "", 1))
    refused = antiphon("evaluate", "spec.toml")
    assert refused.status == 2
    assert "allow_unpriced" in refused.err
    ran = antiphon("evaluate", "spec.toml", "--allow-unpriced")
    assert ran.err.splitlines()[0].endswith("for members, without what nobody has a price of (Large)")


def test_a_terminal_sees_how_far_it_is_what_was_spent_and_what_is_to_come(project: Path) -> None:
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "antiphon.cli", "evaluate", "spec.toml"]
    env = {**os.environ, "PYTHONPATH": str(project)}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=slave, env=env)
    os.close(slave)
    shown = b""
    with contextlib.suppress(OSError):  # how a terminal says that its last user has gone
        while piece := os.read(master, 65536):
            shown += piece
    os.close(master)
    assert process.wait(timeout=300) == 0, shown
    assert re.search(rb"16/16", shown)
    assert re.search(rb"\$0\.\d+ spent, about \$0 to come", shown)


@pytest.mark.parametrize("code", ["import antiphon.evaluate.run, antiphon.evaluate.compare", "HELP"])
def test_nothing_heavy_is_imported_before_it_is_needed(tmp_path: Path, code: str) -> None:
    helped = "from antiphon.cli import run\nassert run(['evaluate', '--help']) == run(['compare', '--help']) == 0"
    tail = "\nimport sys; print({'numpy', 'matplotlib', 'torch', 'litellm', 'rich'} & {*sys.modules})"
    code = (helped if code == "HELP" else code) + tail
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True, cwd=tmp_path
    )
    assert done.stdout.splitlines()[-1] == "set()"


# ---- signals ------------------------------------------------------------------------------------------------------


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "antiphon.cli", "evaluate", "spec.toml", "--pool", "late", "--out", "run"]
    env = {**os.environ, "PYTHONPATH": os.getcwd()}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*command, *arguments], text=True, env=env, **pipes)


def wait_until(holds: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    give_up = time.monotonic() + 300
    while not holds():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < give_up
        time.sleep(0.01)


def until_it_says(words: str, process: subprocess.Popen[str]) -> str:
    """The line with these words."""
    assert process.stderr is not None
    while words not in (line := process.stderr.readline()):
        assert line, "it ended without a word"
    return line


def asked() -> list[str]:
    return Path("asked").read_text().split() if Path("asked").exists() else []


def kept() -> int:
    return sum(path.read_bytes().count(b"\n") for path in Path("run").glob("trajectories/*.jsonl"))


def test_ctrl_c_lets_what_is_under_way_finish_and_says_how_to_go_on(project: Path) -> None:
    process = start("--concurrency", "3")
    try:
        wait_until(lambda: len(asked()) == 4 and kept() == 1, process)
        process.send_signal(signal.SIGINT)
        assert until_it_says("finishing", process) == "finishing what is under way; Ctrl-C again drops it\n"
        second = subprocess.run(
            [sys.executable, "-m", "antiphon.cli", "evaluate", "spec.toml", "--pool", "late", "--out", "run"],
            capture_output=True, text=True, timeout=300, check=False, env={**os.environ, "PYTHONPATH": os.getcwd()},
        )  # fmt: skip
        assert second.returncode == 2
        assert f"run is in use by process {process.pid} on" in second.stderr
        Path("go").touch()
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert (process.returncode, out) == (130, "")
    assert "stopped: 4 of 16 rollouts done and kept in run; the same command goes on from there" in err
    assert err.splitlines()[-1] == "antiphon: interrupted"
    assert (len(asked()), kept()) == (4, 4)


@pytest.mark.parametrize("signals", [[signal.SIGINT, signal.SIGINT], [signal.SIGTERM]])
def test_a_second_ctrl_c_or_a_termination_drops_what_is_under_way(project: Path, signals: list[signal.Signals]) -> None:
    process = start("--concurrency", "3")
    try:
        wait_until(lambda: len(asked()) == 4 and kept() == 1, process)
        process.send_signal(signals[0])
        if len(signals) == 2:
            until_it_says("finishing", process)  # two signals that wait at once would be one
            process.send_signal(signals[1])
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert (process.returncode, out) == (130, ""), err
    assert "stopped: 1 of 16 rollouts done" in err
    Path("go").touch()
    again = start("--json")
    out, err = again.communicate(timeout=300)
    assert again.returncode == 0, err
    assert "15 rollouts to run (1 of 16 are done)" in err
    assert json.loads(out)["cells"][0]["n"] == 8
    assert asked().count("q0") == 2  # once for each policy


# ---- compare ------------------------------------------------------------------------------------------------------


@pytest.fixture
def two_runs(antiphon: Cli, project: Path) -> None:
    """Before: the small member knows every second answer. After: it knows q0 too, and q1 no more."""
    assert antiphon("evaluate", "spec.toml", "--out", "a").status == 0
    members = Path("members_of_test_evaluate.py")
    members.write_text(
        members.read_text().replace("if number % 2 else", "if number % 2 and number > 1 or not number else")
    )
    sys.modules.pop("members_of_test_evaluate", None)
    assert antiphon("evaluate", "spec.toml", "--out", "b").status == 0


@pytest.mark.usefixtures("two_runs")
def test_compare_says_what_changed_question_by_question(antiphon: Cli) -> None:
    found = antiphon("compare", "a", "b", "--json").json
    assert [(one["policy"], one["n"], one["em"]["before"], one["em"]["after"]) for one in found["totals"]] == [
        ("Big", 8, 1.0, 1.0),
        ("cheapest", 8, 0.5, 0.5),
    ]
    assert found["totals"][1]["em"]["p"] == 1.0
    worse, better = found["changed"]
    assert (worse["task_id"], worse["before"]["answer"], worse["after"]["answer"]) == ("q1", "q1", "no")
    assert (better["task_id"], better["before"]["metrics"], better["after"]["metrics"]) == ("q0", {"em": 0}, {"em": 1})
    ran = antiphon("compare", "a", "b")
    assert ran.status == 0
    assert "cheapest ours  q1 Number 1?  1 -> 0" in ran.out


@pytest.mark.usefixtures("two_runs")
def test_compare_sets_two_policies_of_one_run_side_by_side(antiphon: Cli) -> None:
    found = antiphon("compare", "a:Big", "a:cheapest", "--json").json
    (total,) = found["totals"]
    assert (total["em"]["difference"], total["raw_cost"]["before"], total["raw_cost"]["after"]) == (-0.5, 1000.0, 100.0)
    assert total["em"]["low"] < -0.5 < total["em"]["high"]
    assert total["em"]["p"] == pytest.approx(2 / 2**4)
    assert len(found["changed"]) == 8


def test_compare_of_the_same_run_finds_nothing(antiphon: Cli) -> None:
    antiphon("evaluate", "spec.toml", "--out", "a")
    found = antiphon("compare", "a", "a", "--json").json
    assert (found["changed"], found["only_before"], found["only_after"]) == ([], 0, 0)


@pytest.mark.parametrize(
    ("sides", "message"),
    [
        (("a", "none"), "none/spec.json: No such file"),
        (("a:Big", "a"), "write DIR:LABEL on both, or on neither"),
        (("a:big", "a:Big"), "a has no policy 'big'; did you mean 'Big'"),
        (("a", "a", "--metric", "e"), "no metric 'e' in common; did you mean 'em'"),
    ],
)
def test_compare_refuses_in_one_line(antiphon: Cli, sides: tuple[str, ...], message: str) -> None:
    antiphon("evaluate", "spec.toml", "--out", "a", "--limit", "1")
    ran = antiphon("compare", *sides)
    assert (ran.status, ran.out) == (2, "")
    assert message in ran.err
