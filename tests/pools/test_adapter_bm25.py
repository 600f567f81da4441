"""The `bm25` adapter: the formula by hand, ranking, files and their faults."""

import json
import math
import threading
from pathlib import Path

import pytest

from antiphon.contracts import CallContext, Reply, Request
from antiphon.descriptor import Descriptor
from antiphon.errors import ConfigError
from antiphon.types import Message, Usage
from antiphon_pools.adapters import bm25
from antiphon_pools.adapters.bm25 import BM25Adapter, Index, Passage

ROWS = [
    {"id": "1", "title": "Lima", "text": "Lima is the capital of Peru."},
    {"id": "2", "title": "Quito", "text": "Quito is the capital of Ecuador, high in the Andes."},
    {"id": "3", "title": "Llama", "text": "The llama carries loads in Peru and in the Andes of Peru."},
]


def write(path: Path, rows: list) -> Path:
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8"
    )
    return path


def make(path: object, **options: object) -> BM25Adapter:
    data = {"name": "Library", "description": "x", "adapter": "bm25", "model": "corpus"}
    descriptor = Descriptor.of({**data, "options": {"path": str(path), **options}})
    return BM25Adapter(endpoint=descriptor.endpoints[0], descriptor=descriptor)


async def ask(adapter: BM25Adapter, text: str, max_tokens: int = 512) -> Reply:
    return await adapter.complete(Request("corpus", (Message("user", text),), max_tokens, 20.0), CallContext())


def test_scores_are_those_of_the_formula() -> None:
    texts = ["peru peru andes", "andes", "lima quito lima quito"]
    index = Index([Passage(str(i), "", text) for i, text in enumerate(texts)], k1=1.2, b=0.75)
    found = {passage.id: score for score, passage in index.search("Peru andes", 3)}

    def weight(count: int, length: int, holders: int) -> float:
        rarity = math.log(1 + (3 - holders + 0.5) / (holders + 0.5))
        return rarity * count / (count + 1.2 * (1 - 0.75 + 0.75 * length / (8 / 3)))

    assert found == pytest.approx({"0": weight(2, 3, 1) + weight(1, 3, 2), "1": weight(1, 1, 2)}, rel=1e-6)


def test_ties_go_to_the_earlier_passage_and_an_empty_index_finds_nothing() -> None:
    index = Index([Passage(name, "", "the same words") for name in "abc"])
    assert [passage.id for _, passage in index.search("same", 2)] == ["a", "b"]
    assert Index([]).search("anything", 3) == []
    assert Index([Passage("a", "", "")]).search("anything", 3) == []


def test_words_match_whatever_their_case_and_form() -> None:
    index = Index([Passage("a", "", "STRAßE in Ｌｉｍａ"), Passage("b", "", "nothing")])
    assert [passage.id for _, passage in index.search("strasse lima", 5)] == ["a"]


async def test_the_best_passages_come_first_numbered_and_free(tmp_path: Path) -> None:
    adapter = make(write(tmp_path / "corpus.jsonl", ROWS), k=2)
    reply = await ask(adapter, "What is the capital of Peru?")
    assert reply.text.startswith("[1] Lima\nLima is the capital of Peru.\n\n[2] ")
    assert reply.text.count("[") == 2
    assert (reply.usage, reply.finish) == (Usage(), "stop")
    assert (await ask(adapter, "zebra")).text == "No passage matches."
    cut = await ask(adapter, "capital Peru", max_tokens=5)
    assert (len(cut.text) <= 22, cut.finish) == (True, "length")


async def test_fields_have_the_names_that_the_options_say(tmp_path: Path) -> None:
    contents = write(tmp_path / "contents.jsonl", [{"id": 0, "contents": '"Lima"\nThe capital.'}])
    assert (await ask(make(contents), "lima")).text == '[1] "Lima"\nThe capital.'
    other = write(tmp_path / "other.jsonl", [{"docid": "x", "head": "Lima", "body": "The capital. " * 20}])
    adapter = make(other, title_field="head", text_field=["body"], passage_chars=12)
    assert (await ask(adapter, "lima")).text == "[1] Lima\nThe capital. …"


async def test_a_file_is_read_once_for_all_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, reads, read = write(tmp_path / "once.jsonl", ROWS), [], bm25._read
    monkeypatch.setattr(bm25, "_read", lambda *args: (reads.append(threading.get_ident()), read(*args))[1])
    for adapter in (make(path), make(path, k=1)):
        await ask(adapter, "lima")
    assert len(reads) == 1
    assert reads[0] != threading.get_ident()  # off the event loop


@pytest.mark.parametrize(
    ("bad", "says"),
    [("{", "not JSON"), ("[1]", "a JSON object"), ({"id": "4"}, "text_field"), ({"text": 4}, "no text in text or")],
)
async def test_a_bad_line_is_named(tmp_path: Path, bad: object, says: str) -> None:
    path = write(tmp_path / "bad.jsonl", [*ROWS, bad])
    with pytest.raises(ConfigError, match=r"bad\.jsonl, line 4") as caught:
        await ask(make(path), "lima")
    assert says in str(caught.value)


async def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "latin.jsonl"
    path.write_bytes('{"text": "Perú"}'.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"latin\.jsonl: cannot be read"):
        await ask(make(path), "lima")


def test_a_bad_option_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "corpus.jsonl", ROWS)
    with pytest.raises(ConfigError, match=r"Library.*did you mean 'passage_chars'"):
        make(path, passage_char=1)
    with pytest.raises(ConfigError, match=r"Library.*options: k"):
        make(path, k=0)
    with pytest.raises(ConfigError, match=r"Library.*no such file"):
        make(tmp_path / "absent.jsonl")
    monkeypatch.delenv("NOT_SET_ANYWHERE", raising=False)
    with pytest.raises(ConfigError, match="NOT_SET_ANYWHERE"):
        make("${NOT_SET_ANYWHERE}/corpus.jsonl")
    monkeypatch.setenv("CORPORA", str(tmp_path))
    assert make("${CORPORA}/corpus.jsonl")


async def test_a_retriever_never_counts_as_another_model(tmp_path: Path) -> None:
    """Whatever the member and its file are called."""
    from antiphon.contracts import CallContext
    from antiphon.pool import Pool
    from antiphon.registry import Registry

    path = tmp_path / "corpus.jsonl"
    path.write_text('{"id": "1", "text": "Lima is the capital of Peru."}\n', encoding="utf-8")
    data = {
        "description": "d",
        "adapter": "bm25",
        "model": "wiki",
        "options": {"path": str(path)},
        "price": {"input": 0, "output": 0},
    }
    async with Pool([Descriptor.of({"name": "Library", **data})], Registry.load([])) as pool:
        call = await pool.ask("Library", [Message("user", "capital of Peru")], context=CallContext())
    assert call.ok
    assert not call.substituted
