"""Composes reward terms, which are plugins, as data says: weights, gates, and which term another one depends on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, runtime_checkable

from pydantic import Field, ValidationError

from antiphon.contracts import AsksMembers, MemberView, RewardTerm
from antiphon.descriptor import Frozen, explain
from antiphon.errors import ConfigError, PluginError, did_you_mean

if TYPE_CHECKING:
    from antiphon.registry import Registry
    from antiphon.types import Call, Task, Trajectory


class Use(Frozen):
    """One term of a composition.

    Attributes:
        term: name of a reward term.
        weight: a number, or a share of the composition's alpha.
        gate: a value below 0 ends the evaluation: the terms after it count as zero.
        needs: names of terms before it; it is paid only where each of them is above 0.
        options: what the term's factory takes.
    """

    term: Annotated[str, Field(min_length=1)]
    weight: Annotated[float, Field(allow_inf_nan=False)] | Literal["alpha", "1-alpha"] = 1.0
    gate: bool = False
    needs: tuple[str, ...] = ()
    options: dict[str, Any] = Field(default_factory=dict)

    def weight_at(self, alpha: float) -> float:
        if self.weight == "alpha":
            return alpha
        return 1.0 - alpha if self.weight == "1-alpha" else float(self.weight)


class Composition(Frozen):
    """A reward as data: what `[rewards.NAME]` of the configuration holds. `alpha` weighs cost against outcome."""

    alpha: Annotated[float, Field(ge=0, le=1)] = 0.0
    terms: Annotated[tuple[Use, ...], Field(min_length=1)]

    @classmethod
    def of(cls, data: Mapping[str, Any] | Composition, *, source: str = "reward") -> Composition:
        """Validate plain data.

        Raises:
            ConfigError: names the source and the field.
        """
        if isinstance(data, Composition):
            return data
        try:
            return cls.model_validate(dict(data))
        except ValidationError as error:
            raise ConfigError(f"{source}: {explain(error, cls)}") from None


@dataclass(frozen=True, slots=True)
class RewardResult:
    """What a trajectory earns.

    Attributes:
        total: the sum of `parts`.
        parts: term -> weighted value; 0 where it did not count.
        values: term -> its own, unweighted value; only of the terms that counted.
        explanation: one line for people.
        calls: what terms asked members to score it (see `Asks`); no part of the trajectory, and charged besides.
    """

    total: float
    parts: dict[str, float]
    values: dict[str, float]
    explanation: str
    calls: tuple[Call, ...] = ()


@runtime_checkable
class BindsPool(Protocol):
    """A term that must know the pool, its prices for one, takes it once, before the first trajectory."""

    def bind(self, members: Sequence[MemberView]) -> None: ...


@runtime_checkable
class Asks(Protocol):
    """A term that must ask members of the pool before it can judge: an LLM that scores answers.

    The slow part is kept apart, so that a term's value stays a pure function: `prepare` asks, for a trajectory for
    which the term counts, and remembers; called on that trajectory, the term gives what it remembers.
    """

    def attach(self, pool: AsksMembers) -> None:
        """Take the pool, once, before the first trajectory."""
        ...

    async def prepare(self, trajectory: Trajectory) -> Sequence[Call]:
        """Ask what must be asked; the calls made, none where the verdict is known."""
        ...


@runtime_checkable
class Bounded(Protocol):
    """A term that asks members may say what that can cost; one that does not counts as free in estimates."""

    def most_usd(self, scored: int, task: Task, answer_tokens: int) -> float:
        """USD for scoring so many trajectories of a task at most, whose answers have up to `answer_tokens` tokens."""
        ...


@runtime_checkable
class Stateful(Protocol):
    """A term with state: it changes only by `commit`, so that a step's rewards do not depend on their order.

    `commit` gets each trajectory of a step, in sample order, with the term's value or None where it did not count.
    """

    def commit(self, scored: Sequence[tuple[Trajectory, float | None]]) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class _Part:
    use: Use
    weight: float
    term: RewardTerm


class _Walk:
    """What is known half-way through the terms of one trajectory."""

    def __init__(self, names: Sequence[str]) -> None:
        self._parts = dict.fromkeys(names, 0.0)
        self._values: dict[str, float] = {}
        self._said: list[str] = []
        self._closed: str | None = None

    def counts(self, use: Use) -> bool:
        """The next term is evaluated; where it is not, the explanation says why."""
        if self._closed is not None:
            self._said.append(f"{use.term} does not count: {self._closed} < 0")
            return False
        unmet = next((need for need in use.needs if not self._values.get(need, 0.0) > 0), None)
        if unmet is not None:
            self._said.append(f"{use.term} is not paid: it needs {unmet} > 0")
        return unmet is None

    def take(self, part: _Part, value: float) -> None:
        name = part.use.term
        self._values[name], self._parts[name] = value, part.weight * value
        self._said.append(f"{name} {part.weight:g} x {value:g}")
        if part.use.gate and value < 0:
            self._closed = name

    def result(self) -> RewardResult:
        total = math.fsum(self._parts.values())
        return RewardResult(total, self._parts, self._values, f"{total:g} = " + "; ".join(self._said))


class Reward:
    """A composed reward: trajectory -> `RewardResult`; make it with `compose`."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        self._parts = tuple(parts)

    @property
    def names(self) -> tuple[str, ...]:
        """The terms, in the order in which they are evaluated."""
        return tuple(part.use.term for part in self._parts)

    @property
    def asks(self) -> bool:
        """Some term must ask somebody: score with `score`, not by a call."""
        return any(isinstance(part.term, Asks) for part in self._parts)

    def most_usd(self, scored: int, task: Task, answer_tokens: int) -> float:
        """What scoring can cost at most, in USD, as far as the terms say; see `Bounded`."""
        bounded = [part.term for part in self._parts if isinstance(part.term, Bounded)]
        return math.fsum(term.most_usd(scored, task, answer_tokens) for term in bounded)

    def __call__(self, trajectory: Trajectory) -> RewardResult:
        """Evaluate the terms in order of priority.

        Raises:
            PluginError: a term gave something else than a number in its range.
        """
        walk = _Walk(self.names)
        for part in self._parts:
            if walk.counts(part.use):
                walk.take(part, _checked(part.term, part.use.term, trajectory))
        return walk.result()

    async def score(self, trajectory: Trajectory) -> RewardResult:
        """Evaluate the terms, and let those that must ask somebody do so first, where they count; else as a call.

        Raises:
            PluginError: a term gave something else than a number in its range, or could not come to a verdict.
        """
        walk = _Walk(self.names)
        calls: list[Call] = []
        for part in self._parts:
            if walk.counts(part.use):
                if isinstance(part.term, Asks):
                    calls += await part.term.prepare(trajectory)
                walk.take(part, _checked(part.term, part.use.term, trajectory))
        return replace(walk.result(), calls=tuple(calls))

    def commit(self, scored: Iterable[tuple[Trajectory, RewardResult]]) -> None:
        """End a step: hand its trajectories, in sample order, to the terms that keep state."""
        scored = list(scored)
        for part in self._parts:
            if isinstance(part.term, Stateful):
                part.term.commit([(trajectory, result.values.get(part.use.term)) for trajectory, result in scored])

    def state_dict(self) -> dict[str, Any]:
        """JSON data: the state of every term that keeps one."""
        return {part.use.term: part.term.state_dict() for part in self._parts if isinstance(part.term, Stateful)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`.

        Raises:
            ConfigError: it belongs to another composition.
        """
        stateful = {part.use.term: part.term for part in self._parts if isinstance(part.term, Stateful)}
        if set(state) != set(stateful):
            raise ConfigError(
                f"the reward state is of terms {sorted(state)}, this reward keeps state in {sorted(stateful)}; "
                "load it into the composition that it was saved from"
            )
        for name, term in stateful.items():
            term.load_state_dict(state[name])


def compose(
    composition: Composition,
    registry: Registry,
    *,
    members: Sequence[MemberView] | None = None,
    pool: AsksMembers | None = None,
    alpha: float | None = None,
) -> Reward:
    """Make a reward of its data.

    Terms are evaluated by ascending priority, those of equal priority as listed. A term of weight 0 that is no gate,
    and that no other term needs, is left out: nothing is asked of it, not even prices.

    Args:
        members: for terms that must know the pool; None: those of `pool`, and without one they fall back to what the
            trajectory says.
        pool: for terms that ask members.
        alpha: instead of the composition's own.

    Raises:
        ConfigError: a term named twice, a need that is not evaluated before it, alpha outside 0..1, a term that asks
            members and no pool.
    """
    alpha = composition.alpha if alpha is None else alpha
    if not 0 <= alpha <= 1:
        raise ConfigError(f"alpha weighs cost against outcome and lies between 0 and 1, got {alpha!r}")
    names = [use.term for use in composition.terms]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"the reward uses term {twice!r} twice; give it once, with one weight")
    needed = {need for use in composition.terms if use.weight_at(alpha) for need in use.needs}
    parts = [
        _Part(use, use.weight_at(alpha), registry.reward_term(use.term, **use.options))
        for use in composition.terms
        if use.gate or use.weight_at(alpha) or use.term in needed
    ]
    parts.sort(key=lambda part: part.term.priority)
    if members is None and pool is not None:
        members = pool.members
    before: list[str] = []
    for part in parts:
        for need in part.use.needs:
            if need not in before:
                raise ConfigError(
                    f"reward term {part.use.term!r} needs {need!r}, which is not evaluated before it"
                    f"{did_you_mean(need, before)}"
                )
        if members is not None and isinstance(part.term, BindsPool):
            part.term.bind(members)
        if isinstance(part.term, Asks):
            if pool is None:
                raise ConfigError(f"reward term {part.use.term!r} asks a member of the pool, and no pool is given")
            part.term.attach(pool)
        before.append(part.use.term)
    return Reward(parts)


def _checked(term: RewardTerm, name: str, trajectory: Trajectory) -> float:
    value = term(trajectory)
    low, high = term.range
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise PluginError(
            f"reward term {name!r} gave {value!r} for trajectory {trajectory.id!r}; "
            f"it says that it gives a number from {low:g} to {high:g}"
        )
    return float(value)
