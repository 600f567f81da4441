"""The latency term: how long a trajectory waits for its members."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

from antiphon import descriptor
from antiphon.contracts import MemberView
from antiphon.errors import ConfigError
from antiphon_plugins.rewards.window import Kind, Windowed

if TYPE_CHECKING:
    from antiphon.types import Call, Trajectory

By = Literal["descriptor", "measured"]


class Latency(Windowed):
    """1 is fast, 0 slow: seconds waited for members, against a ceiling or against the trajectories before it.

    Calls of one round run at once, so a round takes as long as its slowest call, and a trajectory the sum of its
    rounds. The policy's own generation is not counted: it is as fast as the machine that trains it.

    Args:
        by: `descriptor`: the seconds to the first token, and the served reply's output tokens at the member's speed;
            a failed call counts its first token. `measured`: the seconds that a call took, retries included; those of
            a recorded reply are the recorded ones, where known.
        ceiling_s: seconds that count as 0, linearly from 1 at no wait at all; None: by the window (see `Windowed`),
            which takes the square root as it does for cost.
        window, size, low, high, eps, neutral: see `Windowed`.
    """

    name = "latency"
    priority = 20

    def __init__(
        self,
        by: By = "descriptor",
        ceiling_s: float | None = None,
        window: Kind = "past",
        size: int = 1000,
        low: float = 5.0,
        high: float = 95.0,
        eps: float = 1e-6,
        neutral: float = 0.5,
    ) -> None:
        super().__init__(window, size, low, high, eps, neutral)
        if by not in get_args(By):
            raise ConfigError(f"latency reward: by is one of {', '.join(get_args(By))}, got {by!r}")
        if ceiling_s is not None and not ceiling_s > 0:
            raise ConfigError(f"latency reward: ceiling_s is a number of seconds above 0, got {ceiling_s!r}")
        self._by, self._ceiling = by, ceiling_s
        self._latencies: dict[str, descriptor.Latency] = {}

    def bind(self, members: Sequence[MemberView]) -> None:
        """Take the members' latencies.

        Raises:
            ConfigError: a member says none.
        """
        if self._by == "measured":
            return
        self._latencies = {view.name: view.descriptor.latency for view in members if view.descriptor.latency}
        if unknown := sorted(view.name for view in members if view.name not in self._latencies):
            raise ConfigError(
                f"the latency reward needs the latency of {', '.join(unknown)}; give `latency` in its descriptor "
                '(`antiphon pool profile` measures it), or set by = "measured"'
            )

    def raw(self, trajectory: Trajectory) -> float:
        """Seconds waited for members."""
        own = {} if trajectory.shown is None else trajectory.shown.members
        rounds: dict[int, float] = defaultdict(float)
        for call in trajectory.calls:
            rounds[call.round] = max(rounds[call.round], self._seconds(call, own.get(call.member, call.member)))
        return sum(rounds.values())

    def __call__(self, trajectory: Trajectory) -> float:
        if self._ceiling is None:
            return super().__call__(trajectory)
        return 1.0 - min(1.0, self.raw(trajectory) / self._ceiling)

    def _seconds(self, call: Call, member: str) -> float:
        if self._by == "measured":
            return max(call.latency_s, sum(attempt.latency_s for attempt in call.attempts))
        latency = self._latencies.get(member)
        if latency is None:
            raise ConfigError(
                f"the latency reward knows no latency of {member!r}: it is not in the pool that the reward was made for"
            )
        return latency.seconds(0 if call.usage is None else call.usage.output_tokens)
