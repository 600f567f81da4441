"""The decision and the memory of a cost-aware combinatorial bandit, apart from how members are asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from random import Random
from types import MappingProxyType
from typing import Any

from ._decision import POINT, Usd

REWARDS: dict[str, Callable[[Iterable[float]], float]] = {
    "any": lambda some: 1 - math.prod(1 - value for value in some),
    "sum": sum,
    "all": math.prod,
}
"""What a set of members is worth, from each one's mean reward: the paper's AWC, SUC and AIC."""

RECENT = 200
"""Rewards of a member that the test for a change looks at."""

TESTED = 5
"""The test is made after every so many rewards of a member."""

FALSE_ALARM = 0.01
"""Probability that the test, on one member, finds a change where there is none."""

LEAST = 0.3
"""A member that was asked less than this times the root of all questions is tried, whatever it seems to be worth."""

_NOBODY: Mapping[str, int] = MappingProxyType({})


@dataclass(slots=True)
class Arm:
    """What is known of a member.

    Attributes:
        rewards: the sum of `judged` rewards, 0 to 1.
        usd: the sum over `asked` calls.
        recent: the last rewards, oldest first.
    """

    asked: int = 0
    usd: float = 0.0
    judged: int = 0
    rewards: float = 0.0
    recent: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Bandit:
    """Upper confidence bounds of rewards, lower ones of costs, and the best set of members by both.

    Attributes:
        questions: since the last restart.
        restarts: changes found.
    """

    arms: dict[str, Arm] = field(default_factory=dict)
    questions: int = 0
    restarts: int = 0

    def choose(
        self,
        members: Sequence[str],
        most: int,
        worth: Callable[[Iterable[float]], float],
        explore: float,
        scale: float,
        budget_usd: float | None,
        usd_per_point: Usd,
        rng: Random,
        flying: Mapping[str, int] = _NOBODY,
    ) -> tuple[str, ...]:
        """The members to ask, at most `most`; in the order given.

        Args:
            worth: one of `REWARDS`.
            explore: factor of the confidence radius; 0: none.
            scale: USD that a call may come to: the radius of a cost is in this unit.
            budget_usd: USD a question on average; two sets are mixed at random so that their cost comes to it.
            usd_per_point: in place of a budget: what a point of reward may cost.
            flying: member -> questions that it has been asked and whose outcome is still to come.
        """
        log = math.log(max(self.questions + sum(flying.values()), 2))
        bounds = {name: self._bounds(name, explore, scale, log, flying.get(name, 0)) for name in members}
        sets = [one for size in range(1, most + 1) for one in combinations(members, size)]
        values = [worth([bounds[name][0] for name in one]) for one in sets]
        costs = [sum(bounds[name][1] for name in one) for one in sets]
        if usd_per_point is None and budget_usd is not None:
            place = _within(values, costs, budget_usd, rng)
        else:
            net = [_net(value, cost, usd_per_point) for value, cost in zip(values, costs, strict=True)]
            busy = [sum(flying.get(name, 0) for name in one) for one in sets]
            place = max(range(len(sets)), key=lambda at: (net[at], -costs[at], -busy[at]))
        rare = self._neglected(members, flying)
        if rare is not None and _net(1.0, bounds[rare][1], usd_per_point) > _net(
            values[place], costs[place], usd_per_point
        ):
            return (rare,)
        return sets[place]

    def learn(self, asked: Mapping[str, tuple[float | None, float]]) -> None:
        """Take in what a question brought.

        Args:
            asked: member -> reward from 0 to 1 (None: nobody judged), and USD.
        """
        self.questions += 1
        for name, (reward, usd) in asked.items():
            arm = self.arms.setdefault(name, Arm())
            arm.asked, arm.usd = arm.asked + 1, arm.usd + usd
            if reward is not None:
                arm.judged, arm.rewards = arm.judged + 1, arm.rewards + reward
                arm.recent = [*arm.recent, reward][-RECENT:]
        due = (self.arms[name] for name, (reward, _) in asked.items() if reward is not None)
        if any(arm.judged % TESTED == 0 and changed(arm.recent) for arm in due):
            self.arms, self.questions, self.restarts = {}, 0, self.restarts + 1

    def to_json(self) -> dict[str, Any]:
        arms = {
            name: {slot: getattr(arm, slot) for slot in ("asked", "usd", "judged", "rewards", "recent")}
            for name, arm in self.arms.items()
        }
        return {"questions": self.questions, "restarts": self.restarts, "arms": arms}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Bandit:
        return cls({name: Arm(**arm) for name, arm in data["arms"].items()}, data["questions"], data["restarts"])

    def _bounds(self, name: str, explore: float, scale: float, log: float, flying: int) -> tuple[float, float]:
        """Upper bound of the reward, lower bound of the cost (as of UCB1, Auer et al. 2002); 1 and 0 of a stranger.

        What is under way narrows a bound as if it were known, with the mean so far (0.5 of a stranger): many questions
        at once would else all go to one member.
        """
        arm = self.arms.get(name, Arm())
        upper, lower = 1.0, 0.0
        if arm.judged + flying:
            mean = arm.rewards / arm.judged if arm.judged else 0.5
            upper = min(1.0, mean + explore * math.sqrt(log / (2 * (arm.judged + flying))))
        if arm.asked:
            lower = max(0.0, arm.usd / arm.asked - explore * scale * math.sqrt(log / (2 * (arm.asked + flying))))
        return upper, lower

    def _neglected(self, members: Sequence[str], flying: Mapping[str, int]) -> str | None:
        """Who was judged least, where that is too little to notice that it has become better."""
        judged = {name: flying.get(name, 0) + (self.arms[name].judged if name in self.arms else 0) for name in members}
        least = min(members, key=lambda name: judged[name])
        return least if judged[least] < LEAST * math.sqrt(self.questions) else None


def changed(rewards: Sequence[float]) -> bool:
    """Whether their mean has changed on the way: the generalised likelihood ratio test of a restarting bandit, as of a
    Bernoulli variable (Besson et al., arXiv 1902.01575)."""
    n, total = len(rewards), sum(rewards)
    limit, first = math.log(3 * n * math.sqrt(n) / FALSE_ALARM) if n else 0.0, 0.0
    for count, reward in enumerate(rewards[:-1], 1):
        first += reward
        rest, mean = n - count, total / n
        if count * _divergence(first / count, mean) + rest * _divergence((total - first) / rest, mean) > limit:
            return True
    return False


def _divergence(p: float, q: float) -> float:
    """Of two Bernoulli variables, in nats."""
    p, q = (min(max(one, 1e-9), 1 - 1e-9) for one in (p, q))
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


def _net(value: float, cost: float, usd_per_point: Usd) -> float:
    return value if usd_per_point is None else usd_per_point * value / POINT - cost


def _within(values: Sequence[float], costs: Sequence[float], budget: float, rng: Random) -> int:
    """The set to ask so that the highest expected value costs the budget on average.

    The linear program over sets has one constraint: one set, or a mixture of two neighbours on the cost-value hull,
    solves it.
    """
    at = min(range(len(values)), key=lambda place: (costs[place], -values[place]))
    while costs[at] <= budget:
        better = [place for place in range(len(values)) if values[place] > values[at] + 1e-12]
        if not better:
            return at
        rates = {place: (costs[place] - costs[at]) / (values[place] - values[at]) for place in better}
        following = min(better, key=lambda place: (rates[place], -values[place]))
        if costs[following] > budget:
            return following if rng.random() < (budget - costs[at]) / (costs[following] - costs[at]) else at
        at = following
    return at
