"""A tiny model with random weights learns whom to ask, by PPO and by GRPO; with a broken update it does not.

All but the size is what trains real models: pool, rollout, grammar, reward, live generator and learner. Supervised
steps first teach the model to write the grammar, to read a reply, and to ask either member, whatever the question:
chance. What reinforcement learning adds is whom to ask. Each turn is one token, so that a mask that is off by one
misses every decision.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from antiphon.config import load_config
from antiphon.contracts import CallContext
from antiphon.generators._chat import load_chat
from antiphon.limits import Limits
from antiphon.pool import Pool
from antiphon.registry import Registry
from antiphon.reward import compose
from antiphon.rollout import Rollout
from antiphon.train import learner as learner_module
from antiphon.train.demonstrations import Speaker, examples_of
from antiphon.train.learner import AlgorithmSettings, Learner, Scored
from antiphon.train.live import LiveGenerator
from antiphon.train.samples import Sample, sample_of
from antiphon.train.sft import SFTSettings, finetune
from antiphon.types import Task, Trajectory
from antiphon_plugins.grammars.router_r1 import RouterR1Grammar
from antiphon_policies.router_r1 import RouterR1
from antiphon_pools.adapters.function import member

KNOWS = {"Ann": "sea", "Bob": "land"}
WORDS = ("red", "blue", "green", "white", "black", "grey")  # so many that a guess does not pay
ASK = {name: f"<think>{name}.</think><search>{name}: it</search>" for name in KNOWS}
TELL = {word: f"<think>So.</think><answer>{word}</answer>" for word in (*WORDS, "unknown")}
ROLES = ("<|end|>", "<|user|>", "<|assistant|>", "<|system|>")
TEMPLATE = (
    "{% for m in messages %}{{ '<|' ~ m.role ~ '|>' ~ m.content ~ '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
STEPS, TASKS, SAMPLES = 32, 8, 8


def question(number: int, **metadata: Any) -> Task:
    """About the sea or the land in turn; the answer cannot be told from it."""
    topic, word = [*KNOWS.values()][number % 2], random.Random(number).choice(WORDS)
    return Task(topic, id=f"t{number}", golden_answers=(word,), metadata={"topic": topic, **metadata})


def answer(topic: str, task_id: str) -> str:
    """What the member who knows that topic says of a task."""
    task = question(int(task_id[1:]))
    return (task.golden_answers or ("",))[0] if task.metadata["topic"] == topic else "unknown"


def knowing(topic: str) -> Callable[[str, CallContext], str]:
    return lambda query, context: answer(topic, context.task_id)


class World:
    """The two members, the policy, and how what it does is rewarded."""

    def __init__(self) -> None:
        registry = Registry.load()
        members = [member(knowing(topic), name=name, description=topic) for name, topic in KNOWS.items()]
        self.pool = Pool(members, registry)
        self.policy = RouterR1(RouterR1Grammar(prompt="{{question}}"), member_prompt="")
        self.reward = compose(load_config(None).rewards["paper"], registry, members=self.pool.members)

    async def run(self, tasks: Sequence[Task], generator: Callable[[Task], Any], seed: int = 0) -> list[Trajectory]:
        """One rollout of each."""

        async def one(index: int, task: Task) -> Trajectory:
            sampling = {"temperature": 1.0, "seed": seed * 1000 + index}
            limits = Limits(rounds=1, turn_tokens=3)
            return await Rollout(task, self.pool, generator(task), limits=limits, sampling=sampling).run(self.policy)

        return list(await asyncio.gather(*(one(index, task) for index, task in enumerate(tasks))))


def right(trajectories: Sequence[Trajectory]) -> float:
    """The share of rollouts that ask the member who knows."""
    asked = [trajectory.calls[0].member if trajectory.calls else "" for trajectory in trajectories]
    return sum(KNOWS.get(a) == t.task.metadata["topic"] for a, t in zip(asked, trajectories, strict=True)) / len(asked)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder: bytes, a few common pieces, and a token for each whole turn."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=360, special_tokens=[*ROLES], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(
        [f"\n<information>\n{word}\n</information>\nsea land" for word in (*WORDS, "unknown")] * 5, trainer
    )
    tokenizer.add_tokens([AddedToken(turn, normalized=False) for turn in (*ASK.values(), *TELL.values())])
    folder = tmp_path_factory.mktemp("tiny")
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=ROLES[0], pad_token=ROLES[0])
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture(scope="module")
def started(tokenizer: Path, world: World) -> Any:
    """A Llama of random weights after its supervised steps; tests train copies of it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    chat = load_chat(tokenizer, None)
    torch.manual_seed(0)
    network = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=400,
            hidden_size=48,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            initializer_range=0.1,
            max_position_embeddings=128,
            eos_token_id=0,
            bos_token_id=None,
        )
    )

    def teacher(task: Task) -> Speaker:
        name = str(task.metadata["asks"])
        turns = iter([ASK[name], TELL[answer(KNOWS[name], task.id)]])
        return Speaker(chat, lambda: next(turns))

    tasks = [question(number, asks=name) for number in range(96) for name in KNOWS]
    examples = [example for each in asyncio.run(world.run(tasks, teacher)) for example in examples_of(each)]
    finetune(network, examples, SFTSettings(lr=3e-3, steps=200, warmup=5, batch=32))
    return network


def same(sample: Sample) -> Sample:
    return sample


@pytest.fixture
def train(started: Any, tokenizer: Path, world: World) -> Callable[..., tuple[float, float]]:
    """Trains by reinforcement: the share of rollouts that ask the right member before and after, at temperature 1."""

    def train(algorithm: str, take: Callable[[Sample], Sample] = same, **settings: Any) -> tuple[float, float]:
        """`take` stands between the rollout and the learner."""
        table = {"algorithm": algorithm, "lr": 2e-3, "critic_lr": 1e-2, "kl_coefficient": 0.0, **settings}
        network = copy.deepcopy(started)
        learner = Learner(network, AlgorithmSettings.model_validate(table))
        generator = LiveGenerator(network, tokenizer, dtype="float32", threads=1, max_batch=64)

        async def asked() -> float:
            return right(await world.run([question(number) for number in range(100)], lambda _: generator))

        async def run() -> tuple[float, float]:
            before = await asked()
            for step in range(1, STEPS + 1):
                tasks = [question(step * 100 + at) for at in range(TASKS) for _ in range(SAMPLES)]
                trajectories = await world.run(tasks, lambda _: generator, seed=step)
                learner.update([Scored(take(sample_of(t)), world.reward(t).total, t.task.id) for t in trajectories])
                generator.update()
            after = await asked()
            await generator.aclose()
            return before, after

        return asyncio.run(run())

    return train


@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_it_learns_whom_to_ask(algorithm: str, train: Callable[..., tuple[float, float]]) -> None:
    before, after = train(algorithm)
    assert 0.35 < before < 0.65, "the supervised steps leave the choice to chance"
    assert after >= 0.9


# ---- and not with a broken update ---------------------------------------------------------------------------------


@pytest.mark.parametrize("by", [1, -1])
@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_it_does_not_with_a_mask_off_by_one(algorithm: str, by: int, train: Callable[..., tuple[float, float]]) -> None:
    def shifted(sample: Sample) -> Sample:
        mask = [0, *sample.mask[:-1]] if by > 0 else [*sample.mask[1:], 0]
        return replace(sample, mask=mask)

    _, after = train(algorithm, shifted)
    assert after < 0.75


@pytest.mark.parametrize(("algorithm", "advantages"), [("ppo", "masked_whiten"), ("grpo", "grpo_advantages")])
def test_it_does_not_with_the_advantage_turned_round(
    algorithm: str, advantages: str, train: Callable[..., tuple[float, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(learner_module, advantages)
    monkeypatch.setattr(learner_module, advantages, lambda *args, **options: -real(*args, **options))
    _, after = train(algorithm)
    assert after < 0.75


@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_it_does_not_when_the_members_words_are_learnt_too(
    algorithm: str, train: Callable[..., tuple[float, float]]
) -> None:
    _, after = train(algorithm, mask_information=False)
    assert after < 0.75
