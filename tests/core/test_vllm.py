"""The `vllm` generator on vLLM itself: what it computes, what it frees, and what becomes of a killed engine."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from antiphon.contracts import Chunk, GenerationRequest
from antiphon.errors import ConfigError, GeneratorError
from antiphon.generators.transformers import TransformersGenerator
from antiphon.generators.vllm import VLLMGenerator
from antiphon.rollout import Limits, Rollout
from antiphon.types import Message, Task
from antiphon_policies.unrouted import Direct

pytestmark = pytest.mark.vllm

QUESTIONS = ["What is the capital of France?", "What is 12 + 30?", "Name a city and say why.", "Who are you?"]
LONG = "Members answer in one sentence and say so when they do not know. " * 24  # more than a block of the cache


@pytest.fixture
async def generator(vllm_engine: dict[str, Any]) -> AsyncIterator[VLLMGenerator]:
    made = VLLMGenerator(**vllm_engine)
    yield made
    await made.aclose()


def a_request(generator: VLLMGenerator | TransformersGenerator, question: str, **rest: Any) -> GenerationRequest:
    ids = generator.open([Message("user", question)]).token_ids
    defaults: dict[str, Any] = {"stop": (), "max_tokens": 12, "request_id": "r", "sampling": {"temperature": 0.0}}
    return GenerationRequest((), "", ids, **{**defaults, **rest})


async def said(generator: VLLMGenerator | TransformersGenerator, question: str, **rest: Any) -> list[Chunk]:
    return [chunk async for chunk in generator.generate(a_request(generator, question, **rest))]


def ids_of(chunks: Sequence[Chunk]) -> tuple[int, ...]:
    return tuple(i for chunk in chunks for i in chunk.token_ids or ())


@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.6])
async def test_logprobs_are_those_that_training_recomputes(generator: VLLMGenerator, temperature: float) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    chunks = await said(generator, QUESTIONS[2], sampling={"temperature": temperature, "seed": 5})
    prompt = a_request(generator, QUESTIONS[2]).token_ids or ()
    ids = ids_of(chunks)
    network = AutoModelForCausalLM.from_pretrained(generator.tokenizer_path, dtype=torch.float32)
    with torch.inference_mode():
        scores = network(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1] / (temperature or 1.0)
    expected = torch.log_softmax(scores, -1).gather(-1, torch.tensor(ids)[:, None])[:, 0].tolist()
    logprobs = [p for chunk in chunks for p in chunk.logprobs or ()]
    assert logprobs == pytest.approx(expected, abs=2e-3)


async def test_where_tokens_are_left_out_there_are_no_logprobs(generator: VLLMGenerator) -> None:
    chunks = await said(generator, QUESTIONS[0], sampling={"temperature": 0.7, "top_p": 0.9})
    assert ids_of(chunks)
    assert [chunk.logprobs for chunk in chunks] == [None] * len(chunks)


async def test_a_seed_repeats_and_another_does_not(generator: VLLMGenerator) -> None:
    seeds = (1, 1, 2)
    runs = await asyncio.gather(
        *(said(generator, QUESTIONS[2], sampling={"temperature": 1.0, "seed": seed}) for seed in seeds)
    )
    one, again, other = map(ids_of, runs)
    assert one == again
    assert one != other


async def test_what_prompts_share_is_not_run_again(generator: VLLMGenerator) -> None:
    await said(generator, LONG + QUESTIONS[0], max_tokens=1)
    chunks = await said(generator, LONG + QUESTIONS[1], max_tokens=1)
    usage = chunks[-1].usage
    assert usage is not None
    assert 128 <= usage.cached_input_tokens < usage.input_tokens


async def test_adapters_side_by_side_say_what_they_say_in_transformers(
    vllm_lora_engine: dict[str, Any], smol_lora: Path
) -> None:
    question, loras = "What is the capital of Peru?", [smol_lora, smol_lora.with_name("raven")]
    ours = [VLLMGenerator(**vllm_lora_engine, lora=lora) for lora in loras]
    together = [ids_of(chunks) for chunks in await asyncio.gather(*(said(each, question) for each in ours))]
    theirs = []
    for lora in loras:
        local = TransformersGenerator(vllm_lora_engine["model"], lora=lora, dtype="float32", threads=1)
        theirs.append(ids_of(await said(local, question)))
        await local.aclose()
    assert together == theirs
    assert theirs[0] != theirs[1]
    ours[0].swap(loras[1])
    assert ids_of(await said(ours[0], question)) == theirs[1]
    for each in ours:
        await each.aclose()


async def test_the_base_beside_adapters_is_right_or_refused(vllm_lora_engine: dict[str, Any], smol_lora: Path) -> None:
    from vllm.platforms import current_platform

    question, loras = "What is the capital of Peru?", [smol_lora, smol_lora.with_name("raven"), None]
    ours = [VLLMGenerator(**vllm_lora_engine, lora=lora) for lora in loras]
    *_, base = await asyncio.gather(*(said(each, question) for each in ours), return_exceptions=True)
    for each in ours:
        await each.aclose()
    if current_platform.is_cpu():  # where vLLM computes it with the weights of an adapter
        assert isinstance(base, GeneratorError)
        assert "without enable_lora" in str(base)
        return
    local = TransformersGenerator(vllm_lora_engine["model"], dtype="float32", threads=1)
    assert not isinstance(base, BaseException)
    assert ids_of(base) == ids_of(await said(local, question))
    await local.aclose()


async def test_a_broken_adapter_harms_nobody_else(
    vllm_lora_engine: dict[str, Any], smol_lora: Path, tmp_path: Path
) -> None:
    shutil.copy(smol_lora / "adapter_config.json", tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"no weights")
    generator = VLLMGenerator(**vllm_lora_engine, lora=smol_lora)
    before = ids_of(await said(generator, QUESTIONS[0]))
    generator.swap(tmp_path)
    with pytest.raises(GeneratorError, match="cannot use it as a LoRA adapter"):
        await said(generator, QUESTIONS[0])
    generator.swap(smol_lora)
    assert ids_of(await said(generator, QUESTIONS[0])) == before
    await generator.aclose()


async def test_cancelling_frees_the_place_in_the_engine(generator: VLLMGenerator, vllm_engine: dict[str, Any]) -> None:
    places = int(vllm_engine["max_num_seqs"])
    started: list[float] = []

    async def long() -> None:
        sampling = {"temperature": 1.0}
        request = a_request(generator, "Tell a very long story.", max_tokens=900, sampling=sampling)
        async with aclosing(generator.generate(request)) as chunks:  # type: ignore[type-var]
            async for _ in chunks:
                started.append(time.monotonic())

    running = [asyncio.create_task(long()) for _ in range(places)]
    while len(started) < 4 * places:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    a_step = (started[-1] - started[places]) / (len(started) / places - 1)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    assert all(task.cancelled() for task in running)
    begun = time.monotonic()
    await said(generator, QUESTIONS[0], max_tokens=2)
    assert time.monotonic() - begun < 300 * a_step  # a story that went on would hold its place for 900 steps


async def test_a_killed_engine_costs_no_rollout(
    generator: VLLMGenerator, scripted_pool: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    tasks = [Task(f"{QUESTIONS[i % 4]} ({i})", str(i)) for i in range(12)]  # more than there are places
    limits = Limits(turn_tokens=24)

    async def all_of() -> list[Any]:
        running = [
            Rollout(task, scripted_pool(["Ann"]), generator, limits=limits, sampling={"temperature": 0.0})
            for task in tasks
        ]
        return await asyncio.gather(*(rollout.run(Direct()) for rollout in running))

    def texts(done: Sequence[Any]) -> list[list[tuple[int, ...] | None]]:
        return [[segment.token_ids for segment in each.segments] for each in done]

    before = await all_of()
    engine = generator._model.engine  # type: ignore[attr-defined]
    (core,) = engine._engine.llm.engine_core.resources.engine_manager.processes
    again = asyncio.create_task(all_of())
    while engine.running < len(tasks):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    os.kill(core.pid, signal.SIGKILL)
    after = await again
    assert [each.error for each in after] == [None] * len(tasks)
    assert texts(after) == texts(before)
    assert engine.restarts == 1
    assert "EngineCore ended by signal 9" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tensor_paralel_size": 2}, "did you mean 'tensor_parallel_size'"),
        ({"dtype": "float8"}, "dtype"),
        ({"max_context": 10_000_000}, "vLLM refuses the engine arguments"),
        ({"gpu_memory_utilization": 3.0}, "gpu_memory_utilization"),
    ],
)
def test_wrong_engine_arguments_are_errors_at_the_start(
    vllm_engine: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match="generator 'vllm'") as error:
        VLLMGenerator(**{**vllm_engine, **options})
    assert message in str(error.value)


def test_a_killed_process_leaves_no_engine_behind(tmp_path: Path, vllm_engine: dict[str, Any]) -> None:
    script = tmp_path / "asks.py"
    script.write_text(
        f"""
import asyncio
from antiphon.contracts import GenerationRequest
from antiphon.generators.vllm import VLLMGenerator
from antiphon.types import Message

async def main():
    generator = VLLMGenerator(**{vllm_engine!r})
    ids = generator.open([Message("user", "Who?")]).token_ids
    async for _ in generator.generate(GenerationRequest((), "", ids, (), 2, "r", {{}})):
        pass
    print(*generator._model.engine._engine._processes(), flush=True)
    await asyncio.sleep(3600)

if __name__ == "__main__":
    asyncio.run(main())
"""
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        processes = [int(word) for word in killed.stdout.readline().split()]
        killed.kill()
    assert processes
    until = time.monotonic() + 120
    while any(Path(f"/proc/{process}").exists() for process in processes):  # nobody else is their parent by now
        assert time.monotonic() < until
        time.sleep(0.1)
