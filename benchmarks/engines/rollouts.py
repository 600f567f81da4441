"""Tokens a second of rollouts on the `vllm` generator, over vLLM's own offline `generate` on the same prompts.

Rollouts of the Router-R1 policy over a pool of functions, all at once, write down what they asked of the model: ids of
prompts, and how many tokens came back. vLLM's `LLM.generate` is then given just these, at the same sampling, and has to
decode as many tokens each. Each system has a process of its own with an engine made alike, and they take turns. The
questions differ from turn to turn and the pool's description does not, so both find as much in their prefix caches.
Every turn is a pair; the figure is the median of the pairs' ratios. Tokens are counted by the second of wall clock, and
by the second of CPU time of all of a system's processes, which says more on a busy machine without a GPU.

    python benchmarks/engines/rollouts.py [--json] [--model NAME] [--rollouts 16] [--tokens 64] [--repeats 5]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1]))

from _turns import Turns, serve  # noqa: E402

from antiphon.contracts import Chunk, GenerationRequest, Generator  # noqa: E402

TOPICS = ("rivers", "kings", "metals", "birds", "songs", "planets", "bridges", "novels", "islands", "games")


class Clock:
    """Starts when it is made; counts the CPU time of this process and of all below it."""

    def __init__(self) -> None:
        import psutil

        self._process = psutil.Process()
        self._wall, self._cpu = time.perf_counter(), self._used()

    def _used(self) -> float:
        times = [each.cpu_times() for each in (self._process, *self._process.children(recursive=True))]
        return sum(each.user + each.system for each in times)

    def seconds(self) -> tuple[float, float]:
        return time.perf_counter() - self._wall, self._used() - self._cpu


class Recorded:
    """A generator that notes each generation: the context's ids, and how many tokens came."""

    def __init__(self, inner: Generator) -> None:
        self._inner = inner
        self.asked: list[tuple[list[int], int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        tokens = 0
        async for chunk in self._inner.generate(request):
            tokens += len(chunk.token_ids or ())
            yield chunk
        self.asked.append((list(request.token_ids or ()), tokens))


def engine_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """What both engines are made with, beside the defaults that the generator chooses."""
    return {"dtype": args.dtype, "max_num_seqs": args.rollouts}


def antiphon_side(args: argparse.Namespace) -> Callable[[int], Any]:
    """A turn: rollouts; gives seconds of wall clock and of CPU, and what was asked of the model."""
    from antiphon.generators.vllm import VLLMGenerator
    from antiphon.pool import Pool
    from antiphon.registry import Registry
    from antiphon.rollout import Limits, Rollout
    from antiphon.types import Task
    from antiphon_pools.adapters.function import member

    registry = Registry.load([])
    policy = registry.policy("router_r1", grammar=registry.grammar("router_r1"))
    pool = Pool(
        [
            member(lambda question: "noted", name=f"Helper-{size}B", description=f"A helper of {size}B parameters.")
            for size in (3, 8, 70)
        ],
        registry,
    )
    generator = VLLMGenerator(args.model, max_context=args.context, **engine_arguments(args))
    limits = Limits(turn_tokens=args.tokens, policy_tokens=args.tokens)
    loop = asyncio.new_event_loop()

    def turn(number: int) -> Any:
        recorded = Recorded(generator)
        tasks = [Task(f"Question {number}-{i}: tell me about {TOPICS[i % 10]}.", str(i)) for i in range(args.rollouts)]

        async def all_of() -> list[Any]:
            running = (Rollout(t, pool, recorded, limits=limits, sampling={"temperature": 1.0}) for t in tasks)
            return await asyncio.gather(*(rollout.run(policy) for rollout in running))

        clock = Clock()
        done = loop.run_until_complete(all_of())
        wall, cpu = clock.seconds()
        if faults := [each.error for each in done if each.stop == "error"]:
            raise SystemExit(f"a rollout failed: {faults[0]}")
        return wall, cpu, recorded.asked

    return turn


def offline_side(args: argparse.Namespace) -> Callable[[list[Any]], Any]:
    """A turn: vLLM's own `generate` of given prompts and lengths; gives seconds of wall clock and of CPU."""
    from antiphon import models
    from antiphon.generators import _vllm

    _vllm.load("this benchmark")
    from vllm import LLM, SamplingParams

    made = _vllm.arguments(models.find(args.model), engine_arguments(args), max_context=args.context, rank=None)
    llm = LLM(**made)

    def turn(asked: list[Any]) -> Any:
        prompts: Any = [{"prompt_token_ids": ids} for ids, _ in asked]
        sampling = [SamplingParams(temperature=1.0, max_tokens=count, ignore_eos=True) for _, count in asked]
        clock = Clock()
        done = llm.generate(prompts, sampling, use_tqdm=False)
        wall, cpu = clock.seconds()
        if [len(each.outputs[0].token_ids) for each in done] != [count for _, count in asked]:
            raise SystemExit("vLLM decoded another number of tokens than it was asked for")
        return wall, cpu

    return turn


def measure(args: argparse.Namespace) -> dict[str, Any]:
    given = ["--model", args.model, "--dtype", args.dtype, "--context", args.context]
    given += ["--rollouts", args.rollouts, "--tokens", args.tokens]
    sides = [Turns(str(HERE), ["--child", name, *given], threads=args.threads) for name in ("antiphon", "vllm")]
    ours, theirs = sides
    pairs = []
    try:
        for number in range(args.repeats + 1):
            wall, cpu, asked = ours.take(number)
            asked = [each for each in asked if each[1]]
            their_wall, their_cpu = theirs.take(asked)
            tokens = sum(count for _, count in asked)
            pair = {
                "tokens": tokens,
                "generations": len(asked),
                "prompt_tokens": sum(len(ids) for ids, _ in asked),
                "rollouts": {"wall": tokens / wall, "cpu": tokens / cpu},
                "offline": {"wall": tokens / their_wall, "cpu": tokens / their_cpu},
            }
            if number:  # the first warms up
                pairs.append(pair)
                print(
                    f"{tokens} tokens: rollouts {tokens / wall:.0f}/s ({tokens / cpu:.0f} by CPU), "
                    f"offline {tokens / their_wall:.0f}/s ({tokens / their_cpu:.0f} by CPU)",
                    flush=True,
                )
    finally:
        for side in sides:
            side.close()
    return {
        "ratio": round(median(p["rollouts"]["wall"] / p["offline"]["wall"] for p in pairs), 3),
        "ratio_by_cpu": round(median(p["rollouts"]["cpu"] / p["offline"]["cpu"] for p in pairs), 3),
        "pairs": pairs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--context", type=int, default=2048, help="tokens of prompt and reply together")
    parser.add_argument("--rollouts", type=int, default=16, help="at once: the batch")
    parser.add_argument("--tokens", type=int, default=64, help="most of each rollout")
    parser.add_argument("--repeats", type=int, default=5, help="pairs of turns, after one that warms up")
    parser.add_argument("--threads", type=int, default=1, help="OMP_NUM_THREADS of both")
    parser.add_argument("--child", choices=("antiphon", "vllm"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        serve(antiphon_side(args) if args.child == "antiphon" else offline_side(args))
        return
    result = measure(args)
    print(f"rollouts over offline generate: {result['ratio']:.3f} (by CPU time {result['ratio_by_cpu']:.3f})")
    if args.json:
        settings = {key: getattr(args, key) for key in ("model", "dtype", "rollouts", "tokens", "repeats", "threads")}
        print(json.dumps({"benchmark": "engines/rollouts", **settings, **result}))


if __name__ == "__main__":
    main()
