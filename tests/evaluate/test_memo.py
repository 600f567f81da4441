"""A reading that several policies need is generated once, where that changes no result, and costs each the same."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("numpy")

from antiphon import Registry, hookimpl
from antiphon.contracts import Capabilities, Chunk, GenerationRequest, Generator
from antiphon.errors import GeneratorError
from antiphon.evaluate.memo import Kept, Memo
from antiphon.evaluate.run import Evaluation
from antiphon.evaluate.spec import make_spec
from antiphon.evaluate.store import rows, trajectory
from antiphon.testing import ScriptedAdapter, ScriptedGenerator
from antiphon.types import Message, Trajectory

CONFIG = """
[defaults]
pool = "mine"
model = "{model}"

[pools.mine]
members = ["Only"]

[members.Only]
description = "The smallest and the largest."
parameters_b = 7
adapter = "mine"
model = "only"
price = {{ input = 0, output = 1 }}

[models.greedy]
generator = "reader"
price = {{ input = 1, output = 2 }}
turn_tokens = 2
sampling = {{ temperature = 0 }}

[models.warm]
generator = "reader"
price = {{ input = 1, output = 2 }}
turn_tokens = 2
sampling = {{ temperature = 0.7 }}
"""

GREEDY = GenerationRequest((Message("user", "hi"),), "", (1, 2), (), 50, "a", {"temperature": 0, "seed": 1})


class Plugin:
    """A member that repeats the question, and a model that counts over all of its generators."""

    def __init__(self) -> None:
        self.made: list[ScriptedGenerator] = []

    @hookimpl
    def antiphon_adapters(self) -> dict[str, Any]:
        said = ScriptedAdapter([lambda request, _: f"re: {request.messages[-1].content}"])
        return {"mine": lambda *, endpoint, descriptor: said}

    @hookimpl
    def antiphon_generators(self) -> dict[str, Any]:
        return {"reader": self.generator}

    def generator(self) -> ScriptedGenerator:
        self.made.append(ScriptedGenerator(lambda request: f"read {len(request.token_ids or ())}"))
        return self.made[-1]

    @property
    def generations(self) -> int:
        return sum(len(one.requests) for one in self.made)


class Held(ScriptedGenerator):
    """Says one chunk, then waits until it is let go; fails where it is told to."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__(lambda _: "a reply of several chunks")
        self.begun, self.go, self.fails = asyncio.Event(), asyncio.Event(), fails

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        self.begun.set()
        async with aclosing(super().generate(request)) as chunks:  # type: ignore[type-var]
            async for chunk in chunks:
                yield chunk
                await self.go.wait()
                if self.fails:
                    self.fails = False
                    raise GeneratorError("the model is gone")


def memo(generator: Generator, **how: Any) -> Generator:
    return cast(Generator, Memo(generator, **how))


async def read(generator: Generator, request: GenerationRequest = GREEDY) -> list[Chunk]:
    return [chunk async for chunk in generator.generate(request)]


def evaluated(path: Path, monkeypatch: pytest.MonkeyPatch, model: str) -> tuple[Plugin, dict[str, list[Trajectory]]]:
    """Two policies that ask the same member, and have the model read its reply to four questions."""
    for name in [name for name in os.environ if name.startswith("ANTIPHON_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(path)
    Path("antiphon.toml").write_text(CONFIG.format(model=model))
    Path("questions.jsonl").write_text(
        "".join(f'{{"id": "q{n}", "question": "{n * "so "}what?", "golden_answers": ["x"]}}\n' for n in range(4))
    )
    data = {
        "evaluate": {"metrics": ["em"]},
        "policies": [{"name": name, "answer_by": "base"} for name in ("largest", "cheapest")],
        "datasets": [{"name": "jsonl", "options": {"path": "questions.jsonl"}}],
    }
    plugin = Plugin()
    registry = Registry.load(only=[], local={"mine": plugin})
    with Evaluation(make_spec(data, "test"), Path("run"), registry=registry) as ready:
        assert ready.run() == "done"
    found: dict[str, list[Trajectory]] = {"largest": [], "cheapest": []}
    for row in sorted(rows(Path("run")), key=lambda row: row.task_id):
        found[row.policy].append(trajectory(Path("run"), row.file, row.line))
    return plugin, found


def test_two_policies_have_the_same_reply_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin, found = evaluated(tmp_path, monkeypatch, "greedy")
    assert (len(plugin.made), plugin.generations) == (2, 4)
    for one, other in zip(found["largest"], found["cheapest"], strict=True):
        assert one.answer is not None
        assert (one.answer, one.segments, one.policy_usage) == (other.answer, other.segments, other.policy_usage)
        assert one.policy_cost_usd == other.policy_cost_usd > 0
        assert one.policy_usage.output_tokens == 2  # the model's own limit holds
        assert one.versions["generator"] == other.versions["generator"] == "scripted"


def test_a_model_that_draws_is_asked_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin, _ = evaluated(tmp_path, monkeypatch, "warm")
    assert plugin.generations == 8


async def test_a_replay_is_exact_chunk_by_chunk() -> None:
    made = ScriptedGenerator(["so it is, <é>", "another"])
    generator = memo(made)
    first = await read(generator)
    assert await read(generator, replace(GREEDY, request_id="b", sampling={"seed": 1, "temperature": 0})) == first
    assert len(first) > 1
    assert None not in (first[0].token_ids, first[0].logprobs)
    assert first[-1].finish == "end"


@pytest.mark.parametrize("sampling", [{}, {"temperature": None}, {"temperature": 0.7, "seed": 1}, {"seed": 1}])
async def test_only_a_temperature_of_zero_is_replayed(sampling: dict[str, Any]) -> None:
    made = ScriptedGenerator(["one", "two"])
    generator, request = memo(made), replace(GREEDY, sampling=sampling)
    assert await read(generator, request) != await read(generator, request)
    assert len(made.requests) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"messages": (Message("user", "ho"),)},
        {"messages": (Message("system", "hi"),)},
        {"prefix": "So"},
        {"token_ids": (1, 3)},
        {"token_ids": None},
        {"stop": ("x",)},
        {"max_tokens": 51},
        {"sampling": {"temperature": 0, "seed": 2}},
    ],
)
async def test_another_request_is_another_generation(change: dict[str, Any]) -> None:
    made = ScriptedGenerator(lambda _: "one")
    generator = memo(made)
    await read(generator)
    await read(generator, replace(GREEDY, **change))
    assert len(made.requests) == 2


async def test_memos_share_what_is_kept_of_the_same_generator_alone() -> None:
    kept, made = Kept(), [ScriptedGenerator([name]) for name in ("one", "two", "three")]
    said = [await read(memo(each, kept=kept, of=of)) for each, of in zip(made, ("a", "a", "b"), strict=True)]
    assert (said[0], [len(each.requests) for each in made]) == (said[1], [1, 0, 1])
    assert said[2] != said[0]


async def test_equal_requests_at_once_are_one_generation() -> None:
    made = Held()
    generator = memo(made)
    readers = [asyncio.create_task(read(generator)) for _ in range(5)]
    await made.begun.wait()
    made.go.set()
    said = await asyncio.gather(*readers)
    assert len(made.requests) == 1
    assert all(one == said[0] for one in said)


@pytest.mark.parametrize("cancelled", [0, 1])
async def test_cancelling_one_reader_leaves_the_other_its_reply(cancelled: int) -> None:
    """Where it was the one that generated, the other generates."""
    made = Held()
    generator = memo(made)
    readers = [asyncio.create_task(read(generator)) for _ in range(2)]
    await made.begun.wait()
    readers[cancelled].cancel()
    with pytest.raises(asyncio.CancelledError):
        await readers[cancelled]
    made.go.set()
    said = await readers[1 - cancelled]
    assert "".join(chunk.text for chunk in said) == "a reply of several chunks"
    assert await read(generator) == said
    assert len(made.requests) == 2 - cancelled


async def test_a_failure_is_its_own_readers_and_is_not_kept() -> None:
    made = Held(fails=True)
    made.go.set()
    generator = memo(made)
    failed, other = await asyncio.gather(read(generator), read(generator), return_exceptions=True)
    assert isinstance(failed, GeneratorError)
    assert await read(generator) == other
    assert len(made.requests) == 2


async def test_a_generation_left_before_its_end_is_not_kept() -> None:
    made = ScriptedGenerator(lambda _: "a reply of several chunks")
    generator = memo(made)
    async with aclosing(cast(Any, generator.generate(GREEDY))) as chunks:
        await anext(chunks)
    assert "".join(chunk.text for chunk in await read(generator)) == "a reply of several chunks"
    assert len(made.requests) == 2


@pytest.mark.parametrize("bounds", [{"most": 2}, {"most_bytes": 2800}])
def test_what_was_used_longest_ago_goes_first(bounds: dict[str, int]) -> None:
    kept, chunks = Kept(**bounds), [Chunk(os.urandom(1000).hex(), finish="end")]  # over 1000 bytes, packed
    for name in (b"a", b"b"):
        kept.put(name, chunks)
    assert kept.get(b"a") == chunks
    kept.put(b"c", chunks)
    assert [name for name in (b"a", b"b", b"c") if kept.get(name)] == [b"a", b"c"]


def test_one_that_is_too_large_pushes_nothing_out() -> None:
    kept = Kept(most_bytes=1000)
    kept.put(b"a", [Chunk("small")])
    kept.put(b"b", [Chunk(os.urandom(5000).hex())])
    assert (kept.get(b"a"), kept.get(b"b")) == ([Chunk("small")], None)


async def test_all_else_is_the_generators_own() -> None:
    made = ScriptedGenerator(capabilities=Capabilities(logprobs=False))
    generator = memo(made)
    assert isinstance(generator, Generator)
    assert (generator.name, generator.capabilities) == (made.name, made.capabilities)
    assert generator.decode(generator.encode("so it is").token_ids or ()) == "so it is"
    await generator.aclose()
