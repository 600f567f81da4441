"""The bandit: its regret grows slower than the questions though the best member changes, it keeps to its budget, and
what it has learnt survives a kill."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from importlib import util
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest

from antiphon.errors import ConfigError
from antiphon.rollout import Rollout
from antiphon.types import Call, Task
from antiphon_policies._bandit import REWARDS, Arm, Bandit, changed
from antiphon_policies.c2mabv import C2MABV, changing, read

STREAM = Path(__file__).parents[2] / "benchmarks/routers/bandit.py"


def choose(bandit: Bandit, members: list[str], **more: Any) -> tuple[str, ...]:
    given: dict[str, Any] = {
        "most": 1,
        "worth": REWARDS["any"],
        "explore": 1.0,
        "scale": 1.0,
        "budget_usd": None,
        "usd_per_point": None,
        "rng": Random(0),
        **more,
    }
    return bandit.choose(members, **given)


@pytest.fixture(scope="module")
def stream() -> ModuleType:
    """The benchmark's stream, whose best member changes half-way."""
    spec = util.spec_from_file_location("bandit_stream", STREAM)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_regret_grows_slower_than_the_questions_though_the_best_member_changes(stream: ModuleType) -> None:
    """Four times the questions: well under four times the regret. Who never learnt the change would lose half a point a
    question in the second half."""

    def regret(questions: int, seed: int) -> float:
        learner = stream.Ours()
        lost: float = stream.regret(learner, questions, seed)
        assert learner.bandit.restarts >= 1
        return lost

    short, long = (sum(regret(questions, seed) for seed in range(3)) / 3 for questions in (400, 1600))
    assert long < 0.6 * 4 * short
    assert long < 0.25 * 0.5 * 800


def test_rewards_that_fall_are_a_change_and_steady_ones_are_not() -> None:
    assert changed([1.0] * 50 + [0.0] * 15)
    assert not changed([1.0, 0.0, 1.0, 1.0] * 40)
    assert not changed([])


@pytest.mark.parametrize(("reward", "value"), [("any", 0.8), ("sum", 1.1), ("all", 0.3)])
def test_what_a_set_is_worth(reward: str, value: float) -> None:
    assert REWARDS[reward]([0.5, 0.6]) == pytest.approx(value)


def known(means: Mapping[str, tuple[float, float]]) -> Bandit:
    """A bandit that has seen each member a thousand times: mean reward and USD."""
    arms = {name: Arm(1000, 1000 * usd, 1000, 1000 * reward) for name, (reward, usd) in means.items()}
    return Bandit(arms, questions=1000)


def test_the_set_is_the_best_that_the_budget_allows_on_average() -> None:
    bandit = known({"A": (0.4, 0.001), "B": (0.5, 0.002), "C": (0.6, 0.006)})
    sets = {"explore": 0.0, "most": 2}
    assert choose(bandit, ["A", "B", "C"], **sets) == ("B", "C")
    assert choose(bandit, ["A", "B", "C"], budget_usd=0.003, **sets) == ("A", "B")
    assert choose(bandit, ["A", "B", "C"], budget_usd=0.0001, **sets) == ("A",)
    rng = Random(1)
    drawn = Counter(choose(bandit, ["A", "B", "C"], budget_usd=0.002, rng=rng, **sets) for _ in range(2000))
    assert set(drawn) == {("A",), ("A", "B")}  # B alone lies under the line between them
    assert drawn[("A", "B")] / 2000 == pytest.approx(0.5, abs=0.04)


def test_what_a_point_is_worth_moves_the_choice_from_the_cheapest_to_the_best() -> None:
    """Twenty points more for 0.005 USD more: worth it from 0.00025 USD a point."""
    bandit = known({"A": (0.4, 0.001), "C": (0.6, 0.006)})
    for usd, member in ((0.0, "A"), (0.00024, "A"), (0.00026, "C")):
        assert choose(bandit, ["A", "C"], explore=0.0, usd_per_point=usd) == (member,)


def test_a_new_member_is_tried_at_once() -> None:
    assert choose(known({"A": (0.9, 0.0), "B": (0.5, 0.0)}), ["A", "B", "New"]) == ("New",)


async def test_it_learns_while_it_serves(scripted_pool: Any, tmp_path: Path) -> None:
    """Wise is always right, Fool never; with time, Wise is asked nearly always."""
    state = tmp_path / "deep" / "state.json"
    policy = C2MABV(state=str(state))
    asked = []
    for at in range(60):
        task, pool = Task("Who?", f"t{at}", golden_answers=("Bo",)), scripted_pool(["Fool", "Wise"])
        [name] = policy.choose(task, Rollout(task, pool))
        pool = scripted_pool(["Fool", "Wise"], ["Bo" if name == "Wise" else "Di"])
        trajectory = await Rollout(task, pool).run(policy)
        asked.append(trajectory.calls[0].member)
    assert asked[30:].count("Wise") >= 27
    bandit = read(state)
    assert (bandit.questions, sum(arm.asked for arm in bandit.arms.values())) == (60, 60)
    assert bandit.arms["Wise"].usd == pytest.approx(0.00005 * asked.count("Wise"))


def test_what_is_under_way_is_counted() -> None:
    """A dozen at once do not all go to the first stranger; and who is known keeps its mean."""
    flying = Counter[str]()
    for _ in range(12):
        flying.update(choose(Bandit(), ["A", "B", "C"], flying=flying))
    assert set(flying.values()) == {4}
    bandit = known({"A": (0.9, 0.0), "B": (0.5, 0.0)})
    assert choose(bandit, ["A", "B"], flying={"A": 60}) == ("A",)


class Patient(Exception):
    """What ends a call that nobody waits for any more."""


async def test_questions_at_once_are_spread_over_strangers_and_forgotten_when_they_fail(
    scripted_pool: Any, tmp_path: Path
) -> None:
    """Nobody answers before all six have been asked."""
    pool = scripted_pool(["A", "B", "C"])
    all_asked = asyncio.Barrier(6)

    async def ask(member: str, *given: Any, **how: Any) -> Call:
        pool.asked.append(member)
        await all_asked.wait()
        raise Patient

    pool.ask = ask
    policy = C2MABV(state=str(tmp_path / "s"))
    await asyncio.gather(*(Rollout(Task("Who?", f"t{at}"), pool).run(policy) for at in range(6)))
    assert Counter(pool.asked) == {"A": 2, "B": 2, "C": 2}
    assert not +policy._flying


async def test_several_are_asked_and_their_answers_voted_on(scripted_pool: Any, tmp_path: Path) -> None:
    pool = scripted_pool(["A", "B", "C"], ["Bo", "bo", "Di"])
    policy = C2MABV(state=str(tmp_path / "s"), most=3, reward="sum")
    trajectory = await Rollout(Task("Who?", golden_answers=("Bo",)), pool).run(policy)
    assert [call.member for call in trajectory.calls] == ["A", "B", "C"]
    assert trajectory.answer == "Bo"
    assert [read(tmp_path / "s").arms[name].rewards for name in "ABC"] == [1.0, 1.0, 0.0]


async def test_without_golden_answers_only_costs_and_failures_are_learnt(scripted_pool: Any, tmp_path: Path) -> None:
    policy = C2MABV(state=str(tmp_path / "s"), most=2, reward="sum")
    pool = scripted_pool(["A", "B"], ["Bo", Call("", "", "timeout")])
    assert (await Rollout(Task("Who?"), pool).run(policy)).answer == "Bo"
    arms = read(tmp_path / "s").arms
    assert [(arms[name].asked, arms[name].judged) for name in "AB"] == [(1, 0), (1, 1)]


LEARNS_FOR_EVER = """
import sys
from pathlib import Path
from antiphon_policies.c2mabv import changing
while True:
    with changing(Path(sys.argv[1])) as bandit:
        bandit.learn({"A": (1.0, 0.001)})
    print(bandit.questions, flush=True)
"""


def test_what_is_learnt_survives_a_kill(tmp_path: Path) -> None:
    """Whatever it was at: every question that it had reported is there, and it goes on from there."""
    state = tmp_path / "state.json"
    for _ in range(2):
        before = read(state).questions
        child = subprocess.Popen([sys.executable, "-c", LEARNS_FOR_EVER, str(state)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        reported = [int(child.stdout.readline()) for _ in range(20)]
        os.kill(child.pid, signal.SIGKILL)
        reported += [int(line) for line in child.communicate()[0].splitlines(keepends=True) if line.endswith("\n")]
        assert reported[0] == before + 1
        assert read(state).questions in (reported[-1], reported[-1] + 1)
        assert read(state).arms["A"].judged == read(state).questions
    with changing(state) as bandit:
        bandit.learn({"B": (None, 0.5)})
    assert read(state).arms["B"] == Arm(asked=1, usd=0.5)


def test_a_state_that_is_none_is_refused(tmp_path: Path) -> None:
    for text in ("", "[]", "{}", '{"antiphon_bandit": 1}', json.dumps({"antiphon_bandit": 9})):
        (tmp_path / "s").write_text(text, "utf-8")
        with pytest.raises(ConfigError, match="name a new file"):
            read(tmp_path / "s")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"most": 0}, "most is a whole number of at least 1"),
        ({"reward": "summ"}, "no reward 'summ'.*did you mean 'sum'"),
        ({"explore": -1}, "explore is a number of at least 0"),
        ({"budget_usd": 1, "usd_per_point": 1}, "budget_usd is USD a question.*in place of usd_per_point"),
    ],
)
def test_settings_are_checked(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        C2MABV(state=str(tmp_path / "s"), **options)
