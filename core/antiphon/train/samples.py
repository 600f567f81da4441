"""A trajectory as training takes it: token ids exactly as generated, a mask, and log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from antiphon.errors import ConfigError, GeneratorError

if TYPE_CHECKING:
    from antiphon.types import Segment, Trajectory


@dataclass(frozen=True, slots=True)
class Sample:
    """One token sequence: the prompt, then the response.

    Attributes:
        mask: one per response token: 1 for the policy's tokens, 0 for information.
        logprobs: one per response token, 0.0 for information; None where the generator gave none.
        cut: response tokens that did not fit and were left out at the end.
    """

    prompt_ids: list[int]
    response_ids: list[int]
    mask: list[int]
    logprobs: list[float] | None
    cut: int = 0


def sample_of(trajectory: Trajectory, *, response_length: int | None = None, logprobs: bool = True) -> Sample:
    """The one trainable context of a trajectory.

    A response longer than `response_length` is cut at its end, whatever stands there. A context in which the policy
    said nothing has an empty response.

    Args:
        logprobs: whether log-probabilities are wanted.

    Raises:
        ConfigError: the policy opened none or several trainable contexts.
        GeneratorError: a span without token ids, or a policy span without log-probabilities where they are wanted.
    """
    context = _trainable(trajectory)
    for segment in context:
        _check(segment, trajectory, logprobs)
    ids: list[int] = []
    mask: list[int] = []
    probabilities: list[float] = []
    for segment in context[1:]:
        tokens = segment.token_ids or ()
        ids += tokens
        mask += [int(segment.trainable)] * len(tokens)
        probabilities += segment.logprobs if segment.kind == "policy" and segment.logprobs else [0.0] * len(tokens)
    end = len(ids) if response_length is None else min(response_length, len(ids))
    return Sample(
        prompt_ids=list(context[0].token_ids or ()),
        response_ids=ids[:end],
        mask=mask[:end],
        logprobs=probabilities[:end] if logprobs else None,
        cut=len(ids) - end,
    )


def _trainable(trajectory: Trajectory) -> tuple[Segment, ...]:
    contexts = [context for context in trajectory.contexts if any(segment.trainable for segment in context)]
    if not contexts and len(trajectory.contexts) == 1 and not _policy_spoke(trajectory.contexts[0]):
        contexts = [trajectory.contexts[0]]  # it was stopped before its first token
    if len(contexts) == 1:
        return contexts[0]
    what = f"{len(contexts)} trainable contexts" if contexts else "no trainable context"
    why = f" (it ended in an error: {trajectory.error})" if trajectory.error else ""
    raise ConfigError(
        f"trajectory {trajectory.id!r} of policy {trajectory.policy!r} has {what}{why}; training takes one: "
        "the policy opens it with `rollout.context(prompt, trainable=True)`, over a generator that gives token ids"
    )


def _policy_spoke(context: tuple[Segment, ...]) -> bool:
    return any(segment.kind == "policy" for segment in context)


def _check(segment: Segment, trajectory: Trajectory, logprobs: bool) -> None:
    if segment.token_ids is None:
        raise GeneratorError(
            f"trajectory {trajectory.id!r} has a {segment.kind} span without token ids; it cannot be trained on: "
            "use a generator with token_in and token_out"
        )
    given = -1 if segment.logprobs is None else len(segment.logprobs)
    if logprobs and segment.kind == "policy" and segment.token_ids and given != len(segment.token_ids):
        raise GeneratorError(
            f"trajectory {trajectory.id!r} has a policy span of {len(segment.token_ids)} tokens with "
            f"{'no' if given < 0 else given} log-probabilities; have the server return them (calculate_log_probs=True)"
        )
