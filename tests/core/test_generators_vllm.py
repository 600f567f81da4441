"""What vLLM's generator does around its engine: shared, restarted once, nothing lost; with an engine of our own."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path

import pytest

from antiphon.contracts import Chunk
from antiphon.errors import ConfigError, GeneratorError, MissingExtra
from antiphon.generators import _engine, _vllm
from antiphon.generators._chat import Chat, Utterance, load_chat
from antiphon.generators._engine import EngineDied, SharedEngine, TokenEngine, Tokens, Wanted
from antiphon.generators.vllm import VLLMGenerator, rank_of
from antiphon.sampling import Sampling, seed_at

TEXT = "<think>The capital of France is a city, é or not.</think>\n<search>Qwen: what is it?</search>\nand so on, on"
PROMPT = (5, 6, 7)
GREEDY = Wanted(Sampling(temperature=0.0), (2,))


class Recites:
    """An engine whose next token depends on the length of its context alone, as a model's depends on its context.

    Args:
        ids: what it says after `PROMPT`.
        dies_after: tokens, of all its streams together, after which it is dead.
        at_once: tokens that come together.
        ended: said with the last of `ids`.
    """

    def __init__(
        self, ids: Sequence[int], *, dies_after: int | None = None, at_once: int = 1, ended: str | None = None
    ) -> None:
        self.ids, self.left, self.at_once, self.ended = list(ids), dies_after, at_once, ended
        self.prompts: list[tuple[int, ...]] = []
        self.streaming = self.shut_down = 0

    async def stream(self, prompt: Sequence[int], max_tokens: int, wanted: Wanted) -> AsyncGenerator[Tokens, None]:
        self.prompts.append(tuple(prompt))
        self.streaming += 1
        try:
            at = len(prompt) - len(PROMPT)
            while True:
                await asyncio.sleep(0)
                if self.left is not None and self.left <= 0:
                    raise EngineDied("EngineCore ended by signal 9")
                ids = self.ids[at : at + self.at_once]
                if self.left is not None:
                    self.left -= len(ids)
                at += len(ids)
                last = at >= len(self.ids) or not ids
                yield Tokens(ids, [-0.5] * len(ids), 2, self.ended if last else None)
                if last:
                    return
        finally:
            self.streaming -= 1

    def shutdown(self) -> None:
        self.shut_down += 1


@pytest.fixture(scope="module")
def chat(tiny_model: Path) -> Chat:
    return load_chat(tiny_model, None)


@pytest.fixture
def shared() -> Iterator[Callable[..., SharedEngine]]:
    """`shared(engine, engine, …)`: a shared engine that starts these, one after the other."""
    made: list[SharedEngine] = []

    def make(*engines: TokenEngine | Exception) -> SharedEngine:
        waiting = list(engines)

        def start() -> TokenEngine:
            engine = waiting.pop(0)
            if isinstance(engine, Exception):
                raise engine
            return engine

        made.append(SharedEngine("tiny", start, 512))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def ids_of_text(chat: Chat) -> tuple[int, ...]:
    return (*(chat.encode(TEXT).token_ids or ()), 2)


async def said(engine: SharedEngine, chat: Chat, stop: Sequence[str] = (), max_tokens: int = 400) -> list[Chunk]:
    return [chunk async for chunk in engine.generate(PROMPT, Utterance(chat, stop, max_tokens), GREEDY)]


def joined(chunks: Sequence[Chunk]) -> tuple[str, tuple[int, ...], int]:
    """Text, ids, and how many log-probabilities."""
    ids = tuple(i for chunk in chunks for i in chunk.token_ids or ())
    return "".join(chunk.text for chunk in chunks), ids, sum(len(chunk.logprobs or ()) for chunk in chunks)


async def test_a_generation_is_whole_and_says_what_it_used(shared: Callable[..., SharedEngine], chat: Chat) -> None:
    chunks = await said(shared(Recites(ids_of_text(chat))), chat)
    ids = ids_of_text(chat)
    assert joined(chunks) == (TEXT, ids, len(ids))
    assert [chunk.finish for chunk in chunks if chunk.finish] == ["end"]
    usage = chunks[-1].usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.cached_input_tokens) == (len(PROMPT), len(ids), 2)


@pytest.mark.parametrize("at_once", [1, 3])
@pytest.mark.parametrize("dies_after", [0, 1, 40])
async def test_all_generations_go_on_after_the_engine_died(
    shared: Callable[..., SharedEngine],
    chat: Chat,
    dies_after: int,
    at_once: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ids = ids_of_text(chat)
    first, second = Recites(ids, dies_after=dies_after, at_once=at_once), Recites(ids, at_once=at_once)
    engine = shared(first, second)
    everyone = await asyncio.gather(*(said(engine, chat) for _ in range(6)))
    assert [joined(chunks) for chunks in everyone] == [(TEXT, ids, len(ids))] * 6
    assert engine.restarts == 1
    assert (first.shut_down, second.shut_down) == (1, 0)
    assert all(prompt == (*PROMPT, *ids)[: len(prompt)] for prompt in second.prompts)  # they go on from what they have
    warning = capsys.readouterr().err
    assert "tiny" in warning
    assert "EngineCore ended by signal 9" in warning


async def test_a_second_death_is_an_error_that_names_the_cause(shared: Callable[..., SharedEngine], chat: Chat) -> None:
    ids = ids_of_text(chat)
    first, second, third = Recites(ids, dies_after=20), Recites(ids, dies_after=20), Recites(ids)
    engine = shared(first, second, third)
    ended = await asyncio.gather(*(said(engine, chat) for _ in range(4)), return_exceptions=True)
    for error in ended:
        assert isinstance(error, GeneratorError)
        assert "'tiny'" in str(error)
        cause = "EngineCore ended by signal 9"
        assert f"died a second time ({cause}; the first time: {cause})" in str(error)
    with pytest.raises(GeneratorError, match="second time"):
        await said(engine, chat)
    assert (first.shut_down, second.shut_down, third.prompts) == (1, 1, [])


async def test_a_stop_string_is_found_across_a_death(shared: Callable[..., SharedEngine], chat: Chat) -> None:
    ids = ids_of_text(chat)
    whole = joined(await said(shared(Recites(ids)), chat, ("</think>",)))
    inside = len(whole[1]) - 2  # the string takes several tokens
    engine = shared(Recites(ids, dies_after=inside), Recites(ids))
    chunks = await said(engine, chat, ("</think>",))
    assert joined(chunks) == whole
    assert chunks[-1].finish == "stop"
    assert engine.restarts == 1
    assert "</think>" in whole[0]


async def test_nothing_after_the_token_of_a_stop_string_is_given_out(
    shared: Callable[..., SharedEngine], chat: Chat
) -> None:
    ids = ids_of_text(chat)
    one, many = Recites(ids), Recites(ids, at_once=7)
    expected = joined(await said(shared(one), chat, ("city",)))
    chunks = await said(shared(many), chat, ("city",))
    assert joined(chunks) == expected
    assert (one.streaming, many.streaming) == (0, 0)


async def test_a_limit_of_the_engines_own_is_a_length(shared: Callable[..., SharedEngine], chat: Chat) -> None:
    ids = chat.encode("a city, é").token_ids or ()
    chunks = await said(shared(Recites(ids[:-1], ended="length")), chat)  # it ends within the letter
    assert chunks[-1].finish == "length"
    assert joined(chunks)[0] == chat.decode(ids[:-1])
    with pytest.raises(GeneratorError, match="abort"):
        await said(shared(Recites(ids, ended="abort")), chat)
    with pytest.raises(GeneratorError, match="without a reason"):
        await said(shared(Recites(ids)), chat)


async def test_going_away_frees_the_place(shared: Callable[..., SharedEngine], chat: Chat) -> None:
    endless = Recites([65] * 10_000)
    engine = shared(endless)
    async with aclosing(engine.generate(PROMPT, Utterance(chat, (), 100_000), GREEDY)) as chunks:
        await anext(chunks)
    waiting = asyncio.create_task(said(engine, chat, max_tokens=100_000))
    while endless.streaming < 1:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    async with asyncio.timeout(60):
        while endless.streaming or engine.running:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert len(joined(await said(engine, chat, max_tokens=3))[1]) == 3


async def test_an_engine_that_cannot_start_is_tried_once(shared: Callable[..., SharedEngine], chat: Chat) -> None:
    ids = ids_of_text(chat)
    engine = shared(RuntimeError("no memory is left\nand so on"), Recites(ids))
    ended = await asyncio.gather(*(said(engine, chat) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(error, GeneratorError) for error in ended)
    assert "'tiny': its engine could not be started (no memory is left)" in str(ended[0])
    with pytest.raises(GeneratorError, match="could not be started"):
        await said(engine, chat)
    again = shared(Recites(ids, dies_after=3), RuntimeError("no memory is left"))
    with pytest.raises(
        GeneratorError, match=r"started again after it had died \(EngineCore ended by signal 9\) \(no mem"
    ):
        await said(again, chat)


async def test_closing_ends_what_runs(shared: Callable[..., SharedEngine], chat: Chat) -> None:
    endless = Recites([65] * 100_000)
    engine = shared(endless)
    running = asyncio.create_task(said(engine, chat, max_tokens=1_000_000))
    while not endless.streaming:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    await asyncio.to_thread(engine.close)
    with pytest.raises(GeneratorError, match="closed while it generated"):
        await running
    assert (endless.streaming, endless.shut_down) == (0, 1)
    with pytest.raises(GeneratorError, match="closed; make a new"):
        await said(engine, chat)
    engine.close()
    assert endless.shut_down == 1


def test_every_event_loop_uses_the_one_engine(shared: Callable[..., SharedEngine], chat: Chat) -> None:
    ids = ids_of_text(chat)
    engine, heard = shared(Recites(ids)), []

    def thread() -> None:
        heard.append(joined(asyncio.run(said(engine, chat))))

    threads = [threading.Thread(target=thread) for _ in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert heard == [(TEXT, ids, len(ids))] * 3


def test_an_engine_ends_with_its_last_user(chat: Chat) -> None:
    made: list[SharedEngine] = []
    running = Recites(ids_of_text(chat))

    def make() -> SharedEngine:
        made.append(SharedEngine("tiny", lambda: running, 512))
        return made[-1]

    one, two = _engine.lease("a key", make), _engine.lease("a key", make)
    assert one is two
    asyncio.run(said(one, chat))
    _engine.release("a key")
    assert joined(asyncio.run(said(two, chat)))[0] == TEXT
    _engine.release("a key")
    assert running.shut_down == 1
    assert _engine.lease("a key", make) is not one
    _engine.release("a key")
    assert len(made) == 2


def test_a_turn_that_goes_on_draws_anew_and_a_repeated_one_draws_the_same() -> None:
    seeds = [seed_at(seed, position) for seed in (0, 1, 2**62) for position in (3, 4, 900)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seed_at(7, 30) == seed_at(7, 30)


def test_an_engine_ends_with_a_process_that_is_killed() -> None:
    script = (
        "import subprocess, time\n"
        "from antiphon.generators._vllm import guard\n"
        "engine = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "kept = guard([engine.pid])\n"
        "print(engine.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        engine = int(killed.stdout.readline())
        assert runs(engine)
        killed.kill()
    until = time.monotonic() + 60
    while runs(engine):
        assert time.monotonic() < until
        time.sleep(0.01)


def runs(process: int) -> bool:
    """It is there, and no zombie."""
    try:
        state = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return state.rpartition(")")[2].split()[0] != "Z"


# ---- options ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tensor_parallel", "takes no engine argument 'tensor_parallel'; did you mean 'tensor_parallel_size'"),
        ("max_contxt", "did you mean 'max_context'"),
        ("max_model_len", "say max_context"),
        ("logprobs_mode", "as sampled"),
        ("tokenizer", "the model's own"),
    ],
)
def test_a_wrong_option_is_named_with_a_remedy(name: str, message: str) -> None:
    known = {"tensor_parallel_size", "gpu_memory_utilization", "max_model_len", "logprobs_mode", "tokenizer", "dtype"}
    with pytest.raises(ConfigError, match="generator 'vllm'") as error:
        _vllm.check_names({"dtype": "auto", name: 1}, known)
    assert message in str(error.value)
    _vllm.check_names({"dtype": "auto", "tensor_parallel_size": 2}, known)


def test_the_rank_of_an_adapter(tmp_path: Path) -> None:
    file = tmp_path / "adapter_config.json"
    with pytest.raises(ConfigError, match=r"adapter_config\.json"):
        rank_of(tmp_path)
    file.write_text("{}")
    with pytest.raises(ConfigError, match="no LoRA adapter"):
        rank_of(tmp_path)
    file.write_text(json.dumps({"r": 8}))
    assert rank_of(tmp_path) == 8
    file.write_text(json.dumps({"r": 8, "rank_pattern": {"q_proj": 24}}))
    assert rank_of(tmp_path) == 24


def test_new_weights_in_an_adapters_folder_are_another_adapter(
    shared: Callable[..., SharedEngine], tmp_path: Path
) -> None:
    engine, weights = shared(), tmp_path / "adapter_model.safetensors"
    weights.write_bytes(b"1")
    first = engine.lora(tmp_path)
    assert engine.lora(tmp_path) is first
    weights.write_bytes(b"2")
    os.utime(weights, ns=(1, 1))
    second = engine.lora(tmp_path)
    assert second.path == first.path
    assert (second.name, second.number) != (first.name, first.number)  # vLLM keeps keys and values by the name


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_the_extra_is_named(tiny_model: Path) -> None:
    with pytest.raises(MissingExtra, match=r"antiphon\[vllm\]"):
        VLLMGenerator(tiny_model)
