"""What a training run will take: a bound before anybody is asked, and an expectation once its first step is known."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from antiphon.contracts import GenerationRequest, MemberView, Request
from antiphon.money import most_usage
from antiphon.train.progress import duration
from antiphon.types import Message, Task

if TYPE_CHECKING:
    from antiphon._setup import Setup
    from antiphon.contracts import Generator
    from antiphon.reward import Reward
    from antiphon.train.spec import TrainSpec

CALIBRATION_TOKENS = 32
"""Tokens of each rollout of a calibration."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What is still to come of a run.

    Attributes:
        calls: that the policy makes of members.
        policy_tokens: that the policy generates.
        member_tokens: that members read and write for them; None: not known.
        usd: for members, those that judge too.
        hours: None: not known yet.
        unpriced: members whose price nobody knows; they count as free.
    """

    rollouts: int
    calls: int
    policy_tokens: int
    member_tokens: int | None
    usd: float
    hours: float | None = None
    unpriced: tuple[str, ...] = ()

    def __str__(self) -> str:
        usd = "$0" if self.usd == 0 else f"${self.usd:.2f}" if self.usd >= 1 else f"${self.usd:.2g}"
        hours = "" if self.hours is None else f", {duration(self.hours * 3600)}"
        unpriced = f" (without a price: {', '.join(self.unpriced)})" if self.unpriced else ""
        members = "" if self.member_tokens is None else f" and {_tokens(self.member_tokens)} of members"
        return (
            f"{self.rollouts:,} rollouts, {self.calls:,} calls, {_tokens(self.policy_tokens)} of the policy{members}, "
            f"{usd}{unpriced}{hours}"
        )


def bound(
    spec: TrainSpec,
    setup: Setup,
    *,
    done: int | None = None,
    validation: int = 0,
    tokens_per_s: float | None = None,
    judging: Callable[[int], float] = lambda rollouts: 0.0,
) -> Estimate:
    """The most that can be used up: every rollout to its last round and token, always the dearest member.

    Taken for granted: a policy asks one member a round, and what a member or a judge is sent of the policy's words is
    no longer than a turn. The run's limit holds but for what judging takes at once (see `ChargedPool`).

    Args:
        done: steps already taken; None: none, nor the validation before the first.
        validation: questions of a validation.
        tokens_per_s: at which the policy generates (see `speed`); with it the time of generating alone is told.
        judging: see `judging_usd`; each split has a reward of its own.
    """
    trained, validated = _rollouts(spec, done, validation)
    most = played(setup, trained + validated)
    usd = most.usd + judging(trained) + judging(validated)
    if spec.train.max_cost_usd is not None:
        at_once = judging(spec.train.tasks * spec.train.samples) + judging(validation)
        usd = min(usd, spec.train.max_cost_usd + at_once)
    hours = None if not tokens_per_s else most.policy_tokens / tokens_per_s / 3600
    return replace(most, usd=usd, hours=hours)


def played(setup: Setup, rollouts: int, max_cost_usd: float | None = None) -> Estimate:
    """The most that so many rollouts can use up within a budget (None: without), nobody judging them."""
    limits, members = setup.limits, setup.pool.members
    calls = rollouts * min(limits.rounds, limits.calls)
    tokens = min((limits.rounds + 1) * limits.turn_tokens, limits.policy_tokens or math.inf)
    told = Message("system", getattr(setup.policy, "member_prompt", ""))
    around = most_usage(Request("", (told, Message("user", "")), limits.member_tokens, 0.0)).input_tokens
    sent = around + limits.turn_tokens
    usd = max((_call_usd(view, sent, limits.member_tokens) for view in members), default=0.0) * calls
    for most in (rollouts * limits.max_cost_usd if limits.max_cost_usd is not None else None, max_cost_usd):
        usd = usd if most is None else min(usd, most)
    return Estimate(
        rollouts,
        calls,
        int(rollouts * tokens),
        calls * (sent + limits.member_tokens),
        usd,
        unpriced=tuple(view.name for view in members if view.quote is None),
    )


def judging_usd(reward: Reward, setup: Setup, tasks: Iterable[Task]) -> Callable[[int], float]:
    """What scoring so many rollouts can cost at most, in USD; each is taken to be of the longest of these tasks."""
    longest = max(tasks, key=lambda task: len(task.question) + len(str(task.golden_answers)))
    return partial(reward.most_usd, task=longest, answer_tokens=setup.limits.turn_tokens)


def expected(spec: TrainSpec, setup: Setup, row: Mapping[str, Any], *, validation: int = 0) -> Estimate:
    """What the rest of a run will take if its steps go on as the one whose row of metrics this is."""
    rollouts = sum(_rollouts(spec, int(row["step"]), validation))
    steps = spec.train.steps - int(row["step"])
    calls = rollouts * float(row.get("calls", 0.0))
    seconds = steps * float(row.get("step_s", 0.0))
    seconds += validations(spec, int(row["step"])) * float(row.get("val_s", 0.0))
    return Estimate(
        rollouts,
        round(calls),
        round(rollouts * float(row.get("response_tokens", 0.0))),
        None,
        rollouts * float(row.get("cost_usd", 0.0)),
        seconds / 3600,
        tuple(view.name for view in setup.pool.members if view.quote is None),
    )


async def speed(generator: Generator, setup: Setup, tasks: Sequence[Task]) -> float:
    """Tokens a second that the policy's model generates, measured on the prompts of some questions at once.

    Nobody is asked anything; with a policy that has no grammar the questions themselves are the prompts.
    """
    grammar: Any = getattr(setup.policy, "grammar", None)

    async def one(number: int, task: Task) -> int:
        messages = (*task.messages, Message("user", task.question))
        if grammar is not None:
            messages = tuple(grammar.prompt(task, setup.pool.members, setup.limits.rounds))
        opened = generator.open(messages)
        asked = GenerationRequest(
            messages, "", opened.token_ids, (), CALIBRATION_TOKENS, f"calibration-{number}", {"temperature": 1.0}
        )
        return sum([len(chunk.token_ids or ()) async for chunk in generator.generate(asked)])

    began = time.monotonic()
    tokens = await asyncio.gather(*(one(number, task) for number, task in enumerate(tasks)))
    return sum(tokens) / (time.monotonic() - began)


def _rollouts(spec: TrainSpec, done: int | None, validation: int) -> tuple[int, int]:
    """To come in steps and in validations."""
    steps = spec.train.steps - (done or 0)
    return steps * spec.train.tasks * spec.train.samples, validations(spec, done) * validation


def validations(spec: TrainSpec, done: int | None) -> int:
    """How many are to come after `done` steps: one before the first, one every so many, one after the last."""
    if spec.validation is None:
        return 0
    every, steps = spec.validation.every, spec.train.steps
    return (done is None) + sum(step % every == 0 or step == steps for step in range((done or 0) + 1, steps + 1))


def _call_usd(view: MemberView, tokens_in: int, tokens_out: int) -> float:
    price = view.quote
    if price is None:
        return 0.0
    written = min(tokens_out, view.descriptor.max_output_tokens)
    return ((price.input or 0.0) * tokens_in + price.output * written) / 1e6


def _tokens(count: int) -> str:
    return f"{count / 1e6:.3g} M tokens" if count >= 1e6 else f"{count:,} tokens"
