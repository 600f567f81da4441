"""The running batch: what each row reads is its own, however rows join and leave, and drawing minds no company."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from antiphon import models  # noqa: E402
from antiphon._kv import Batch, common  # noqa: E402
from antiphon.errors import ConfigError, GeneratorError  # noqa: E402
from antiphon.models import LocalModel  # noqa: E402
from antiphon.sampling import Sampling, draw, randomness  # noqa: E402

SHARED = tuple(range(40, 100))


@pytest.fixture
def model(tiny_model: Path) -> Iterator[LocalModel]:
    loaded = models.load(tiny_model, dtype="float32", threads=1, max_batch=16)
    yield loaded
    loaded.release()


async def ids(model: LocalModel, prompt: tuple[int, ...], tokens: int = 6, **options: Any) -> list[int]:
    chunks = [c async for c in model.generate(prompt, max_tokens=tokens, sampling={"temperature": 0.0}, **options)]
    return [i for chunk in chunks for i in chunk.token_ids or ()]


def counted(model: LocalModel, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Rows and tokens of every forward pass from now on."""
    forward, passes = model.engine._forward, []

    def counting(given: Any, *rest: Any) -> Any:
        passes.append((len(given), len(given[0])))
        return forward(given, *rest)

    monkeypatch.setattr(model.engine, "_forward", counting)
    return passes


# ---- keys and values ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_rows_read_their_own_keys_and_values_whoever_comes_and_goes(seed: int) -> None:
    choose = random.Random(seed)
    batch, rows = Batch(8), []  # rows: the numbers that each one's tokens were written as
    fresh = iter(range(1, 10**6))

    def run(columns: list[list[int]]) -> None:
        """A forward pass: new tokens of the window's rows, and what they then see."""
        keys = torch.tensor(columns, dtype=torch.float32)[:, None, :, None].expand(-1, 2, -1, 3)
        for layer in range(2):
            seen = batch.cache.update(keys, -keys, layer)
            for part, sign in zip(seen, (1, -1), strict=True):
                first, last, _, _ = batch.window
                for row, own in zip(part, rows[first:last], strict=True):
                    assert (sign * row[0, -len(own) :, 0]).tolist() == own
        assert batch.cache.get_seq_length() == part.shape[2] - keys.shape[2]

    for _ in range(120):
        if len(rows) < 8 and choose.random() < 0.3:
            tokens = choose.randint(1, 5)
            new = [[next(fresh) for _ in range(tokens + choose.randint(0, 90))] for _ in range(min(2, 8 - len(rows)))]
            known = [[(one(own[:-tokens]), -one(own[:-tokens]))] * 2 for own in new]
            batch.admit([len(own) for own in new], tokens, known, max(map(len, rows), default=0))
            rows += new
            run([own[-tokens:] for own in new])
        elif rows and choose.random() < 0.2:
            index = choose.randrange(len(rows))
            assert batch.row(index, len(rows[index]))[1][0][0, :, 0].tolist() == rows[index]
            last = rows.pop()
            batch.drop(index, len(last))
            if index < len(rows):
                rows[index] = last
        elif rows:
            batch.extend(max(map(len, rows)))
            for own in rows:
                own.append(next(fresh))
            run([own[-1:] for own in rows])
    assert batch.rows == len(rows)


def one(numbers: list[int]) -> Any:
    """A row's keys: [heads, tokens, size]."""
    return torch.tensor(numbers, dtype=torch.float32)[None, :, None].expand(2, -1, 3)


@pytest.mark.parametrize("shared", [0, 1, 7, 8, 20])
def test_the_common_beginning_of_two_contexts(shared: int) -> None:
    left, right = (*range(shared), 98, *range(9)), (*range(shared), 99, *range(9))
    assert common(left, right) == shared
    assert common(left[:shared], right) == shared
    assert common(left, left) == len(left)


# ---- prompts ------------------------------------------------------------------------------------------------------


async def at_once(model: LocalModel, prompts: list[tuple[int, ...]], **options: Any) -> list[list[int]]:
    """Generations that all wait before the first of them runs."""
    gate = threading.Event()
    holding = asyncio.create_task(asyncio.to_thread(model.engine.call, gate.wait))
    asking = [asyncio.create_task(ids(model, prompt, **options)) for prompt in prompts]
    try:
        while model.engine.running < len(prompts):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    finally:
        gate.set()
    await holding
    return await asyncio.gather(*asking)


async def test_prompts_that_share_their_beginning_run_it_once_and_the_rest_together(
    model: LocalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [(*SHARED, *range(200 + 20 * i, 212 + 20 * i)) for i in range(4)]
    alone = [await ids(model, prompt) for prompt in prompts]
    model.engine.change(lambda: None)  # forget their keys and values
    passes = counted(model, monkeypatch)
    assert await at_once(model, prompts) == alone
    assert [p for p in passes if p[1] > 1] == [(1, 72), (3, 12)]


async def test_samples_of_one_prompt_run_it_once(model: LocalModel, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = await ids(model, SHARED)
    model.engine.change(lambda: None)
    passes = counted(model, monkeypatch)
    assert await at_once(model, [SHARED] * 5) == [alone] * 5
    assert passes[:2] == [(1, 60), (4, 1)]


async def test_prompts_of_any_lengths_say_together_what_each_says_alone(model: LocalModel) -> None:
    prompts = [tuple(range(30 + 11 * i, 30 + 11 * i + n)) for i, n in enumerate((1, 2, 60, 17, 33, 5, 18, 34, 3, 64))]
    alone = [await ids(model, prompt, 20) for prompt in prompts]
    model.engine.change(lambda: None)
    assert await at_once(model, prompts, tokens=20) == alone


async def test_a_bad_prompt_fails_alone_among_those_it_ran_with(model: LocalModel) -> None:
    prompts = [tuple(range(50 * i, 50 * i + 20)) for i in range(1, 4)]
    alone = [await ids(model, prompt) for prompt in prompts]
    model.engine.change(lambda: None)
    prompts.insert(1, (*range(30, 49), 10**6))
    gathered = asyncio.gather(*(ids(model, prompt) for prompt in prompts), return_exceptions=True)
    first, bad, *rest = await gathered
    assert isinstance(bad, GeneratorError)
    assert [first, *rest] == alone


# ---- adapters -----------------------------------------------------------------------------------------------------


async def test_adapters_of_other_ranks_and_layers_share_a_batch(
    model: LocalModel, tiny_model: Path, tiny_loras: tuple[Path, Path], tmp_path: Path
) -> None:
    import peft
    from transformers import AutoModelForCausalLM

    torch.manual_seed(5)
    config = peft.LoraConfig(
        r=3, lora_alpha=5, target_modules=["q_proj"], use_rslora=True, init_lora_weights=False, task_type="CAUSAL_LM"
    )
    small = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_model), config).eval()
    small.save_pretrained(tmp_path)
    names = [None, model.adapter(tiny_loras[0]), model.adapter(tmp_path)]
    alone = [await ids(model, SHARED, adapter=name) for name in names]
    together = await asyncio.gather(*(ids(model, SHARED, adapter=name) for name in names))
    assert together == alone
    prompt = torch.tensor([SHARED])
    with torch.inference_mode():
        theirs = small.generate(
            input_ids=prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=6, do_sample=False
        )
    assert theirs[0, len(SHARED) :].tolist() == alone[2]


def test_an_adapter_that_holds_more_than_lora_is_refused(model: LocalModel, tiny_model: Path, tmp_path: Path) -> None:
    import peft
    from transformers import AutoModelForCausalLM

    config = peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"], task_type="CAUSAL_LM")
    peft.get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_model), config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"not modules_to_save\); merge this one"):
        model.adapter(tmp_path)


# ---- drawing ------------------------------------------------------------------------------------------------------

KINDS = [Sampling(), Sampling(0.0), Sampling(0.7, 0.8), Sampling(1.3, 1.0, 5), Sampling(1.0, 0.5, 3), Sampling(0.2)]


def test_a_row_draws_the_same_alone_and_in_company() -> None:
    scores = torch.randn(6, 500, generator=torch.Generator().manual_seed(1)) * 3
    for seed in range(20):
        together = draw(scores, KINDS, [randomness(seed, i) for i in range(6)])
        alone = [draw(scores[i : i + 1], KINDS[i : i + 1], [randomness(seed, i)])[0] for i in range(6)]
        assert [token for token, _ in together] == [token for token, _ in alone]
        assert [p for _, p in together] == pytest.approx([p for _, p in alone], abs=1e-5)


def test_tokens_come_as_often_as_their_probability_says() -> None:
    scores = torch.tensor([[2.0, 1.0, 0.0, -1.0, -30.0]])
    source, rows = randomness(3, 0), 20000
    drawn = draw(scores.expand(rows, -1), [Sampling(2.0)] * rows, [source] * rows)
    counts = torch.bincount(torch.tensor([token for token, _ in drawn]), minlength=5) / rows
    expected = torch.softmax(scores[0] / 2, -1)
    assert counts.tolist() == pytest.approx(expected.tolist(), abs=0.02)  # four standard deviations are 0.014
    assert {(t, round(p, 4)) for t, p in drawn} <= {(i, round(float(p.log()), 4)) for i, p in enumerate(expected)}


@pytest.mark.parametrize(
    ("sampling", "possible"),
    [(Sampling(1.0, 1.0, 2), {0, 1}), (Sampling(1.0, 0.6), {0}), (Sampling(1.0, 0.65), {0, 1}), (Sampling(0.0), {0})],
)
def test_what_top_k_and_top_p_leave_out_is_never_drawn(sampling: Sampling, possible: set[int]) -> None:
    scores = torch.tensor([[2.0, 1.0, 0.0, -1.0]])  # probabilities .64 .24 .09 .03
    drawn = draw(scores.expand(300, -1), [sampling] * 300, [randomness(1, 0)] * 300)
    assert {token for token, _ in drawn} == possible
