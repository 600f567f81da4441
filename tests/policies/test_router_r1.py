"""Router-R1 asks one member at a time with the member prompt, and reads what comes back."""

from __future__ import annotations

from antiphon.contracts import Policy
from antiphon.generators.scripted import ScriptedGenerator
from antiphon.rollout import Rollout
from antiphon.types import Message, Task
from antiphon_plugins.grammars.router_r1 import RouterR1Grammar
from antiphon_policies._texts import MEMBER_PROMPT
from antiphon_policies.router_r1 import RouterR1

TEXTS = [
    "<think>I ask.</think><search>Ann: who?</search>",
    "<think>Again.</think><search>Cy: who, {then}?</search>",
    "<think>So.</think><answer>Bo</answer>",
]


async def run(scripted_pool, policy, texts=TEXTS, **options):
    pool = scripted_pool(["Ann", "Cy"], ["one", "two"])
    generator = ScriptedGenerator(texts)
    trajectory = await Rollout(Task("Who?"), pool, generator, **options).run(policy)
    return trajectory, pool, generator


async def test_it_asks_and_answers(scripted_pool):
    policy = RouterR1(RouterR1Grammar())
    assert isinstance(policy, Policy)
    assert policy.needs_grammar
    trajectory, pool, generator = await run(scripted_pool, policy)
    assert (trajectory.answer, trajectory.stop, trajectory.format_problems) == ("Bo", "answer", ())
    assert [(name, list(messages)) for name, messages, _, _ in pool.asked] == [
        ("Ann", [Message("system", MEMBER_PROMPT), Message("user", "who?")]),
        ("Cy", [Message("system", MEMBER_PROMPT), Message("user", "who, {then}?")]),
    ]
    assert [(context.task_id, context.question, context.round) for _, _, context, _ in pool.asked] == [
        ("task", "Who?", 1),
        ("task", "Who?", 2),
    ]
    assert {max_tokens for *_, max_tokens in pool.asked} == {512}
    assert generator.requests[-1].prefix == (
        TEXTS[0] + "\n<information>\none\n</information>\n" + TEXTS[1] + "\n<information>\ntwo\n</information>\n"
    )
    assert "- Ann: Knows things." in generator.requests[0].messages[0].content
    assert trajectory.versions["grammar"] == "router_r1/1"
    assert trajectory.versions["template"] == policy.grammar.template


async def test_the_member_prompt_is_a_setting(scripted_pool):
    _, pool, _ = await run(scripted_pool, RouterR1(RouterR1Grammar(), member_prompt="Be brief."))
    assert pool.asked[0][1][0] == Message("system", "Be brief.")
    _, pool, _ = await run(scripted_pool, RouterR1(RouterR1Grammar(), member_prompt=""))
    assert list(pool.asked[0][1]) == [Message("user", "who?")]


async def test_one_instance_serves_many_rollouts(scripted_pool):
    policy = RouterR1(RouterR1Grammar())
    first, _, _ = await run(scripted_pool, policy)
    second, _, _ = await run(scripted_pool, policy, ["<think>I know.</think><answer>Di</answer>"])
    assert (first.answer, second.answer) == ("Bo", "Di")
