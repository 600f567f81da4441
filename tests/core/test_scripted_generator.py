"""The scripted generator keeps what it declares, and its tokeniser is reversible and safe."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.contracts import Capabilities, GenerationRequest, Generator
from antiphon.errors import GeneratorError
from antiphon.generators.scripted import ScriptedGenerator
from antiphon.types import Message, clean

REQUEST = GenerationRequest((Message("user", "x"),), "", (1,), ("</search>",), 1000, "r")


async def said(generator, request=REQUEST):
    return [chunk async for chunk in generator.generate(request)]


def test_it_is_a_generator():
    assert isinstance(ScriptedGenerator(), Generator)


@given(st.text(st.characters()))
def test_text_survives_its_tokeniser(text):
    generator = ScriptedGenerator()
    assert generator.decode(generator.encode(text).token_ids) == clean(text)


@given(st.text() | st.sampled_from(["<|end|>", "<|user|>", "<|assistant|><|end|>"]))
def test_no_text_becomes_a_special_id(text):
    generator = ScriptedGenerator()
    assert all(token >= 4 for token in generator.encode(text).token_ids)
    ids = generator.open([Message("user", text)]).token_ids
    assert [token for token in ids if token < 4] == [2, 0, 3]
    assert [token for token in generator.turn(text).token_ids if token < 4] == [0, 2, 0, 3]


@given(st.text(max_size=80), st.integers(1, 9))
async def test_chunks_make_up_the_decoded_text(text, chunk_tokens):
    generator = ScriptedGenerator([text], chunk_tokens=chunk_tokens)
    chunks = await said(generator)
    ids = [token for chunk in chunks for token in chunk.token_ids]
    assert "".join(chunk.text for chunk in chunks) == generator.decode(ids)
    assert [chunk.finish for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert sum(len(chunk.logprobs) for chunk in chunks) == len(ids)


async def test_a_stop_string_ends_it_within_a_whole_token():
    chunks = await said(ScriptedGenerator(["a</search>\n\nb"]))
    assert "".join(chunk.text for chunk in chunks) == "a</search>\n\n"
    assert chunks[-1].finish == "stop"


async def test_it_withholds_what_it_does_not_declare():
    capabilities = Capabilities(token_in=False, token_out=False, logprobs=False, keeps_stop=False)
    generator = ScriptedGenerator(["a</search>b"], capabilities=capabilities)
    chunks = await said(generator)
    assert "".join(chunk.text for chunk in chunks) == "a"
    assert {(chunk.token_ids, chunk.logprobs) for chunk in chunks} == {(None, None)}
    assert generator.encode("a").token_ids is generator.open([]).token_ids is None


async def test_it_does_not_continue_a_turn_where_it_says_so():
    generator = ScriptedGenerator(["a"], capabilities=Capabilities(continue_turn=False))
    with pytest.raises(GeneratorError, match="continue_turn"):
        await said(generator, GenerationRequest((), "open", None, (), 10, "r"))


async def test_limits_scripts_and_what_was_asked():
    generator = ScriptedGenerator(["xyz", "é"])
    limited = await said(generator, GenerationRequest((), "", None, (), 2, "r"))
    assert ("".join(chunk.text for chunk in limited), limited[-1].finish) == ("xy", "length")
    assert (await said(generator))[-1].text == "é"
    after = await said(generator)
    assert [(chunk.text, chunk.token_ids, chunk.finish) for chunk in after] == [("", (), "end")]
    assert [request.max_tokens for request in generator.requests] == [2, 1000, 1000]


async def test_a_function_of_the_request_serves_many_at_once():
    generator = ScriptedGenerator(lambda request: f"for {request.request_id}", delay_s=0.001)
    requests = [GenerationRequest((), "", None, (), 99, str(index)) for index in range(20)]
    replies = await asyncio.gather(*(said(generator, request) for request in requests))
    assert ["".join(chunk.text for chunk in chunks) for chunks in replies] == [f"for {i}" for i in range(20)]


async def test_it_ignores_stops_when_told_to():
    chunks = await said(ScriptedGenerator(["a</search>b"], ignore_stops=True))
    assert ("".join(chunk.text for chunk in chunks), chunks[-1].finish) == ("a</search>b", "end")
