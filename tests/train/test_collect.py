"""Rollouts of a step run at once, are seeded and grouped, and fail alone; questions come in an order of the seed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from antiphon.config import load_config
from antiphon.contracts import MemberView
from antiphon.descriptor import Descriptor
from antiphon.errors import ConfigError, PluginError
from antiphon.limits import Limits
from antiphon.money import Budget
from antiphon.registry import default_registry
from antiphon.reward import RewardResult
from antiphon.rollout import Rollout
from antiphon.train.collect import Collector, Rolled
from antiphon.train.metrics import pace, raw_cost, summary
from antiphon.train.spec import Data
from antiphon.train.stepped import SteppedReward
from antiphon.train.tasks import Tasks, read_tasks, sampling_seed
from antiphon.types import Attempt, Call, Shown, Task, Trajectory, Usage
from antiphon_plugins.rewards import Cost

TASKS = [Task(f"question {name}", name, (name.upper(),)) for name in "abc"]


class Asker:
    """Asks member A, and answers what it says; all of a step's rollouts ask before any gets its reply."""

    name = "asker"

    def __init__(self, all_of_them: int) -> None:
        self.waiting, self.gate = all_of_them, asyncio.Event()
        self.drawn: list[float] = []

    async def run(self, task: Task, rollout: Rollout) -> str | None:
        self.drawn.append(rollout.random.random())
        self.waiting -= 1
        if not self.waiting:
            self.gate.set()
        await self.gate.wait()
        if task.id == "b":
            raise RuntimeError("b always fails")
        reply = (await rollout.ask("A", task.question)).reply
        return "unscorable" if task.id == "c" else reply


class Right:
    """A reward without a plugin: 1 for the first golden answer."""

    def __init__(self) -> None:
        self.committed: list[str] = []

    async def score(self, trajectory: Any) -> RewardResult:
        if trajectory.answer == "unscorable":
            raise PluginError("the judge is away")
        value = float(trajectory.answer in trajectory.task.golden_answers)
        paid = Call("judge", "?", "ok", "1")
        return RewardResult(value, {"right": value}, {"right": value}, "", (paid,))

    def commit(self, scored: Any) -> None:
        self.committed += [trajectory.task.id for trajectory, _ in scored]


def collector(pool: Any, policy: Any, seed: int = 0) -> tuple[Collector, Right]:
    registry = SimpleNamespace(on_trajectory=lambda trajectory: None)
    setup: Any = SimpleNamespace(limits=Limits(), policy_price=None, versions={}, policy=policy, registry=registry)
    reward: Any = Right()
    made = Collector(setup, None, lambda task, step, sample: pool, SteppedReward(reward), {}, seed, Budget())  # type: ignore[arg-type]
    return made, reward


def rolled(pool: Any, policy: Any, tasks: Sequence[Task], samples: int, step: int = 1, seed: int = 0) -> list[Rolled]:
    return asyncio.run(collector(pool, policy, seed)[0].step(step, tasks, samples))


def test_all_rollouts_of_a_step_are_under_way_at_once(scripted_pool: Callable[..., Any]) -> None:
    found = rolled(scripted_pool(["A"], ["A"] * 4), Asker(6), TASKS, 2)
    assert [(each.trajectory.task.id, each.trajectory.sample, each.place) for each in found] == [
        ("a", 0, 0), ("a", 1, 0), ("b", 0, 1), ("b", 1, 1), ("c", 0, 2), ("c", 1, 2),
    ]  # fmt: skip


def test_one_that_fails_is_marked_and_earns_nothing(scripted_pool: Callable[..., Any]) -> None:
    made, reward = collector(scripted_pool(["A"], ["A", "A"]), Asker(3))
    found = asyncio.run(made.step(1, TASKS, 1))
    made.reward.commit()
    assert [each.result is None for each in found] == [False, True, True]
    assert "b always fails" in (found[1].error or "")
    assert "the judge is away" in (found[2].error or "")
    assert reward.committed == ["a"], "neither is in the reward's window"
    row = summary(found, default_registry().metric("em"))
    assert (row["failed"], row["reward"], row["reward_right"], row["em"], row["calls"]) == (2, 1.0, 1.0, 1.0, 1.0)
    assert row["cost"] == 2.0 * 20, "USD per million times output tokens"
    assert "split_groups" not in row, "one sample of each question says nothing of it"


def test_the_cost_is_that_of_the_reward_where_a_pool_was_drawn() -> None:
    real = [{"name": name, "description": "Knows.", "model": name} for name in ("small", "large")]
    prices = {"small": 1.0, "large": 8.0}
    attempt = Attempt("a:m", "ok", usage=Usage(0, 100), cost_usd=0.5, priced_as="Tovbo")
    calls = (
        Call("Wimbo", "q", "ok", "r", (attempt,)),
        Call("Wimbo", "q", "ok", "r", (replace(attempt, priced_as=None),)),
    )
    shown = Shown({"Tovbo": "small", "Wimbo": "large"}, {"Tovbo": 3.0, "Wimbo": 24.0}, 3.0)
    drawn = Trajectory("t", TASKS[0], "p", "A", "answer", calls=calls, shown=shown)
    views = [
        MemberView(one, one.price)
        for one in (
            Descriptor.of({**each, "name": name, "price": {"output": 3 * prices[each["name"]]}})
            for name, each in zip(("Tovbo", "Wimbo"), real, strict=True)
        )
    ]
    term = Cost(prices=prices)
    cost = raw_cost(Rolled(drawn, None, 0, tuple(views)))
    assert cost == term.raw(drawn) == 100 * 1.0 + 100 * 8.0, "another model answered the first call; prices are undone"


def test_the_questions_whose_samples_earned_different_rewards_are_counted(scripted_pool: Callable[..., Any]) -> None:
    found = rolled(scripted_pool(["A"], ["A"] * 4), Asker(4), [TASKS[0], TASKS[0]], 2)
    em = default_registry().metric("em")
    assert summary(found, em)["split_groups"] == 0
    assert found[0].result is not None
    better = replace(found[0], result=replace(found[0].result, total=2.0))
    assert summary([better, *found[1:]], em)["split_groups"] == 0.5


def test_validations_to_come_count_in_the_time_that_is_left() -> None:
    rows = [{"step_s": 10.0}, {"step_s": 20.0}]
    assert pace([], 3.0, 30.0, rows, left=4)["left_s"] == 4 * 20
    assert pace([], 3.0, 30.0, rows, left=4, val_s=50.0)["left_s"] == 4 * 20 + 50


def test_what_a_rollout_draws_is_decided_by_seed_step_place_and_sample(scripted_pool: Callable[..., Any]) -> None:
    def drawn(**where: int) -> list[float]:
        policy = Asker(4)
        rolled(scripted_pool(["A"], ["A"] * 4), policy, [TASKS[0], TASKS[0]], 2, **where)
        return policy.drawn

    first = drawn()
    assert len(set(first)) == 4, "a question that comes twice in a step too"
    assert drawn() == first
    assert not set(drawn(step=2)) & set(first)
    assert not set(drawn(seed=1)) & set(first)


def test_seeds_fit_into_31_bits_and_parts_do_not_run_together() -> None:
    assert 0 <= sampling_seed(0, 1, 2) < 2**31
    assert sampling_seed(1, 11) != sampling_seed(11, 1)


def test_every_epoch_holds_every_question_once_in_an_order_of_its_own() -> None:
    tasks = Tasks(tuple(Task("q", str(number), ("a",)) for number in range(10)), "")
    steps = [task.id for step in range(1, 11) for task in tasks.step(step, 4, seed=5)]
    epochs = [steps[at : at + 10] for at in range(0, 40, 10)]
    assert all(sorted(epoch) == sorted(str(number) for number in range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert [task.id for task in tasks.step(3, 4, seed=5)] == steps[8:12], "no need of the steps before"
    assert [task.id for task in tasks.step(1, 10, seed=6)] != epochs[0]


def test_questions_without_golden_answers_or_ids_of_their_own_are_refused(tmp_path: Any) -> None:
    file = tmp_path / "questions.jsonl"
    config, registry = load_config(), default_registry()
    file.write_text('{"question": "a?", "golden_answers": ["a"]}\n{"question": "b?", "golden_answers": ["b"]}\n')
    assert len(read_tasks(Data(dataset=str(file)), config, registry).tasks) == 2
    assert len(read_tasks(Data(dataset=str(file), limit=1), config, registry).tasks) == 1
    with pytest.raises(ConfigError, match="arithmetics"):
        read_tasks(Data(dataset="arithmetics"), config, registry)
    with pytest.raises(ConfigError, match="takes no option 'split'"):
        read_tasks(Data(dataset="arithmetic", split="train"), config, registry)
