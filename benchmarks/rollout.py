"""Wall clock of many rollouts at once over the largest sum of injected latencies of one rollout: 1 is perfect.

Scripted rollouts of the Router-R1 policy (1 to 4 rounds each) ask a member over real loopback HTTP through the `openai`
adapter. The server waits a seeded lognormal latency before each reply. No run can end before its slowest rollout, whose
latencies add up; a barrier after each round would wait for the slowest call of every round instead.

    python benchmarks/rollout.py [--json] [--rollouts 64 256] [--seed 0] [--median 2.0] [--sigma 0.5]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import time
from dataclasses import asdict, dataclass

from antiphon.contracts import GenerationRequest
from antiphon.descriptor import Descriptor
from antiphon.generators.scripted import ScriptedGenerator
from antiphon.pool import Pool
from antiphon.registry import Registry
from antiphon.rollout import Limits, Rollout
from antiphon.testing.server import FaultServer, HTTPReply, Received
from antiphon.types import Task, Trajectory

MEMBER = "Member-8B"
ROUNDS = 4
_STEP = re.compile(r"rollout (\d+) round (\d+)")
_TASK = re.compile(r"rollout (\d+) of")


@dataclass(frozen=True)
class Result:
    """One run. Both ratios are over `largest_sum_s`; a barrier's is what the schedule alone says."""

    rollouts: int
    calls: int
    wall_s: float
    largest_sum_s: float
    ratio: float
    barrier_ratio: float
    cpu_s: float
    most_in_flight: int


def schedule(rollouts: int, seed: int, median_s: float, sigma: float) -> list[list[float]]:
    """Latencies by rollout and round."""
    rng = random.Random(f"{seed}/{rollouts}")
    return [[median_s * rng.lognormvariate(0.0, sigma) for _ in range(rng.randint(1, ROUNDS))] for _ in range(rollouts)]


def barrier_s(latencies: list[list[float]]) -> float:
    """How long the same calls would take if every round began when the last call of the one before had ended."""
    return sum(max((each[turn] for each in latencies if turn < len(each)), default=0.0) for turn in range(ROUNDS))


def policy_model(latencies: list[list[float]]) -> ScriptedGenerator:
    """Routes as often as the schedule says, then answers; it reads off its context where it is."""

    def say(request: GenerationRequest) -> str:
        found = _TASK.findall(" ".join(message.content for message in request.messages))
        rollout, done = int(found[-1]), request.prefix.count("<information>")
        if done == len(latencies[rollout]):
            return f"<think>I know.</think><answer>{rollout}</answer>"
        return f"<think>I ask.</think><search>{MEMBER}: rollout {rollout} round {done}?</search>"

    return ScriptedGenerator(say, chunk_tokens=64)


async def run(latencies: list[list[float]], server: FaultServer, registry: Registry) -> tuple[float, list[Trajectory]]:
    """Every rollout at once, each in its own task."""

    def reply(received: Received) -> HTTPReply:
        rollout, turn = map(int, _STEP.findall(received.query)[-1])
        return HTTPReply.says("noted", delay_s=latencies[rollout][turn])

    server.play(reply)
    member = Descriptor.of(
        {
            "name": MEMBER,
            "description": "answers after a while",
            "model": "member-8b",
            "adapter": "openai",
            "api_base": server.url,
            "price": {"input": 0.2, "output": 0.2},
        }
    )
    policy = registry.policy("router_r1", grammar=registry.grammar("router_r1"))
    generator, limits = policy_model(latencies), Limits(rounds=ROUNDS)
    tasks = [Task(f"rollout {index} of {len(latencies)}", str(index)) for index in range(len(latencies))]
    async with Pool([member], registry) as pool:
        started = time.perf_counter()
        done = await asyncio.gather(*(Rollout(task, pool, generator, limits=limits).run(policy) for task in tasks))
        return time.perf_counter() - started, done


def check(latencies: list[list[float]], done: list[Trajectory]) -> None:
    """Every rollout did what the schedule says, or the figure means nothing."""
    for index, trajectory in enumerate(done):
        asked = [call.outcome for call in trajectory.calls]
        if trajectory.answer != str(index) or asked != ["ok"] * len(latencies[index]):
            raise SystemExit(f"rollout {index} went wrong: {trajectory.stop}, {asked}, {trajectory.error}")


def measure(rollouts: int, args: argparse.Namespace, registry: Registry) -> Result:
    latencies = schedule(rollouts, args.seed, args.median, args.sigma)
    with FaultServer() as server:
        asyncio.run(run([[0.01]] * 8, server, registry))  # imports, caches, the first connections
        cpu = time.process_time()
        wall, done = asyncio.run(run(latencies, server, registry))
        cpu = time.process_time() - cpu
    check(latencies, done)
    largest = max(map(sum, latencies))
    return Result(
        rollouts=rollouts,
        calls=sum(map(len, latencies)),
        wall_s=round(wall, 3),
        largest_sum_s=round(largest, 3),
        ratio=round(wall / largest, 4),
        barrier_ratio=round(barrier_s(latencies) / largest, 4),
        cpu_s=round(cpu, 3),
        most_in_flight=server.most_in_flight,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--rollouts", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--median", type=float, default=2.0, help="seconds")
    parser.add_argument("--sigma", type=float, default=0.5, help="of the logarithm of the latency")
    args = parser.parse_args()
    registry, results = Registry.load([]), []
    for rollouts in args.rollouts:
        result = measure(rollouts, args, registry)
        results.append(result)
        print(
            f"{rollouts:5d} rollouts, {result.calls} calls: {result.wall_s:.2f} s, largest sum of latencies "
            f"{result.largest_sum_s:.2f} s, ratio {result.ratio:.3f}, {result.cpu_s:.2f} s of CPU "
            f"(a barrier each round: {result.barrier_ratio:.2f})"
        )
    if args.json:
        ratios = {f"ratio_{result.rollouts}": result.ratio for result in results}
        print(json.dumps({"benchmark": "rollout", **ratios, "runs": [asdict(result) for result in results]}))


if __name__ == "__main__":
    main()
