"""What a rollout has recorded so far, and the finished trajectory made of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from antiphon.types import Call, Segment, Shown, StopReason, Task, Timings, Trajectory, Turn, Usage, clean

if TYPE_CHECKING:
    from antiphon.contracts import AsksMembers
    from antiphon.generation import Context, Generation


@dataclass(slots=True, eq=False)
class Recording:
    """Everything that one rollout did, in the order in which it began.

    Attributes:
        calls: a call in flight holds its place with None.
    """

    id: str
    task: Task
    sample: int
    versions: dict[str, str]
    pool: AsksMembers
    started_at: float = field(default_factory=time.time)
    started: float = field(default_factory=time.monotonic)
    contexts: list[Context] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    calls: list[Call | None] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    policy_usage: Usage = field(default_factory=Usage)
    policy_cost_usd: float = 0.0
    _members_s: float = 0.0
    _waiting: tuple[int, float] = (0, 0.0)  # calls in flight, since when

    def generated(self, generation: Generation) -> None:
        """Keep what a generation used and said, however it ended."""
        self.policy_usage += generation.usage
        self.policy_cost_usd += generation.cost_usd
        self.segments += generation.segments

    def call_started(self) -> int:
        """Hold a place for a call; returns its index."""
        self._wait(+1)
        self.calls.append(None)
        return len(self.calls) - 1

    def call_finished(self, index: int, call: Call, started: float) -> Call:
        """Put a call in its place, with its times and with text that every encoder takes."""
        self._wait(-1)
        call = replace(_cleaned(call), started_s=started - self.started, latency_s=time.monotonic() - started)
        self.calls[index] = call
        return call

    def trajectory(self, answer: str | None, stop: StopReason, error: str | None, rounds: int) -> Trajectory:
        """The trajectory as it stands. A call still in flight is recorded as cancelled by its own task's end."""
        problems: list[str] = []
        versions = dict(self.versions)
        shown: Shown | None = getattr(self.pool, "shown", None)
        if shown is not None:
            versions["pool"] = getattr(self.pool, "hash", "")
        for context in self.contexts:
            grammar = context.grammar
            if grammar is None:
                continue
            problems += grammar.check(context.turns)
            versions["grammar"] = f"{grammar.name}/{grammar.version}"
            template = getattr(grammar, "template", None)
            if isinstance(template, str):
                versions["template"] = template
        return Trajectory(
            id=self.id,
            task=self.task,
            policy=versions.get("policy", ""),
            answer=None if answer is None else clean(answer),
            stop=stop,
            segments=tuple(self.segments),
            turns=tuple(self.turns),
            calls=tuple(call for call in self.calls if call is not None),
            format_problems=tuple(dict.fromkeys(problems)),
            policy_usage=self.policy_usage,
            policy_cost_usd=self.policy_cost_usd,
            timings=Timings(
                self.started_at,
                time.monotonic() - self.started,
                sum(turn.latency_s for turn in self.turns),
                self._members_s,
            ),
            sample=self.sample,
            rounds=rounds,
            error=None if error is None else clean(error),
            versions=dict(sorted(versions.items())),
            notes=tuple(self.notes),
            shown=shown,
        )

    def _wait(self, change: int) -> None:
        """Count the time in which at least one call is in flight."""
        now = time.monotonic()
        in_flight, since = self._waiting
        if in_flight:
            self._members_s += now - since
        self._waiting = (in_flight + change, now)


def _cleaned(call: Call) -> Call:
    def text(value: str | None) -> str | None:
        return None if value is None else clean(value)

    attempts = tuple(replace(a, error=text(a.error), served_model=text(a.served_model)) for a in call.attempts)
    return replace(
        call,
        query=clean(call.query),
        reply=text(call.reply),
        error=text(call.error),
        served_model=text(call.served_model),
        attempts=attempts,
    )
