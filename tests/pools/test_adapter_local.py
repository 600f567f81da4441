"""The `local` adapter: what it asks of a model, what it makes of what comes back, and a real one where there is one."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from antiphon import models
from antiphon.contracts import CallContext, Chunk, Encoded, Reply, Request
from antiphon.descriptor import Descriptor
from antiphon.errors import ConfigError, GeneratorError, MemberError
from antiphon.types import Message, Usage
from antiphon_pools.adapters.local import LocalAdapter

SMOL = "smollm2-135m-instruct"


class FakeModel:
    """Stands in for a loaded model: says the same chunks to everybody, and notes what it was asked."""

    max_context = 40

    def __init__(self, *chunks: Chunk, error: Exception | None = None, hang: bool = False) -> None:
        self.chunks, self.error, self.hang = chunks, error, hang
        self.chat = self
        self.opened: list[Message] = []
        self.asked: dict[str, Any] = {}
        self.loads: list[tuple[str, dict[str, Any], int]] = []
        self.users, self.open_generations = 0, 0

    def load(self, name: str, **options: Any) -> "FakeModel":
        self.loads.append((name, options, threading.get_ident()))
        self.users += 1
        return self

    def open(self, messages: tuple[Message, ...]) -> Encoded:
        self.opened = list(messages)
        return Encoded("", tuple(range(sum(len(message.content) for message in messages))))

    def adapter(self, lora: str) -> str:
        return f"loaded {Path(lora).name}"

    async def generate(self, token_ids: tuple[int, ...], **asked: Any) -> AsyncIterator[Chunk]:
        self.asked = asked
        self.open_generations += 1
        try:
            for chunk in self.chunks:
                yield chunk
            if self.error is not None:
                raise self.error
            if self.hang:
                await asyncio.Event().wait()
        finally:
            self.open_generations -= 1

    def release(self) -> None:
        self.users -= 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "lora").mkdir()
    return tmp_path


def make(folder: object, fake: FakeModel | None, monkeypatch: pytest.MonkeyPatch, **options: object) -> LocalAdapter:
    if fake is not None:
        monkeypatch.setattr(models, "load", fake.load)
    data = {"name": "Atlas", "description": "x", "adapter": "local", "model": str(folder), "options": options}
    descriptor = Descriptor.of(data)
    return LocalAdapter(endpoint=descriptor.endpoints[0], descriptor=descriptor)


async def ask(adapter: LocalAdapter, text: str = "Peru?", timeout_s: float = 20.0, **sampling: object) -> Reply:
    return await adapter.complete(Request("m", (Message("user", text),), 8, timeout_s, sampling), CallContext())


async def test_a_reply_is_what_was_generated_and_counted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeModel(Chunk(" Li", (1,)), Chunk("ma\n", (2, 3), finish="end"))
    adapter = make(
        folder, fake, monkeypatch, lora=str(folder / "lora"), system="Be brief.", dtype="bfloat16", threads=1
    )
    reply = await ask(adapter, temperature=0)
    assert reply == Reply("Lima", Usage(5 + 9, 3), str(folder))
    assert [message.role for message in fake.opened] == ["system", "user"]
    assert fake.asked == {"max_tokens": 8, "stop": (), "sampling": {"temperature": 0}, "adapter": "loaded lora"}
    await ask(adapter)
    ((name, options, thread),) = fake.loads  # once, however often it is asked
    assert (name, options["dtype"], options["threads"]) == (str(folder), "bfloat16", 1)
    assert thread != threading.get_ident()  # off the event loop
    await adapter.aclose()
    await adapter.aclose()
    assert fake.users == 0
    with pytest.raises(MemberError, match="closed"):
        await ask(adapter)


async def test_a_stop_string_is_no_part_of_the_reply(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeModel(Chunk("Lima\n\n", (1, 2), finish="stop"))
    assert (await ask(make(folder, fake, monkeypatch, stop=["\n\n", "END"]))).text == "Lima"
    assert fake.asked["stop"] == ("\n\n", "END")


async def test_the_output_limit_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await ask(make(folder, FakeModel(Chunk("Li", (1,), finish="length")), monkeypatch))).finish == "length"


@pytest.mark.parametrize(
    ("fake", "kind", "usage"),
    [
        (FakeModel(Chunk(" ", (1,), finish="end")), "empty_response", Usage(5, 1)),
        (FakeModel(), "empty_response", Usage(5, 0)),
        (FakeModel(error=GeneratorError("no room\nfor it")), "error", None),
        (FakeModel(hang=True), "timeout", None),
    ],
)
async def test_a_failure_has_its_kind(
    fake: FakeModel, kind: str, usage: Usage | None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(MemberError) as caught:
        await ask(make(folder, fake, monkeypatch), timeout_s=0.3 if fake.hang else 20.0)
    assert (caught.value.kind, caught.value.usage) == (kind, usage)
    assert fake.open_generations == 0  # its place is free again


async def test_a_prompt_that_does_not_fit_is_a_bad_request(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MemberError, match="40") as caught:
        await ask(make(folder, FakeModel(), monkeypatch), "x" * 40)
    assert caught.value.kind == "bad_request"


def test_what_is_not_there_is_refused_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_HOME", str(folder))
    with pytest.raises(ConfigError, match=r"Atlas.*antiphon models fetch no-such-model"):
        make("no-such-model", None, monkeypatch)
    with pytest.raises(ConfigError, match=r"Atlas.*no-such-lora"):
        make(folder, None, monkeypatch, lora="no-such-lora")
    with pytest.raises(ConfigError, match=r"Atlas.*did you mean 'lora'"):
        make(folder, None, monkeypatch, loras="x")


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.skipif(SMOL not in models.stored(), reason=f"antiphon models fetch {SMOL} brings it")
async def test_a_real_model_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    adapter = make(SMOL, None, monkeypatch)
    reply = await ask(adapter, "What is the capital of France?", timeout_s=120.0, temperature=0)
    await adapter.aclose()
    assert "Paris" in reply.text
    assert reply.usage is not None
    assert reply.usage.input_tokens > 5
    assert 0 < reply.usage.output_tokens <= 8
