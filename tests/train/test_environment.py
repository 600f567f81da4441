"""Pools shown otherwise each time: over plain-code members that are paid for, and over recorded LLMs."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from antiphon.contracts import CallContext, GenerationRequest, Reply
from antiphon.descriptor import Descriptor
from antiphon.errors import ConfigError
from antiphon.generators.scripted import ScriptedGenerator
from antiphon.money import Budget
from antiphon.names import fold
from antiphon.pool import Pool
from antiphon.registry import default_registry
from antiphon.rollout import Limits, Rollout
from antiphon.train.environment import INVENTED_NAMES, Environment, PoolView, Randomise
from antiphon.types import Message, Task, Trajectory, Usage
from antiphon_plugins.grammars.router_r1 import RouterR1Grammar
from antiphon_plugins.rewards import Cost
from antiphon_policies.router_r1 import RouterR1

TASKS = [Task("capital of Peru?", f"t{number}", ("Lima",), "demo") for number in range(40)]
EVERYTHING: dict[str, Any] = {
    "order": True,
    "names": True,
    "descriptions": {"Atlas": ["Places and their capitals.", "Ask it where things are."]},
    "price_scale": (0.1, 10.0),
    "member_price_scale": (0.5, 2.0),
}


# ---- two unlike pools ---------------------------------------------------------------------------------------------


def atlas(text: str) -> Reply:
    return Reply("Lima", Usage(10, 20), "Atlas")


def sums(text: str) -> Reply:
    return Reply("4", Usage(10, 30), "Sums")


def of_functions() -> Pool:
    """Plain code that says what it used, so that it is charged: USD per million 1 in, 2 out and 0.5 in, 1 out."""
    from antiphon_pools.adapters.function import member

    return Pool(
        [
            member(atlas, name="Atlas", description="Capitals.", aliases=("geo",), price={"input": 1, "output": 2}),
            member(sums, name="Sums", description="Addition.", price={"input": 0.5, "output": 1}),
            member(str.upper, name="Free", description="Shouts."),
        ],
        default_registry(),
    )


def of_recordings(folder: Path) -> Pool:
    rows = [
        {"question": TASKS[0].question, "llm": llm, "response": said, "input_tokens": 10, "output_tokens": tokens}
        for llm, said, tokens in (("big", "Lima " * 50, 50), ("small", "Cusco", 1))
    ]
    file = folder / "replies.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    endpoint = {"adapter": "recorded", "options": {"path": str(file)}}
    members = [
        {"name": name, "description": "An LLM.", "model": name, "price": {"input": 1, "output": 4}, **endpoint}
        for name in ("big", "small")
    ]
    return Pool([Descriptor.of(one) for one in members], default_registry())


def view(pool: Pool, task: Task = TASKS[0], step: int = 0, seed: int = 0, **settings: Any) -> PoolView:
    seen = Environment(pool, Randomise.model_validate(settings), seed=seed).pool(task, step)
    assert isinstance(seen, PoolView)
    return seen


def views(pool: Pool, **settings: Any) -> list[PoolView]:
    return [view(pool, task, **settings) for task in TASKS]


def shown_as(seen: PoolView, own: str) -> str:
    return next(shown for shown, name in seen.shown.members.items() if name == own)


def asks(member: str, query: str = "whatever it is") -> list[str]:
    return [
        f"<think>I ask.</think>\n<search>{member}: {query}</search>",
        "<think>So.</think>\n<answer>Lima</answer>",
    ]


async def rollout(seen: PoolView, *texts: str, **limits: Any) -> Trajectory:
    """The real policy, grammar and rollout over a view."""
    policy = RouterR1(RouterR1Grammar())
    made = Rollout(TASKS[0], seen, ScriptedGenerator(texts), limits=Limits(**limits), versions={"pool": "base"})
    return await made.run(policy)


# ---- a rollout over a view ----------------------------------------------------------------------------------------


def test_a_rollout_asks_by_the_shown_name_and_the_real_member_answers() -> None:
    seen = view(of_functions(), **EVERYTHING)
    name = shown_as(seen, "Atlas")
    done = asyncio.run(rollout(seen, *asks(name.upper())))
    assert done.calls[0].member == name != "Atlas"
    assert done.calls[0].reply == "Lima"
    assert done.calls[0].attempts[0].priced_as == name
    prompt, information = done.segments[0].text, done.segments[2].text
    assert name in prompt
    assert "Atlas" not in prompt
    assert "Lima" in information
    assert done.shown == seen.shown
    assert done.shown.members[name] == "Atlas"
    assert done.versions["pool"] == seen.hash
    assert Trajectory.from_json(done.to_json()) == done


def test_real_names_and_aliases_are_nobody_in_a_renamed_pool() -> None:
    seen = view(of_functions(), names=True)
    assert [seen.resolve(name) for name in ("Atlas", "geo", "Sums")] == [None] * 3
    done = asyncio.run(rollout(seen, *asks("Atlas")))
    assert done.calls == ()
    assert done.format_problems
    with pytest.raises(ConfigError, match="nobody in the pool is called 'Atlas'"):
        asyncio.run(seen.ask("Atlas", [Message("user", "q")], context=CallContext()))


def test_costs_are_at_the_shown_price_and_budgets_at_the_real_one() -> None:
    seen, budget = view(of_functions(), price_scale=(10, 10)), Budget(1.0)
    call = asyncio.run(seen.ask("Atlas", [Message("user", "q")], context=CallContext(), budget=budget))
    real = (10 * 1 + 20 * 2) / 1e6
    assert call.cost_usd == pytest.approx(10 * real)
    assert budget.spent_usd == pytest.approx(real)
    assert budget.reserved_usd == 0
    assert seen.members[0].quote.output == seen.members[0].descriptor.price.output == 20
    assert seen.shown.prices == {"Atlas": 20, "Sums": 10, "Free": 0}
    assert seen.shown.price_scale == 10


def test_what_was_charged_before_a_cancellation_is_in_shown_terms_too() -> None:
    class Slow:
        def __init__(self, pool: Pool) -> None:
            self.members, self.resolve, self._pool = pool.members, pool.resolve, pool

        async def ask(self, member: str, messages: Any, **more: Any) -> Any:
            call = await self._pool.ask(member, messages, **more)
            error = asyncio.CancelledError()
            error.call = call  # type: ignore[attr-defined]
            raise error

    seen = Environment(Slow(of_functions()), Randomise(names=True, price_scale=(2, 2))).pool(TASKS[0], 0)
    name = next(shown for shown, own in seen.shown.members.items() if own == "Atlas")

    async def cancelled() -> BaseException:
        try:
            await seen.ask(name, [Message("user", "q")], context=CallContext())
        except asyncio.CancelledError as error:
            return error
        raise AssertionError

    call = asyncio.run(cancelled()).call
    assert call.member == name
    assert call.cost_usd == pytest.approx(2 * 50e-6)


def test_a_recorded_llm_answers_under_its_shown_name_whatever_the_query_and_cut_to_the_limit(tmp_path: Path) -> None:
    seen = view(of_recordings(tmp_path), names=True, order=True)
    texts = asks(shown_as(seen, "big"), "in which city does its government sit?")
    done = asyncio.run(rollout(seen, *texts, information_tokens=10))
    call = done.calls[0]
    assert (call.outcome, call.reply) == ("ok", ("Lima " * 50))
    assert call.usage.output_tokens == 50
    assert done.segments[2].text.count("Lima") < 10
    small = asyncio.run(rollout(seen, *asks(shown_as(seen, "small"))))
    assert small.calls[0].reply == "Cusco"


def test_samples_of_a_group_run_at_once_over_one_view_and_one_real_pool(tmp_path: Path) -> None:
    environment = Environment(of_recordings(tmp_path), Randomise.model_validate({"names": True, "order": True}))

    def said(request: GenerationRequest) -> str:
        first = "information" not in request.prefix
        return asks(shown_as(seen, "small"))[0 if first else 1]

    async def group() -> list[Trajectory]:
        model = ScriptedGenerator(said)
        policy = RouterR1(RouterR1Grammar())
        pools = [environment.pool(TASKS[0], 3) for _ in range(4)]
        return await asyncio.gather(
            *(Rollout(TASKS[0], pool, model, sample=number).run(policy) for number, pool in enumerate(pools))
        )

    seen = environment.pool(TASKS[0], 3)
    assert isinstance(seen, PoolView)
    done = asyncio.run(group())
    assert {each.answer for each in done} == {"Lima"}
    assert {each.versions["pool"] for each in done} == {seen.hash}
    assert len({each.segments[0].token_ids for each in done}) == 1  # one prompt, so one prefix


# ---- what is drawn ------------------------------------------------------------------------------------------------


def test_a_view_depends_on_seed_step_and_task_alone() -> None:
    pool = of_functions()
    assert view(pool, **EVERYTHING).hash == view(of_functions(), **EVERYTHING).hash
    others = [
        view(pool, TASKS[1], **EVERYTHING),
        view(pool, step=1, **EVERYTHING),
        view(pool, seed=1, **EVERYTHING),
    ]
    assert len({view(pool, **EVERYTHING).hash, *(other.hash for other in others)}) == 4


def test_samples_see_one_view_or_each_its_own() -> None:
    pool = of_functions()
    for each_sample, views in ((False, 1), (True, 4)):
        environment = Environment(pool, Randomise.model_validate({**EVERYTHING, "each_sample": each_sample}))
        seen = [environment.pool(TASKS[0], 3, sample) for _ in range(2) for sample in range(4)]
        assert len({each.hash for each in seen if isinstance(each, PoolView)}) == views


def test_with_nothing_to_draw_it_is_the_pool_itself() -> None:
    pool = of_functions()
    assert Environment(pool).pool(TASKS[0], 5) is pool
    assert Environment(pool, Randomise(each_sample=True)).pool(TASKS[0], 5, 1) is pool
    done = asyncio.run(rollout(pool, *asks("geo")))  # type: ignore[arg-type]
    assert done.shown is None
    assert done.versions["pool"] == "base"


def test_order_takes_every_member_to_every_place() -> None:
    orders = Counter(tuple(member.name for member in seen.members) for seen in views(of_functions(), order=True))
    assert all(sorted(order) == ["Atlas", "Free", "Sums"] for order in orders)
    assert len(orders) == 6


def test_invented_names_are_all_different_and_never_one_that_the_pool_knows() -> None:
    assert len({fold(name) for name in INVENTED_NAMES}) == len(INVENTED_NAMES)
    taken = {"name": INVENTED_NAMES[0].upper(), "aliases": list(INVENTED_NAMES[1:170])}
    member = {"description": "d", "model": "m", "adapter": "function", "price": {"input": 0, "output": 0}}
    pool = Pool(
        [
            Descriptor.of({**member, **taken, "model": "builtins:str"}),
            Descriptor.of({**member, "name": "x", "model": "builtins:str"}),
        ],
        default_registry(),
    )
    drawn = {member.name for seen in views(pool, names=True) for member in seen.members}
    assert drawn <= set(INVENTED_NAMES[170:])
    assert len(drawn) > 5


def test_descriptions_are_the_members_own_or_one_of_those_given() -> None:
    texts = {"Capitals.", *EVERYTHING["descriptions"]["Atlas"]}
    seen = views(of_functions(), descriptions={"geo": EVERYTHING["descriptions"]["Atlas"]})
    by_name = [{member.name: member.descriptor.description for member in each.members} for each in seen]
    assert {each["Atlas"] for each in by_name} == texts
    assert {each["Sums"] for each in by_name} == {"Addition."}


def outputs(seen: Iterable[PoolView]) -> list[dict[str, float]]:
    return [each.shown.prices for each in seen]


def test_one_scale_for_all_prices_and_one_for_each() -> None:
    together = outputs(views(of_functions(), price_scale=(0.1, 10)))
    assert min(each["Atlas"] for each in together) < 1 < 5 < max(each["Atlas"] for each in together)
    assert all(each["Atlas"] / each["Sums"] == pytest.approx(2, rel=0.1) for each in together)
    apart = outputs(views(of_functions(), member_price_scale=(0.1, 10)))
    assert any(each["Atlas"] < each["Sums"] for each in apart)
    assert all(each["Free"] == 0 for each in (*together, *apart))


def test_the_cost_reward_divides_the_scale_out() -> None:
    cost = Cost()
    cost.bind(of_functions().members)
    seen = [view(of_functions(), task, names=True, price_scale=(0.01, 100)) for task in TASKS[:10]]
    done = [asyncio.run(rollout(each, *asks(shown_as(each, "Atlas")))) for each in seen]
    assert len({round(each.calls[0].cost_usd, 9) for each in done}) > 5
    # 20 tokens at USD 2 per million, to the digits of the shown prices
    assert [cost.raw(each) for each in done] == pytest.approx([40.0] * 10, rel=0.05)


def test_hidden_members_cannot_be_asked_and_one_always_stays() -> None:
    seen = views(of_functions(), hide=0.9)
    sizes = Counter(len(each.members) for each in seen)
    assert min(sizes) == 1
    assert {name for each in seen for name in each.shown.members} == {"Atlas", "Sums", "Free"}
    alone = next(each for each in seen if set(each.shown.members) == {"Sums"})
    assert alone.resolve("Atlas") is None
    assert all("Atlas" in each.shown.members for each in views(of_functions(), hide=0.9, keep=["geo"]))


def test_a_member_joins_at_its_step() -> None:
    environment = Environment(of_functions(), Randomise(joins={"geo": 10}))
    at = [[member.name for member in environment.pool(TASKS[0], step).members] for step in (0, 9, 10)]
    assert at == [["Sums", "Free"], ["Sums", "Free"], ["Atlas", "Sums", "Free"]]


def test_an_absent_member_is_never_shown_and_the_real_pool_still_has_it() -> None:
    pool = of_functions()
    seen = views(pool, absent=["geo"])
    assert {name for each in seen for name in each.shown.members} == {"Sums", "Free"}
    assert all(each.resolve("Atlas") is None for each in seen)
    assert pool.resolve("geo") == "Atlas"


def test_to_switch_one_thing_on_changes_no_other_draw() -> None:
    pool = of_functions()
    alone, more = view(pool, names=True), view(pool, names=True, price_scale=(0.1, 10), hide=0.0, keep=["Sums"])
    assert alone.shown.members == more.shown.members


# ---- settings that do not hold ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"joins": {"Atlsa": 3}}, "randomise.joins: nobody in the pool is called 'Atlsa'; did you mean 'Atlas'"),
        ({"descriptions": {"x": ["y"]}}, "randomise.descriptions: nobody in the pool is called 'x'"),
        ({"keep": ["x"]}, "randomise.keep"),
        ({"joins": {"Atlas": 1, "Sums": 2, "Free": 3}}, "leaves nobody to ask at step 0"),
        ({"joins": {"Atlas": 1}, "absent": ["Sums", "Free"]}, "leaves nobody to ask at step 0"),
        ({"price_scale": (0.0001, 1)}, "the prices of Atlas would lie between"),
        ({"member_price_scale": (1, 1000)}, "the prices of Atlas would lie between"),
    ],
)
def test_settings_that_do_not_fit_the_pool_are_refused_before_anything_runs(settings: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Environment(of_functions(), Randomise.model_validate(settings))


@pytest.mark.parametrize("settings", [{"price_scale": (2, 1)}, {"hide": 1}, {"price_scale": (0, 1)}, {"naems": True}])
def test_settings_that_mean_nothing_are_refused(settings: Any) -> None:
    with pytest.raises(ValueError, match=r"price_scale|hide|naems"):
        Randomise.model_validate(settings)
