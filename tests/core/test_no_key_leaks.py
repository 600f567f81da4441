"""A planted key is in no event, trajectory, error, log, output or file, however a provider, plugin or policy fails."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from antiphon import AntiphonError, Orchestrator, Registry, Task, hookimpl
from antiphon.cli import run
from antiphon.testing import FaultServer, ScriptedGenerator
from antiphon.testing.server import HTTPReply, Received

KEY = "sk-planted-0123456789abcdefghij"
PLAIN = "planted.value.without.a.known.shape"
LEAK = re.compile(f"{re.escape(KEY)}|{re.escape(PLAIN)}|0123456789abcdefghij|value.without.a.known")


def echoes(request: Received) -> HTTPReply:
    """Says back what it was sent, as providers' errors like to, in the way that the query asks for."""
    sent = request.headers.get("authorization", "")
    said = {"error": {"message": f"Incorrect API key provided: {sent}", "code": "invalid_api_key"}}
    return {
        "auth": HTTPReply(status=401, body=said),
        "bad": HTTPReply(status=400, body=said),
        "down": HTTPReply(status=503, text=f"<html>{sent}</html>"),
        "html": HTTPReply(text=f"<html>{sent}</html>"),
        "empty": HTTPReply.says("", model=sent),
        "cut": HTTPReply(text="{" + sent * 9, cut_after=40),
        "limit": HTTPReply(status=429, body=said, headers={"retry-after": "9999"}),
    }[request.query]


KINDS = ("auth", "bad", "down", "html", "empty", "cut", "limit")


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer(echoes) as running:
        yield running


@pytest.fixture(autouse=True, params=[KEY, PLAIN])
def _planted(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ANTIPHON_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PLANTED_API_KEY", request.param)
    monkeypatch.chdir(tmp_path)


def config(server: FaultServer, adapter: str, tmp_path: Path) -> Path:
    path = tmp_path / "antiphon.toml"
    model = "hosted_vllm/m" if adapter == "litellm" else "m"
    path.write_text(
        textwrap.dedent(f"""
        [defaults]
        pool = "p"
        policy = "cheapest"
        [retry]
        backoff_s = 0
        [pools.p]
        members = ["M"]
        [members.M]
        description = "x"
        adapter = "{adapter}"
        model = "{model}"
        api_base = "{server.url}"
        api_key_env = "PLANTED_API_KEY"
        price = {{ input = 1, output = 1 }}
    """)
    )
    return path


@pytest.mark.parametrize("adapter", ["openai", "litellm"])
def test_not_in_what_a_failing_member_leaves_behind(
    server: FaultServer,
    adapter: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    left: list[str] = []
    with Orchestrator(config=config(server, adapter, tmp_path)) as orchestrator:
        for kind in KINDS:
            for event in orchestrator.stream(kind):
                left.append(repr(event))
                if event.trajectory is not None:
                    left.append(event.trajectory.to_json())
                    assert event.trajectory.answer is None
    assert all(request.headers["authorization"].startswith("Bearer ") for request in server.requests)
    assert len(server.requests) >= len(KINDS)
    captured = capfd.readouterr()
    for text in (*left, captured.out, captured.err, caplog.text, repr([r.__dict__ for r in caplog.records])):
        assert not LEAK.search(text), text


def test_not_in_any_output_or_file_of_the_command_line(
    server: FaultServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config(server, "openai", tmp_path)
    for kind in KINDS:
        assert run(["ask", kind, "--stream", "--json", "--save", "t.jsonl"]) == 1
        assert run(["ask", kind, "--stream"]) == 1
    server.play(HTTPReply(status=401, text="Bearer " + os.environ["PLANTED_API_KEY"]))
    assert run(["pool", "check", "--ask"]) == 1
    assert run(["pool", "check", "--ask", "--json"]) == 1
    assert run(["pool", "show", "--json"]) == 0
    assert run(["pool", "lock"]) == 0
    assert run(["show", "t.jsonl"]) == 0
    assert run(["show", "t.jsonl", "--index", "0"]) == 0
    captured = capfd.readouterr()
    assert "auth" in captured.err
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"t.jsonl", "antiphon.lock"} <= {path.name for path in files}
    for text in (captured.out, captured.err, *(path.read_text(encoding="utf-8") for path in files)):
        assert not LEAK.search(text), text


@pytest.mark.parametrize(
    "mistake",
    [
        '[members.M]\ndescription = "x"\nmodel = "m"\napi_key_env = "{key}"\n',
        '[members.M]\ndescription = "x"\nmodel = "m"\napi_key = "{key}"\n',
        '[models.m]\ngenerator = "openai"\nprice = "{key}"\n',
        '[models.m]\ngenerator = "openai"\noptions.api_key = "{key}"\n[defaults]\nmodel = "m"\npolicy = "direct"\n',
        '[limits]\nrounds = "{key}"\n',
    ],
)
def test_not_in_the_error_about_a_key_put_into_a_file(
    mistake: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "antiphon.toml").write_text(mistake.format(key=os.environ["PLANTED_API_KEY"]))
    assert run(["ask", "q"]) == 2
    captured = capfd.readouterr()
    assert captured.err.startswith("antiphon: ")
    assert not LEAK.search(captured.out + captured.err), captured.err


class Plugin:
    """Everything in it raises with the key in the message."""

    @hookimpl
    def antiphon_adapters(self) -> dict[str, Any]:
        return {"mine": self.fail, "late": lambda **_: self}

    @hookimpl
    def antiphon_generators(self) -> dict[str, Any]:
        return {"mine": self.fail}

    def fail(self, **_: object) -> None:
        raise RuntimeError(f"cannot log in with {os.environ['PLANTED_API_KEY']}")

    async def complete(self, request: object, context: object) -> None:
        self.fail()

    async def aclose(self) -> None:
        self.fail()


class Fails:
    name = "fails"

    async def run(self, task: Task, rollout: Any) -> str | None:
        if task.question == "ask":
            return (await rollout.ask("M", "q")).reply
        raise RuntimeError(f"cannot log in with {os.environ['PLANTED_API_KEY']}")


@pytest.mark.parametrize("adapter", ["mine", "late"])
@pytest.mark.parametrize("question", ["ask", "raise"])
def test_not_in_what_failing_plugins_and_policies_leave_behind(
    adapter: str, question: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    registry = Registry.load(only=[], local={"mine": Plugin()})
    pool = [{"name": "M", "description": "x", "adapter": adapter, "model": "m", "price": {"input": 0, "output": 0}}]
    left = ""
    with Orchestrator(pool=pool, policy=Fails(), registry=registry, model=ScriptedGenerator()) as orchestrator:
        try:
            trajectory = orchestrator.ask(question)
        except AntiphonError as error:
            left = str(error)
        else:
            left = trajectory.to_json()
            assert trajectory.answer is None
    captured = capfd.readouterr()
    for text in (left, captured.out, captured.err, caplog.text):
        assert not LEAK.search(text), text
    assert "cannot log in" in left


def test_not_in_the_line_about_a_fault_of_our_own(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, antiphon.config\n"
        "def load_config(*_, **__): raise RuntimeError('odd: ' + os.environ['PLANTED_API_KEY'])\n"
        "antiphon.config.load_config = load_config\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "antiphon.cli", "ask", "q"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 70
    assert "odd: " in done.stderr
    assert not LEAK.search(done.stderr), done.stderr
