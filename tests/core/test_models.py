"""Local models: one base for all, adapters mixed in a batch, and a batch that no request can spoil."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from antiphon import models
from antiphon.contracts import Chunk
from antiphon.errors import ConfigError, GeneratorError, MissingExtra
from antiphon.models import LocalModel
from antiphon.types import Message

PROMPTS = [tuple(range(40, 40 + n)) for n in (3, 17, 9, 30, 12, 21)]


@pytest.fixture
def model(tiny_model: Path) -> Iterator[LocalModel]:
    loaded = models.load(tiny_model, dtype="float32", threads=1, max_batch=4)
    yield loaded
    loaded.release()


async def ids(
    model: LocalModel, prompt: Sequence[int], tokens: int = 12, adapter: str | None = None, **sampling: Any
) -> list[int]:
    chunks = [
        chunk
        async for chunk in model.generate(
            prompt, max_tokens=tokens, sampling={"temperature": 0.0, **sampling}, adapter=adapter
        )
    ]
    return [i for chunk in chunks for i in chunk.token_ids or ()]


async def quiet(model: LocalModel) -> None:
    """Wait until nothing runs."""
    async with asyncio.timeout(120):
        while model.engine.running:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def test_a_base_is_loaded_once_and_freed_with_its_last_user(tiny_model: Path, tmp_path: Path) -> None:
    template = tmp_path / "loud.jinja"
    template.write_text(
        "{% for m in messages %}<|im_start|>{{ m['role'] | upper }}\n{{ m['content'] }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>ASSISTANT\n{% endif %}"
    )
    first = models.load(tiny_model, dtype="float32", threads=1)
    second = models.load(tiny_model, dtype="float32", max_context=64, chat_template=template)
    engine = first.engine
    assert second.engine is engine  # the weights are there once; template and context are each user's own
    assert (first.max_context, second.max_context) == (512, 64)
    assert "USER" in second.chat.open([Message("user", "x")]).text
    first.release()
    first.release()
    assert engine.model is not None
    second.release()
    assert engine.model is None
    with pytest.raises(GeneratorError, match="closed"):
        engine.call(lambda: None)
    fresh = models.load(tiny_model, dtype="float32", threads=1)
    assert fresh.engine is not engine
    fresh.release()


async def test_adapters_in_one_batch_say_what_each_says_alone(model: LocalModel, tiny_loras: tuple[Path, Path]) -> None:
    base_before = await ids(model, PROMPTS[0])
    names = [None, *(model.adapter(lora) for lora in tiny_loras)]
    assert model.adapter(tiny_loras[0]) == names[1]  # loaded once
    jobs = [(PROMPTS[index % 2], name) for index, name in enumerate(names * 2)]
    alone = [await ids(model, prompt, adapter=name) for prompt, name in jobs]
    together = await asyncio.gather(*(ids(model, prompt, adapter=name) for prompt, name in jobs))
    assert together == alone
    assert alone[0] == base_before  # an adapter that is there but not asked for changes nothing
    same_prompt = [await ids(model, PROMPTS[0], adapter=name) for name in names]
    assert len({tuple(each) for each in same_prompt}) == 3


async def test_an_adapter_says_what_peft_says(
    model: LocalModel, tiny_model: Path, tiny_loras: tuple[Path, Path]
) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_model), tiny_loras[1]).eval()
    prompt = torch.tensor([PROMPTS[1]])
    await ids(model, PROMPTS[1])  # what the base remembers of this prompt is no use to an adapter
    with torch.inference_mode():
        out = theirs.generate(
            input_ids=prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False
        )
    assert out[0, prompt.shape[1] :].tolist() == await ids(model, PROMPTS[1], adapter=model.adapter(tiny_loras[1]))


async def test_a_full_house_is_served_in_turn(model: LocalModel) -> None:
    jobs = [(PROMPTS[i % 6], 3 + 4 * i) for i in range(11)]  # more than the batch holds, of many lengths
    alone = [await ids(model, prompt, tokens) for prompt, tokens in jobs]
    assert await asyncio.gather(*(ids(model, prompt, tokens) for prompt, tokens in jobs)) == alone


async def test_a_seed_gives_the_same_tokens_in_any_company(model: LocalModel) -> None:
    hot = {"temperature": 1.0, "top_p": 0.9, "top_k": 40}
    alone = [await ids(model, prompt, seed=7, **hot) for prompt in PROMPTS]
    assert await asyncio.gather(*(ids(model, prompt, seed=7, **hot) for prompt in PROMPTS)) == alone
    assert await ids(model, PROMPTS[0], seed=8, **hot) != alone[0]
    assert await ids(model, PROMPTS[0], 40, **hot) != await ids(model, PROMPTS[0], 40, **hot)  # no seed: no repetition


async def test_reused_keys_and_values_change_nothing(tiny_model: Path, model: LocalModel) -> None:
    first = await ids(model, PROMPTS[3], 12)
    longer = (*PROMPTS[3], *first, 50, 51, 52)
    before = model.engine.reused_tokens
    again = await ids(model, longer, 12)
    assert model.engine.reused_tokens - before >= len(PROMPTS[3]) + len(first) - 1
    fresh = models.load(tiny_model, dtype="auto", threads=1, cache_tokens=0)  # another key, so another engine
    try:
        assert await ids(fresh, longer, 12) == again
        assert fresh.engine.reused_tokens == 0
    finally:
        fresh.release()


async def test_the_keys_and_values_kept_are_bounded(model: LocalModel) -> None:
    for start in range(60):
        await ids(model, tuple(range(start, start + 200)), 2)
    kept = sum(len(entry[1]) for entry in model.engine._prefixes._entries)
    assert 0 < kept <= models.CACHE_TOKENS


async def test_a_consumer_that_goes_away_frees_its_place(model: LocalModel, monkeypatch: pytest.MonkeyPatch) -> None:
    forward, gone, calls = model.engine._forward, threading.Event(), []

    def held(*args: Any) -> Any:
        calls.append(1)
        assert len(calls) == 1 or gone.wait(30)  # the prompt runs; the first step waits until the consumer has gone
        return forward(*args)

    monkeypatch.setattr(model.engine, "_forward", held)
    async with aclosing(model.generate(PROMPTS[0], max_tokens=400, sampling={"temperature": 0.0})) as chunks:  # type: ignore[type-var]
        async for _ in chunks:
            break
    gone.set()
    await quiet(model)
    assert len(calls) <= 2
    assert model.engine._cache is None


async def test_the_others_go_on_when_one_request_fails(model: LocalModel) -> None:
    good = await ids(model, PROMPTS[0], 20)
    results = await asyncio.gather(
        ids(model, PROMPTS[0], 20), ids(model, (10**6,), 20), ids(model, PROMPTS[0], 20), return_exceptions=True
    )
    assert results[0] == results[2] == good
    assert isinstance(results[1], GeneratorError)


async def test_a_failing_step_fails_those_in_it_and_nobody_later(
    model: LocalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = await ids(model, PROMPTS[0])
    forward = model.engine._forward
    calls = iter(range(10**6))

    def out_of_memory_once(*args: Any) -> Any:
        if next(calls) == 3:
            raise RuntimeError("CUDA out of memory")
        return forward(*args)

    monkeypatch.setattr(model.engine, "_forward", out_of_memory_once)
    results = await asyncio.gather(ids(model, PROMPTS[0]), ids(model, PROMPTS[1]), return_exceptions=True)
    failed = [result for result in results if isinstance(result, GeneratorError)]
    assert failed
    assert "lower max_batch" in str(failed[0])
    assert await ids(model, PROMPTS[0]) == good


async def test_closing_under_way_fails_what_runs_and_waits(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.load(tiny_model, dtype="float32", threads=1, max_batch=1)
    engine, forward = model.engine, model.engine._forward
    begun, go_on = threading.Event(), threading.Event()

    def held(*args: Any) -> Any:
        begun.set()
        assert go_on.wait(120)
        return forward(*args)

    monkeypatch.setattr(engine, "_forward", held)
    tasks = [asyncio.create_task(ids(model, PROMPTS[0], 400)) for _ in range(3)]
    await asyncio.to_thread(begun.wait, 120)
    releasing = asyncio.create_task(asyncio.to_thread(model.release))
    async with asyncio.timeout(120):
        while not engine._closed:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    go_on.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    await releasing
    assert ["closed" in str(result) for result in results if isinstance(result, GeneratorError)] == [True] * 3


async def test_what_nobody_waits_for_any_more_does_not_stop_the_worker(model: LocalModel) -> None:
    async def leave() -> None:
        stream = model.generate(PROMPTS[0], max_tokens=300, sampling={"temperature": 0.0})
        task = asyncio.ensure_future(anext(stream))
        await asyncio.wait({task})

    thread = threading.Thread(target=lambda: asyncio.run(leave()))  # its loop is gone when more tokens come
    thread.start()
    await asyncio.to_thread(thread.join)
    assert len(await ids(model, PROMPTS[1], 5)) == 5
    await quiet(model)


async def test_the_log_probability_is_that_of_the_scaled_scores(model: LocalModel) -> None:
    import torch

    network = model.engine.model
    prompt = torch.tensor([PROMPTS[2]])
    for temperature, scale in ((0.5, 0.5), (1.0, 1.0), (0.0, 1.0)):
        chunks = [
            chunk
            async for chunk in model.generate(
                PROMPTS[2], max_tokens=1, sampling={"temperature": temperature, "top_k": 3, "seed": 1}
            )
        ]
        with torch.inference_mode():
            expected = torch.log_softmax(network(prompt).logits[0, -1] / scale, -1)
        (chunk,) = chunks
        assert chunk.token_ids is not None
        assert chunk.logprobs is not None
        assert chunk.logprobs[0] == pytest.approx(float(expected[chunk.token_ids[0]]), abs=1e-4)


async def test_a_context_is_cut_where_the_model_ends(model: LocalModel) -> None:
    prompt = tuple(range(3, 259)) * 2
    chunks: list[Chunk] = [c async for c in model.generate(prompt[:510], max_tokens=50, sampling={"temperature": 0})]
    assert len(chunks) <= 2
    with pytest.raises(GeneratorError, match=r"512 tokens leaves no room in 512; set limits\.context_tokens"):
        await ids(model, prompt)


@pytest.mark.parametrize(
    ("sampling", "said"),
    [
        ({"temprature": 1}, "did you mean 'temperature'"),
        ({"temperature": -1}, "at least 0"),
        ({"temperature": "hot"}, "must be numbers"),
        ({"top_p": 0}, "within"),
    ],
)
async def test_wrong_sampling_options_are_named(model: LocalModel, sampling: dict[str, Any], said: str) -> None:
    with pytest.raises(GeneratorError, match=said):
        await ids(model, PROMPTS[0], **sampling)


# ---- finding and loading ------------------------------------------------------------------------------------------


def test_models_are_found_in_the_store_or_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path))
    assert models.stored() == ()
    (tmp_path / "models" / "little-one").mkdir(parents=True)
    (tmp_path / "models" / ".little-one-x").mkdir()
    assert models.stored() == ("little-one",)
    assert models.find("little-one") == tmp_path / "models" / "little-one"
    assert models.find(tmp_path) == tmp_path.resolve()
    with pytest.raises(ConfigError, match=r"did you mean 'little-one'\?; run `antiphon models fetch litle-one`"):
        models.find("litle-one")
    with pytest.raises(ConfigError, match="no such folder"):
        models.find("./not/there")
    with pytest.raises(ConfigError, match="is no model name"):
        models.store_path("../up")


def test_a_folder_inside_an_installed_package_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "antiphon_acme" / "weights" / "one").mkdir(parents=True)
    (tmp_path / "antiphon_acme" / "__init__.py").write_text("raise RuntimeError('it is not to be run')")
    monkeypatch.syspath_prepend(tmp_path)
    assert models.find("antiphon_acme:weights/one") == tmp_path / "antiphon_acme" / "weights" / "one"
    with pytest.raises(ConfigError, match="'antiphon_acme' has no such folder"):
        models.find("antiphon_acme:weights/two")
    with pytest.raises(ConfigError, match=r"no package 'antiphon_nobody\.sub' is installed"):
        models.find("antiphon_nobody.sub:weights")


@pytest.mark.parametrize(
    ("told", "device", "expected"),
    [
        ({"avx512_f": True, "avx512_bf16": False, "amx_bf16": False}, "cpu", "float32"),
        ({"avx512_f": True, "avx512_bf16": True, "amx_bf16": False}, "cpu", "auto"),
        ({"avx512_f": True, "avx512_bf16": False, "amx_bf16": True}, "cpu", "auto"),
        ({"avx512_f": True, "avx512_bf16": False, "amx_bf16": False}, "cuda:1", "auto"),
        ({}, "cpu", "auto"),
    ],
)
def test_weights_in_16_bits_are_widened_where_the_cpu_cannot_compute_with_them(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, bool], device: str, expected: str
) -> None:
    import torch

    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: told, raising=False)
    wanted = getattr(torch, expected) if expected != "auto" else "auto"
    assert models.torch_dtype("auto", device) == wanted
    assert models.torch_dtype("bfloat16", device) == torch.bfloat16  # what a user asks for is done


def test_wrong_options_and_folders_are_named(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'float32'"):
        models.load(tiny_model, dtype="flaot32")
    with pytest.raises(ConfigError, match="max_batch"):
        models.load(tiny_model, max_batch=0)
    with pytest.raises(ConfigError, match="no usable tokeniser"):
        models.load(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (tiny_model / name).exists():
            (tmp_path / name).write_bytes((tiny_model / name).read_bytes())
    with pytest.raises(ConfigError, match="cannot be loaded as a causal language model"):
        models.load(tmp_path)


def test_a_folder_that_is_no_adapter_is_refused(model: LocalModel, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be loaded as a LoRA adapter of .*adapter_config\.json"):
        model.adapter(tmp_path)


def test_without_torch_the_module_imports_and_loading_says_which_extra(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import sys, antiphon.models, antiphon.fetch, antiphon.generators.transformers, antiphon.generators.openai;"
    code += "print([m for m in ('torch', 'transformers', 'peft', 'httpx') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.strip() == "[]"
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"antiphon\[local\]"):
        models.load(tiny_model)
