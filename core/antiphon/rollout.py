"""The one loop: a policy decides, a rollout acts for it, enforces the limits and records every segment and call."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from antiphon.contracts import CallContext, Generator, MemberView, Policy, TagGrammar
from antiphon.errors import AntiphonError, BudgetExceeded, ConfigError, GeneratorError, RolloutStopped, did_you_mean
from antiphon.generation import CHARS_PER_TOKEN, Context, Generation, check_generator
from antiphon.money import Budget
from antiphon.types import (
    Call,
    Event,
    EventKind,
    Invalid,
    Message,
    Route,
    Segment,
    StopReason,
    Task,
    Timings,
    Trajectory,
    Turn,
    Usage,
    clean,
)

if TYPE_CHECKING:
    from antiphon.descriptor import Price


class AsksMembers(Protocol):
    """What a rollout needs of a pool; `antiphon.pool.Pool` is one."""

    @property
    def members(self) -> tuple[MemberView, ...]: ...

    def resolve(self, asked: str) -> str | None: ...

    async def ask(
        self,
        member: str,
        messages: Sequence[Message],
        *,
        context: CallContext,
        budget: Budget | None = None,
        max_tokens: int | None = None,
    ) -> Call: ...


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


class Rollout:
    """What a policy acts through.

    Args:
        task: the question.
        pool: who can be asked.
        generator: the policy's model; None for policies that only ask members.
        budget: a wider budget; `limits.max_cost_usd` is taken out of it.
        policy_price: USD per million of the policy's own tokens; None: free.
        sampling: temperature, top_p, … of the policy.
        sample: which of several rollouts of the same task.
        seed: with the task's id and the sample, seeds `random`.
        on_event: called on the event loop for every event but `done`; must not block.
        versions: what to record about the set-up.
    """

    def __init__(
        self,
        task: Task,
        pool: AsksMembers,
        generator: Generator | None = None,
        *,
        limits: Limits | None = None,
        budget: Budget | None = None,
        policy_price: Price | None = None,
        sampling: Mapping[str, Any] | None = None,
        sample: int = 0,
        seed: int = 0,
        on_event: Callable[[Event], None] | None = None,
        versions: Mapping[str, str] | None = None,
        id: str | None = None,
    ) -> None:
        self.id = id or uuid.uuid4().hex
        self.task = task
        self.limits = limits or Limits()
        self.budget = Budget(self.limits.max_cost_usd, budget)
        self.random = random.Random(f"{seed}/{task.id}/{sample}")
        self.sample = sample
        self._pool = pool
        self._generator = generator
        self._price = policy_price
        self._sampling = dict(sampling or {})
        self._on_event = on_event
        self._versions = dict(versions or {})
        self._started_at = time.time()
        self._started = time.monotonic()
        deadline = self.limits.deadline_s
        self._deadline = None if deadline is None else self._started + deadline
        self._contexts: list[Context] = []
        self._segments: list[Segment] = []
        self._turns: list[Turn] = []
        self._calls: list[Call | None] = []
        self._rounds = 0
        self._round_open = False
        self._waiting: tuple[int, float] = (0, 0.0)  # calls in flight, since when
        self._members_s = 0.0
        self._policy_usage = Usage()
        self._policy_cost = 0.0
        self._stopped: RolloutStopped | None = None
        self._error: str | None = None

    # ---- what a policy uses ---------------------------------------------------------------------------------------

    @property
    def pool(self) -> tuple[MemberView, ...]:
        """Who can be asked: descriptors with the prices their pricing functions quote."""
        return self._pool.members

    @property
    def rounds(self) -> int:
        """Rounds used so far."""
        return self._rounds

    def context(self, prompt: Sequence[Message] | str, *, trainable: bool = False) -> Context:
        """Open a token stream with a prompt; the assistant's turn is open after it."""
        generator = self._need_generator()
        messages = [Message("user", prompt)] if isinstance(prompt, str) else list(prompt)
        opened = generator.open([Message(m.role, clean(m.content)) for m in messages])
        index = len(self._contexts)
        context = Context(
            index=index,
            trainable=trainable,
            request_id=f"{self.id}-{index}",
            messages=messages,
            token_ids=None if opened.token_ids is None else list(opened.token_ids),
        )
        self._contexts.append(context)
        self._segments.append(Segment("prompt", opened.text, index, opened.token_ids))
        return context

    async def generate(
        self,
        context: Context,
        grammar: TagGrammar | None = None,
        *,
        max_tokens: int | None = None,
        sampling: Mapping[str, Any] | None = None,
    ) -> Turn:
        """Let the policy's model go on, up to its first closed action (with a grammar) or its end (without).

        A stop inside an open block resumes the same turn. With a grammar, a turn without a closed action ends the
        rollout: it is returned, and every later `generate` or `ask` raises.

        Raises:
            RolloutStopped: a limit is reached.
            GeneratorError: the model failed.
        """
        self._raise_if_stopped()
        if self._rounds > self.limits.rounds:
            self._stop("rounds", f"all {self.limits.rounds} rounds are used up")
        self._round_open = False
        started = time.monotonic()
        generation = self._generation(context, grammar, max_tokens, {**self._sampling, **(sampling or {})})
        try:
            async with asyncio.timeout_at(self._deadline):
                await generation.run()
        except BudgetExceeded as error:
            self._stop("budget", f"another generation {error}")
        except TimeoutError:
            if self._deadline is None or time.monotonic() < self._deadline:
                raise  # the model's own time-out, not our deadline
            self._stop("deadline", f"the deadline of {self.limits.deadline_s:g} s has passed")
        finally:
            self._policy_usage += generation.usage
            self._policy_cost += generation.cost_usd
            self._segments += generation.segments
        turn = replace(generation.turn(), started_s=started - self._started, latency_s=time.monotonic() - started)
        if isinstance(turn.action, Route | Invalid):
            self._open_round()
            if self._rounds > self.limits.rounds and isinstance(turn.action, Route):
                turn = replace(turn, executed=False)
        context.turns.append(turn)
        self._turns.append(turn)
        if grammar is not None and turn.action is None:
            reason: StopReason = "length" if turn.finish == "length" else "no_action"
            self._stopped = RolloutStopped(reason, "the policy's turn ended without a closed action")
        return turn

    async def ask(self, member: str, query: str, *, messages: Sequence[Message] | None = None) -> Call:
        """Ask a member; appends nothing to any context, and several may run at once.

        What is asked between two generations is one round.

        Args:
            messages: what to send; default: the query as the one user message.

        Raises:
            RolloutStopped: a limit is reached. A failed call does not raise: see its outcome.
        """
        self._raise_if_stopped()
        name = self._pool.resolve(member)
        if name is None:
            known = (view.name for view in self._pool.members)
            raise ConfigError(f"nobody in the pool is called {member!r}{did_you_mean(member, known)}")
        if not self._round_open:
            self._open_round()
        if self._rounds > self.limits.rounds:
            self._stop("rounds", f"all {self.limits.rounds} rounds are used up")
        if len(self._calls) >= self.limits.calls:
            self._stop("calls", f"all {self.limits.calls} calls are used up")
        started, round_ = time.monotonic(), self._rounds
        if self._deadline is not None and started >= self._deadline:
            self._stop("deadline", f"the deadline of {self.limits.deadline_s:g} s has passed")
        slot = len(self._calls)
        self._calls.append(None)
        self._emit("route_started", query, member=name)
        self._wait(+1)
        call = Call(name, query, "cancelled")
        try:
            call = await self._pool.ask(
                name,
                messages or [Message("user", query)],
                context=CallContext(
                    self.task.id, self.task.question, self.task.dataset, self.id, round_, self.sample, self._deadline
                ),
                budget=self.budget,
                max_tokens=self.limits.member_tokens,
            )
        finally:
            self._wait(-1)
            call = replace(
                call, query=query, round=round_, started_s=started - self._started, latency_s=time.monotonic() - started
            )
            self._calls[slot] = call
            self._emit("route_finished", call.reply or call.error or "", member=name, call=call)
        if call.outcome == "over_budget":
            self._stop("budget", call.error or "the next call could cost more than is left")
        return call

    def observe(self, context: Context, items: Iterable[Call | Invalid]) -> None:
        """Append information to a context, in the order given, as its grammar renders it."""
        if context.grammar is None:
            raise ConfigError("observe needs a context that was generated with a grammar; generate with one first")
        generator = self._need_generator()
        names = [view.name for view in self._pool.members]
        text = context.grammar.information(list(items), names, self._cut)
        if context.grammar.continues:
            added = generator.encode(text)
            context.prefix += text
        else:
            added = generator.turn(text)
            context.messages += [Message("assistant", context.prefix), Message("user", text)]
            context.prefix = ""
        if context.token_ids is not None:
            if added.token_ids is None:
                raise GeneratorError(f"generator {generator.name!r} gave ids for the prompt but none for information")
            context.token_ids.extend(added.token_ids)
        self._segments.append(Segment("information", added.text, context.index, added.token_ids))

    # ---- what the kernel uses -------------------------------------------------------------------------------------

    async def run(self, policy: Policy) -> Trajectory:
        """Run a policy to its end; always a finished trajectory. Only cancellation propagates (see `trajectory`)."""
        self._versions.setdefault("policy", policy.name)
        answer: str | None = None
        try:
            answer = await policy.run(self.task, self)
            if answer is not None and not isinstance(answer, str):
                raise TypeError(f"policy {policy.name!r} returned {type(answer).__name__}, not a string or None")
        except RolloutStopped as stopped:
            self._stopped = self._stopped or stopped
        except asyncio.CancelledError:
            self._stopped = RolloutStopped("cancelled", "cancelled")
            raise
        except Exception as error:
            answer = None
            self._error = str(error) if isinstance(error, AntiphonError) else f"{type(error).__name__}: {error}"
            self._stopped = RolloutStopped("error", self._error)
            self._emit("error", self._error)
        if answer is not None:
            self._emit("answer", answer)
        return self.trajectory(answer)

    def trajectory(self, answer: str | None = None) -> Trajectory:
        """What has been recorded so far, as a finished trajectory."""
        problems: list[str] = []
        for context in self._contexts:
            if context.grammar is not None:
                problems += context.grammar.check(context.turns)
                self._versions["grammar"] = f"{context.grammar.name}/{context.grammar.version}"
        reason = self._stopped.reason if self._stopped else "answer" if answer is not None else "no_action"
        error = self._error or (str(self._stopped) if self._stopped and reason not in ("no_action", "length") else None)
        return Trajectory(
            id=self.id,
            task=self.task,
            policy=self._versions.get("policy", ""),
            answer=None if answer is None else clean(answer),
            stop=reason,
            segments=tuple(self._segments),
            turns=tuple(self._turns),
            calls=tuple(call for call in self._calls if call is not None),
            format_problems=tuple(dict.fromkeys(problems)),
            policy_usage=self._policy_usage,
            policy_cost_usd=self._policy_cost,
            timings=Timings(
                self._started_at,
                time.monotonic() - self._started,
                sum(turn.latency_s for turn in self._turns),
                self._members_s,
            ),
            sample=self.sample,
            rounds=min(self._rounds, self.limits.rounds),
            error=error,
            versions=dict(sorted(self._versions.items())),
        )

    def _generation(
        self, context: Context, grammar: TagGrammar | None, max_tokens: int | None, sampling: Mapping[str, Any]
    ) -> Generation:
        generator = self._need_generator()
        parser = None
        if grammar is not None:
            check_generator(grammar, generator)
            context.grammar = grammar
            parser = grammar.parser(self._pool.resolve, [view.name for view in self.pool], not context.turns)
        limits = self.limits
        turn_tokens = min(max_tokens or limits.turn_tokens, limits.turn_tokens)

        def room(used: int) -> int:
            left = turn_tokens - used
            if limits.policy_tokens is not None:
                left = min(left, limits.policy_tokens - self._policy_usage.output_tokens - used)
            if limits.context_tokens is not None:
                left = min(left, limits.context_tokens - context.tokens)
            return left

        if room(0) <= 0:
            self._stop("tokens", "no policy tokens are left for another generation")
        return Generation(
            generator,
            context,
            grammar,
            parser,
            room=room,
            sampling=sampling,
            price=self._price,
            budget=self.budget,
            show=lambda text: self._emit("thinking", text),
        )

    def _need_generator(self) -> Generator:
        if self._generator is None:
            raise ConfigError("this policy generates, and no model is configured; name one (--model)")
        return self._generator

    def _open_round(self) -> None:
        self._round_open = True
        self._rounds += 1

    def _wait(self, change: int) -> None:
        """Count the time in which at least one call is in flight."""
        now = time.monotonic()
        in_flight, since = self._waiting
        if in_flight:
            self._members_s += now - since
        self._waiting = (in_flight + change, now)

    def _emit(self, kind: EventKind, text: str, *, member: str | None = None, call: Call | None = None) -> None:
        if self._on_event is not None:
            self._on_event(Event(kind, text, member, call))

    def _raise_if_stopped(self) -> None:
        if self._stopped is not None:
            raise self._stopped

    def _stop(self, reason: StopReason, message: str) -> NoReturn:
        self._stopped = self._stopped or RolloutStopped(reason, message)
        raise self._stopped

    def _cut(self, reply: str) -> str:
        """The reply, shortened to the information limit."""
        limit = self.limits.information_tokens
        roomy = reply[: limit * 32]  # so that a megabyte is never tokenised for the sake of 600 tokens
        encoded = self._need_generator().encode(roomy)
        if encoded.token_ids is None:
            kept = roomy[: limit * CHARS_PER_TOKEN]
        elif len(encoded.token_ids) <= limit:
            kept = roomy
        else:
            kept = self._need_generator().decode(encoded.token_ids[:limit]).rstrip("\ufffd")
        return kept if len(kept) == len(reply) else kept.rstrip() + " […]"
