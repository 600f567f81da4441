"""What one rollout may use up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """What a rollout may use up. Token counts are the policy tokeniser's; None: no limit.

    Attributes:
        rounds: routing rounds; one last generation follows them.
        calls: member calls of one rollout, however many at once.
        turn_tokens: policy tokens of one turn.
        policy_tokens: policy tokens of the whole rollout.
        context_tokens: one context, prompt and information included.
        information_tokens: one reply as the policy reads it.
        member_tokens: output tokens a member may use for one reply.
        deadline_s: seconds from the start of the rollout.
        max_cost_usd: USD for members and policy together.
    """

    rounds: int = 4
    calls: int = 32
    turn_tokens: int = 1024
    policy_tokens: int | None = None
    context_tokens: int | None = None
    information_tokens: int = 600
    member_tokens: int = 512
    deadline_s: float | None = None
    max_cost_usd: float | None = None
