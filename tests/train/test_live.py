"""The policy under training as a generator: what it says is what the network says now."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("peft")

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from antiphon.contracts import GenerationRequest, Generator
from antiphon.train.live import LiveGenerator
from antiphon.types import Message


def a_network(folder: Path, *, lora: bool) -> Any:
    """In training mode, float32, LoRA with random weights."""
    torch.manual_seed(0)
    network: Any = AutoModelForCausalLM.from_pretrained(folder)
    if lora:
        config = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
        network = get_peft_model(network, config)
    return network.train()


@pytest.fixture(params=["lora", "full"])
async def trained(request: pytest.FixtureRequest, tiny_policy: Path) -> AsyncIterator[tuple[Any, LiveGenerator]]:
    network = a_network(tiny_policy, lora=request.param == "lora")
    generator = LiveGenerator(network, tiny_policy, threads=1)
    yield network, generator
    await generator.aclose()


async def said(generator: Generator, question: str) -> tuple[list[int], list[float], list[int]]:
    """Prompt, log-probabilities and ids of a greedy generation."""
    messages = (Message("user", question),)
    prompt = generator.open(messages).token_ids
    request = GenerationRequest(messages, "", prompt, (), 12, "r-0", {"temperature": 0.0})
    chunks = [chunk async for chunk in generator.generate(request)]
    return (
        list(prompt or ()),
        [p for chunk in chunks for p in chunk.logprobs or ()],
        [i for chunk in chunks for i in chunk.token_ids or ()],
    )


def scored(network: Any, prompt: list[int], ids: list[int]) -> list[float]:
    """The network's own log-probabilities of `ids` after `prompt`."""
    with torch.no_grad():
        logits = network(input_ids=torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()


def change(network: Any) -> None:
    """As a step of training would."""
    with torch.no_grad():
        for weight in network.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn_like(weight) * 0.1)


async def test_it_speaks_with_the_weights_of_the_last_update(trained: tuple[Any, LiveGenerator]) -> None:
    network, generator = trained
    prompt, logprobs, ids = await said(generator, "Who?")
    assert logprobs == pytest.approx(scored(network, prompt, ids), abs=1e-3)
    change(network)
    assert (await said(generator, "Who?"))[2] == ids  # training does not show before the update
    generator.update()
    prompt, logprobs, now = await said(generator, "Who?")  # nothing of the old weights' keys and values is reused
    assert logprobs == pytest.approx(scored(network, prompt, now), abs=1e-3)
    assert now != ids


async def test_generating_leaves_what_is_trained_alone(trained: tuple[Any, LiveGenerator]) -> None:
    network, generator = trained
    before = {name: weight.clone() for name, weight in network.named_parameters()}
    generator.update()
    await said(generator, "Who?")
    assert network.training
    for name, weight in network.named_parameters():
        assert torch.equal(weight, before[name]), name
    loss = network(input_ids=torch.tensor([[5, 6, 7]]), labels=torch.tensor([[5, 6, 7]])).loss
    loss.backward()  # and it can still be trained
    assert any(weight.grad is not None for weight in network.parameters())


async def test_it_is_a_generator_that_can_do_everything(tiny_policy: Path) -> None:
    generator = LiveGenerator(a_network(tiny_policy, lora=True), tiny_policy, threads=1)
    assert isinstance(generator, Generator)
    assert generator.capabilities.token_in
    assert generator.capabilities.logprobs
    assert generator.tokenizer_path.samefile(tiny_policy)
    await generator.aclose()
    await generator.aclose()
