"""The one loop: a policy decides, a rollout acts for it, enforces the limits and records every segment and call."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from antiphon.contracts import AsksMembers, CallContext, Generator, MemberView, Policy, TagGrammar
from antiphon.errors import AntiphonError, BudgetExceeded, ConfigError, GeneratorError, RolloutStopped
from antiphon.generation import Context, Generation, check_generator, cut
from antiphon.limits import Limits as Limits
from antiphon.money import Budget
from antiphon.names import named
from antiphon.recording import Recording
from antiphon.redact import redact
from antiphon.types import Call, Event, Invalid, Message, Route, Segment, clean

if TYPE_CHECKING:
    from antiphon.descriptor import Price
    from antiphon.types import EventKind, StopReason, Task, Trajectory, Turn

GRACE_S = 1.0
"""Seconds that a policy has after the deadline to come to its end."""

REFUSALS = 100
"""How often a policy may ask for more after its rollout has stopped, before it is ended."""


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
        self.sample = sample
        self.limits = limits or Limits()
        self.budget = Budget(self.limits.max_cost_usd, budget)
        self.random = random.Random(f"{seed}/{task.id}/{sample}")
        self._record = Recording(self.id, task, sample, dict(versions or {}), pool)
        self._pool = pool
        self._generator = generator
        self._price = policy_price
        self._sampling = dict(sampling or {})
        self._on_event = on_event
        deadline = self.limits.deadline_s
        self._deadline = None if deadline is None else self._record.started + deadline
        self._rounds = 0
        self._round: Literal["closed", "open", "asked"] = "closed"
        self._in_flight: set[asyncio.Task[Any]] = set()
        self._stopped: RolloutStopped | None = None
        self._refused = 0
        self._over = False
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

    def note(self, text: str) -> None:
        """Record something about a choice of the policy's own: a fallback taken, what it went by."""
        self._record.notes.append(clean(text))

    def context(self, prompt: Sequence[Message] | str, *, trainable: bool = False) -> Context:
        """Open a token stream with a prompt; the assistant's turn is open after it."""
        generator = self._need_generator()
        given = [Message("user", prompt)] if isinstance(prompt, str) else prompt
        messages = [Message(m.role, clean(m.content)) for m in given]
        opened = generator.open(messages)
        index = len(self._record.contexts)
        context = Context(
            index=index,
            trainable=trainable,
            request_id=f"{self.id}-{index}",
            messages=messages,
            token_ids=None if opened.token_ids is None else list(opened.token_ids),
        )
        self._record.contexts.append(context)
        self._record.segments.append(Segment("prompt", opened.text, index, opened.token_ids))
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
        rollout, as does another route after the last round: the turn is returned, and every later `generate`, `ask` or
        `observe` raises.

        Raises:
            RolloutStopped: a limit is reached.
            GeneratorError: the model failed.
        """
        self._go_on()
        generation = self._generation(context, grammar, max_tokens, {**self._sampling, **(sampling or {})})
        if self._round == "asked":
            self._round = "closed"
        started, limit = time.monotonic(), asyncio.timeout_at(self._deadline)
        try:
            with self._flying():
                async with limit:
                    await generation.run()
        except BudgetExceeded as error:
            self._stop("budget", f"another generation {error}")
        except TimeoutError:
            if not limit.expired():
                raise  # the model's own time-out, not our deadline
            self._stop("deadline", self._deadline_passed())
        finally:
            self._record.generated(generation)
        turn = replace(generation.turn(), started_s=started - self._record.started)
        turn = self._count(replace(turn, latency_s=time.monotonic() - started))
        context.turns.append(turn)
        self._record.turns.append(turn)
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
        self._go_on()
        name = named(member, self._pool.resolve, self._pool.members)
        if self._round == "closed":
            self._open_round()
        if self._rounds > self.limits.rounds:
            self._stop("rounds", f"all {self.limits.rounds} rounds are used up")
        if len(self._record.calls) >= self.limits.calls:
            self._stop("calls", f"all {self.limits.calls} calls are used up")
        self._round = "asked"
        query = clean(query)
        to_send = [Message(m.role, clean(m.content)) for m in messages] if messages else [Message("user", query)]
        task, started, round_ = self.task, time.monotonic(), self._rounds
        where = CallContext(task.id, task.question, task.dataset, self.id, round_, self.sample, self._deadline)
        index = self._record.call_started()
        self._emit("route_started", query, member=name)
        call = Call(name, query, "cancelled", error="cancelled")
        try:
            with self._flying():
                call = await self._pool.ask(
                    name, to_send, context=where, budget=self.budget, max_tokens=self.limits.member_tokens
                )
        except asyncio.CancelledError as error:
            call = getattr(error, "call", call)
            raise
        except Exception as error:
            call = Call(name, query, "error", error=f"{type(error).__name__}: {error}")
            raise
        finally:
            call = self._record.call_finished(index, replace(call, query=query, round=round_), started)
            self._emit("route_finished", call.reply or call.error or "", member=name, call=call)
        if call.outcome == "over_budget":
            self._stop("budget", call.error or "the next call could cost more than is left")
        return call

    def observe(self, context: Context, items: Iterable[Call | Invalid]) -> None:
        """Append information to a context, in the order given, as its grammar renders it.

        Raises:
            RolloutStopped: the rollout has stopped.
        """
        if context.grammar is None:
            raise ConfigError("observe needs a context that was generated with a grammar; generate with one first")
        self._go_on()
        generator = self._need_generator()
        names = [view.name for view in self._pool.members]
        limit = self.limits.information_tokens
        text = clean(context.grammar.information(list(items), names, lambda reply: cut(generator, reply, limit)))
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
        self._record.segments.append(Segment("information", added.text, context.index, added.token_ids))

    # ---- what the kernel uses -------------------------------------------------------------------------------------

    async def run(self, policy: Policy) -> Trajectory:
        """Run a policy to its end; always a finished trajectory. Only cancellation propagates (see `trajectory`).

        Calls and generations that are still in flight when the policy is done are cancelled, and recorded as such.
        """
        self._record.versions.setdefault("policy", policy.name)
        answer: str | None = None
        limit = asyncio.timeout_at(None if self._deadline is None else self._deadline + GRACE_S)
        try:
            async with limit:
                answer = await policy.run(self.task, self)
            if answer is not None and not isinstance(answer, str):
                raise TypeError(f"policy {policy.name!r} returned {type(answer).__name__}, not a string or None")
        except (RolloutStopped, _RunsOn) as stopped:
            if isinstance(stopped, RolloutStopped):
                self._stopped = self._stopped or stopped
        except (Exception, asyncio.CancelledError) as error:
            answer = None
            if _cancelled():
                self._stopped = RolloutStopped("cancelled", "cancelled")
                raise
            if not limit.expired():
                self._failed(str(error) if isinstance(error, AntiphonError) else f"{type(error).__name__}: {error}")
        finally:
            self._over = True
            await self._land()
        if limit.expired():
            self._stopped = self._stopped or RolloutStopped("deadline", self._deadline_passed())
        if _cancelled():  # the policy swallowed it
            self._stopped = RolloutStopped("cancelled", "cancelled")
            raise asyncio.CancelledError
        if answer is not None:
            self._emit("answer", answer)
        return self.trajectory(answer)

    def trajectory(self, answer: str | None = None) -> Trajectory:
        """What has been recorded so far, as a finished trajectory."""
        reason = self._stopped.reason if self._stopped else "answer" if answer is not None else "no_action"
        told = str(self._stopped) if self._stopped and reason not in ("no_action", "length") else None
        return self._record.trajectory(answer, reason, self._error or told, min(self._rounds, self.limits.rounds))

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
                left = min(left, limits.policy_tokens - self._record.policy_usage.output_tokens - used)
            if limits.context_tokens is not None:
                left = min(left, limits.context_tokens - context.tokens)
            return left

        if room(0) <= 0:
            self._stop(
                "tokens",
                f"no tokens are left for another generation: the policy has used "
                f"{self._record.policy_usage.output_tokens} (limit {limits.policy_tokens}), "
                f"its context {context.tokens} (limit {limits.context_tokens})",
            )
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

    def _count(self, turn: Turn) -> Turn:
        """Count the round that a turn opens or uses up."""
        if not isinstance(turn.action, Route | Invalid):
            return turn
        self._open_round()
        if isinstance(turn.action, Invalid):
            self._round = "closed"
        if self._rounds <= self.limits.rounds:
            return turn
        self._stopped = RolloutStopped("rounds", f"all {self.limits.rounds} rounds are used up")
        return replace(turn, executed=False) if isinstance(turn.action, Route) else turn

    def _open_round(self) -> None:
        self._round = "open"
        self._rounds += 1

    def _emit(self, kind: EventKind, text: str, *, member: str | None = None, call: Call | None = None) -> None:
        if self._on_event is not None:
            self._on_event(Event(kind, text, member, call))

    def _go_on(self) -> None:
        """Refuse whatever comes after a stop."""
        if _cancelled():
            raise asyncio.CancelledError
        if self._stopped is not None:
            self._refused += 1
            if self._refused > REFUSALS:
                raise _RunsOn
            raise self._stopped
        if self._over:
            raise RolloutStopped("cancelled", "the rollout is over: its policy has returned")
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._stop("deadline", self._deadline_passed())

    def _stop(self, reason: StopReason, message: str) -> NoReturn:
        self._stopped = self._stopped or RolloutStopped(reason, message)
        raise self._stopped

    def _failed(self, message: str) -> None:
        message = redact(message)  # a policy or a model may have put anything into it
        self._error = message
        self._stopped = RolloutStopped("error", message)
        self._emit("error", message)

    def _deadline_passed(self) -> str:
        return f"the deadline of {self.limits.deadline_s:g} s has passed"

    @contextmanager
    def _flying(self) -> Iterator[None]:
        """Know the tasks in which a call or a generation is under way."""
        task = asyncio.current_task()
        assert task is not None  # a coroutine runs in a task
        self._in_flight.add(task)
        try:
            yield
        finally:
            self._in_flight.discard(task)

    async def _land(self) -> None:
        """Cancel what the policy left in flight, and wait for its end."""
        left = self._in_flight - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


class _RunsOn(BaseException):
    """Ends a policy that goes on after it has been refused many times; no `except Exception` holds it."""


def _cancelled() -> bool:
    """The task we run in is being cancelled from outside (and not by something it cancelled itself)."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
