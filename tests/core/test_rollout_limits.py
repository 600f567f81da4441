"""Limits stick: once a rollout has stopped, no policy can run on, and what it did is a finished trajectory."""

from __future__ import annotations

import asyncio
import contextlib
import time
from types import SimpleNamespace

import pytest

from antiphon.descriptor import Price
from antiphon.errors import RolloutStopped
from antiphon.generators.scripted import ScriptedGenerator
from antiphon.money import Budget
from antiphon.rollout import Limits, Rollout
from antiphon.types import Call, Invalid, Route, Task, Trajectory
from antiphon_plugins.grammars.router_r1 import RouterR1Grammar
from antiphon_policies.router_r1 import RouterR1

ROUTE = "<think>I ask.</think><search>Ann: who?</search>"
INVALID = "<think>I ask.</think><search>Cy: who?</search>"
ANSWER = "<think>So.</think><answer>Bo</answer>"
ROUTER = RouterR1(RouterR1Grammar())


class Stubborn:
    """Routes for ever, and takes no stop for an answer."""

    name = "stubborn"

    def __init__(self) -> None:
        self.refusals = 0

    async def run(self, task, rollout):
        grammar = RouterR1Grammar()
        context = rollout.context("go")
        while True:
            try:
                turn = await rollout.generate(context, grammar)
                if isinstance(turn.action, Route):
                    rollout.observe(context, [await rollout.ask("Ann", "q")])
            except Exception:
                self.refusals += 1


def rollout(scripted_pool, texts, replies=(), **options):
    pool = scripted_pool(["Ann"], replies)
    return Rollout(Task("Who?"), pool, ScriptedGenerator(texts), **options), pool


async def refused(rollout, reason):
    """Every way to go on raises the same stop."""
    context = rollout._record.contexts[0]
    context.grammar = context.grammar or RouterR1Grammar()
    for _ in range(2):
        for attempt in (lambda: rollout.generate(context, RouterR1Grammar()), lambda: rollout.ask("Ann", "q")):
            with pytest.raises(RolloutStopped) as stopped:
                await attempt()
            assert stopped.value.reason == reason
        with pytest.raises(RolloutStopped):
            rollout.observe(context, [])


async def test_rounds(scripted_pool):
    one, pool = rollout(scripted_pool, [ROUTE] * 9, ["r"] * 9, limits=Limits(rounds=2))
    trajectory = await one.run(ROUTER)
    assert (trajectory.stop, trajectory.answer, trajectory.rounds) == ("rounds", None, 2)
    assert len(pool.asked) == len(trajectory.calls) == 2
    assert [turn.executed for turn in trajectory.turns] == [True, True, False]
    assert [call.round for call in trajectory.calls] == [1, 2]
    assert trajectory.segments[-1].kind == "policy"
    await refused(one, "rounds")


async def test_no_rounds_at_all(scripted_pool):
    one, pool = rollout(scripted_pool, [ROUTE], limits=Limits(rounds=0))
    trajectory = await one.run(ROUTER)
    assert (trajectory.stop, trajectory.turns[0].executed, pool.asked) == ("rounds", False, [])


async def test_the_last_generation_may_answer(scripted_pool):
    one, _ = rollout(scripted_pool, [ROUTE, ROUTE, ANSWER], ["r", "r"], limits=Limits(rounds=2))
    trajectory = await one.run(ROUTER)
    assert (trajectory.stop, trajectory.answer, trajectory.rounds, trajectory.error) == ("answer", "Bo", 2, None)


async def test_an_invalid_action_uses_up_a_round_and_makes_no_call(scripted_pool):
    one, pool = rollout(scripted_pool, [INVALID, ROUTE, INVALID, ANSWER], ["r"], limits=Limits(rounds=2))
    trajectory = await one.run(ROUTER)
    assert trajectory.stop == "rounds"
    assert [type(turn.action) for turn in trajectory.turns] == [Invalid, Route, Invalid]
    assert len(pool.asked) == 1
    assert trajectory.cost_usd == trajectory.calls[0].cost_usd
    assert "nobody in the pool is called 'Cy'" in trajectory.segments[2].text
    assert "Ann" in trajectory.segments[2].text


async def test_calls(scripted_pool):
    one, pool = rollout(scripted_pool, [ROUTE] * 9, ["r"] * 9, limits=Limits(rounds=9, calls=3))
    trajectory = await one.run(ROUTER)
    assert (trajectory.stop, len(pool.asked), len(trajectory.calls)) == ("calls", 3, 3)
    assert "3 calls" in trajectory.error
    await refused(one, "calls")


async def test_turn_tokens(scripted_pool):
    one, _ = rollout(scripted_pool, ["<think>" + "on and on " * 99], limits=Limits(turn_tokens=20))
    trajectory = await one.run(ROUTER)
    assert (trajectory.stop, trajectory.turns[0].finish) == ("length", "length")
    assert trajectory.policy_usage.output_tokens == 20
    assert "unclosed" in trajectory.format_problems
    await refused(one, "length")


async def test_turn_tokens_hold_over_resumed_pieces(scripted_pool):
    piece = "<think>hm </search>" + "x" * 5
    one, _ = rollout(scripted_pool, [piece] * 99, limits=Limits(turn_tokens=100))
    trajectory = await one.run(ROUTER)
    assert trajectory.stop == "length"
    assert trajectory.policy_usage.output_tokens <= 100
    assert len(trajectory.turns) == 1


async def test_policy_tokens(scripted_pool):
    one, _ = rollout(scripted_pool, [ROUTE] * 9, ["r"] * 9, limits=Limits(rounds=9, policy_tokens=40))
    trajectory = await one.run(ROUTER)
    assert trajectory.stop in ("tokens", "length")
    assert trajectory.policy_usage.output_tokens <= 40
    assert one._generator.requests[-1].max_tokens < 40
    await refused(one, trajectory.stop)


async def test_context_tokens_count_prompt_and_information(scripted_pool):
    prompt = 1000
    one, _ = rollout(scripted_pool, [ROUTE] * 9, ["word " * 500] * 9, limits=Limits(rounds=9, context_tokens=1700))
    trajectory = await one.run(RouterR1(RouterR1Grammar()))
    assert trajectory.stop in ("tokens", "length")
    length = sum(len(segment.token_ids) for segment in trajectory.segments)
    last = trajectory.segments[-1]
    assert length - (len(last.token_ids) if last.kind == "information" else 0) <= 1700
    assert length > prompt


async def test_a_prompt_that_fills_the_context_stops_at_once(scripted_pool):
    one, _ = rollout(scripted_pool, [ANSWER], limits=Limits(context_tokens=10))
    trajectory = await one.run(ROUTER)
    assert (trajectory.stop, trajectory.turns) == ("tokens", ())
    assert "limit 10" in trajectory.error
    await refused(one, "tokens")


def a_minute_passes(monkeypatch):
    """Every clock that the rollout reads is a minute later from now on."""
    monkeypatch.setattr("antiphon.rollout.time", SimpleNamespace(monotonic=lambda: time.monotonic() + 60))
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: time.monotonic() + 60)


async def test_deadline_before_a_generation(scripted_pool, monkeypatch):
    one, pool = rollout(scripted_pool, [ROUTE, ANSWER], ["r"], limits=Limits(deadline_s=60))
    ask = pool.ask

    async def slow(*args, **rest):
        call = await ask(*args, **rest)
        a_minute_passes(monkeypatch)
        return call

    monkeypatch.setattr(pool, "ask", slow)
    trajectory = await one.run(ROUTER)
    assert (trajectory.stop, len(trajectory.calls)) == ("deadline", 1)
    assert trajectory.calls[0].ok
    await refused(one, "deadline")


async def test_deadline_inside_a_generation_keeps_what_was_said(scripted_pool, monkeypatch):
    class Slow(ScriptedGenerator):
        async def generate(self, request):
            async for chunk in super().generate(request):
                yield chunk
                a_minute_passes(monkeypatch)
                await asyncio.sleep(600)

    generator = Slow(["<think>" + "on and on " * 999])
    one = Rollout(Task("Who?"), scripted_pool(["Ann"]), generator, limits=Limits(deadline_s=60))
    trajectory = await one.run(ROUTER)
    assert trajectory.stop == "deadline"
    assert trajectory.segments[-1].kind == "policy"
    assert trajectory.policy_usage.output_tokens == len(trajectory.segments[-1].token_ids)
    assert "no_answer" in trajectory.format_problems


async def test_deadline_of_a_policy_that_hangs(scripted_pool, monkeypatch):
    class Hangs:
        name = "hangs"

        async def run(self, task, rollout):
            await asyncio.Event().wait()

    monkeypatch.setattr("antiphon.rollout.GRACE_S", 0.0)
    one, _ = rollout(scripted_pool, [], limits=Limits(deadline_s=0.05))
    trajectory = await asyncio.wait_for(one.run(Hangs()), 30)
    assert (trajectory.stop, trajectory.answer) == ("deadline", None)


async def test_a_policy_that_swallows_the_deadline_has_passed_it_all_the_same(scripted_pool, monkeypatch):
    class Swallows:
        name = "swallows"

        async def run(self, task, rollout):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return "late"

    monkeypatch.setattr("antiphon.rollout.GRACE_S", 0.0)
    one, _ = rollout(scripted_pool, [], limits=Limits(deadline_s=0.05))
    trajectory = await asyncio.wait_for(one.run(Swallows()), 30)
    assert (trajectory.stop, trajectory.answer) == ("deadline", "late")


async def test_nothing_goes_on_after_the_policy_has_returned(scripted_pool):
    class Leaves:
        name = "leaves"

        async def run(self, task, rollout):
            rollout.context("x")
            return "done"

    one, pool = rollout(scripted_pool, [ANSWER], ["r"])
    assert (await one.run(Leaves())).answer == "done"
    await refused(one, "cancelled")
    assert pool.asked == []


async def test_a_timeout_of_the_generator_is_an_error_not_the_deadline(scripted_pool):
    class TimesOut(ScriptedGenerator):
        async def generate(self, request):
            raise TimeoutError("the server did not answer")
            yield

    one = Rollout(Task("Who?"), scripted_pool(["Ann"]), TimesOut(), limits=Limits(deadline_s=60))
    trajectory = await one.run(ROUTER)
    assert (trajectory.stop, trajectory.error) == ("error", "TimeoutError: the server did not answer")


async def test_budget_of_the_policys_own_tokens(scripted_pool):
    price = Price(input=0.0, output=1000.0)  # 0.001 USD a token
    limits = Limits(turn_tokens=50, max_cost_usd=0.06)
    one, _ = rollout(scripted_pool, [ROUTE, ROUTE], ["r"], limits=limits, policy_price=price)
    trajectory = await one.run(ROUTER)
    assert trajectory.stop == "budget"
    assert len(trajectory.turns) == 1  # the second could have cost more than was left, so it was not begun
    assert trajectory.policy_cost_usd == pytest.approx(0.001 * trajectory.policy_usage.output_tokens)
    assert one.budget.reserved_usd == 0
    await refused(one, "budget")


async def test_budget_refused_by_the_pool(scripted_pool):
    refusal = Call("", "", "over_budget", error="needs up to $1, $0.5 is left")
    one, _ = rollout(scripted_pool, [ROUTE, ANSWER], [refusal])
    trajectory = await one.run(ROUTER)
    assert (trajectory.stop, trajectory.error) == ("budget", "needs up to $1, $0.5 is left")
    assert [call.outcome for call in trajectory.calls] == ["over_budget"]
    await refused(one, "budget")


async def test_a_wider_budget_holds_too(scripted_pool):
    wider = Budget(0.0)
    price = Price(input=0.0, output=1000.0)
    one, _ = rollout(scripted_pool, [ANSWER], budget=wider, policy_price=price)
    assert (await one.run(ROUTER)).stop == "budget"


@pytest.mark.parametrize("texts", [[ROUTE] * 9, [ANSWER, "no"], ["no action"]])
async def test_a_policy_that_catches_every_stop_is_ended(texts, scripted_pool):
    one, pool = rollout(scripted_pool, texts, ["r"] * 9, limits=Limits(rounds=1))
    policy = Stubborn()
    trajectory = await asyncio.wait_for(one.run(policy), 30)
    assert trajectory.stop in ("rounds", "no_action")
    assert trajectory.answer is None
    assert len(pool.asked) <= 1
    assert policy.refusals == 100
    assert Trajectory.from_json(trajectory.to_json()) == trajectory


async def test_a_policy_may_still_answer_after_a_stop(scripted_pool):
    class Settles:
        name = "settles"

        async def run(self, task, rollout):
            try:
                while True:
                    await rollout.ask("Ann", "q")
            except RolloutStopped:
                return "what I have"

    one, _ = rollout(scripted_pool, [], ["r"] * 9, limits=Limits(calls=2))
    trajectory = await one.run(Settles())
    assert (trajectory.answer, trajectory.stop) == ("what I have", "calls")


@pytest.mark.parametrize(("text", "stop"), [("<think>a</think>", "no_action"), ("", "no_action")])
async def test_a_turn_without_an_action_ends_the_rollout(text, stop, scripted_pool):
    one, _ = rollout(scripted_pool, [text, ANSWER])
    trajectory = await one.run(ROUTER)
    assert (trajectory.stop, trajectory.answer, trajectory.error) == (stop, None, None)
    await refused(one, stop)


async def test_a_backend_that_stops_at_once_is_not_asked_for_ever(scripted_pool):
    class Stops(ScriptedGenerator):
        async def generate(self, request):
            async for chunk in super().generate(request):
                yield type(chunk)(chunk.text, chunk.token_ids, chunk.logprobs, "stop")

    generator = Stops(["<think>a"])
    trajectory = await Rollout(Task("Who?"), scripted_pool(["Ann"]), generator).run(ROUTER)
    assert trajectory.stop == "no_action"
    assert len(generator.requests) == 2
