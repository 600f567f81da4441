"""What the generator over verl's client reads off the server's outputs; needs a tokeniser and no verl."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from antiphon.contracts import Chunk, GenerationRequest, Generator
from antiphon.errors import ConfigError, GeneratorError
from antiphon.types import Message, Usage


def served(ids: list[int], logprobs: list[float] | None = None, **fields: Any) -> SimpleNamespace:
    return SimpleNamespace(
        **{
            "token_ids": ids,
            "log_probs": logprobs,
            "stop_reason": "completed",
            "num_preempted": None,
            "extra_fields": {},
        }
        | fields
    )


class Client:
    def __init__(self, *outputs: Any) -> None:
        self.outputs = list(outputs)
        self.requests: list[dict[str, Any]] = []

    async def generate(self, request_id: str, **request: Any) -> Any:
        self.requests.append({"request_id": request_id, **request})
        return self.outputs.pop(0)


@pytest.fixture
def make(tokenizer: Any) -> Any:
    from antiphon.generators._chat import Chat
    from antiphon.train.verl_generator import VerlGenerator

    def made(*outputs: Any, prompt: int = 100, response: int = 50, **options: Any) -> VerlGenerator:
        chat = Chat(tokenizer, source="test")
        return VerlGenerator(Client(*outputs), chat, prompt_length=prompt, response_length=response, **options)

    return made


async def ask(generator: Any, ids: tuple[int, ...] = (5, 6, 7), **fields: Any) -> Chunk:
    request = GenerationRequest((), "", ids, ("</a>",), fields.pop("max_tokens", 20), "r-0", fields)
    chunks = [chunk async for chunk in generator.generate(request)]
    assert len(chunks) == 1
    return chunks[0]


def ids_of(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


def test_it_is_a_generator_that_can_do_all_a_policy_in_training_needs(make: Any) -> None:
    generator = make()
    assert isinstance(generator, Generator)
    can = generator.capabilities
    assert can.token_in
    assert can.token_out
    assert can.logprobs
    assert can.continue_turn
    assert can.keeps_stop


@pytest.mark.parametrize(
    ("said", "finish"),
    [
        ("so</a>", "stop"),
        ("so</a>.", "stop"),  # the token in which the stop string ends may hold more
        ("so<|im_end|>", "end"),
        ("so it said", "length"),  # by our limit or by the server's own, which is full before ours
    ],
)
async def test_how_a_generation_ended_is_read_off_what_came(make: Any, tokenizer: Any, said: str, finish: str) -> None:
    chunk = await ask(make(served(ids_of(tokenizer, said))))
    assert chunk.finish == finish
    assert chunk.text == said.removesuffix("<|im_end|>")
    assert list(chunk.token_ids or ()) == ids_of(tokenizer, said)


async def test_an_empty_generation_is_an_end(make: Any) -> None:
    assert (await ask(make(served([])))).finish == "end"


async def test_the_response_length_is_of_the_whole_context_after_its_prompt(make: Any, tokenizer: Any) -> None:
    generator = make(served([9] * 20), served([9] * 18), response=50)
    await ask(generator, (5, 6, 7))
    assert generator._client.requests[0]["sampling_params"]["max_tokens"] == 20
    # 3 of prompt, 20 of policy, 12 of information: 18 of 50 are left, less than the 20 asked for
    await ask(generator, (5, 6, 7, *[9] * 32))
    assert generator._client.requests[1]["sampling_params"]["max_tokens"] == 18
    assert await ask(generator, (5, 6, 7, *[9] * 50)) == Chunk("", finish="length", usage=Usage())
    assert len(generator._client.requests) == 2


@pytest.mark.parametrize(("engine", "key"), [("vllm", "include_stop_str_in_output"), ("sglang", "no_stop_trim")])
async def test_each_engine_is_told_in_its_own_words_to_keep_the_stop(make: Any, engine: str, key: str) -> None:
    generator = make(served([9]), engine=engine)
    await ask(generator, temperature=0.5)
    sampling = generator._client.requests[0]["sampling_params"]
    assert sampling == {"temperature": 0.5, "max_tokens": 20, "stop": ["</a>"], key: True}


async def test_usage_counts_what_the_server_had_cached(make: Any) -> None:
    chunk = await ask(make(served([9, 9], extra_fields={"num_cached_tokens": 2})))
    assert chunk.usage == Usage(3, 2, 2)


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (served([9], [-1.0], stop_reason="aborted"), "aborted"),
        (served([9, 9]), "gave no log-probabilities for 2 tokens"),
        (served([9, 9], [-1.0]), "gave 1 log-probabilities for 2 tokens"),
    ],
)
async def test_a_server_that_breaks_its_contract_is_an_error_that_is_kept(make: Any, output: Any, says: str) -> None:
    generator = make(output)
    with pytest.raises(GeneratorError, match=says) as caught:
        await ask(generator, logprobs=True)
    assert generator.error is caught.value


async def test_versions_and_preemptions_are_summed_up(make: Any) -> None:
    fields = ({"global_steps": 4}, {"global_steps": 6, "min_global_steps": 5, "max_global_steps": 6}, {})
    generator = make(*(served([9], extra_fields=each, num_preempted=1) for each in fields))
    for _ in fields:
        await ask(generator)
    assert (generator.min_global_steps, generator.max_global_steps, generator.preempted) == (4, 6, 3)


def test_a_prompt_that_is_too_long_is_refused_with_both_numbers(make: Any) -> None:
    generator = make(prompt=5)
    with pytest.raises(ConfigError, match=r"the prompt has \d+ tokens and verl trains on 5"):
        generator.open([Message("user", "What is the capital of France?")])
    assert isinstance(generator.error, ConfigError)
