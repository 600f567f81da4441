"""A project whose pool of two functions writes down every request, and the questions to put to it."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from antiphon.cli import run

MODULE = "members_of_test_record"


@dataclass
class Ran:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Ran]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """antiphon.toml, a module of members, and questions.jsonl: ten questions, whose answers are a0 to a9."""
    for name in [name for name in os.environ if name.startswith("ANTIPHON_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop(MODULE, None)
    (tmp_path / f"{MODULE}.py").write_text(
        textwrap.dedent("""
        import os, pathlib
        from antiphon import Reply, Usage
        from antiphon.errors import MemberError
        def note(text, context, member):
            with open("asked.txt", "a", encoding="utf-8") as file:
                file.write(f"{context.task_id} {member} {context.sample}\\n")
        def big(text, context):
            note(text, context, "Big")
            if pathlib.Path("broken").exists() and context.task_id in ("q3", "q4"):
                raise OSError("the line is dead")
            said = f"Surely <answer>a{context.task_id[1:]}</answer>" if context.sample == 0 else "no idea"
            return Reply(said, Usage(10, 20 + context.sample), "big-1")
        def small(text, context):
            note(text, context, "Small")
            if context.task_id == "q9":
                raise MemberError("empty_response", "nothing", usage=Usage(10, 1))
            return f"<answer>a{int(context.task_id[1:]) % 2}</answer>"
    """)
    )
    (tmp_path / "antiphon.toml").write_text(
        textwrap.dedent(f"""
        [defaults]
        pool = "mine"

        [retry]
        attempts = 1

        [pools.mine]
        members = ["Big", "Small"]

        [pools.replayed]
        members = ["Big", "Small"]
        adapter = "recorded"
        options = {{ path = "replies.jsonl" }}

        [members.Big]
        description = "Knows it all."
        parameters_b = 7
        adapter = "function"
        model = "{MODULE}:big"
        price = {{ input = 1, output = 2 }}

        [members.Small]
        description = "Guesses."
        parameters_b = 1
        adapter = "function"
        model = "{MODULE}:small"
        price = {{ input = 0, output = 0 }}
    """)
    )
    rows = [{"id": f"q{n}", "question": f"question {n}?", "golden_answers": [f"a{n}", "x"]} for n in range(10)]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return tmp_path


@pytest.fixture
def antiphon(project: Path, capfd: pytest.CaptureFixture[str]) -> Cli:
    """Runs a command line in this process."""

    def ran(*arguments: str) -> Ran:
        status = run(arguments)
        captured = capfd.readouterr()
        return Ran(status, captured.out, captured.err)

    return ran


@pytest.fixture
def record(antiphon: Cli) -> Cli:
    """`antiphon record` of the ten questions into replies.jsonl, with more options."""
    return lambda *more: antiphon("record", "--data-file", "questions.jsonl", "--out", "replies.jsonl", *more)
