"""Rewards by the step: the order in which rollouts end changes nothing, and a run that goes on has the same window."""

from __future__ import annotations

import itertools
import json

import pytest

from antiphon.config import load_config
from antiphon.registry import Registry
from antiphon.reward import compose
from antiphon.train.stepped import SteppedReward
from antiphon.types import Attempt, Call, Task, Trajectory, Usage


def stepped() -> SteppedReward:
    return SteppedReward(compose(load_config().reward("paper"), Registry.load(only=[]), alpha=0.5))


def trajectory(tokens: int) -> Trajectory:
    """Right, and charged USD 1 per million for so many tokens."""
    attempt = Attempt("a:m", "ok", usage=Usage(0, tokens), cost_usd=tokens / 1e6)
    calls = (Call("m", "q", "ok", "r", (attempt,)),)
    return Trajectory("t", Task("why?", golden_answers=("x",)), "p", "x", "answer", calls=calls)


STEPS = [[100, 400, 25, 900], [0, 64, 100, 2500], [49, 49, 225, 16]]


def run(reward: SteppedReward, steps: list[list[int]], first: int = 0, turn: int = 0) -> list[list[float]]:
    """Totals in sample order; within a step the trajectories end in another order for another `turn`."""
    totals = []
    for step, costs in enumerate(steps, first):
        order = list(itertools.permutations(range(len(costs))))[turn]
        scored = {n: reward(trajectory(costs[n]), step=step, order=(0, n)).total for n in order}
        totals.append([scored[n] for n in range(len(costs))])
    reward.commit()
    return totals


@pytest.mark.parametrize("turn", [5, 23])
def test_the_order_in_which_rollouts_end_changes_neither_scores_nor_window(turn: int) -> None:
    forth, back = stepped(), stepped()
    assert run(forth, STEPS) == run(back, STEPS, turn=turn)
    assert forth.reward.state_dict() == back.reward.state_dict()
    # every sqrt of every step, in sample order
    assert forth.reward.state_dict() == {"cost": {"window": [10, 20, 5, 30, 0, 8, 10, 50, 7, 7, 15, 4]}}


def test_a_step_is_scored_by_the_steps_before_it_alone() -> None:
    first, second, _ = run(stepped(), STEPS)
    assert first == [0.75] * 4  # 0.5 * 1 + 0.5 * 0.5: nothing is known yet
    # window 5, 10, 20, 30: ranks 0.15 and 2.85: q05 = 5.75, q95 = 28.5
    costs = [1, 1 - (8 - 5.75) / 22.75, 1 - (10 - 5.75) / 22.75, 0]
    assert second == pytest.approx([0.5 + 0.5 * cost for cost in costs])


def test_a_run_that_goes_on_from_its_state_scores_as_if_it_had_not_stopped() -> None:
    whole = run(stepped(), STEPS)
    before, after = stepped(), stepped()
    run(before, STEPS[:2])
    after.reward.load_state_dict(json.loads(json.dumps(before.reward.state_dict())))
    assert run(after, STEPS[2:], first=2) == whole[2:]


def test_two_splits_keep_two_windows() -> None:
    train, validation = stepped(), stepped()
    run(train, STEPS)
    assert run(validation, STEPS[:1]) == [[0.75] * 4]


def test_without_steps_each_trajectory_is_scored_by_those_before_it() -> None:
    reward = stepped()
    totals = [reward(trajectory(cost), step=None, order=(0, n)).total for n, cost in enumerate((100, 400, 400))]
    # no window; one value, no spread; 10 and 20: q05 = 10.5, q95 = 19.5: clipped
    assert totals == [0.75, 0.75, 0.5]


def test_a_straggler_is_committed_with_the_step_under_way() -> None:
    reward = stepped()
    for step, cost in ((1, 100), (2, 400), (1, 900)):
        reward(trajectory(cost), step=step, order=(step, 0))
    assert reward.reward.state_dict() == {"cost": {"window": [10]}}
    reward.commit()
    assert reward.reward.state_dict() == {"cost": {"window": [10, 30, 20]}}
