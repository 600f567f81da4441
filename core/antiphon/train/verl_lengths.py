"""How long prompts and responses may be: verl fixes both before it starts."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from antiphon.errors import ConfigError
from antiphon.rollout import Rollout
from antiphon.train.demonstrations import Speaker
from antiphon.train.environment import Environment

if TYPE_CHECKING:
    from antiphon._setup import Setup
    from antiphon.contracts import AsksMembers, MemberView
    from antiphon.generators._chat import Chat
    from antiphon.limits import Limits
    from antiphon.train.prepare import Prepared
    from antiphon.types import Call, Task

TRIED = 32
"""Questions whose prompts are measured: those with the longest texts."""

AROUND = 16
"""Tokens allowed for what a grammar puts around one reply."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """What a rollout may come to, in the policy's tokens.

    Attributes:
        prompt: the longest prompt.
        response: all turns and all information together.
        turns, information: what they can come to by the limits of a rollout.
    """

    prompt: int
    response: int
    turns: int
    information: int

    def __str__(self) -> str:
        wanted = self.turns + self.information
        fit = (
            "as the limits of a rollout allow"
            if wanted <= self.response
            else f"less than the {wanted:,} that the limits of a rollout allow: the longest end with `length`"
        )
        return (
            f"prompts of up to {self.prompt:,} tokens; responses of up to {self.response:,}, all turns and information "
            f"together, {fit}"
        )


async def lengths(prepared: Prepared, setup: Setup, chat: Chat, model: Path) -> Lengths:
    """What `[verl.data]` says, and where it says nothing: prompts as long as the longest needs with some room, and
    responses as long as a rollout can become, or as the context has room for.

    The context is `model.max_context`, else what the model was made for. Nobody is asked anything.

    Raises:
        ConfigError: a prompt, or one turn after it, has no room.
    """
    spec, limits = prepared.spec, setup.limits
    given = spec.verl.get("data", {})
    context = spec.model.max_context or _made_for(model)
    if limits.context_tokens is not None:
        context = min(context, limits.context_tokens)
    longest = await longest_prompt(prepared, setup, chat)
    prompt = given.get("max_prompt_length") or _rounded(longest * 9 // 8)
    if longest > prompt:
        raise ConfigError(
            f"the longest prompt has {longest} tokens and verl.data.max_prompt_length is {prompt}; raise it, or "
            "shorten the prompt (fewer members, a more compact style)"
        )
    turns, information = _most(limits)
    response = given.get("max_response_length") or min(turns + information, context - prompt)
    if response < min(limits.turn_tokens, turns) or prompt + response > context:
        raise ConfigError(
            f"a context of {context} tokens has no room for prompts of {prompt} and responses of "
            f"{max(response, limits.turn_tokens)}; raise model.max_context, or lower verl.data.max_prompt_length, "
            "verl.data.max_response_length or limits.turn_tokens"
        )
    return Lengths(prompt, response, turns, information)


async def longest_prompt(prepared: Prepared, setup: Setup, chat: Chat) -> int:
    """Tokens of the longest prompt, as the policy opens it for the questions with the longest texts.

    Raises:
        ConfigError: the policy asks somebody before it opens a context, or does not train on exactly one.
    """
    from antiphon.train.samples import sample_of

    train = prepared.spec.train
    drawn = Environment(_Closed(setup.pool), prepared.spec.environment.randomise, seed=train.seed)
    longest = 0
    for task in _longest(prepared.tasks.tasks):
        rollout = Rollout(
            task, drawn.pool(task, 1), Speaker(chat, str), limits=setup.limits, seed=train.seed, versions=setup.versions
        )
        trajectory = await rollout.run(setup.policy)
        try:
            longest = max(longest, len(sample_of(trajectory, logprobs=False).prompt_ids))
        except ConfigError as error:
            if "max_prompt_length" in prepared.spec.verl.get("data", {}):
                return 0
            raise ConfigError(
                f"how long prompts are cannot be told: {error}; or give verl.data.max_prompt_length"
            ) from None
    return longest


def _longest(tasks: Sequence[Task]) -> list[Task]:
    def size(task: Task) -> int:
        return len(task.question) + sum(len(message.content) for message in task.messages)

    return sorted(tasks, key=size, reverse=True)[:TRIED]


def _most(limits: Limits) -> tuple[int, int]:
    """What the turns of a rollout and its information can come to."""
    turns = (limits.rounds + 1) * limits.turn_tokens
    if limits.policy_tokens is not None:
        turns = min(turns, limits.policy_tokens)
    return turns, limits.rounds * (limits.information_tokens + AROUND)


def _made_for(model: Path) -> int:
    """Tokens of a context that a Hugging Face folder says its model was made for."""
    try:
        told: Any = json.loads((model / "config.json").read_bytes()).get("max_position_embeddings")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{model / 'config.json'} cannot be read ({error}); give a Hugging Face folder") from None
    if not isinstance(told, int):
        raise ConfigError(f"{model / 'config.json'} does not say how long a context may be; set model.max_context")
    return told


def _rounded(tokens: int) -> int:
    return math.ceil(max(1, tokens) / 64) * 64


class _Closed:
    """A pool that nobody may ask."""

    def __init__(self, pool: AsksMembers) -> None:
        self._pool = pool

    @property
    def members(self) -> tuple[MemberView, ...]:
        return self._pool.members

    def resolve(self, asked: str) -> str | None:
        return self._pool.resolve(asked)

    async def ask(self, *args: Any, **kwargs: Any) -> Call:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ConfigError("the policy asks a member before its model has said anything")
