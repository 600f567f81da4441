"""What loop workers share: a pool behind its gates, a budget, a window a split; and the ledger of a run's steps."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from antiphon import registry as registry_module
from antiphon.contracts import CallContext, Reply
from antiphon.errors import ConfigError, GeneratorError, PluginError
from antiphon.hookspecs import hookimpl
from antiphon.registry import Registry
from antiphon.train.spec import make_spec
from antiphon.train.verl_hub import Hub, HubPool, Options
from antiphon.train.verl_ledger import RunHub
from antiphon.types import Attempt, Call, Message, Task, Trajectory, Usage

CONFIG = """
[defaults]
pool = "one"

[pools.one]
members = ["Echo"]

[members."Echo".price]
input = 0.0
output = 100.0

[limits]
max_cost_usd = 0.02
member_tokens = 100
"""
PRICE = 0.01  # of a call: 100 tokens at USD 100 per million


class Echo:
    """Says what it was asked, for 100 tokens; counts how many ask at once."""

    most = now = asked = 0

    def __init__(self, *, endpoint: Any, descriptor: Any) -> None: ...

    async def complete(self, request: Any, context: Any) -> Reply:
        cls = type(self)
        cls.asked, cls.now = cls.asked + 1, cls.now + 1
        cls.most = max(cls.most, cls.now)
        await asyncio.sleep(0)  # let the others in, if the gate does
        cls.now -= 1
        return Reply(request.messages[-1].content, Usage(0, 100))

    async def aclose(self) -> None: ...


class Local:
    @hookimpl
    def antiphon_adapters(self) -> Mapping[str, Any]:
        return {"echo": Echo}

    @hookimpl
    def antiphon_descriptors(self) -> list[dict[str, Any]]:
        endpoint = {"adapter": "echo", "model": "m", "concurrency": 2}
        return [{"name": "Echo", "description": "Says it again.", "endpoints": [endpoint], "price": {"output": 1.0}}]


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Options:
    local = Registry.load(only=[], local={"local": Local()})
    monkeypatch.setattr(registry_module, "default_registry", lambda: local)
    Echo.most = Echo.now = Echo.asked = 0
    (tmp_path / "antiphon.toml").write_text(CONFIG)
    return Options(config_path=str(tmp_path / "antiphon.toml"), policy="random", alpha=0.5)


async def worker(hub: Hub) -> HubPool:
    return HubPool(hub, *await hub.members())


async def ask(pool: HubPool, rollout: str, query: str = "hello", **context: Any) -> Call:
    asked = CallContext(rollout_id=rollout, **context)
    return await pool.ask("echo", [Message("user", query)], context=asked, max_tokens=100)


def trajectory(name: str, tokens: int, **fields: Any) -> Trajectory:
    """Right, and charged USD 1 per million for so many tokens of Echo."""
    attempt = Attempt("a:m", "ok", usage=Usage(0, tokens), cost_usd=tokens / 1e6)
    calls = (Call("Echo", "q", "ok", "r", (attempt,)),)
    task = Task("why?", id=name, golden_answers=("x",))
    return Trajectory(name, task, "p", fields.pop("answer", "x"), fields.pop("stop", "answer"), calls=calls, **fields)


async def test_workers_wait_at_one_gate(options: Options) -> None:
    hub = Hub(options)
    one, other = await worker(hub), await worker(hub)
    calls = await asyncio.gather(*(ask(pool, f"{n}") for pool in (one, other) for n in range(8)))
    assert [call.outcome for call in calls] == ["ok"] * 16
    assert Echo.most == 2, "of the endpoint, whoever asks"
    assert one.hash == other.hash != ""


async def test_workers_draw_on_one_budget_and_each_rollout_on_its_own(options: Options) -> None:
    hub = Hub(Options(config_path=options.config_path, policy="random", max_cost_usd=4 * PRICE))
    one, other = await worker(hub), await worker(hub)
    mine = [(await ask(one, "greedy")).outcome for _ in range(3)]
    assert mine == ["ok", "ok", "over_budget"], "limits.max_cost_usd is that of two calls"
    rest = await asyncio.gather(*(ask(pool, f"{n}") for pool in (one, other) for n in range(4)))
    assert sorted(call.outcome for call in rest) == ["ok"] * 2 + ["over_budget"] * 6
    assert await hub.spent_usd() == pytest.approx(4 * PRICE)
    assert Echo.asked == 4


async def test_a_deadline_is_carried_over_to_another_clock(options: Options) -> None:
    pool = await worker(Hub(options))
    assert (await ask(pool, "late", deadline=time.monotonic() - 1)).outcome == "timeout"
    assert (await ask(pool, "soon", deadline=time.monotonic() + 60)).outcome == "ok"


async def test_a_memo_is_one_for_all(options: Options) -> None:
    hub = Hub(Options(config_path=options.config_path, policy="random", environment={"memo": True}))
    one, other = await worker(hub), await worker(hub)
    said = [await ask(one, "a"), await ask(other, "b"), await ask(other, "c", "else")]
    assert [call.reply for call in said] == ["hello", "hello", "else"]
    assert Echo.asked == 2


async def test_the_window_is_one_whoever_scores_and_in_whatever_order(options: Options) -> None:
    async def told(order: list[int]) -> tuple[list[float], Any]:
        hub = Hub(options)
        for place in order:
            await hub.score(trajectory(f"{place}", [100, 400, 25, 900][place]), "train", 1, (place, 0))
        totals = [(await hub.score(trajectory("n", n), "train", 2, (n, 0))).total for n in (25, 900)]
        return totals, await hub.state_dict()

    assert await told([0, 1, 2, 3]) == await told([3, 1, 0, 2])


async def test_a_failure_is_scored_and_enters_no_window_and_splits_have_windows_of_their_own(options: Options) -> None:
    hub = Hub(options)
    for split, stop in (("train", "answer"), ("train", "error"), ("validation", "answer")):
        await hub.score(trajectory(split, 400, stop=stop), split, 1, (0, 0))
        await hub.score(trajectory(split, 100), split, 2, (0, 0))
    for split in ("train", "validation"):
        await hub.score(trajectory(split, 100), split, 3, (0, 0))  # commits what was before
    state = await hub.state_dict()
    assert {split: kept["cost"]["window"] for split, kept in state.items()} == {
        "train": [200, 100, 100],  # sqrt(USD 100 per million x 400 tokens)
        "validation": [200, 100],
    }
    other = Hub(options)
    await other.load_state_dict(json.loads(json.dumps(state)))
    assert await other.state_dict() == state


async def test_what_does_not_hold_is_known_before_anything_is_generated(options: Options) -> None:
    with pytest.raises(ConfigError, match="did you mean 'paper'"):
        await Hub(Options(config_path=options.config_path, policy="random", reward="papr")).members()
    with pytest.raises(ConfigError, match=r"environment.randomise: unknown key 'ordr'"):
        Options(environment={"randomise": {"ordr": True}}).drawn(await worker(Hub(options)))


async def test_a_whole_configuration_is_taken_as_it_is(
    options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = options.config()
    (tmp_path / "whole.json").write_text(whole.model_dump_json())
    monkeypatch.setenv("ANTIPHON_POOL", "another")
    assert options.config().defaults.pool == "another"
    read = Options(config_path=str(tmp_path / "whole.json")).config()
    assert read.model_dump() == whole.model_dump()


# ---- the ledger of a run --------------------------------------------------------------------------------------------


def ledger(options: Options, steps: int = 3, **more: Any) -> RunHub:
    spec = make_spec(
        {
            "train": {"engine": "verl", "steps": steps, "tasks": 2, "samples": 2, "max_failed": 0.25},
            "data": {"dataset": "arithmetic"},
            "model": {"base": "tiny"},
            "validation": {"tasks": 2, "best": "reward"},
            "collapse": {"window": 2, "calls": 0.0},
        },
        "spec.toml",
    )
    return RunHub(options, spec, **more)


async def rolled(hub: RunHub, step: int, costs: list[int], split: str = "train", **fields: Any) -> None:
    for place, cost in enumerate(costs):
        await hub.score(trajectory(f"{step}-{place}", cost, **fields), split, step, (2 * step + place // 2, place % 2))


async def read(hub: RunHub, rows: list[Any]) -> None:
    while True:
        rows += (await hub.news()).rows


async def test_a_step_becomes_a_row_that_is_taken_before_the_run_goes_on(options: Options) -> None:
    hub = ledger(options)
    await rolled(hub, 1, [100, 400, 25, 900])
    assert await hub.sampled(1) is None
    await hub.learnt(1, {"entropy": 1.5}, rollout_s=3.0, step_s=4.0)
    assert await hub.validated(1, 0.5, tasks=0) is False, "nothing was measured"
    assert (await hub.news()).rolled == (0, 4), "they have been learnt from"
    keeping = asyncio.create_task(hub.kept())
    [(row, trajectories)] = (await hub.news()).rows
    assert {key: row[key] for key in ("step", "entropy", "update_s", "left_s", "em", "calls", "failed")} == {
        "step": 1, "entropy": 1.5, "update_s": 1.0, "left_s": 8.0, "em": 1.0, "calls": 1.0, "failed": 0
    }  # fmt: skip
    assert [each.id for each in trajectories] == ["1-0", "1-1", "1-2", "1-3"], "of the first step"
    assert not keeping.done()
    asking = asyncio.create_task(hub.news())
    assert await keeping is None
    asking.cancel()
    assert (await hub.results())["em"] == 1.0


async def test_the_first_validation_is_step_0_and_the_best_one_is_known(options: Options) -> None:
    hub, rows = ledger(options), list[Any]()
    reader = asyncio.create_task(read(hub, rows))
    await rolled(hub, 0, [100, 100], "validation", answer="wrong")
    assert await hub.validated(0, 1.0, tasks=2)
    await hub.kept()
    for step, (answer, best) in enumerate((("x", True), ("x", False)), 1):
        await rolled(hub, step, [100] * 4)
        await hub.sampled(step)
        await hub.learnt(step, {}, 1.0, 2.0)
        await rolled(hub, step, [100, 100], "validation", answer=answer)
        assert await hub.validated(step, 1.0, tasks=2) is best
        await hub.kept()
    assert [row["step"] for row, _ in rows] == [0, 1, 2]
    assert rows[0][0]["val_em"] == 0
    assert rows[1][0]["val_em"] == 1
    assert (await hub.state())["best"] == rows[1][0]["val_reward"]
    reader.cancel()


async def test_too_many_failures_end_the_run_with_the_reason_of_the_first(options: Options) -> None:
    hub = ledger(options)
    await rolled(hub, 1, [100, 100])
    await hub.failed("r1", "train", 1, "the engine is gone")
    await hub.failed("r2", "train", 1, "so is this")
    with pytest.raises(GeneratorError, match=r"step 1: 2 of 4 rollouts failed.*the first: the engine is gone"):
        await hub.sampled(1)
    silent = ledger(options)
    await rolled(silent, 1, [100, 100])
    with pytest.raises(GeneratorError, match=r"2 of 4 rollouts failed.*verl gave no reason"):
        await silent.sampled(1)


async def test_the_runs_budget_ends_it_and_nothing_is_learnt(options: Options) -> None:
    hub = ledger(replace(options, max_cost_usd=PRICE))
    pool = await worker(hub)
    assert [(await ask(pool, name)).outcome for name in ("a", "b")] == ["ok", "over_budget"]
    await rolled(hub, 1, [100] * 4, stop="budget")
    over = await hub.sampled(1)
    assert over == ("budget", "the next rollouts could cost more than is left of $0.01")
    assert (await hub.state())["rewards"]["train"]["cost"]["window"] == []


async def test_a_validation_that_the_budget_ended_is_not_recorded_and_ends_the_run(options: Options) -> None:
    hub, rows = ledger(replace(options, max_cost_usd=PRICE)), list[Any]()
    reader = asyncio.create_task(read(hub, rows))
    await rolled(hub, 1, [100] * 4)
    assert await hub.sampled(1) is None
    await hub.learnt(1, {}, 1.0, 2.0)
    assert (await ask(await worker(hub), "v")).ok
    await rolled(hub, 1, [100, 100], "validation", stop="budget", answer=None)
    assert await hub.validated(1, 5.0, tasks=2) is False
    assert await hub.kept() == ("budget", "the next rollouts could cost more than is left of $0.01")
    [(row, _)] = rows
    assert not any(key.startswith("val_") for key in row)
    assert row["spent_usd"] == pytest.approx(PRICE), "what the validation has cost is in it"
    reader.cancel()


async def test_what_was_spent_before_counts_towards_the_limit(options: Options) -> None:
    rows = [{"step": 0, "val_s": 7.0}, {"step": 1, "spent_usd": 1.0, "step_s": 1.0}]
    hub, kept = ledger(replace(options, max_cost_usd=1.0), rows=rows, spent_usd=1.5), list[Any]()
    reader = asyncio.create_task(read(hub, kept))
    assert await hub.spent_usd() == 1.5
    assert (await ask(await worker(hub), "r")).outcome == "over_budget"
    await rolled(hub, 2, [100] * 4)
    await hub.sampled(2)
    await hub.learnt(2, {}, 1.0, 3.0)
    assert await hub.kept() == ("budget", "$1.5 is spent, more than the $1 of train.max_cost_usd")
    [(row, _)] = kept
    assert row["left_s"] == 2.0 + 7.0, "one step of 2 s and its validation"
    reader.cancel()


class Critic(Echo):
    async def complete(self, request: Any, context: Any) -> Reply:
        return Reply("no verdict", Usage(0, 100))


async def test_judging_is_charged_whatever_is_left_and_whether_there_is_a_verdict(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Local, "antiphon_adapters", hookimpl(lambda self: {"echo": Critic}))
    monkeypatch.setattr(registry_module, "default_registry", lambda: Registry.load(only=[], local={"l": Local()}))
    judge = {"terms": [{"term": "judge", "options": {"member": "Echo"}}]}
    hub = Hub(replace(options, max_cost_usd=PRICE / 2, reward=judge))
    for name in ("a", "b"):
        with pytest.raises(PluginError, match="gave no verdict"):
            await hub.score(trajectory(name, 1, answer=name), "train", 1, (0, 0))
    assert await hub.spent_usd() == pytest.approx(2 * PRICE)


async def test_a_run_stops_when_it_is_asked_to_and_when_it_collapses(options: Options) -> None:
    stopped, collapsed = ledger(options), ledger(options)
    for hub, calls in ((stopped, 1), (collapsed, 0)):
        reader, ends = asyncio.create_task(read(hub, [])), []
        await hub.stop() if calls else None
        for step in (1, 2):
            for place in range(4):
                made = trajectory(f"{step}-{place}", 1)
                made = made if calls else Trajectory(made.id, made.task, "p", "x", "answer")
                await hub.score(made, "train", step, (place, 0))
            await hub.sampled(step)
            await hub.learnt(step, {}, 1.0, 2.0)
            ends.append(await hub.kept())
        if calls:
            assert ends == [("interrupted", "")] * 2
        else:
            assert ends[0] is None
            assert ends[1][0] == "collapse"
        reader.cancel()


# ---- on Ray ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_processes_share_the_hub_that_the_first_of_them_has_made(tmp_path: Path) -> None:
    """Two processes of a real Ray: whoever comes first makes the actor; what they ask is paid from one budget."""
    ray = pytest.importorskip("ray")
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the workers cannot import a test
    (tmp_path / "antiphon.toml").write_text(
        '[pools.sums]\nmembers = ["Calculator"]\n[defaults]\npool = "sums"\n'
        '[members."Calculator".price]\ninput = 1000.0\noutput = 0.0\n'
    )
    options = Options(config_path=str(tmp_path / "antiphon.toml"), policy="random", max_cost_usd=1.0)

    class Worker:
        """As verl's: it lives as long as the run."""

        def __init__(self) -> None:
            from antiphon.train.verl_hub import hub_of

            self.hub = hub_of(options)

        async def work(self, name: str) -> list[str]:
            from antiphon.train.verl_hub import HubPool

            pool = HubPool(self.hub, *await self.hub.members())
            said = []
            for number in range(2):
                context = CallContext(rollout_id=f"{name}-{number}")
                call = await pool.ask("Calculator", [Message("user", "12 + 30")], context=context, max_tokens=16)
                result = await self.hub.score(trajectory(f"{name}-{number}", 4), "train", None, (0, number))
                said.append(f"{call.reply} {result.total:g}")
            return said

        async def spent(self) -> float:
            return float(await self.hub.spent_usd())  # type: ignore[attr-defined]

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        workers = [ray.remote(Worker).remote() for _ in range(2)]
        assert ray.get([each.work.remote(str(n)) for n, each in enumerate(workers)]) == [["42 1", "42 1"]] * 2
        spent = ray.get([each.spent.remote() for each in workers])
        assert spent[0] == spent[1] > 0
        ray.get(workers[1].work.remote("again"))
        assert ray.get(workers[0].spent.remote()) == pytest.approx(1.5 * spent[0])
    finally:
        ray.shutdown()
