"""Tokens a second of a whole GRPO step (sample, score, update, new weights into the sampler), beside TRL's GRPOTrainer.

The same model, LoRA, prompts and lengths: 4 questions of 115 tokens, 4 samples each of 95 tokens, bfloat16, no KL
term, one step of the optimiser. Tokens are those of prompts and responses together. Both systems take turns, a step
each; the first turn warms up and does not count. TRL lives in an environment of its own, of which `--trl-python` is the
interpreter (`pip install torch==2.13.0 trl==1.16.0 transformers==5.10.4 peft==0.21.2`); without it ours runs alone.

    python benchmarks/trl_step.py [--json] [--trl-python /path/to/python] [--threads 2] [--steps 3]
"""

from __future__ import annotations

import argparse
import json
import queue
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from _turns import Clock, Turns, serve

QUESTIONS, SAMPLES, PROMPT, RESPONSE = 4, 4, 115, 95
TOKENS = QUESTIONS * SAMPLES * (PROMPT + RESPONSE)
LR, RANK, ALPHA = 1e-5, 16, 32
Turn = Callable[[], tuple[float, float]]


def questions(tokenizer: Any) -> list[str]:
    """Texts of PROMPT tokens each; they begin alike, as questions about one pool do, and end in their own words."""

    def size(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    texts = []
    for subject in ("cats", "dogs", "birds", "trees")[:QUESTIONS]:
        end = f" people in the town know about {subject}"
        texts.append("Say what" + " all" * (PROMPT - size("Say what" + end)) + end)
        if size(texts[-1]) != PROMPT:
            raise SystemExit(f"this tokeniser makes {size(texts[-1])} tokens of {texts[-1]!r}, not {PROMPT}")
    return texts


def reward(ids: list[int]) -> float:
    """Something that differs between samples: the share of even tokens."""
    return sum(token % 2 == 0 for token in ids) / len(ids)


def ours(args: argparse.Namespace) -> Turn:
    import asyncio

    import torch

    from antiphon.contracts import GenerationRequest
    from antiphon.generators._chat import load_tokenizer
    from antiphon.train.learner import AlgorithmSettings, Learner, Scored
    from antiphon.train.live import LiveGenerator
    from antiphon.train.lora import LoraSettings, load_trainable
    from antiphon.train.samples import Sample

    torch.set_num_threads(args.threads)
    network = load_trainable(args.model, LoraSettings(rank=RANK, alpha=ALPHA))
    learner = Learner(network, AlgorithmSettings(lr=LR, kl_coefficient=0.0, micro_tokens=args.micro_tokens))
    generator = LiveGenerator(network, args.model, max_batch=QUESTIONS * SAMPLES, threads=args.threads)
    generator._model.chat.end_ids = frozenset()  # every sample goes its whole length
    prompts = [
        load_tokenizer(Path(args.model))(text, add_special_tokens=False)["input_ids"]
        for text in questions(load_tokenizer(Path(args.model)))
    ]
    seeds = iter(range(10**6))

    async def sample(group: int) -> Scored:
        request = GenerationRequest(
            (), "", tuple(prompts[group]), (), RESPONSE, f"{group}", {"temperature": 1.0, "seed": next(seeds)}
        )
        chunks = [chunk async for chunk in generator.generate(request)]
        ids = [token for chunk in chunks for token in chunk.token_ids or ()]
        logprobs = [value for chunk in chunks for value in chunk.logprobs or ()]
        return Scored(Sample(prompts[group], ids, [1] * len(ids), logprobs), reward(ids), str(group))

    async def rollouts() -> list[Scored]:
        return await asyncio.gather(*(sample(group) for group in range(QUESTIONS) for _ in range(SAMPLES)))

    def step() -> tuple[float, float]:
        clock = Clock()
        learner.update(asyncio.run(rollouts()))
        generator.update()
        return clock.speed(TOKENS)

    return step


def theirs(args: argparse.Namespace) -> Turn:
    """TRL, as its documentation has it, without what only saves memory; its trainer's loop waits for each turn."""
    import tempfile

    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from antiphon.models import torch_dtype

    torch.set_num_threads(args.threads)
    asked: queue.Queue[None] = queue.Queue()
    done: queue.Queue[tuple[float, float]] = queue.Queue()

    class InTurns(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_args: Any, **_kwargs: Any) -> None:
            asked.get()
            self.clock = Clock()

        def on_step_end(self, *_args: Any, **_kwargs: Any) -> None:
            done.put(self.clock.speed(TOKENS))

    def share_of_even(completion_ids: list[list[int]], **_kwargs: Any) -> list[float]:
        return [reward(ids) for ids in completion_ids]

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    dtype = torch_dtype("auto", "cpu")  # as ours: the model was saved in bfloat16
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        model_init_kwargs={"dtype": dtype},
        bf16=dtype == "auto",
        use_cpu=True,
        learning_rate=LR,
        beta=0.0,
        loss_type="grpo",
        per_device_train_batch_size=QUESTIONS * SAMPLES,
        num_generations=SAMPLES,
        max_completion_length=RESPONSE,
        generation_kwargs={"min_new_tokens": RESPONSE},
        gradient_checkpointing=False,
        max_steps=10**6,
        save_strategy="no",
        logging_steps=10**6,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=args.model,
        reward_funcs=share_of_even,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": questions(tokenizer)}),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM"),
        callbacks=[InTurns()],
    )
    threading.Thread(target=trainer.train, daemon=True).start()

    def step() -> tuple[float, float]:
        asked.put(None)
        return done.get()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--trl-python", help="the interpreter of an environment with TRL")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--micro-tokens", type=int, default=1024, help="of ours, through the network at once")
    parser.add_argument("--child", choices=("ours", "trl"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        serve(ours(args) if args.child == "ours" else theirs(args))
        return
    from antiphon import models

    given = ["--model", models.find(args.model), "--threads", args.threads, "--micro-tokens", args.micro_tokens]
    with ExitStack() as stack:
        systems = {"antiphon": Turns(__file__, ["--child", "ours", *given], threads=args.threads)}
        if args.trl_python:
            systems["TRL"] = Turns(__file__, ["--child", "trl", *given], threads=args.threads, python=args.trl_python)
        for turns in systems.values():
            stack.callback(turns.close)
        steps: dict[str, list[list[float]]] = {name: [] for name in systems}
        for step in range(args.steps + 1):
            for name, turns in systems.items():
                speed = turns.take()
                if step:
                    steps[name].append(speed)
                print(f"step {step} {name}: {speed[0]:.0f} tokens/s ({speed[1]:.0f} by CPU time)", flush=True)
    best = {name: [round(max(each), 1) for each in zip(*tried, strict=True)] for name, tried in steps.items()}
    if args.json:
        print(
            json.dumps(
                {
                    "benchmark": "trl_step",
                    "tokens": TOKENS,
                    "threads": args.threads,
                    "tokens_per_s": {name: wall for name, (wall, _) in best.items()},
                    "tokens_per_cpu_s": {name: cpu for name, (_, cpu) in best.items()},
                    "steps": steps,
                }
            )
        )


if __name__ == "__main__":
    main()
