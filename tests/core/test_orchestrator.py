"""The embedding face: every way in, from any thread and loop; cancellation, money, set-up faults, and its end."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from antiphon import (
    AntiphonError,
    ConfigError,
    Event,
    Limits,
    Message,
    Orchestrator,
    Price,
    Registry,
    Task,
    Trajectory,
    Usage,
    hookimpl,
    load_config,
)
from antiphon._stream import MERGED_CHARS, WAITING_EVENTS, buffer
from antiphon.contracts import Capabilities
from antiphon.testing import ScriptedAdapter, ScriptedGenerator

PRICE = {"input": 1, "output": 2}


class AsksFirst:
    """The shortest policy: the first member's reply is the answer."""

    name = "asks_first"

    async def run(self, task: Task, rollout: Any) -> str | None:
        call = await rollout.ask(rollout.pool[0].name, task.question)
        return call.reply


class Talks:
    """Generates once, without a grammar."""

    name = "talks"

    async def run(self, task: Task, rollout: Any) -> str | None:
        context = rollout.context([Message("user", task.question)])
        return (await rollout.generate(context)).text


class Plugin:
    """Adapters, generators and an observer of this test alone."""

    def __init__(self, *steps: Any, **options: Any) -> None:
        self.adapter = ScriptedAdapter(
            list(steps) or [lambda request, _: f"re: {request.messages[-1].content}"], **options
        )
        self.seen: list[Trajectory] = []
        self.made: list[str] = []

    @hookimpl
    def antiphon_adapters(self) -> dict[str, Any]:
        return {"mine": lambda *, endpoint, descriptor: self.adapter}

    @hookimpl
    def antiphon_generators(self) -> dict[str, Any]:
        return {"mine": self.generator, "broken": self.broken}

    @hookimpl
    def antiphon_on_trajectory(self, trajectory: Trajectory) -> None:
        self.seen.append(trajectory)

    def generator(self, says: str = "well") -> ScriptedGenerator:
        self.made.append(says)
        return ScriptedGenerator(lambda _: says)

    def broken(self) -> ScriptedGenerator:
        raise ConfigError("the model is not there; fetch it")


def member(name: str = "A", **fields: Any) -> dict[str, Any]:
    return {"name": name, "description": "x", "adapter": "mine", "model": "m", "price": PRICE, **fields}


Make = Callable[..., Orchestrator]


@pytest.fixture(autouse=True)
def _nobodys_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("ANTIPHON_CONFIG", "ANTIPHON_POOL", "ANTIPHON_POLICY", "ANTIPHON_MODEL", "ANTIPHON_PLUGINS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def make() -> Iterator[Make]:
    made = []

    def orchestrator(plugin: Plugin | None = None, **options: Any) -> Orchestrator:
        registry = Registry.load(only=[], local={"mine": plugin or Plugin()})
        defaults: dict[str, Any] = {"pool": [member()], "policy": AsksFirst(), "registry": registry}
        made.append(Orchestrator(**{**defaults, **options}))
        return made[-1]

    yield orchestrator
    for each in made:
        each.close()


def in_python(code: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Run a script that has its own main thread, signals and exit."""
    prelude = """
import asyncio, os, signal, threading, time
from antiphon import Orchestrator, Registry, hookimpl
from antiphon.testing import ScriptedAdapter
class Waits:
    name = "waits"
    def __init__(self): self.started = threading.Event()
    async def run(self, task, rollout):
        self.started.set()
        await rollout.ask("A", task.question)
class Plugin:
    @hookimpl
    def antiphon_adapters(self):
        return {"mine": lambda *, endpoint, descriptor: adapter}
def interrupt(in_flight):
    while adapter.in_flight < in_flight: time.sleep(0.01)
    time.sleep(0.2)  # the main thread waits by now
    os.kill(os.getpid(), signal.SIGINT)
adapter = ScriptedAdapter(["late"], latencies_s=[6000])
pool = [{"name": "A", "description": "x", "adapter": "mine", "model": "m", "price": {"input": 1, "output": 2}}]
policy = Waits()
orchestrator = Orchestrator(pool=pool, policy=policy, registry=Registry.load(only=[], local={"mine": Plugin()}))
"""
    return subprocess.run(
        [sys.executable, "-c", prelude + code], capture_output=True, text=True, timeout=timeout, check=False
    )


# ---- every way in -------------------------------------------------------------------------------------------------


def test_ask_gives_the_answer_its_cost_and_the_versions_of_what_made_it(make: Make) -> None:
    trajectory = make().ask("What?")
    assert trajectory.answer == "re: What?"
    assert trajectory.stop == "answer"
    assert [call.member for call in trajectory.calls] == ["A"]
    assert trajectory.cost_usd > 0
    assert set(trajectory.versions) == {"antiphon", "policy", "pool"}


async def test_it_can_be_awaited_on_the_callers_loop_and_blocks_only_when_asked_to(make: Make) -> None:
    orchestrator = make()
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    awaited = await orchestrator.aask("one")
    assert ticks > 0
    blocking = orchestrator.ask("two")  # inside a running loop
    ticking.cancel()
    assert (awaited.answer, blocking.answer) == ("re: one", "re: two")


def test_many_threads_share_one_orchestrator(make: Make) -> None:
    orchestrator = make()
    answers: dict[int, str | None] = {}

    def ask(number: int) -> None:
        answers[number] = orchestrator.ask(f"q{number}").answer

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert answers == {n: f"re: q{n}" for n in range(16)}


def test_a_stream_yields_events_in_order_and_the_trajectory_last(make: Make) -> None:
    stream = make().stream("What?")
    events = list(stream)
    assert [event.kind for event in events] == ["route_started", "route_finished", "answer", "done"]
    assert events[-1].trajectory == stream.trajectory
    assert events[2].text == "re: What?"


async def test_thinking_comes_while_the_rollout_runs_and_the_answer_when_it_is_whole(make: Make) -> None:
    generator = ScriptedGenerator(["some thought"], chunk_tokens=1, delay_s=0.001)
    kinds = [event.kind async for event in make(policy=Talks(), model=generator).astream("q")]
    assert kinds.count("thinking") > 1
    assert kinds[-2:] == ["answer", "done"]
    assert kinds.count("answer") == 1


def test_a_batch_keeps_the_order_of_its_tasks_and_the_limit_on_concurrency(make: Make) -> None:
    async def together(_: float) -> None:
        while plugin.adapter.most_in_flight < 3:  # noqa: ASYNC110 - nothing in there tells of it
            await asyncio.sleep(0)

    plugin = Plugin(latencies_s=[1.0], sleep=together)
    seen: list[tuple[str, int]] = []
    trajectories = make(plugin).batch(
        [f"q{n}" for n in range(9)], concurrency=3, on_result=lambda t: seen.append((t.task.id, threading.get_ident()))
    )
    assert [t.answer for t in trajectories] == [f"re: q{n}" for n in range(9)]
    assert plugin.adapter.most_in_flight == 3
    assert sorted(seen) == sorted((f"task-{n}", threading.get_ident()) for n in range(9))


async def test_a_batch_can_be_awaited(make: Make) -> None:
    done: list[str] = []
    trajectories = await make().abatch(["a", Task("b", id="mine")], on_result=lambda t: done.append(t.task.id))
    assert [t.answer for t in trajectories] == ["re: a", "re: b"]
    assert sorted(done) == ["mine", "task-0"]


def test_a_batch_of_nothing_is_nothing(make: Make) -> None:
    assert make().batch([]) == []


def test_a_batch_without_a_question_is_refused_before_anybody_is_asked(make: Make) -> None:
    plugin = Plugin()
    with pytest.raises(ConfigError, match="question 1 of the batch"):
        make(plugin).batch(["a", "  "])
    with pytest.raises(ConfigError, match="one string"):
        make(plugin).batch("a question")
    with pytest.raises(ConfigError, match="concurrency"):
        make(plugin).batch(["a"], concurrency=0)
    assert plugin.adapter.calls == []


# ---- leaving early ------------------------------------------------------------------------------------------------


def wait_until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    """Give the other thread its time; fails by the assertion that follows."""
    waiter = threading.Event()
    for _ in range(int(seconds / 0.01)):
        if condition():
            return
        waiter.wait(0.01)


def test_closing_a_stream_cancels_its_rollout_and_keeps_how_far_it_came(make: Make) -> None:
    plugin = Plugin("late", latencies_s=[600])
    with make(plugin).stream("q") as stream:
        assert next(stream).kind == "route_started"
        wait_until(lambda: plugin.adapter.in_flight == 1)
    assert plugin.adapter.in_flight == 0
    assert stream.trajectory is not None
    assert stream.trajectory.stop == "cancelled"
    assert [call.outcome for call in stream.trajectory.calls] == ["cancelled"]
    assert list(stream) == []


def test_dropping_a_stream_cancels_its_rollout(make: Make) -> None:
    plugin = Plugin("late", latencies_s=[600])
    orchestrator = make(plugin)
    for event in orchestrator.stream("q"):
        assert event.kind == "route_started"
        wait_until(lambda: plugin.adapter.in_flight == 1)
        break
    gc.collect()
    wait_until(lambda: plugin.adapter.in_flight == 0)
    assert plugin.adapter.in_flight == 0


async def test_leaving_an_async_stream_cancels_its_rollout(make: Make) -> None:
    plugin = Plugin("late", latencies_s=[600])
    async with make(plugin).astream("q") as stream:
        assert (await anext(stream)).kind == "route_started"
    assert stream.trajectory is not None
    assert stream.trajectory.stop == "cancelled"


async def test_cancelling_an_awaited_question_cancels_the_rollout_and_observers_still_see_it(make: Make) -> None:
    plugin = Plugin("late", latencies_s=[600])
    orchestrator = make(plugin)
    asking = asyncio.create_task(orchestrator.aask("q"))
    await asyncio.to_thread(wait_until, lambda: plugin.adapter.in_flight == 1)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    wait_until(lambda: bool(plugin.seen))
    assert [t.stop for t in plugin.seen] == ["cancelled"]
    assert plugin.adapter.in_flight == 0


def test_what_on_result_raises_ends_the_batch(make: Make) -> None:
    plugin = Plugin(latencies_s=[0, 600])

    def refuse(_: Trajectory) -> None:
        raise ValueError("full disk")

    with pytest.raises(ValueError, match="full disk"):
        make(plugin).batch(["a", "b"], on_result=refuse)
    wait_until(lambda: plugin.adapter.in_flight == 0)
    assert plugin.adapter.in_flight == 0


def test_a_slow_reader_costs_bounded_memory_and_loses_no_route() -> None:
    waiting: deque[Event] = deque()
    for _ in range(3 * WAITING_EVENTS):
        buffer(waiting, Event("thinking", "x" * MERGED_CHARS))
    for _ in range(5):
        buffer(waiting, Event("route_started", "q", "A"))
    assert sum(event.kind == "thinking" for event in waiting) == WAITING_EVENTS
    assert [event.kind for event in waiting][-5:] == ["route_started"] * 5


def test_small_deltas_that_wait_are_merged_in_order() -> None:
    waiting: deque[Event] = deque()
    for piece in "abc":
        buffer(waiting, Event("thinking", piece))
    assert [event.text for event in waiting] == ["abc"]


def test_ctrl_c_cancels_the_question_and_hands_over_how_far_it_came() -> None:
    done = in_python("""
from antiphon.orchestrator import Interrupted
threading.Thread(target=interrupt, args=(1,), daemon=True).start()
try:
    orchestrator.ask("q")
except KeyboardInterrupt as error:
    print(type(error).__name__, [(t.stop, [call.outcome for call in t.calls]) for t in error.trajectories])
""")
    assert done.stdout.strip() == "Interrupted [('cancelled', ['cancelled'])]", done.stderr


def test_ctrl_c_in_a_batch_hands_over_every_trajectory_that_began() -> None:
    done = in_python("""
from antiphon.orchestrator import Interrupted
threading.Thread(target=interrupt, args=(2,), daemon=True).start()
try:
    orchestrator.batch(["a", "b", "c"], concurrency=2)
except Interrupted as error:
    print([(t.task.id, t.stop) for t in error.trajectories])
""")
    assert done.stdout.strip() == "[('task-0', 'cancelled'), ('task-1', 'cancelled')]", done.stderr


# ---- its end ------------------------------------------------------------------------------------------------------


def test_closing_twice_is_fine_and_asking_after_it_is_not(make: Make) -> None:
    plugin = Plugin()
    orchestrator = make(plugin)
    orchestrator.ask("q")
    orchestrator.close()
    orchestrator.close()
    assert plugin.adapter.closed
    with pytest.raises(AntiphonError, match="closed; make another"):
        orchestrator.ask("q")


def test_closing_ends_what_is_under_way_with_a_clear_error(make: Make) -> None:
    plugin = Plugin("late", latencies_s=[600])
    orchestrator = make(plugin)
    errors: list[Exception] = []

    def ask() -> None:
        try:
            orchestrator.ask("q")
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(lambda: plugin.adapter.in_flight == 1)
    orchestrator.close()
    thread.join(120)
    assert "its orchestrator was closed" in str(errors[0])


async def test_it_is_an_async_context_manager(make: Make) -> None:
    plugin = Plugin()
    async with make(plugin) as orchestrator:
        await orchestrator.aask("q")
    assert plugin.adapter.closed


def test_a_forgotten_orchestrator_ends_its_thread(make: Make) -> None:
    registry = Registry.load(only=[], local={"mine": Plugin()})
    orchestrator = Orchestrator(pool=[member()], policy=AsksFirst(), registry=registry)
    orchestrator.ask("q")
    thread = orchestrator._loop._thread
    assert thread is not None
    del orchestrator
    gc.collect()
    thread.join(120)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    "work",
    [
        "stream = orchestrator.stream('q'); policy.started.wait(120)",
        "threading.Thread(target=lambda: orchestrator.ask('q'), daemon=True).start(); policy.started.wait(120)",
    ],
)
def test_python_exits_at_once_with_work_in_flight(work: str) -> None:
    done = in_python(work + "\nprint('end')")
    assert (done.returncode, done.stdout.strip()) == (0, "end"), done.stderr


def test_python_exits_although_a_thread_of_the_loop_is_stuck() -> None:
    done = in_python(
        """
class Sleeps:
    name = "sleeps"
    async def run(self, task, rollout):
        policy.started.set()
        await asyncio.to_thread(time.sleep, 6000)
stream = Orchestrator(pool=pool, policy=Sleeps(), registry=Registry.load(only=[], local={"mine": Plugin()})).stream("q")
policy.started.wait(120)
print("end")
"""
    )
    assert (done.returncode, done.stdout.strip()) == (0, "end"), done.stderr


def test_a_fork_is_told_to_make_its_own() -> None:
    done = in_python("""
stream = orchestrator.stream("q"); policy.started.wait(120)
child = os.fork()
if child == 0:
    try:
        orchestrator.ask("q")
    except Exception as error:
        print(type(error).__name__, "make an orchestrator in the child" in str(error), flush=True)
    os._exit(0)
os.waitpid(child, 0)
""")
    assert done.stdout.strip() == "AntiphonError True", done.stderr


def test_a_rollout_that_tries_to_end_the_process_ends_alone(make: Make) -> None:
    class Exits(AsksFirst):
        async def run(self, task: Task, rollout: Any) -> str | None:
            if task.question == "exit":
                raise SystemExit(3)
            return await super().run(task, rollout)

    orchestrator = make(policy=Exits())
    with pytest.raises(AntiphonError, match="SystemExit was raised inside a rollout"):
        orchestrator.ask("exit")
    assert orchestrator.ask("q").answer == "re: q"


def test_a_blocking_call_on_its_own_loop_is_refused_and_awaiting_works(make: Make) -> None:
    class Nested(AsksFirst):
        orchestrator: Orchestrator

        async def run(self, task: Task, rollout: Any) -> str | None:
            if task.question != "outer":
                return await super().run(task, rollout)
            with pytest.raises(AntiphonError, match="await `aask`"):
                self.orchestrator.ask("inner")
            return (await self.orchestrator.aask("inner")).answer

    policy = Nested()
    policy.orchestrator = make(policy=policy)
    assert policy.orchestrator.ask("outer").answer == "re: inner"


# ---- set-up -------------------------------------------------------------------------------------------------------


def test_a_policy_that_only_asks_never_loads_the_model(make: Make) -> None:
    plugin = Plugin()
    config = load_config(overrides={"models": {"m": {"generator": "mine"}}, "defaults": {"model": "m"}})
    assert make(plugin, config=config).ask("q").answer == "re: q"
    assert plugin.made == []


def test_a_configured_model_is_made_once_with_its_options_price_and_sampling(make: Make) -> None:
    plugin = Plugin()
    model = {
        "generator": "mine",
        "options": {"says": "well"},
        "price": {"input": 10, "output": 10},
        "sampling": {"temperature": 0.5, "top_p": 0.9},
    }
    config = load_config(overrides={"models": {"m": model}, "defaults": {"model": "m"}})
    orchestrator = make(plugin, config=config, policy=Talks(), sampling={"top_p": 0.1})
    first, second = orchestrator.ask("q"), orchestrator.ask("q", sampling={"seed": 7})
    assert plugin.made == ["well"]
    assert first.answer == "well"
    assert first.policy_cost_usd > 0
    assert first.versions["generator"] == "scripted"
    generator = orchestrator._setup.model.made  # type: ignore[union-attr]
    assert [request.sampling for request in generator.requests] == [  # type: ignore[union-attr]
        {"temperature": 0.5, "top_p": 0.1},
        {"temperature": 0.5, "top_p": 0.1, "seed": 7},
    ]
    assert second.answer == "well"


def test_a_model_that_cannot_be_made_is_an_error_of_the_set_up_not_a_rollout(make: Make) -> None:
    config = load_config(overrides={"models": {"m": {"generator": "broken"}}, "defaults": {"model": "m"}})
    orchestrator = make(config=config, policy=Talks())
    with pytest.raises(ConfigError, match="fetch it"):
        orchestrator.ask("q")
    with pytest.raises(ConfigError, match="fetch it"):
        orchestrator.batch(["a", "b"])
    with pytest.raises(ConfigError, match="fetch it"):
        list(orchestrator.stream("q"))


def test_a_grammar_the_model_cannot_write_is_refused_before_anybody_is_asked(make: Make) -> None:
    class Tags:
        name, version, stops, continues = "tags", "1", ("</x>",), True

    class Grammatical(AsksFirst):
        grammar = Tags()

    plugin = Plugin()
    generator = ScriptedGenerator(["x"], capabilities=Capabilities(continue_turn=False))
    with pytest.raises(ConfigError, match="'tags' continues the assistant's turn"):
        make(plugin, policy=Grammatical(), model=generator).prepare()
    assert plugin.adapter.calls == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pool": "papper"}, "did you mean 'paper'"),
        ({"policy": "larges"}, "did you mean 'largest'"),
        ({"policy": object()}, "an object with `name` and"),
        ({"model": "smollm", "policy": Talks()}, "no model is called 'smollm'"),
        ({"pool": [{**member(), "price": None}]}, "price"),
        ({"pool": ["A"]}, "a list of names"),
        ({"pool": [{"name": "A"}]}, "member 'A'"),
        ({"config": "nowhere.toml"}, "nowhere.toml"),
        ({"grammar": "router_r1"}, "brings its own"),
    ],
)
def test_what_does_not_hold_is_one_clear_error(make: Make, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**options).ask("q")


def test_an_unpriced_member_is_taken_only_where_allowed(make: Make) -> None:
    trajectory = make(pool=[{**member(), "price": None}], allow_unpriced=True).ask("q")
    assert trajectory.answer == "re: q"
    assert trajectory.cost_usd == 0


def test_members_tell_their_prices_before_anything_is_asked(make: Make) -> None:
    plugin = Plugin()
    views = make(plugin).members
    assert [(view.name, view.quote and view.quote.output) for view in views] == [("A", 2.0)]
    assert plugin.adapter.calls == []


# ---- money --------------------------------------------------------------------------------------------------------


def test_a_limit_over_its_life_stops_what_would_overshoot(make: Make) -> None:
    plugin = Plugin(usage=Usage(10, 400))  # $0.00081 a call, of which $0.00103 and the query's cost are reserved
    orchestrator = make(plugin, max_cost_usd=0.0025)
    assert [orchestrator.ask("q").stop for _ in range(3)] == ["answer", "answer", "budget"]
    assert orchestrator.budget.spent_usd == pytest.approx(2 * 0.00081)
    assert len(plugin.adapter.calls) == 2


def test_a_limit_for_one_question_holds_for_it_alone(make: Make) -> None:
    plugin = Plugin()
    orchestrator = make(plugin)
    assert orchestrator.ask("q", max_cost_usd=1e-9).stop == "budget"
    assert plugin.adapter.calls == []
    assert orchestrator.ask("q").stop == "answer"


def test_limits_of_the_question_beat_the_orchestrators_which_beat_the_configurations(make: Make) -> None:
    config = load_config(overrides={"limits": {"calls": 0}})
    assert make(config=config).ask("q").stop == "calls"
    assert make(config=config, limits=Limits()).ask("q").stop == "answer"
    assert make(limits=Limits()).ask("q", limits=Limits(calls=0)).stop == "calls"


def test_a_generator_of_the_callers_own_can_have_a_price(make: Make) -> None:
    orchestrator = make(policy=Talks(), model=ScriptedGenerator(["hello"]), policy_price=Price(input=1, output=1))
    assert orchestrator.ask("q").policy_cost_usd > 0
