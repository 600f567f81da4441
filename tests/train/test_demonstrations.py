"""Demonstrations: the teacher's words, in the model's tokens, through the rollout that answers questions."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from antiphon.contracts import MemberView
from antiphon.errors import ConfigError
from antiphon.generators._chat import Chat
from antiphon.train.demonstrations import Demonstrated, demonstrate, teacher_of
from antiphon.train.prepare import prepare
from antiphon.train.samples import sample_of
from antiphon.train.spec import make_spec
from antiphon.types import Call, Task

CONFIG = """
[pools.sums]
members = ["Calculator"]

[limits]
rounds = 2
"""


@pytest.fixture
def chat(tokenizer: Any) -> Chat:
    return Chat(tokenizer, source="tiny")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "antiphon.toml").write_text(CONFIG)
    rows = [{"id": f"q{n}", "question": f"What is 12 + {n}?", "golden_answers": [f"{12 + n}"]} for n in range(8)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def taught(
    project: Path, chat: Chat, teacher: Any, on_bound: Callable[[Any], None] = lambda most: None, **tables: Any
) -> Demonstrated:
    name = teacher if isinstance(teacher, str) else f"{__name__}:{teacher.__name__}"
    data = {
        "train": {"seed": 3},
        "data": {"dataset": str(project / "sums.jsonl")},
        "environment": {"pool": "sums"},
        "policy": {"name": "router_r1"},
        "model": {"base": "unused"},
        "demonstrations": {"teacher": name, "tasks": 6, **tables.pop("demonstrations", {})},
        **tables,
    }
    prepared = prepare(make_spec(data, "test"), config_file=project / "antiphon.toml")
    return await demonstrate(prepared, chat, on_bound=on_bound)


def asks(task: Task, members: Sequence[MemberView], calls: Sequence[Call]) -> str:
    """Asks the first member once, and answers what it said."""
    if not calls:
        return f"<think>I ask.</think><search>{members[0].name}: {task.question}</search> and never this"
    return f"<think>So.</think><answer>{calls[-1].reply}</answer>"


def errs(task: Task, members: Sequence[MemberView], calls: Sequence[Call]) -> str:
    """Right, wrong, malformed, silent or broken, by the task."""
    fault = int(task.id[1:]) % 5
    if fault == 1:
        return "<think>I guess.</think><answer>a guess</answer>"
    if fault == 2:
        return f"<think></think><answer>{golden(task)}</answer>"
    if fault == 3:
        return ""
    if fault == 4:
        raise KeyError("lost")
    return f"<think>I know.</think><answer>{golden(task)}</answer>"


def golden(task: Task) -> str:
    return (task.golden_answers or ("",))[0]


async def test_a_demonstration_is_token_for_token_what_a_rollout_trains_on(project: Path, chat: Chat) -> None:
    found = await taught(project, chat, asks)
    assert (len(found.examples), found.dropped, found.error) == (6, {}, None)
    for example, trajectory in zip(found.examples, found.trajectories, strict=True):
        sample = sample_of(trajectory, logprobs=False)
        assert list(example.ids) == sample.prompt_ids + sample.response_ids
        assert list(example.mask) == [0] * len(sample.prompt_ids) + sample.mask
        said = chat.decode([token for token, learnt in zip(example.ids, example.mask, strict=True) if learnt])
        call = trajectory.calls[0]
        assert said == (
            f"<think>I ask.</think><search>Calculator: {call.query}</search>"
            f"<think>So.</think><answer>{golden(trajectory.task)}</answer>"
        )
        assert call.reply == golden(trajectory.task)
        assert trajectory.segments[2].kind == "information"


async def test_the_same_seed_teaches_the_same(project: Path, chat: Chat) -> None:
    first, second, other = [(await taught(project, chat, asks, train={"seed": seed})).examples for seed in (3, 3, 4)]
    assert first == second
    assert first != other


async def test_the_teacher_sees_the_pool_as_it_is_drawn(project: Path, chat: Chat) -> None:
    drawn = {"pool": "sums", "randomise": {"names": True}}
    found = await taught(project, chat, asks, environment=drawn)
    names = {trajectory.calls[0].member for trajectory in found.trajectories}
    assert len(names) > 1
    assert "Calculator" not in names
    for trajectory in found.trajectories:
        assert trajectory.calls[0].member in trajectory.segments[0].text


async def test_what_is_wrong_or_malformed_is_dropped_and_counted(project: Path, chat: Chat) -> None:
    found = await taught(project, chat, errs, demonstrations={"tasks": 8})
    assert found.dropped == {"wrong": 2, "malformed": 2, "no_action": 1, "error": 1}
    assert found.error == "KeyError: 'lost'"
    assert len(found.examples) == 2
    all_that_ended = await taught(project, chat, errs, demonstrations={"tasks": 8, "correct": False})
    assert all_that_ended.dropped == {"no_action": 1, "error": 1}
    assert len(all_that_ended.examples) == 6


async def test_the_limit_of_a_run_holds_for_demonstrations_and_what_they_cost_is_told(
    project: Path, chat: Chat
) -> None:
    priced = '[members."Calculator".price]\ninput = 1000.0\noutput = 0.0\n'
    (project / "antiphon.toml").write_text(CONFIG + priced)
    whole = await taught(project, chat, asks)
    assert whole.spent_usd == pytest.approx(sum(trajectory.cost_usd for trajectory in whole.trajectories))
    assert whole.spent_usd > 0
    told: list[Any] = []
    limit = 2.0  # a call sets several times aside what it costs in the end
    cut = await taught(project, chat, asks, train={"seed": 3, "max_cost_usd": limit}, on_bound=told.append)
    assert 0 < cut.dropped["budget"] < 6
    assert len(cut.examples) + cut.dropped["budget"] == 6
    assert 0 < cut.spent_usd <= limit
    assert [(most.rollouts, most.usd) for most in told] == [(6, limit)]


async def test_answers_alone_are_learnt_with_the_end_of_the_turn(project: Path, chat: Chat) -> None:
    """The fine-tuned baseline, and a reader of a member's reply: in the prompts of the very policies."""
    teacher = "antiphon.train.demonstrations:golden_answer"
    reader = {"name": "random", "options": {"answer_by": "base"}}
    for policy, asked in (({"name": "sft"}, 0), (reader, 1)):
        found = await taught(project, chat, teacher, policy=policy)
        assert len(found.examples) == 6
        for example, trajectory in zip(found.examples, found.trajectories, strict=True):
            learnt = [token for token, one in zip(example.ids, example.mask, strict=True) if one]
            assert learnt == [*(chat.encode(golden(trajectory.task)).token_ids or ()), chat.turn_end]
            assert example.mask[-len(learnt) :] == (1,) * len(learnt)
            assert len(trajectory.calls) == asked
            assert all((call.reply or "") in trajectory.segments[0].text for call in trajectory.calls)


def never(task: Task, members: Sequence[MemberView], calls: Sequence[Call]) -> str:
    raise ValueError("out of words")


async def test_nothing_to_learn_from_says_why(project: Path, chat: Chat) -> None:
    with pytest.raises(ConfigError, match=r"none of 6 .*'error': 6.*out of words"):
        await taught(project, chat, never)


@pytest.mark.parametrize("name", ["no_such_module:f", "antiphon.types:nobody", "nonsense", "antiphon.types:__name__"])
def test_a_teacher_that_is_not_there_is_an_error(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        teacher_of(name)
