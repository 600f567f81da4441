"""Prompt LLM*, KNN Router*, RAG, Search-R1, SFT and Single: who is asked what, and what the base model reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from antiphon.contracts import Policy
from antiphon.errors import ConfigError
from antiphon.generators.scripted import ScriptedGenerator
from antiphon.orchestrator import Orchestrator
from antiphon.registry import default_registry
from antiphon.rollout import Limits, Rollout
from antiphon.types import Call, Message, Task
from antiphon_policies._texts import MEMBER_PROMPT
from antiphon_policies.decomposed import KNNStar, PromptLLMStar, parts_of
from antiphon_policies.fixed import Single
from antiphon_policies.retrieval import RAG, SearchR1
from antiphon_policies.unrouted import SFT, Direct

MEMBERS = [{"name": "Rivers"}, {"name": "Hills"}]
QUESTION = "Which is longer, the {Po} or the Ebro?"


async def run(
    scripted_pool: Callable[..., Any],
    policy: Policy,
    texts: Sequence[Any],
    replies: Sequence[Any],
    members: Sequence[Any] = MEMBERS,
    **options: Any,
) -> tuple[Any, Any, Any]:
    assert isinstance(policy, Policy)
    pool, generator = scripted_pool(members, list(replies)), ScriptedGenerator(list(texts))
    trajectory = await Rollout(Task(QUESTION, id="t"), pool, generator, **options).run(policy)
    return trajectory, pool, generator


# ---- decomposed ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("How long is the Po?\nHow long is the Ebro?", ["How long is the Po?", "How long is the Ebro?"]),
        ("1. A?\n2) B?\n(3) C?\n- D?\n* E?\n• F?", ["A?", "B?", "C?", "D?", "E?", "F?"]),
        ("Small questions:\n\nA?\n  A?\n---\n42\nB?", ["A?", "B?"]),
        ("1984 was written by whom?", ["1984 was written by whom?"]),
        ("", []),
        (" \n-\n", []),
    ],
)
def test_the_parts_of_a_text(text: str, parts: list[str]) -> None:
    assert parts_of(text, 6) == parts
    assert parts_of(text, 1) == parts[:1]


async def test_prompt_llm_star_picks_for_each_part(scripted_pool: Callable[..., Any]) -> None:
    texts = ["- How long is the {Po}?\n- How high is the Ebro?", "Rivers", "Hills", " The Ebro "]
    trajectory, pool, generator = await run(scripted_pool, PromptLLMStar(), texts, ["652 {km}", "low"])
    assert trajectory.answer == "The Ebro"
    assert [(asked[0], asked[1][-1].content) for asked in pool.asked] == [
        ("Rivers", "How long is the {Po}?"),
        ("Hills", "How high is the Ebro?"),
    ]
    assert pool.asked[0][1][0] == Message("system", MEMBER_PROMPT)
    assert (trajectory.rounds, len(trajectory.contexts), trajectory.notes) == (1, 4, ())  # split, pick, pick, answer
    prompts = [request.messages[-1].content for request in generator.requests]
    assert prompts[0].endswith(f"Question: {QUESTION}\nSmall questions:")
    assert "Question: How high is the Ebro?\nName:" in prompts[2]
    assert "Small question: How long is the {Po}?\nReply of Rivers:\n652 {km}\n\nSmall question: How high" in prompts[3]
    assert prompts[3].endswith(f"Question: {QUESTION}\nAnswer:")


async def test_at_most_so_many_parts_are_asked(scripted_pool: Callable[..., Any]) -> None:
    texts = ["A?\nB?\nC?", "Rivers", "Rivers", "x"]
    _, pool, generator = await run(scripted_pool, PromptLLMStar(parts=2), texts, ["a", "b"])
    assert [asked[1][-1].content for asked in pool.asked] == ["A?", "B?"]
    assert "2 at the most" in generator.requests[0].messages[-1].content


async def test_without_parts_the_question_is_put_as_it_is(scripted_pool: Callable[..., Any]) -> None:
    trajectory, pool, _ = await run(scripted_pool, PromptLLMStar(), ["", "Hills", "x"], ["a"])
    assert [(asked[0], asked[1][-1].content) for asked in pool.asked] == [("Hills", QUESTION)]
    assert trajectory.notes == ("the base model gave no parts; the question was put as it is",)


async def test_what_fails_is_left_out_and_noted(scripted_pool: Callable[..., Any]) -> None:
    replies = [Call("", "", "timeout"), Call("", "", "timeout")]
    texts = ["A?\nB?", "Rivers", "Hills", "I know: the Ebro"]
    trajectory, _, generator = await run(scripted_pool, PromptLLMStar(), texts, replies)
    assert trajectory.answer == "I know: the Ebro"
    assert trajectory.notes == ("Rivers gave no reply (timeout) to 'A?'", "Hills gave no reply (timeout) to 'B?'")
    assert "No model replied." in generator.requests[-1].messages[-1].content


async def test_parts_keep_to_the_limit_of_calls(scripted_pool: Callable[..., Any]) -> None:
    texts = ["A?\nB?\nC?", "Rivers", "Rivers", "Rivers", "x"]
    trajectory, pool, _ = await run(scripted_pool, PromptLLMStar(), texts, ["a", "b", "c"], limits=Limits(calls=2))
    assert (trajectory.stop, trajectory.answer, len(pool.asked)) == ("calls", None, 2)


def scores(path: Path) -> str:
    rows = [("How long is the Rhine?", "Rivers", 1), ("How long is the Rhine?", "Hills", 0)]
    rows += [("How high is the Brocken?", "Rivers", 0), ("How high is the Brocken?", "Hills", 1)]
    path.write_text("\n".join(json.dumps({"question": q, "llm": m, "score": s}) for q, m, s in rows), "utf-8")
    return str(path)


async def test_knn_star_routes_each_part_by_its_neighbours(scripted_pool: Callable[..., Any], tmp_path: Path) -> None:
    policy = KNNStar(scores=scores(tmp_path / "s.jsonl"), k=1, folds=0)
    texts = ["How long is the Po?\nHow high is the Ebro?", "x"]
    trajectory, pool, _ = await run(scripted_pool, policy, texts, ["652 km", "low"])
    assert [asked[0] for asked in pool.asked] == ["Rivers", "Hills"]
    assert (trajectory.answer, len(trajectory.contexts)) == ("x", 2)


async def test_a_part_does_not_learn_from_the_tasks_own_question(
    scripted_pool: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "s.jsonl"
    scores(path)
    own = [{"question": QUESTION, "llm": name, "score": name == "Hills"} for name in ("Rivers", "Hills")]
    path.write_text(path.read_text() + "\n" + "\n".join(json.dumps({**row, "score": int(row["score"])}) for row in own))
    policy = KNNStar(scores=str(path), k=1, folds=0)
    _, pool, _ = await run(scripted_pool, policy, ["Which is longer, the Po, or how long?", "x"], ["652 km"])
    assert [asked[0] for asked in pool.asked] == ["Rivers"]


@pytest.mark.parametrize("name", ["prompt_llm_star", "knn_star"])
def test_the_number_of_parts_is_checked(name: str, tmp_path: Path) -> None:
    more = {"scores": scores(tmp_path / "s.jsonl")} if name == "knn_star" else {}
    for bad in (0, True, 1.5):
        with pytest.raises(ConfigError, match=f"policy {name}: parts is a whole number of at least 1"):
            default_registry().policy(name, parts=bad, **more)


# ---- retrieval ----------------------------------------------------------------------------------------------------


@pytest.fixture
def corpus(tmp_path: Path) -> dict[str, Any]:
    passages = [("Po", "The Po is 652 km long."), ("Ebro", "The Ebro is 930 km long."), ("Brocken", "A hill.")]
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n".join(json.dumps({"title": title, "text": text}) for title, text in passages), "utf-8")
    return {
        "name": "Library",
        "description": "Finds passages.",
        "adapter": "bm25",
        "model": "corpus",
        "options": {"path": str(path), "k": 2},
        "price": {"input": 0, "output": 0},
    }


def test_rag_reads_what_the_retriever_finds(corpus: dict[str, Any]) -> None:
    generator = ScriptedGenerator([" the Ebro "])
    with Orchestrator(pool=[corpus], policy="rag", model=generator) as orchestrator:
        trajectory = orchestrator.ask("Which is longer, the Po or the Ebro?")
    assert trajectory.answer == "the Ebro"
    [call] = trajectory.calls
    assert (call.member, call.query) == ("Library", "Which is longer, the Po or the Ebro?")
    prompt = generator.requests[0].messages[-1].content
    assert "The Po is 652 km long." in prompt
    assert "The Ebro is 930 km long." in prompt
    assert "A hill." not in prompt


async def test_rag_among_other_members_is_told_which_retrieves(scripted_pool: Callable[..., Any]) -> None:
    trajectory, pool, _ = await run(scripted_pool, RAG(retriever="hills"), ["x"], ["passages"])
    assert [asked[0] for asked in pool.asked] == ["Hills"]
    assert list(pool.asked[0][1]) == [Message("user", QUESTION)]
    trajectory, *_ = await run(scripted_pool, RAG(), ["x"], ["passages"])
    assert "2 members (Rivers, Hills), and which of them retrieves is not said" in trajectory.error
    trajectory, *_ = await run(scripted_pool, RAG(retriever="Hill"), ["x"], ["passages"])
    assert "nobody in the pool is called 'Hill'; did you mean 'Hills'" in trajectory.error


async def test_rag_without_passages_answers_alone(scripted_pool: Callable[..., Any]) -> None:
    failed = [Call("", "", "timeout")]
    trajectory, _, generator = await run(scripted_pool, RAG(), ["x"], failed, MEMBERS[:1])
    assert trajectory.answer == "x"
    assert trajectory.notes == ("Rivers gave no passages (timeout); the base model answers alone",)
    assert "passages" not in generator.requests[0].messages[-1].content


def test_search_r1_searches_in_turns(corpus: dict[str, Any]) -> None:
    texts = [
        "<think>The Po first.</think><search>Library: length of the Po</search>",
        "<think>Now the Ebro.</think><search>Library: length of the Ebro</search>",
        "<think>930 is more.</think><answer>the Ebro</answer>",
    ]
    with Orchestrator(pool=[corpus], policy="search_r1", model=ScriptedGenerator(texts)) as orchestrator:
        trajectory = orchestrator.ask("Which is longer, the Po or the Ebro?")
    assert (trajectory.answer, trajectory.rounds, trajectory.format_problems) == ("the Ebro", 2, ())
    assert [call.query for call in trajectory.calls] == ["length of the Po", "length of the Ebro"]
    found = [segment.text for segment in trajectory.segments if segment.kind == "information"]
    assert "652 km" in found[0]
    assert "930 km" in found[1]


async def test_search_r1_sends_the_bare_query_and_wants_the_retriever_alone(scripted_pool: Callable[..., Any]) -> None:
    grammar = default_registry().grammar("router_r1")
    texts = ["<think>a</think><search>Rivers: the {Po}</search>", "<think>b</think><answer>x</answer>"]
    _, pool, _ = await run(scripted_pool, SearchR1(grammar), texts, ["652 km"], MEMBERS[:1])
    assert list(pool.asked[0][1]) == [Message("user", "the {Po}")]
    trajectory, *_ = await run(scripted_pool, SearchR1(grammar), texts, ["652 km"])
    assert "take a pool that holds the retriever alone" in trajectory.error


# ---- sft, single --------------------------------------------------------------------------------------------------


async def test_sft_asks_as_direct_does(scripted_pool: Callable[..., Any]) -> None:
    said = [await run(scripted_pool, policy, ["x"], []) for policy in (SFT(), Direct())]
    assert said[0][2].requests[0].messages == said[1][2].requests[0].messages
    assert [trajectory.versions["policy"] for trajectory, *_ in said] == ["sft", "direct"]


async def test_single_asks_the_one_it_names(scripted_pool: Callable[..., Any]) -> None:
    trajectory, *_ = await run(scripted_pool, Single(member="HILLS"), [], ["<answer>x</answer>"])
    assert ([call.member for call in trajectory.calls], trajectory.answer) == (["Hills"], "x")
    trajectory, *_ = await run(scripted_pool, Single(member="Hill"), [], ["x"])
    assert "nobody in the pool is called 'Hill'" in trajectory.error
