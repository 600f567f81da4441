"""What tests of several rooms share: a pool that says what it is told to; a directory, and a command line run in it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from antiphon.cli import run
from antiphon.contracts import CallContext, MemberView
from antiphon.descriptor import Descriptor
from antiphon.money import Budget
from antiphon.names import Names
from antiphon.types import Attempt, Call, Message, Usage

# How fast the machine is, no test may say.
settings.register_profile("any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any speed")

# What runs in the background of a shell ignores Ctrl-C, and so would all the processes that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


class ScriptedPool:
    """Implements `antiphon.contracts.AsksMembers`: the next reply of a script, one per call.

    A reply is a text, a `Call` (its outcome, reply and error are used), an exception to raise, or a number of seconds
    to wait before the reply that follows. `asked` keeps what was sent.
    """

    def __init__(self, members: Sequence[str | dict[str, Any]], replies: Sequence[Any] = ()) -> None:
        given = [{"name": one} if isinstance(one, str) else one for one in members]
        base = {"description": "Knows things.", "model": "m", "price": {"input": 1.0, "output": 2.0}}
        descriptors = [Descriptor.of({**base, **one}) for one in given]
        self.members = tuple(MemberView(one, one.price) for one in descriptors)
        self.resolve = Names({one.name: one.aliases for one in descriptors}).resolve
        self.asked: list[tuple[str, Sequence[Message], CallContext, int | None]] = []
        self._replies = list(replies)

    async def ask(
        self,
        member: str,
        messages: Sequence[Message],
        *,
        context: CallContext,
        budget: Budget | None = None,
        max_tokens: int | None = None,
    ) -> Call:
        self.asked.append((member, messages, context, max_tokens))
        said = self._replies.pop(0)
        if isinstance(said, float):
            answer = self._replies.pop(0)
            await asyncio.sleep(said)
            said = answer
        await asyncio.sleep(0)
        if isinstance(said, BaseException):
            raise said
        attempt = Attempt("scripted:m", "ok", usage=Usage(10, 20), cost_usd=0.00005, priced_as=member)
        if isinstance(said, Call):
            return replace(said, member=member, attempts=(replace(attempt, outcome=said.outcome),))
        return Call(member, "", "ok", reply=said, attempts=(attempt,), served_model="m")


@pytest.fixture
def scripted_pool() -> Callable[..., ScriptedPool]:
    """`scripted_pool(members, replies)`."""
    return ScriptedPool


@dataclass
class Ran:
    """What a command line came to: its exit status, and what it wrote to standard output and standard error."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory to be in, whose modules can be imported; of ANTIPHON_* variables, only where models are."""
    for name in [name for name in os.environ if name.startswith("ANTIPHON_") and name != "ANTIPHON_HOME"]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.fixture
def antiphon(project: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Runs a command line in this process, in the `project` of who asks; antiphon.toml is written where it is given."""

    def ran(*arguments: str, toml: str | None = None) -> Ran:
        if toml is not None:
            Path("antiphon.toml").write_text(toml, encoding="utf-8")
        status = run(arguments)
        captured = capfd.readouterr()
        return Ran(status, captured.out, captured.err)

    return ran
