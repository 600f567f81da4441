"""A reward term that pays for asking the members one has a contract with."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.errors import ConfigError
from antiphon.types import Trajectory


class ContractShare:
    """The share of a rollout's calls that went to members under contract; 0 where nobody was asked.

    Args:
        members: names of the members under contract.
    """

    name = "contract_share"
    range = (0.0, 1.0)
    priority = 50

    def __init__(self, members: Sequence[str]) -> None:
        if isinstance(members, str) or not members:
            raise ConfigError("contract_share needs `members`, a list of names of the members under contract")
        self._members = frozenset(members)

    def __call__(self, trajectory: Trajectory) -> float:
        calls = trajectory.calls
        return sum(call.member in self._members for call in calls) / len(calls) if calls else 0.0
