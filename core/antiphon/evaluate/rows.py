"""One row per rollout: all that tables and figures need of a trajectory, and where the trajectory is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from antiphon.errors import ConfigError
from antiphon.money import raw_cost

if TYPE_CHECKING:
    from antiphon.contracts import Metric
    from antiphon.descriptor import Descriptor
    from antiphon.types import Call, Trajectory

LONGEST_ERROR = 300  # characters


@dataclass(frozen=True, slots=True)
class Key:
    """Which rollout: one trajectory each. `index` is the question's place in its data set, from 0."""

    policy: str
    pool: str
    dataset: str
    task: str
    seed: int
    index: int

    def to_json(self) -> str:
        return json.dumps(_data(self, _KEY), ensure_ascii=False)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Key:
        """Raises: TypeError, ValueError: it is no key."""
        return cls(
            str(data["policy"]),
            str(data["pool"]),
            str(data["dataset"]),
            str(data["task"]),
            int(data["seed"]),
            int(data["index"]),
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One rollout, judged.

    Attributes:
        metrics: 0 for all of them where there is no answer.
        raw_cost: quoted output price in USD per million x output tokens of the served reply, summed over the calls
            (arXiv 2506.09033, section 3).
        members_usd, policy_usd: what all attempts, failed ones too, and the policy's own tokens were charged.
        asked: members in the order asked.
        escalated: a smaller member was asked before a larger one (by active parameters, else by price).
        wall_s: seconds; a replayed call counts for as long as the original took, where that was recorded.
        members_s: the part of it in which members were waited for.
        estimated: calls whose token counts are, at least in part, our estimate.
        unpriced: calls that no price was known for.
        substituted: calls that another model than the asked one answered.
        failed: calls without a reply; `unrecorded`: those of them that a recorded pool has no reply to.
        file, line: where the trajectory is, in the run's directory; lines count from 1.
        index: the question's place in its data set, from 0.
        tokens: (input, output) of each call in the order of `asked`; None for a call without a reply.
        served: of each call, the model that answered in the asked member's place; None where it answered itself.
        error: why the rollout ended, where it ended in an error.
        notes: what the policy said about its choices.
        timed: False where a call was replayed whose latency nobody recorded: `wall_s` says nothing then.
    """

    policy: str
    pool: str
    dataset: str
    task_id: str
    seed: int
    question: str
    golden: tuple[str, ...]
    answer: str | None
    stop: str
    format_ok: bool
    metrics: dict[str, float]
    raw_cost: float
    members_usd: float
    policy_usd: float
    calls: int
    asked: tuple[str, ...]
    rounds: int
    escalated: bool
    wall_s: float
    members_s: float
    estimated: int
    unpriced: int
    substituted: int
    failed: int
    file: str
    line: int
    index: int = 0
    tokens: tuple[tuple[int, int] | None, ...] = ()
    served: tuple[str | None, ...] = ()
    unrecorded: int = 0
    error: str | None = None
    notes: tuple[str, ...] = ()
    timed: bool = True

    @property
    def cost_usd(self) -> float:
        """USD for members and policy together."""
        return self.members_usd + self.policy_usd

    def to_json(self) -> str:
        """One JSON line without its end; `Row.from_json` reads it back equal."""
        return json.dumps(_data(self, _ROW), ensure_ascii=False)

    @classmethod
    def from_json(cls, line: str | bytes) -> Row:
        """Read one line.

        Raises:
            ConfigError: it is no row.
        """
        try:
            data: dict[str, Any] = json.loads(line)
            for name in ("golden", "asked", "served", "notes"):
                data[name] = tuple(data.get(name, ()))
            data["tokens"] = tuple(None if pair is None else (pair[0], pair[1]) for pair in data.get("tokens", ()))
            return cls(**data)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ConfigError(f"not a row of an evaluation: {type(error).__name__}: {error}") from None


_KEY = tuple(each.name for each in fields(Key))
_ROW = tuple(each.name for each in fields(Row))


def _data(of: object, names: tuple[str, ...]) -> dict[str, Any]:
    return dict(zip(names, attrgetter(*names)(of), strict=True))


class Judge:
    """Makes rows of the trajectories of one pool.

    Args:
        metrics: name -> metric.
        members: descriptors with their quoted output prices (USD per million), None where unpriced.
        replayed: members whose calls are replayed from a recording.
    """

    def __init__(
        self,
        metrics: Mapping[str, Metric],
        members: Sequence[tuple[Descriptor, float | None]],
        replayed: Iterable[str] = (),
    ) -> None:
        self._metrics = dict(metrics)
        self._replayed = frozenset(replayed)
        self._prices = {descriptor.name: price for descriptor, price in members}
        self._larger = _larger_than(members)

    def row(self, key: Key, trajectory: Trajectory, file: str, line: int) -> Row:
        """Judge one trajectory.

        Raises:
            ConfigError: a metric failed on it; names metric and question.
        """
        calls = trajectory.calls
        golden = trajectory.task.golden_answers or ()
        timings = trajectory.timings
        replayed = sum(_replayed_s(call) for call in calls)
        return Row(
            policy=key.policy,
            pool=key.pool,
            dataset=key.dataset,
            task_id=key.task,
            seed=key.seed,
            question=trajectory.task.question,
            golden=golden,
            answer=trajectory.answer,
            stop=trajectory.stop,
            format_ok=not trajectory.format_problems,
            metrics={name: self._score(name, trajectory.answer, golden, key) for name in self._metrics},
            raw_cost=sum(raw_cost(call, self._prices) for call in calls),
            members_usd=trajectory.members_cost_usd,
            policy_usd=trajectory.policy_cost_usd,
            calls=len(calls),
            asked=tuple(call.member for call in calls),
            rounds=trajectory.rounds,
            escalated=self._escalated([call.member for call in calls]),
            wall_s=timings.wall_s + replayed,
            members_s=timings.members_s + replayed,
            estimated=sum(call.usage is not None and call.usage.estimated for call in calls),
            unpriced=sum(_is_unpriced(call) for call in calls),
            substituted=sum(call.substituted for call in calls),
            failed=sum(not call.ok for call in calls),
            file=file,
            line=line,
            index=key.index,
            tokens=tuple(
                None if call.usage is None else (call.usage.input_tokens, call.usage.output_tokens) for call in calls
            ),
            served=tuple(call.served_model if call.substituted else None for call in calls),
            unrecorded=sum(call.outcome == "not_recorded" for call in calls),
            error=_error(trajectory),
            notes=trajectory.notes,
            timed=not any(call.member in self._replayed and not _replayed_s(call) for call in calls),
        )

    def _score(self, name: str, answer: str | None, golden: Sequence[str], key: Key) -> float:
        if answer is None:
            return 0.0
        try:
            return float(self._metrics[name](answer, golden))
        except Exception as error:
            raise ConfigError(
                f"metric {name!r} failed on the answer to {key.task!r} of {key.dataset!r}: {type(error).__name__}: "
                f"{error}; mend it or leave it out"
            ) from error

    def _escalated(self, asked: Sequence[str]) -> bool:
        return any(self._larger(later, earlier) for place, later in enumerate(asked) for earlier in asked[:place])


def _larger_than(members: Sequence[tuple[Descriptor, float | None]]) -> Callable[[str, str], bool]:
    """Whether one member is larger than another: by active parameters where both state them, else by price."""
    sizes = {one.name: one.active_parameters_b or one.parameters_b for one, _ in members}
    prices = {one.name: price for one, price in members}

    def larger(one: str, other: str) -> bool:
        for measure in (sizes, prices):
            ours, theirs = measure.get(one), measure.get(other)
            if ours is not None and theirs is not None:
                return ours > theirs
        return False

    return larger


def _replayed_s(call: Call) -> float:
    """By how many seconds a replayed call was faster than its original; 0 for a live one."""
    said = sum(attempt.latency_s for attempt in call.attempts)
    return max(0.0, said - call.latency_s)


def _is_unpriced(call: Call) -> bool:
    return call.ok and call.attempts[-1].priced_as is None


def _error(trajectory: Trajectory) -> str | None:
    if trajectory.stop != "error":
        failed = next((call.error for call in trajectory.calls if call.outcome == "not_recorded"), None)
        return failed and failed[:LONGEST_ERROR]
    return (trajectory.error or "no reason given")[:LONGEST_ERROR]
