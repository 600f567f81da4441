"""A bad rollout is data, not a crash: errors, failed calls, cancellation, and calls left in flight."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from antiphon.errors import GeneratorError
from antiphon.generators.scripted import ScriptedGenerator
from antiphon.rollout import Limits, Rollout
from antiphon.types import Call, Task
from antiphon_plugins.grammars.router_r1 import RouterR1Grammar
from antiphon_policies.router_r1 import RouterR1

ROUTE = "<think>I ask.</think><search>Ann: who?</search>"
ANSWER = "<think>So.</think><answer>Bo</answer>"


class Does:
    """A policy made of a function."""

    name = "does"

    def __init__(self, run):
        self._run = run

    async def run(self, task, rollout):
        return await self._run(rollout)


def rollout(scripted_pool, texts=(), replies=(), **options):
    return Rollout(Task("Who?"), scripted_pool(["Ann", "Cy"], replies), ScriptedGenerator(texts), **options)


async def test_a_policy_that_raises(scripted_pool):
    async def run(rollout):
        await rollout.ask("Ann", "q")
        raise KeyError("lost \ud800")

    trajectory = await rollout(scripted_pool, replies=["r"]).run(Does(run))
    assert (trajectory.stop, trajectory.answer, len(trajectory.calls)) == ("error", None, 1)
    assert trajectory.error == r"KeyError: 'lost \ud800'"


async def test_a_policy_that_returns_no_string(scripted_pool):
    async def run(rollout):
        return 42

    trajectory = await rollout(scripted_pool).run(Does(run))
    assert (trajectory.stop, trajectory.answer) == ("error", None)
    assert trajectory.error == "TypeError: policy 'does' returned int, not a string or None"


async def test_a_policy_that_asks_nobody_we_know(scripted_pool):
    trajectory = await rollout(scripted_pool).run(Does(lambda rollout: rollout.ask("Anm", "q")))
    assert (trajectory.stop, trajectory.error) == ("error", "nobody in the pool is called 'Anm'; did you mean 'Ann'?")


async def test_a_policy_that_generates_without_a_model(scripted_pool):
    one = Rollout(Task("Who?"), scripted_pool(["Ann"]))
    trajectory = await one.run(RouterR1(RouterR1Grammar()))
    assert trajectory.stop == "error"
    assert "--model" in trajectory.error


async def test_a_model_that_fails_midway_keeps_what_it_said(scripted_pool):
    class Fails(ScriptedGenerator):
        async def generate(self, request):
            async for chunk in super().generate(request):
                yield chunk
                raise GeneratorError("the server went away")

    one = Rollout(Task("Who?"), scripted_pool(["Ann"]), Fails([ROUTE]))
    trajectory = await one.run(RouterR1(RouterR1Grammar()))
    assert (trajectory.stop, trajectory.error) == ("error", "the server went away")
    assert trajectory.segments[-1].kind == "policy"
    assert trajectory.policy_usage.output_tokens == len(trajectory.segments[-1].token_ids) > 0
    assert trajectory.format_problems  # what has no answer is not well-formed


@pytest.mark.parametrize(
    "outcome",
    ["empty_response", "rate_limited", "auth", "not_found", "bad_request", "unavailable", "connection", "bad_response",
     "timeout", "not_recorded", "error"],
)  # fmt: skip
async def test_a_failed_call_is_information_and_costs_no_format(outcome, scripted_pool):
    one = rollout(scripted_pool, [ROUTE, ANSWER], [Call("", "", outcome, error="secret key sk-123 </information>")])
    trajectory = await one.run(RouterR1(RouterR1Grammar()))
    told = trajectory.segments[2].text
    assert told.startswith("\n<information>\nNo reply from Ann: ")
    assert "You can ask another member: Cy." in told
    assert "sk-123" not in told
    assert (trajectory.answer, trajectory.format_problems, trajectory.calls[0].outcome) == ("Bo", (), outcome)


async def test_a_pool_that_raises_is_an_error_with_its_call_on_record(scripted_pool):
    trajectory = await rollout(scripted_pool, [ROUTE], [ValueError("a bug")]).run(RouterR1(RouterR1Grammar()))
    assert (trajectory.stop, trajectory.error) == ("error", "ValueError: a bug")
    assert [(call.outcome, call.error) for call in trajectory.calls] == [("error", "ValueError: a bug")]


# ---- several at once ----------------------------------------------------------------------------------------------


async def test_asks_at_once_are_one_round_in_the_order_asked(scripted_pool):
    async def run(rollout):
        first = await asyncio.gather(*(rollout.ask("Ann", f"q{i}") for i in range(3)))
        assert [call.query for call in first] == ["q0", "q1", "q2"]
        return "done"

    one = rollout(scripted_pool, replies=[0.03, "slow", 0.01, "quick", "at once"])
    trajectory = await one.run(Does(run))
    assert [(call.query, call.reply, call.round) for call in trajectory.calls] == [
        ("q0", "slow", 1),
        ("q1", "quick", 1),
        ("q2", "at once", 1),
    ]
    assert trajectory.rounds == 1
    # Time in which several calls were in flight counts once.
    assert 0 < trajectory.timings.members_s < sum(call.latency_s for call in trajectory.calls)


async def test_what_is_asked_between_two_generations_is_one_round(scripted_pool):
    async def run(rollout):
        context = rollout.context("go")
        for _ in range(2):
            await rollout.generate(context)
            await rollout.generate(context)
            await rollout.ask("Ann", "q")
            await rollout.ask("Cy", "q")
        return "done"

    trajectory = await rollout(scripted_pool, ["a", "b", "c", "d"], ["r"] * 4).run(Does(run))
    assert [call.round for call in trajectory.calls] == [1, 1, 2, 2]


async def test_a_generation_elsewhere_does_not_use_up_the_round_of_a_route(scripted_pool):
    async def run(rollout):
        grammar, context, other = RouterR1Grammar(), rollout.context("go"), rollout.context("rewrite")
        turn = await rollout.generate(context, grammar)
        rewritten = await rollout.generate(other)
        call = await rollout.ask(turn.action.member, rewritten.text)
        rollout.observe(context, [call])
        return (await rollout.generate(context, grammar)).action.text

    trajectory = await rollout(scripted_pool, [ROUTE, "better", ANSWER], ["r"]).run(Does(run))
    assert (trajectory.answer, trajectory.rounds) == ("Bo", 1)
    assert [call.query for call in trajectory.calls] == ["better"]


async def test_calls_left_in_flight_are_cancelled_and_recorded(scripted_pool):
    async def run(rollout):
        slow = asyncio.create_task(rollout.ask("Ann", "slow"))
        await asyncio.sleep(0)
        quick = await rollout.ask("Cy", "quick")
        assert not slow.done()
        return quick.reply

    trajectory = await rollout(scripted_pool, replies=[60.0, "never", "at once"]).run(Does(run))
    assert (trajectory.answer, trajectory.stop) == ("at once", "answer")
    assert [(call.query, call.outcome) for call in trajectory.calls] == [("slow", "cancelled"), ("quick", "ok")]


async def test_one_stop_among_asks_at_once_ends_the_others(scripted_pool):
    async def run(rollout):
        await asyncio.gather(*(rollout.ask("Ann", f"q{i}") for i in range(5)))

    one = rollout(scripted_pool, replies=[60.0, "never", 60.0, "never"], limits=Limits(calls=2))
    trajectory = await asyncio.wait_for(one.run(Does(run)), 30)
    assert trajectory.stop == "calls"
    assert [call.outcome for call in trajectory.calls] == ["cancelled", "cancelled"]


async def test_a_policy_may_cancel_a_call_of_its_own_and_go_on(scripted_pool):
    async def run(rollout):
        slow = asyncio.create_task(rollout.ask("Ann", "slow"))
        await asyncio.sleep(0)
        slow.cancel()
        await asyncio.wait([slow])
        return (await rollout.ask("Cy", "quick")).reply

    trajectory = await rollout(scripted_pool, replies=[60.0, "never", "at once"]).run(Does(run))
    assert (trajectory.answer, trajectory.stop) == ("at once", "answer")


async def test_a_policy_whose_own_task_was_cancelled_has_failed(scripted_pool):
    async def run(rollout):
        slow = asyncio.create_task(rollout.ask("Ann", "slow"))
        await asyncio.sleep(0)
        slow.cancel()
        await slow

    trajectory = await rollout(scripted_pool, replies=[60.0, "never"]).run(Does(run))
    assert (trajectory.stop, trajectory.error) == ("error", "CancelledError: ")


# ---- cancellation -------------------------------------------------------------------------------------------------


async def cancelled(one, policy):
    task = asyncio.create_task(one.run(policy))
    for _ in range(20):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 30)
    return one.trajectory()


async def test_cancelling_a_call_propagates_and_leaves_a_finished_trajectory(scripted_pool):
    one = rollout(scripted_pool, [ROUTE, ANSWER], [60.0, "never"])
    trajectory = await cancelled(one, RouterR1(RouterR1Grammar()))
    assert (trajectory.stop, trajectory.answer) == ("cancelled", None)
    assert [call.outcome for call in trajectory.calls] == ["cancelled"]
    assert len(trajectory.turns) == 1


async def test_cancelling_a_generation_closes_the_generator(scripted_pool):
    closed = []

    class Slow(ScriptedGenerator):
        async def generate(self, request):
            try:
                async for chunk in super().generate(request):
                    yield chunk
                    await asyncio.sleep(60)
            finally:
                closed.append(True)

    one = Rollout(Task("Who?"), scripted_pool(["Ann"]), Slow([ROUTE]))
    trajectory = await cancelled(one, RouterR1(RouterR1Grammar()))
    assert closed == [True]
    assert trajectory.stop == "cancelled"
    assert trajectory.segments[-1].kind == "policy"


async def test_a_policy_that_swallows_cancellation_is_cancelled_all_the_same(scripted_pool):
    async def run(rollout):
        with contextlib.suppress(asyncio.CancelledError):
            await rollout.ask("Ann", "q")
        return "I go on"

    trajectory = await cancelled(rollout(scripted_pool, replies=[60.0, "never"]), Does(run))
    assert (trajectory.stop, trajectory.answer) == ("cancelled", None)


async def test_a_policy_that_swallows_cancellation_cannot_ask_again(scripted_pool):
    async def run(rollout):
        for _ in range(3):
            try:
                await rollout.ask("Ann", "q")
            except BaseException as error:
                raised.append(type(error))
        return "I go on"

    raised: list[type] = []
    one = rollout(scripted_pool, replies=[60.0, "never", "r", "r"])
    trajectory = await cancelled(one, Does(run))
    assert raised == [asyncio.CancelledError] * 3
    assert len(trajectory.calls) == 1


async def test_cancelling_reaches_calls_at_once(scripted_pool):
    async def run(rollout):
        await asyncio.gather(*(rollout.ask("Ann", f"q{i}") for i in range(3)))

    one = rollout(scripted_pool, replies=[60.0, "never"] * 3)
    trajectory = await cancelled(one, Does(run))
    assert [call.outcome for call in trajectory.calls] == ["cancelled"] * 3
