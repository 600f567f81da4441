"""The baselines: who is asked, with what, and how an answer is made of the reply."""

from __future__ import annotations

import pytest

from antiphon.contracts import Policy
from antiphon.errors import ConfigError
from antiphon.generators.scripted import ScriptedGenerator
from antiphon.rollout import Limits, Rollout
from antiphon.types import Call, Message, Task
from antiphon_policies._texts import SHORT_ANSWER, answer_line, answer_span
from antiphon_policies.fixed import Cheapest, Largest, Random, Smallest
from antiphon_policies.prompted import PromptLLM
from antiphon_policies.unrouted import ChainOfThought, Direct

MEMBERS = [
    {"name": "Mini-7B", "aliases": ["mini"], "parameters_b": 7, "price": {"input": 0.1, "output": 0.3}},
    {"name": "Mini-7B-v2", "parameters_b": 7, "price": {"output": 0.3}},
    {"name": "Moe", "parameters_b": 141, "active_parameters_b": 39, "price": {"input": 2.0, "output": 2.0}},
    {"name": "Dense", "parameters_b": 70, "price": {"input": 0.05, "output": 4.0}},
]


async def run(scripted_pool, policy, texts=(), replies=("the reply",), members=MEMBERS, task=None, **options):
    assert isinstance(policy, Policy)
    pool = scripted_pool(members, list(replies))
    generator = ScriptedGenerator(texts)
    task = task or Task("Who {x}?", id="t1")
    trajectory = await Rollout(task, pool, generator, **options).run(policy)
    return trajectory, pool, generator


# ---- nobody is asked ----------------------------------------------------------------------------------------------


async def test_direct(scripted_pool):
    earlier = (Message("user", "Hello"), Message("assistant", "Hi"))
    task = Task("Who {x} {{members}}?", messages=earlier)
    trajectory, pool, generator = await run(scripted_pool, Direct(), [" Bo\n"], task=task)
    assert (trajectory.answer, trajectory.stop, pool.asked) == ("Bo", "answer", [])
    assert generator.requests[0].messages[:2] == earlier
    assert generator.requests[0].messages[2].content.endswith("Question: Who {x} {{members}}?\nAnswer:")
    assert not any(segment.trainable for segment in trajectory.segments)


async def test_direct_without_a_word_is_no_answer(scripted_pool):
    trajectory, *_ = await run(scripted_pool, Direct(), [" \n"])
    assert (trajectory.answer, trajectory.stop) == (None, "no_action")


async def test_chain_of_thought(scripted_pool):
    said = "First: x.\nAnswer: no.\nThen y.\n**Answer:** Bo"
    trajectory, _, generator = await run(scripted_pool, ChainOfThought(), [said])
    assert trajectory.answer == "Bo"
    assert generator.requests[0].max_tokens == Limits().turn_tokens


async def test_a_model_that_rambles_on_is_not_waited_for(scripted_pool):
    ramble = "and so on " * 999
    trajectory, _, generator = await run(scripted_pool, PromptLLM(answer_by="base"), [ramble, ramble])
    assert [request.max_tokens for request in generator.requests] == [64, 256]
    assert trajectory.answer.startswith("and so on")
    assert trajectory.stop == "answer"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("a\nAnswer: Bo", "Bo"),
        ("a\n  answer :Bo  \n", "Bo"),
        ("Answer: x\nAnswer: Bo\nthat is it", "Bo"),
        ("**Final answer:** Bo", "Bo"),
        ("# The answer is Bo.", "Bo."),
        ("Answer:\nBo", "Bo"),
        ("just thoughts\n\nBo\n", "Bo"),
        ("My answer depends: no", "My answer depends: no"),
        ("", None),
        (" \n", None),
    ],
)
def test_the_answer_line(text, answer):
    assert answer_line(text) == answer


# ---- one member is asked ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "member", "note"),
    [
        (Largest(), "Dense", "largest by active: Dense (70)"),
        (Largest(by="total"), "Moe", "largest by total: Moe (141)"),
        (Largest(by="price"), "Dense", "largest by price: Dense (4)"),
        (Smallest(), "Mini-7B", "smallest by active: Mini-7B (7)"),
        (Cheapest(), "Mini-7B", "cheapest: Mini-7B ($0.2 per million tokens)"),
        (Cheapest(input_share=1), "Dense", "cheapest: Dense ($0.05 per million tokens)"),
        (Cheapest(input_share=0), "Mini-7B", "cheapest: Mini-7B ($0.3 per million tokens)"),  # the first of equals
    ],
)
async def test_fixed_choices_say_what_they_went_by(policy, member, note, scripted_pool):
    trajectory, pool, _ = await run(scripted_pool, policy)
    assert [asked[0] for asked in pool.asked] == [member]
    assert trajectory.notes == (note,)
    assert (trajectory.answer, trajectory.rounds) == ("the reply", 1)
    assert list(pool.asked[0][1]) == [Message("system", SHORT_ANSWER), Message("user", "Who {x}?")]


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (Largest(), "no active_parameters_b or parameters_b for B, C;"),
        (Largest(by="total"), "no parameters_b for B, C;"),
        (Largest(by="price"), "no price for A, C;"),
        (Smallest(), "no active_parameters_b or parameters_b for B, C;"),
        (Cheapest(), "no price for A, C;"),
    ],
)
async def test_members_that_lack_the_field_are_named(policy, message, scripted_pool):
    members = [{"name": "A", "parameters_b": 7, "price": None}, {"name": "B"}, {"name": "C", "price": None}]
    trajectory, pool, _ = await run(scripted_pool, policy, members=members)
    assert (trajectory.stop, pool.asked) == ("error", [])
    assert message in trajectory.error


async def test_random_is_even_and_the_same_again(scripted_pool):
    async def names(seed):
        runs = [await run(scripted_pool, Random(), seed=seed, sample=sample) for sample in range(60)]
        return [pool.asked[0][0] for _, pool, _ in runs]

    first = await names(1)
    assert first == await names(1)
    assert first != await names(2)
    assert set(first) == {member["name"] for member in MEMBERS}


@pytest.mark.parametrize("policy", [Largest, Cheapest, Random, PromptLLM])
async def test_the_reply_is_the_answer_or_the_base_model_reads_it(policy, scripted_pool):
    one = MEMBERS[:1]
    pick = ["Mini-7B"] if policy is PromptLLM else []
    reply = "<answer>no</answer> I mean <Answer> Bo </Answer>."
    trajectory, _, generator = await run(scripted_pool, policy(), pick, [reply], one)
    assert (trajectory.answer, len(generator.requests)) == ("Bo", len(pick))

    trajectory, _, generator = await run(scripted_pool, policy(answer_by="base"), [*pick, " Di "], ["It is {Di}."], one)
    assert trajectory.answer == "Di"
    assert "Reply of Mini-7B:\nIt is {Di}.\n\nQuestion: Who {x}?" in generator.requests[-1].messages[-1].content

    failed = Call("", "", "timeout")
    trajectory, _, _ = await run(scripted_pool, policy(), pick, [failed], one)
    assert (trajectory.answer, trajectory.calls[0].outcome) == (None, "timeout")
    trajectory, _, generator = await run(scripted_pool, policy(answer_by="base"), [*pick, "Bo"], [failed], one)
    assert trajectory.answer == "Bo"
    assert trajectory.notes[-1] == "Mini-7B gave no reply (timeout); the base model answers alone"
    assert "Reply of" not in generator.requests[-1].messages[-1].content


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("Bo", "Bo"),
        (" <answer>Bo</answer>", "Bo"),
        ("<answer></answer>", None),
        ("", None),
        ("<answer>Bo", "<answer>Bo"),
    ],
)
def test_the_answer_span(reply, answer):
    assert answer_span(reply) == answer


@pytest.mark.parametrize("make", [Largest, Cheapest, Random, PromptLLM])
def test_who_answers_is_member_or_base(make):
    with pytest.raises(ConfigError, match=r"'member' or 'base', not 'bse'; did you mean 'base'\?"):
        make(answer_by="bse")


def test_other_settings_are_checked():
    with pytest.raises(ConfigError, match="no measure 'activ'; did you mean 'active'"):
        Largest(by="activ")
    with pytest.raises(ConfigError, match="between 0 and 1, not 2"):
        Cheapest(input_share=2)


# ---- the base model picks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "member"),
    [
        ("Moe", "Moe"),
        (" moe.\nIt is the best.", "Moe"),
        ("**Dense**", "Dense"),
        ("- `MINI`", "Mini-7B"),
        ("mini\u20117b", "Mini-7B"),
        ("I would ask Mini-7B-v2 for this.", "Mini-7B-v2"),
        ("Name: Dense", "Dense"),
    ],
)
async def test_the_pick_is_asked(said, member, scripted_pool):
    trajectory, pool, generator = await run(scripted_pool, PromptLLM(), [said])
    assert [asked[0] for asked in pool.asked] == [member]
    assert (trajectory.answer, trajectory.notes, trajectory.rounds) == ("the reply", (), 1)
    prompt = generator.requests[0].messages[0].content
    assert prompt.index("- Mini-7B: Knows things.") < prompt.index("- Dense: ") < prompt.index("Question: Who {x}?")


@pytest.mark.parametrize(
    "said", ["", "GPT-9", "Moe or Dense, I cannot tell", "I take Mini-7B-v3", "Moeller", "the most capable one"]
)
async def test_without_a_pick_the_first_is_asked_and_it_is_recorded(said, scripted_pool):
    trajectory, pool, _ = await run(scripted_pool, PromptLLM(), [said])
    assert [asked[0] for asked in pool.asked] == ["Mini-7B"]
    assert trajectory.notes == ("the base model named no member of the pool; asked the first, Mini-7B",)
