"""A project whose pool of two functions writes down every request, and the questions to put to it."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MODULE = "members_of_test_record"


Cli = Callable[..., Any]


@pytest.fixture
def project(directory: Path) -> Path:
    """antiphon.toml, a module of members, and questions.jsonl: ten questions, whose answers are a0 to a9."""
    sys.modules.pop(MODULE, None)
    (directory / f"{MODULE}.py").write_text(
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
    (directory / "antiphon.toml").write_text(
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
    (directory / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return directory


@pytest.fixture
def record(antiphon: Cli) -> Cli:
    """`antiphon record` of the ten questions into replies.jsonl, with more options."""
    return lambda *more: antiphon("record", "--data-file", "questions.jsonl", "--out", "replies.jsonl", *more)
