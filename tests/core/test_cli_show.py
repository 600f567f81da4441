"""`antiphon show`: a trajectory readable, several listed, anything else refused with its place."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from antiphon import Answer, Call, Route, Task, Trajectory, Turn, Usage
from antiphon.cli import run
from antiphon.types import Attempt, Timings


def trajectory(number: int = 0, **fields: object) -> Trajectory:
    attempts = (
        Attempt("a:one", "rate_limited", error="slow down"),
        Attempt("b:two", "ok", usage=Usage(10, 20), cost_usd=0.00005, priced_as="Big"),
    )
    parts = {
        "id": f"id-{number}",
        "task": Task("Where is it?", id=f"nq-{number}", golden_answers=("Paris",)),
        "policy": "router",
        "answer": "Paris",
        "stop": "answer",
        "rounds": 1,
        "turns": (
            Turn("…", thinking="Big may know", action=Route("Big", "where?"), usage=Usage(100, 7)),
            Turn("…", action=Answer("Paris"), started_s=3.0, problems=("no_think",)),
        ),
        "calls": (Call("Big", "where?", "ok", "In Paris.", attempts, round=1, started_s=1.0, latency_s=1.5),),
        "format_problems": ("no_think",),
        "policy_usage": Usage(120, 12),
        "policy_cost_usd": 0.00001,
        "timings": Timings(0.0, 4.0, 2.0, 1.0),
        "versions": {"grammar": "tags/1", "pool": "f" * 64},
        "notes": ("took the larger one",),
        **fields,
    }
    return Trajectory(**parts)  # type: ignore[arg-type]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(trajectory(number).to_json() + "\n" for number in range(3)))
    return path


def test_one_trajectory_is_readable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(trajectory().to_json() + "\n")
    assert run(["show", str(path)]) == 0
    out = capsys.readouterr().out
    for part in (
        "Where is it?", "Paris", "Big may know", "Big: where?", "In Paris.", "round 1, $0.000050, 1.5 s",
        "10 in, 20 out",
        "a:one, rate_limited, $0: slow down", "$0.000060 (members $0.000050, policy $0.000010)", "no_think",
        "policy 2.0 s", "members 1.0 s", "other 1.0 s", "took the larger one", "pool ffffffffffff",
    ):  # fmt: skip
        assert part in out
    assert out.index("Big may know") < out.index("In Paris.") < out.index("answers")
    assert "\x1b" not in out
    assert "[" + "#" * 15 + "=" * 7 + "." * 8 + "]" in out


def test_several_are_listed_and_one_can_be_picked(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", str(saved)]) == 0
    listed = capsys.readouterr()
    assert len(listed.out.splitlines()) == 4
    assert "show one with --index" in listed.err
    assert run(["show", str(saved), "--index", "2", "--json"]) == 0
    assert Trajectory.from_json(capsys.readouterr().out) == trajectory(2)
    for wanted in ("id-1", "nq-1"):
        assert run(["show", str(saved), "--id", wanted, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["id"] == "id-1"
    assert run(["show", str(saved), "--json"]) == 0
    assert [row["cost_usd"] for row in json.loads(capsys.readouterr().out)["trajectories"]] == [pytest.approx(6e-5)] * 3


def test_no_answer_is_said_with_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(trajectory(answer=None, stop="budget", error="needs up to $1").to_json())
    assert run(["show", str(path)]) == 0
    assert "none (budget: needs up to $1)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b'{"id": 1}\n', "line 1: not a trajectory"),
        (b"nonsense\n", "line 1: not a trajectory"),
        (b"\xff\xfe\x00", "line 1: not a trajectory"),
        (b"[1, 2]\n", "line 1: not a trajectory"),
    ],
)
def test_what_is_no_trajectory_is_one_line_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, message: str
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(content)
    assert run(["show", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("antiphon: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err


def test_a_torn_line_is_named_and_hides_no_other(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved.write_text(saved.read_text() + trajectory(3).to_json()[:200] + "\n" + trajectory(4).to_json())
    assert run(["show", str(saved)]) == 2
    captured = capsys.readouterr()
    assert "line 4: not a trajectory" in captured.err
    assert all(f"id-{number}" in captured.out for number in (0, 1, 2, 4))
    assert run(["show", str(saved), "--index", "1"]) == 0


def test_what_is_not_in_the_file_is_said(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", str(saved), "--index", "9"]) == 2
    assert "holds no such trajectory" in capsys.readouterr().err
    assert run(["show", str(saved), "--index", "1", "--id", "x"]) == 2
    assert "not both" in capsys.readouterr().err


def test_indented_json_and_standard_input_are_read_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(json.loads(trajectory().to_json()), indent=2))
    assert run(["show", str(path), "--json"]) == 0
    assert Trajectory.from_json(capsys.readouterr().out) == trajectory()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(trajectory().to_json().encode())))
    assert run(["show", "-"]) == 0
    assert "Where is it?" in capsys.readouterr().out


def test_nothing_in_it_can_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(trajectory(answer="\x1b]0;owned\x07 [bold]Paris[/bold]", task=Task("\x1b[2J?")).to_json())
    assert run(["show", str(path)]) == 0
    out = capsys.readouterr().out
    assert not {"\x1b", "\x07"} & set(out)
    assert "[bold]Paris[/bold]" in out
