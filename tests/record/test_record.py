"""`antiphon record`: what is kept, that others read it back, and that nothing is asked or paid for twice."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from antiphon import Orchestrator
from antiphon.errors import ConfigError
from antiphon.record import FIRST_KEY, Journal
from antiphon.testing.server import FaultServer, HTTPReply
from antiphon.types import Task

Cli = Callable[..., Any]


def lines(path: str = "replies.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def asked() -> list[str]:
    return Path("asked.txt").read_text(encoding="utf-8").splitlines()


def test_every_reply_is_kept_with_score_usage_cost_and_outcome(record: Cli) -> None:
    ran = record("--samples", "2", "--metric", "em", "--metric", "f1", "--json")
    assert (ran.status, ran.json["recorded"], ran.json["total"]) == (0, 40, 40)
    rows = {(row["question_id"], row["llm"], row["sample"]): row for row in lines()}
    assert len(rows) == len(lines()) == 40
    big = rows["q3", "Big", 0]
    assert {key: big[key] for key in ("dataset", "question", "golden_answers", "response", "metric", "score")} == {
        "dataset": "questions",
        "question": "question 3?",
        "golden_answers": ["a3", "x"],
        "response": "Surely <answer>a3</answer>",
        "metric": "em",
        "score": 1.0,
    }
    assert (big["input_tokens"], big["output_tokens"], big["outcome"]) == (10, 20, "ok")
    assert (big["cost_usd"], big["served_model"], big["scores"]) == (50e-6, "big-1", {"em": 1.0, "f1": 1.0})
    assert big["latency_s"] > 0
    assert (rows["q3", "Big", 1]["score"], rows["q3", "Big", 1]["output_tokens"]) == (0.0, 21)
    assert rows["q3", "Small", 0]["output_tokens"] is None  # plain code counts no tokens, and none are made up
    empty = rows["q9", "Small", 0]
    assert (empty["response"], empty["outcome"], empty["score"]) == ("", "empty_response", 0.0)
    assert ran.json["members"]["Big"]["score"] == 0.5
    assert ran.json["spent_usd"] == pytest.approx(10 * 50e-6 + 10 * 52e-6)


def test_a_recorded_pool_reads_it_back_at_once(record: Cli, project: Path) -> None:
    record()
    with Orchestrator(pool="replayed", policy="largest") as orchestrator:
        for number in range(10):
            trajectory = orchestrator.ask(Task(f"question {number}?", f"q{number}", dataset="questions"))
            assert trajectory.answer == f"a{number}"
            assert trajectory.cost_usd == pytest.approx(50e-6)
            assert not trajectory.calls[0].substituted
    assert len(asked()) == 20  # replaying asked nobody


def test_what_it_costs_is_said_before_and_after(record: Cli) -> None:
    ran = record()
    # Big: 118 + 11 characters in at $1, 512 tokens out at $2; Small is free
    assert "2 members, 10 questions: 20 calls to make, up to about $0.0105" in ran.err
    assert "spent $0.000500 in 20 calls ($0.000500 by the file); 20 of 20 replies are in replies.jsonl" in ran.err
    assert "Big" in ran.out


def test_the_same_command_asks_nothing_twice_and_more_of_it_asks_what_is_missing(record: Cli) -> None:
    record("--limit", "4", "--members", "big")
    again = record("--limit", "4", "--members", "big", "--json")
    assert (again.status, again.json["asked"], len(asked())) == (0, 0, 4)
    record("--samples", "2")
    assert Counter(asked()).most_common(1)[0][1] == 1
    assert len(asked()) == 40


def test_failed_calls_are_counted_charged_and_tried_again(record: Cli, project: Path) -> None:
    (project / "broken").touch()
    ran = record("--members", "Big", "--json")
    assert (ran.status, ran.json["recorded"], ran.json["members"]["Big"]["failed"]) == (1, 8, {"error": 2})
    assert "Big: no reply yet to 2 questions (2 error)" in ran.err
    failed = [row for row in lines() if row["outcome"] == "error"]
    assert {(row["question_id"], row["response"], row["score"]) for row in failed} == {
        ("q3", None, None),
        ("q4", None, None),
    }
    assert "the line is dead" in failed[0]["error"]
    (project / "broken").unlink()
    ran = record("--members", "Big", "--json")
    assert (ran.status, ran.json["recorded"], ran.json["asked"], ran.json["members"]["Big"]["failed"]) == (0, 10, 2, {})
    with Orchestrator(pool="replayed", policy="largest") as orchestrator:  # a reply comes before the failures before it
        assert orchestrator.ask(Task("question 3?", "q3", dataset="questions")).answer == "a3"


def test_a_member_that_always_fails_is_left_alone_and_the_others_go_on(record: Cli, project: Path) -> None:
    rows = [{"id": f"n{n}", "question": f"number {n}?", "golden_answers": ["x"]} for n in range(200)]
    (project / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    module = next(project.glob("members_*.py"))
    text = module.read_text().replace('return f"<answer>a{int', 'return f"<answer>a{len')
    module.write_text(text.replace('note(text, context, "Big")', 'raise OSError("gone")'))
    ran = record("--json")
    assert ran.status == 1
    assert "Big failed too often in a row and was left alone: error: " in ran.err
    assert ran.json["members"]["Small"]["replies"] == 200
    assert sum(ran.json["members"]["Big"]["failed"].values()) <= 20 + 8


# ---- money --------------------------------------------------------------------------------------------------------


def test_a_budget_holds_over_all_runs_into_one_file(record: Cli) -> None:
    bound = 1500e-6  # a little more than the most one call of Big can cost; it costs 50e-6
    first = record("--max-cost", f"{bound:g}", "--json")
    assert first.status == 1
    assert first.json["spent_usd"] <= bound
    assert first.json["members"]["Big"]["too_dear"]
    assert first.json["members"]["Small"]["replies"] == 10  # who is free goes on
    assert "allows no more calls of Big" in first.err
    second = record("--max-cost", f"{bound:g}", "--json")
    assert (second.json["asked"], second.json["spent_usd"]) == (0, first.json["spent_usd"])
    third = record("--max-cost", f"{bound + 3 * 50e-6:g}", "--json")
    assert third.json["asked"] == 3
    assert record("--max-cost", "1").status == 0


def test_reservations_of_calls_in_flight_do_not_end_a_run_that_can_go_on(record: Cli) -> None:
    """Sixteen bounds at once do not fit into this budget; ten calls one after another do."""
    ran = record("--max-cost", "0.003", "--json")
    assert (ran.status, ran.json["recorded"]) == (0, 20)


# ---- the file -----------------------------------------------------------------------------------------------------


def test_a_torn_last_line_is_cut_off_and_asked_again(record: Cli, project: Path) -> None:
    record("--members", "Big")
    whole = Path("replies.jsonl").read_bytes()
    last = lines()[-1]["question_id"]
    Path("replies.jsonl").write_bytes(whole[:-30])
    ran = record("--members", "Big", "--json")
    assert (ran.status, ran.json["asked"]) == (0, 1)
    assert asked().count(f"{last} Big 0") == 2
    assert len(lines()) == 10


def test_a_last_line_that_only_lacks_its_end_is_kept(record: Cli) -> None:
    record("--members", "Big")
    file = Path("replies.jsonl")
    file.write_bytes(file.read_bytes()[:-1])
    assert record("--members", "Big", "--json").json["asked"] == 0
    assert len(lines()) == 10


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("my notes, without an end", "it ends in something else than a recorded line"),
        ("my notes\n", "line 1: not JSON"),
        ("[1]\n", "line 1: not a JSON object"),
        ('{"question_id": "q1"}\n', "line 1: not a reply that `antiphon record` wrote"),
    ],
)
def test_another_file_is_refused_and_left_as_it_was(record: Cli, content: str, says: str) -> None:
    Path("replies.jsonl").write_text(content)
    ran = record()
    assert (ran.status, says in ran.err, Path("replies.jsonl").read_text()) == (2, True, content)
    assert not Path("asked.txt").exists()


def test_replies_got_in_another_way_are_not_mixed(record: Cli, project: Path) -> None:
    record("--temperature", "0.7")
    other = record("--temperature", "1")
    assert (other.status, "recorded with temperature 0.7 and metric em" in other.err) == (2, True)
    assert "metric em" in record("--temperature", "0.7", "--metric", "f1").err
    text = Path("questions.jsonl").read_text()
    Path("questions.jsonl").write_text(text.replace("question 3?", "another?"))
    assert "question 'q3' of 'questions' is another one there" in record("--temperature", "0.7").err


def test_one_process_writes_at_a_time_and_a_dead_one_holds_nobody_up(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, pathlib; from antiphon.record import Journal\n"
            f"held = Journal(pathlib.Path({str(path)!r}), 'question_id'); print('held', flush=True); sys.stdin.read()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(ConfigError, match="another process is writing to it"):
        Journal(path, FIRST_KEY)
    holder.kill()
    holder.communicate()
    Journal(path, FIRST_KEY).close()


async def test_rows_that_cannot_be_written_are_an_error_and_leave_no_torn_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "replies.jsonl"
    with Journal(path, FIRST_KEY) as journal:
        await journal.write({FIRST_KEY: "a"})

        def full(_: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(ConfigError, match="No space left"):
            await journal.write({FIRST_KEY: "b"})
        monkeypatch.undo()
        await asyncio.gather(*(journal.write({FIRST_KEY: str(number)}) for number in range(50)))
        assert [row[FIRST_KEY] for _, row in journal.rows()] == ["a", *map(str, range(50))]


# ---- asking -------------------------------------------------------------------------------------------------------


def test_members_are_asked_for_a_short_answer_at_the_temperature_given(project: Path, antiphon: Cli) -> None:
    with FaultServer(HTTPReply.says("<answer>x</answer>")) as server, Path("antiphon.toml").open("a") as file:
        file.write(
            '[pools.served]\nmembers = ["Served"]\n[members.Served]\ndescription = "Served."\nadapter = "openai"\n'
            f'model = "m"\napi_base = "{server.url}"\nprice = {{ input = 1, output = 1 }}\n'
            "sampling = { temperature = 0, top_p = 0.9 }\n"
        )
        file.flush()
        ran = antiphon(
            "record", "--pool", "served", "--data-file", "questions.jsonl", "--out", "s.jsonl", "--temperature", "0.5",
            "--limit", "2", "--json",
        )  # fmt: skip
        assert (ran.status, ran.json["members"]["Served"]["score"]) == (0, 1.0)
        body = server.requests[0].body
    assert (body["temperature"], body["top_p"]) == (0.5, 0.9)
    assert "<answer>" in body["messages"][0]["content"]
    assert body["messages"][1]["content"].startswith("question ")
    assert lines("s.jsonl")[0]["temperature"] == 0.5


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--members", "Bog"), "nobody in pool 'mine' is called 'Bog'; did you mean 'Big'?"),
        (("--metric", "emm"), "did you mean 'em'?"),
        (("--dataset", "nqq"), "did you mean 'nq'?"),
        (("--option", "sample"), "'sample' is not KEY=VALUE"),
        (("--dataset", "nq:other.jsonl"), "leave one of them out"),
        (("--pool", "mone"), "no pool is called 'mone'"),
    ],
)
def test_what_does_not_hold_is_said_before_anybody_is_asked(record: Cli, arguments: tuple[str, ...], says: str) -> None:
    ran = record(*arguments)
    assert (ran.status, ran.out, says in ran.err) == (2, "", True), ran.err
    assert not Path("asked.txt").exists()


def test_a_set_of_ones_own_copy_draws_as_its_options_say(antiphon: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_DATA", str(Path.cwd()))
    arguments = ("record", "--dataset", "nq:${ANTIPHON_DATA}/questions.jsonl", "--out", "nq.jsonl", "--json")
    ran = antiphon(*arguments, "--option", "sample=3", "--option", "seed=1", "--members", "Small")
    assert (ran.status, ran.json["questions"]) == (0, 3)
    assert {row["dataset"] for row in lines("nq.jsonl")} == {"nq"}


def test_without_questions_it_says_so(antiphon: Cli) -> None:
    ran = antiphon("record", "--out", "x.jsonl")
    assert (ran.status, "there are no questions" in ran.err) == (2, True)


def test_each_sample_of_a_task_is_replayed_with_a_reply_of_its_own(record: Cli) -> None:
    record("--samples", "2")
    with Orchestrator(pool="replayed", policy="largest") as orchestrator:
        task = Task("question 1?", "q1", dataset="questions")
        said = [orchestrator.ask(task, sample=sample).answer for sample in range(4)]
    assert said == ["a1", "no idea", "a1", "no idea"]
    assert len(asked()) == 40
