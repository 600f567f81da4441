"""Baselines that choose a member without looking at the question: one by name, the largest, the smallest, the
cheapest, any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from antiphon.contracts import MemberView
from antiphon.errors import ConfigError, did_you_mean
from antiphon.rollout import Rollout
from antiphon.types import Task

from ._answering import AnswerBy, answer_from, checked

_SIZES: dict[str, Callable[[MemberView], float | None]] = {
    "active": lambda view: view.descriptor.active_parameters_b or view.descriptor.parameters_b,
    "total": lambda view: view.descriptor.parameters_b,
    "price": lambda view: None if view.quote is None else view.quote.output,
}
_FIELD = {"active": "active_parameters_b or parameters_b", "total": "parameters_b", "price": "price"}


class Single:
    """Asks one member, always.

    Args:
        member: its name or an alias.
        answer_by: `member`: its reply is the answer; `base`: the base model reads the reply and answers.

    Raises:
        ConfigError: `answer_by` is unknown; when run: nobody in the pool is called so.
    """

    name = "single"

    def __init__(self, *, member: str, answer_by: str = "member") -> None:
        self._member = member
        self._answer_by: AnswerBy = checked(answer_by)

    async def run(self, task: Task, rollout: Rollout) -> str | None:
        return await answer_from(self._member, task, rollout, self._answer_by)


class _BySize:
    """Asks the first or the last member by size."""

    name: ClassVar[str]
    best: ClassVar[Callable[..., str]]

    def __init__(self, *, by: str = "active", answer_by: str = "member") -> None:
        if by not in _SIZES:
            raise ConfigError(f"{self.name}: no measure {by!r}{did_you_mean(by, _SIZES)}")
        self._by = by
        self._answer_by: AnswerBy = checked(answer_by)

    async def run(self, task: Task, rollout: Rollout) -> str | None:
        by = f"{self.name} by {self._by}"
        sizes = measured(rollout.pool, _SIZES[self._by], by, _FIELD[self._by])
        member = self.best(sizes, key=lambda name: sizes[name])
        rollout.note(f"{by}: {member} ({sizes[member]:g})")
        return await answer_from(member, task, rollout, self._answer_by)


class Largest(_BySize):
    """Asks the largest member. The trajectory's notes say by what measure, and how large it is.

    Args:
        by: `active` parameters (those that work on one token: all of a dense model's), `total` parameters, or `price`
            of an output token. Of equals, the first in the pool.
        answer_by: `member`: its reply is the answer; `base`: the base model reads the reply and answers.

    Raises:
        ConfigError: `by` or `answer_by` is unknown; when run: members lack the field.
    """

    name = "largest"
    best = staticmethod(max)


class Smallest(_BySize):
    """Asks the smallest member. The trajectory's notes say by what measure, and how small it is.

    Args:
        by: `active` parameters (those that work on one token: all of a dense model's), `total` parameters, or `price`
            of an output token. Of equals, the first in the pool.
        answer_by: `member`: its reply is the answer; `base`: the base model reads the reply and answers.

    Raises:
        ConfigError: `by` or `answer_by` is unknown; when run: members lack the field.
    """

    name = "smallest"
    best = staticmethod(min)


class Cheapest:
    """Asks the cheapest member, by its quoted price: `input_share` x input + (1 - `input_share`) x output, in USD per
    million tokens. A quote without an input price counts its output price alone. Of equals, the first in the pool.

    Args:
        input_share: 0 to 1.
        answer_by: `member`: its reply is the answer; `base`: the base model reads the reply and answers.

    Raises:
        ConfigError: `input_share` or `answer_by` does not hold; when run: members have no price.
    """

    name = "cheapest"

    def __init__(self, *, input_share: float = 0.5, answer_by: str = "member") -> None:
        if not 0 <= input_share <= 1:
            raise ConfigError(f"cheapest: input_share is between 0 and 1, not {input_share!r}")
        self._input_share = input_share
        self._answer_by: AnswerBy = checked(answer_by)

    async def run(self, task: Task, rollout: Rollout) -> str | None:
        prices = measured(rollout.pool, self._blended, "cheapest", "price")
        member = min(prices, key=lambda name: prices[name])
        rollout.note(f"cheapest: {member} (${prices[member]:g} per million tokens)")
        return await answer_from(member, task, rollout, self._answer_by)

    def _blended(self, view: MemberView) -> float | None:
        if view.quote is None:
            return None
        read = view.quote.output if view.quote.input is None else view.quote.input
        return self._input_share * read + (1 - self._input_share) * view.quote.output


class Random:
    """Asks any member, evenly; the rollout's seed, task and sample decide which.

    Args:
        answer_by: `member`: its reply is the answer; `base`: the base model reads the reply and answers.
    """

    name = "random"

    def __init__(self, *, answer_by: str = "member") -> None:
        self._answer_by: AnswerBy = checked(answer_by)

    async def run(self, task: Task, rollout: Rollout) -> str | None:
        member = rollout.random.choice(rollout.pool).name
        return await answer_from(member, task, rollout, self._answer_by)


def measured(
    pool: Sequence[MemberView], measure: Callable[[MemberView], float | None], policy: str, field: str
) -> dict[str, float]:
    """Name -> measure, in the pool's order.

    Raises:
        ConfigError: members lack the field; names them.
    """
    found = {view.name: measure(view) for view in pool}
    lacking = [name for name, value in found.items() if value is None]
    if lacking:
        raise ConfigError(
            f"policy {policy}: no {field} for {', '.join(lacking)}; "
            "add it to the descriptor or the config, or leave them out of the pool"
        )
    return {name: value for name, value in found.items() if value is not None}
