"""The `recorded` adapter: who is found by what, what is missing and how that is said, and the files themselves."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from antiphon.contracts import CallContext, Reply, Request
from antiphon.descriptor import Descriptor
from antiphon.errors import ConfigError, MemberError
from antiphon.types import Message, Usage
from antiphon_pools.adapters import recorded
from antiphon_pools.adapters.recorded import RecordedAdapter, question_key

DATA = os.environ.get("ANTIPHON_DATA")


def row(question: str, llm: str, response: str | None, **more: object) -> dict:
    return {"question": question, "llm": llm, "response": response, "dataset": "nq", **more}


ROWS = [
    row("who wrote Ulysses?", "org/Big-70B", "Joyce", question_id="test_1", input_tokens=9, output_tokens=2),
    row("who wrote Ulysses?", "small", "Homer", question_id="test_1", output_tokens=3, latency_s=0.5),
    row("who wrote Ulysses?", "mute", None, question_id="test_1"),
    row("who wrote Ulysses?", "blank", " ", question_id="test_1", input_tokens=9, output_tokens=1),
    row("capital of Peru", "small", "Lima", question_id="test_2", dataset="trivia"),
]


def write(path: Path, rows: list) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in rows) + "\n", encoding="utf-8")
    return path


def make(path: object, name: str = "Small", model: str = "small", aliases: tuple[str, ...] = ()) -> RecordedAdapter:
    data = {"name": name, "aliases": aliases, "description": "x", "adapter": "recorded", "model": model}
    descriptor = Descriptor.of({**data, "options": {"path": path if isinstance(path, list) else str(path)}})
    return RecordedAdapter(endpoint=descriptor.endpoints[0], descriptor=descriptor)


async def ask(adapter: RecordedAdapter, query: str = "anything", **context: object) -> Reply:
    request = Request("m", (Message("user", query),), 32, 20.0)
    return await adapter.complete(request, CallContext(**context))  # type: ignore[arg-type]


async def failure(adapter: RecordedAdapter, query: str = "anything", **context: object) -> MemberError:
    with pytest.raises(MemberError) as caught:
        await ask(adapter, query, **context)
    return caught.value


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "replies.jsonl", ROWS)


@pytest.mark.parametrize(
    "context",
    [
        {"question": "who wrote Ulysses?"},
        {"question": "  Who  wrote\nULYSSES ?"},
        {"question": "ｗｈｏ wrote Ulysses"},
        {"question": "who wrote “Ulysses”?", "task_id": "test_1", "dataset": "NQ"},  # by id: punctuation apart
        {"task_id": "test_1", "dataset": "nq"},
    ],
)
async def test_a_question_is_found_by_its_words_or_by_its_id(path: Path, context: dict) -> None:
    assert (await ask(make(path), "a sub-query of the policy's own", **context)).text == "Homer"


async def test_the_query_is_looked_up_where_the_task_is_not_recorded(path: Path) -> None:
    assert (await ask(make(path), "Capital of Peru?", question="a task of two hops")).text == "Lima"
    assert (await ask(make(path), "Capital of Peru?", question="who wrote Ulysses")).text == "Homer"


@pytest.mark.parametrize(
    "member",
    [{"model": "org/big-70b"}, {"name": "ORG/Big–70B"}, {"name": "Big", "aliases": ("org/Big-70B",)}],
)
async def test_a_member_is_found_by_model_name_or_alias(path: Path, member: dict) -> None:
    reply = await ask(make(path, **{"name": "X", "model": "x", **member}), question="who wrote Ulysses?")
    assert reply == Reply("Joyce", Usage(9, 2), "org/Big-70B")


async def test_what_was_not_recorded_of_a_usage_is_estimated_and_marked(path: Path) -> None:
    reply = await ask(make(path), "12345678", question="who wrote Ulysses?")
    assert (reply.usage, reply.latency_s) == (Usage(2, 3, estimated=True), 0.5)
    assert (await ask(make(path), question="capital of Peru")).usage is None


async def test_what_is_missing_is_said(path: Path) -> None:
    error = await failure(make(path), question="who wrote Emma?")
    assert (error.kind, "who wrote Emma?" in str(error), "replies.jsonl" in str(error)) == ("not_recorded", True, True)
    other_words = await failure(make(path), question="who wrote Emma?", task_id="test_1", dataset="nq")
    assert (other_words.kind, "who wrote ulysses" in str(other_words)) == ("not_recorded", True)
    other_dataset = await failure(make(path), question="", query="x", task_id="test_1", dataset="trivia")
    assert other_dataset.kind == "not_recorded"
    stranger = await failure(make(path, "Nobody", "nobody"), question="who wrote Ulysses?")
    assert (stranger.kind, "Nobody has no recorded reply" in str(stranger)) == ("not_recorded", True)
    mute = await failure(make(path, "Mute", "mute"), question="who wrote Ulysses?")
    assert (mute.kind, "without its text" in str(mute)) == ("not_recorded", True)


async def test_an_empty_reply_was_paid_for(path: Path) -> None:
    error = await failure(make(path, "Blank", "blank"), question="who wrote Ulysses?")
    assert (error.kind, error.usage, error.served_model) == ("empty_response", Usage(9, 1), "blank")


async def test_of_several_files_the_first_with_a_reply_wins(tmp_path: Path, path: Path) -> None:
    first = write(
        tmp_path / "a.jsonl", [row("who wrote Ulysses?", "small", None), row("who wrote Emma", "small", "Austen")]
    )
    assert (await ask(make([str(first), str(path)]), question="who wrote Ulysses")).text == "Homer"
    assert (await ask(make(tmp_path / "*.jsonl"), question="who wrote Emma")).text == "Austen"
    assert (await ask(make([str(path), str(first)]), question="who wrote Emma")).text == "Austen"


async def test_a_file_is_read_once_for_all_members(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, read = [], recorded.read_recording
    monkeypatch.setattr(recorded, "read_recording", lambda path: (reads.append(path), read(path))[1])
    adapters = [make(path), make(path, "X", "org/big-70b")]
    await asyncio.gather(*[ask(adapters[i % 2], question="who wrote Ulysses?") for i in range(20)])
    assert reads == [path]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "not JSON"),
        ('{"question": "q", "response": "r"}', "llm"),
        ('{"question": "q", "llm": "x"}', "response"),
        ('{"question": "q", "llm": "x", "response": "r", "output_tokens": -3}', "output_tokens"),
        ('["q"]', "not a recorded reply"),
    ],
)
async def test_a_bad_line_is_named(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(ROWS[0]) + "\n\n" + line + "\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"bad\.jsonl, line 3") as caught:
        await ask(make(path), question="who wrote Ulysses?")
    assert says in str(caught.value)


def test_a_bad_path_or_option_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"Small.*no such file"):
        make(tmp_path / "absent*.jsonl")
    monkeypatch.delenv("NOT_SET_ANYWHERE", raising=False)
    with pytest.raises(ConfigError, match=r"Small.*NOT_SET_ANYWHERE"):
        make("${NOT_SET_ANYWHERE}/replies.jsonl")
    data = {"name": "Small", "description": "x", "adapter": "recorded", "model": "m", "options": {"paths": "x"}}
    descriptor = Descriptor.of(data)
    with pytest.raises(ConfigError, match=r"Small.*did you mean 'path'"):
        RecordedAdapter(endpoint=descriptor.endpoints[0], descriptor=descriptor)


def test_a_question_key_folds_spelling_alone() -> None:
    assert question_key("Who?") == question_key("who ?") == question_key("WHO ??")
    assert question_key("who is he") != question_key("who is she")


@pytest.mark.skipif(not DATA, reason="ANTIPHON_DATA does not say where the recorded pools are")
async def test_the_recorded_pool_of_the_paper_replays() -> None:
    path = "${ANTIPHON_DATA}/recorded/routerr1_nq.jsonl"
    context = {"task_id": "test_2619", "dataset": "nq", "question": "when does a wrinkle in time come out in canada?"}
    reply = await ask(make(path, "Qwen2.5-7B-Instruct", "qwen/qwen2.5-7b-instruct"), **context)
    assert reply.text == "<answer>1962</answer>"
    assert reply.usage is not None
    assert (reply.usage.output_tokens, reply.usage.estimated) == (10, True)
