"""How fast the bandit learns: its regret on a stream whose best member changes, and its score as real questions repeat.

The stream is synthetic: three members, each right with a probability of its own, which changes half-way. Regret is what
was lost against always asking the best member of the moment. A slope below 1 (of the logarithms of regret over those of
questions) means that ever less is lost a question. Beside it: asking evenly, and epsilon-greedy, which never forgets.

With recorded data (`--data`, or ANTIPHON_DATA), `c2mabv` is also put the questions of a recorded set in real rollouts,
several times over, one at a time and 64 at once: does it come near the best single member?

    python benchmarks/routers/bandit.py [--data DIR] [--seeds N] [--out FILE] [--json]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import linear_regression, mean
from typing import Any, Protocol

from antiphon.config import Config, load_config
from antiphon.evaluate.store import write_json
from antiphon.orchestrator import Orchestrator
from antiphon.registry import Registry
from antiphon.types import Task
from antiphon_policies._bandit import REWARDS, Bandit
from antiphon_policies._scores import Scores, mean_scores
from antiphon_policies.c2mabv import C2MABV

BEFORE, AFTER = {"A": 0.8, "B": 0.5, "C": 0.3}, {"A": 0.2, "B": 0.5, "C": 0.7}
LENGTHS = (500, 1000, 2000, 4000, 8000, 16000)
EPSILON = 0.1


class Learner(Protocol):
    """Chooses a member, and takes in what came of it."""

    def choose(self, rng: Random) -> str: ...

    def learn(self, member: str, reward: float) -> None: ...


class Ours:
    """The bandit of `c2mabv`, one member a question, without a budget."""

    def __init__(self) -> None:
        self.bandit = Bandit()

    def choose(self, rng: Random) -> str:
        [name] = self.bandit.choose(list(BEFORE), 1, REWARDS["any"], 1.0, 1.0, None, None, rng)
        return name

    def learn(self, member: str, reward: float) -> None:
        self.bandit.learn({member: (reward, 0.0)})


class Greedy:
    """The best mean so far; with probability `epsilon`, anybody."""

    def __init__(self, epsilon: float = EPSILON) -> None:
        self._epsilon = epsilon
        self._rewards, self._asked = dict.fromkeys(BEFORE, 0.0), dict.fromkeys(BEFORE, 0)

    def choose(self, rng: Random) -> str:
        if rng.random() < self._epsilon:
            return rng.choice(list(BEFORE))
        return max(BEFORE, key=lambda name: self._rewards[name] / self._asked[name] if self._asked[name] else 1.0)

    def learn(self, member: str, reward: float) -> None:
        self._asked[member] += 1
        self._rewards[member] += reward


def regret(learner: Learner, questions: int, seed: int) -> float:
    """Points of reward lost against always asking the best member of the moment, which changes half-way."""
    rng, lost = Random(seed), 0.0
    for question in range(questions):
        means = BEFORE if question < questions / 2 else AFTER
        name = learner.choose(rng)
        lost += max(means.values()) - means[name]
        learner.learn(name, float(rng.random() < means[name]))
    return lost


def synthetic(seeds: int) -> dict[str, Any]:
    """Mean regret by length, and the slope of each seed, for the bandit and what it stands beside."""
    found: dict[str, Any] = {"lengths": list(LENGTHS), "seeds": seeds, "before": BEFORE, "after": AFTER}
    learners = {"c2mabv": Ours, f"epsilon-greedy {EPSILON}": Greedy, "uniform": lambda: Greedy(1.0)}
    for name, made in learners.items():
        lost = [[regret(made(), length, seed) for length in LENGTHS] for seed in range(seeds)]
        slopes = [slope(one) for one in lost]
        found[name] = {
            "regret": [round(mean(column), 1) for column in zip(*lost, strict=True)],
            "slope": round(mean(slopes), 3),
            "slope_by_seed": [round(one, 3) for one in slopes],
        }
    return found


def slope(lost: list[float]) -> float:
    """Least squares through (log questions, log regret)."""
    return linear_regression([math.log(length) for length in LENGTHS], [math.log(one) for one in lost]).slope


TRIVIA = "recorded/evouna_triviaqa-*.jsonl"
STREAMS: Mapping[str, tuple[str, str, str, str, int]] = {
    "nq": ("paper-recorded", "qa/nq.jsonl", "recorded/routerr1_nq.jsonl", "em", 5),
    "evouna-triviaqa": ("evouna-triviaqa", TRIVIA, TRIVIA, "contains", 2),
}
"""Name, as in benchmarks/paper-offline -> pool, questions, replies, metric, and how often all questions are put."""


def recorded(data: Path) -> dict[str, Any]:
    """Mean reward of each pass over a set's questions, beside the member that is best on them."""
    registry = Registry.load([])
    found: dict[str, Any] = {}
    for name, (pool, files, replies, metric, passes) in STREAMS.items():
        config = load_config(overrides={"defaults": {"data": str(data), "pool": pool}})
        questions = _questions(data, files)
        with Orchestrator(config=config, registry=registry) as orchestrator:
            members = orchestrator.members
        scores = Scores.read(str(data / replies), metric)
        alone = mean_scores(filter(None, (scores.of(one.question) for one in questions)), scores.members(members))
        best = max(alone, key=alone.__getitem__)
        found[name] = {"metric": metric, "questions": len(questions), "best_single": [best, round(alone[best], 4)]}
        stream = [Task(one.question, f"{one.id}-{n}", one.golden_answers) for n in range(passes) for one in questions]
        for at_once in (1, 64):
            done = _asked(stream, config, registry, metric, at_once)
            parts = [done[n * len(questions) : (n + 1) * len(questions)] for n in range(passes)]
            found[name][f"{at_once} at once"] = {
                "reward_by_pass": [round(mean(reward for _, reward in part), 4) for part in parts],
                "share_of_best_by_pass": [round(mean(member == best for member, _ in part), 4) for part in parts],
            }
    return found


def _asked(
    stream: Sequence[Task], config: Config, registry: Registry, metric: str, at_once: int
) -> list[tuple[str, float]]:
    """Whom a new bandit asks, and the reward, question by question."""
    judge = registry.metric(metric)
    with tempfile.TemporaryDirectory() as folder:
        policy = C2MABV(state=str(Path(folder) / "state.json"), metric=metric)
        with Orchestrator(config=config, policy=policy, registry=registry) as orchestrator:
            done = orchestrator.batch(stream, concurrency=at_once)
    rewards = (0.0 if one.answer is None else judge(one.answer, one.task.golden_answers or ()) for one in done)
    return [(one.calls[0].member, reward) for one, reward in zip(done, rewards, strict=True)]


def _questions(data: Path, files: str) -> list[Task]:
    """Each question once, with its golden answers that are not empty."""
    found: dict[str, Task] = {}
    for path in sorted(data.glob(files)):
        for line in path.open(encoding="utf-8"):
            row = json.loads(line)
            golden = tuple(answer for answer in row["golden_answers"] if answer.strip())
            name = str(row.get("id") or row["question_id"])
            found.setdefault(row["question"], Task(row["question"], name, golden))
    return list(found.values())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("ANTIPHON_DATA"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write it there")
    parser.add_argument("--json", action="store_true", help="one line, not indented")
    options = parser.parse_args(arguments)
    result = {"synthetic": synthetic(options.seeds)}
    result["recorded"] = (
        recorded(Path(options.data)) if options.data else {"status": "not run", "note": "name the data: --data DIR"}
    )
    if options.out is not None:
        write_json(options.out, result)
    print(json.dumps(result, indent=None if options.json else 1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
