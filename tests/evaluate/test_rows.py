"""A row says what its trajectory did, in the paper's units, and reads back equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.descriptor import Descriptor
from antiphon.errors import ConfigError
from antiphon.evaluate.rows import Judge, Key, Row
from antiphon.types import Attempt, Call, Task, Timings, Trajectory, Usage

KEY = Key("largest", "mine", "nq", "q1", 0, 3)
TASK = Task("Who?", "q1", ("Ada", "Ada Lovelace"), "nq")


class Exact:
    name = "em"

    def __call__(self, prediction: str, golden: Sequence[str]) -> float:
        return float(prediction in golden)


def descriptor(name: str, **fields: Any) -> Descriptor:
    return Descriptor.of({"name": name, "description": "x", "model": "m", **fields})


MEMBERS = [
    (descriptor("small", parameters_b=7), 0.2),
    (descriptor("experts", parameters_b=141, active_parameters_b=39), 1.2),
    (descriptor("large", parameters_b=70), 0.9),
    (descriptor("secret"), 9.0),
    (descriptor("free-for-all", parameters_b=1), None),
]


@pytest.fixture
def judge() -> Judge:
    return Judge({"em": Exact()}, MEMBERS)


def call(member: str, tokens: int = 10, **changes: Any) -> Call:
    attempt = Attempt(f"scripted:{member}", "ok", 0.5, Usage(100, tokens), 0.001, "m", member)
    return replace(Call(member, "q", "ok", "Ada", (attempt,), latency_s=0.5), **changes)


def trajectory(*calls: Call, **changes: Any) -> Trajectory:
    timings = Timings(0.0, 2.0, 0.5, 1.0)
    made = Trajectory(
        "t", TASK, "largest", "Ada", "answer", calls=calls, timings=timings, policy_cost_usd=0.25, rounds=1
    )
    return replace(made, **changes)


def test_the_whole_row(judge: Judge) -> None:
    row = judge.row(KEY, trajectory(call("small", 10), call("large", 20)), "trajectories/0002.jsonl", 7)
    assert (row.policy, row.pool, row.dataset, row.task_id, row.seed, row.index) == (
        "largest",
        "mine",
        "nq",
        "q1",
        0,
        3,
    )
    assert (row.question, row.golden, row.answer, row.metrics) == ("Who?", TASK.golden_answers, "Ada", {"em": 1.0})
    assert row.raw_cost == pytest.approx(0.2 * 10 + 0.9 * 20)
    assert (row.members_usd, row.policy_usd, row.cost_usd) == (0.002, 0.25, 0.252)
    assert (row.calls, row.asked, row.tokens) == (2, ("small", "large"), ((100, 10), (100, 20)))
    assert (row.escalated, row.format_ok, row.file, row.line) == (True, True, "trajectories/0002.jsonl", 7)
    assert (row.wall_s, row.members_s) == (2.0, 1.0)
    assert (row.estimated, row.unpriced, row.substituted, row.failed, row.error) == (0, 0, 0, 0, None)
    assert Row.from_json(row.to_json()) == row


def test_without_an_answer_every_metric_is_0_and_none_is_asked() -> None:
    def asked(prediction: str, golden: Sequence[str]) -> float:
        raise AssertionError

    row = Judge({"em": asked}, MEMBERS).row(KEY, trajectory(answer=None, stop="rounds"), "f", 1)  # type: ignore[dict-item]
    assert (row.metrics, row.answer, row.stop) == ({"em": 0.0}, None, "rounds")


def test_a_metric_that_fails_is_named_with_the_question() -> None:
    def fails(prediction: str, golden: Sequence[str]) -> float:
        raise ZeroDivisionError("by zero")

    with pytest.raises(ConfigError, match="metric 'odd' failed on the answer to 'q1' of 'nq': ZeroDivisionError"):
        Judge({"odd": fails}, MEMBERS).row(KEY, trajectory(), "f", 1)  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("asked", "escalated"),
    [
        (("small", "large"), True),
        (("large", "small"), False),
        (("large", "small", "large"), True),
        (("large", "experts"), False),  # of 141 billions 39 are active
        (("experts", "large"), True),
        (("small", "secret"), True),  # nobody knows its size: by price
        (("secret", "large"), False),
        (("free-for-all", "secret"), False),  # neither is known of both
        (("small", "small"), False),
        ((), False),
    ],
)
def test_escalation_is_a_smaller_member_before_a_larger_one(
    judge: Judge, asked: tuple[str, ...], escalated: bool
) -> None:
    assert judge.row(KEY, trajectory(*(call(name) for name in asked)), "f", 1).escalated is escalated


def test_failed_guessed_and_substituted_calls_are_counted(judge: Judge) -> None:
    lost = call("small", outcome="not_recorded", reply=None, attempts=(), error="not recorded in a.jsonl")
    guessed = call("large", attempts=(replace(call("large").attempts[0], usage=Usage(1, 2, estimated=True)),))
    other = call("small", substituted=True, served_model="another", attempts=(replace(call("small").attempts[0]),))
    row = judge.row(KEY, trajectory(lost, guessed, other), "f", 1)
    assert (row.failed, row.unrecorded, row.estimated, row.substituted) == (1, 1, 1, 1)
    assert (row.tokens, row.served) == ((None, (1, 2), (100, 10)), (None, None, "another"))
    assert row.error == "not recorded in a.jsonl"


def test_an_unpriced_member_counts_as_free_and_is_counted(judge: Judge) -> None:
    free = call("free-for-all")
    free = replace(free, attempts=(replace(free.attempts[0], cost_usd=0.0, priced_as=None),))
    row = judge.row(KEY, trajectory(free), "f", 1)
    assert (row.raw_cost, row.unpriced) == (0.0, 1)


def test_a_replayed_call_takes_as_long_as_its_original(judge: Judge) -> None:
    replayed = call("small", latency_s=0.001)
    row = judge.row(KEY, trajectory(replayed, timings=Timings(0.0, 0.01, 0.0, 0.001)), "f", 1)
    assert row.wall_s == pytest.approx(0.01 + 0.499)
    assert row.members_s == pytest.approx(0.5)


def test_a_replay_without_a_recorded_latency_has_no_time_of_its_own() -> None:
    judge = Judge({}, MEMBERS, replayed=["small"])
    slow, fast = call("small", latency_s=0.001), call("small", latency_s=0.6)
    assert judge.row(KEY, trajectory(slow), "f", 1).timed
    assert not judge.row(KEY, trajectory(slow, fast), "f", 1).timed
    assert judge.row(KEY, trajectory(call("large")), "f", 1).timed


def test_an_error_is_data(judge: Judge) -> None:
    row = judge.row(KEY, trajectory(answer=None, stop="error", error="x" * 1000), "f", 1)
    assert row.error == "x" * 300


@given(st.text(), st.text(), st.lists(st.text(max_size=5), max_size=3))
def test_any_text_reads_back_equal(question: str, label: str, notes: list[str]) -> None:
    task = Task(f"?{question}", "q", (f"a{label}",))
    made = Judge({}, MEMBERS).row(replace(KEY, policy=label), trajectory(task=task), "f", 1)
    row = replace(made, notes=tuple(notes))
    line = row.to_json()
    assert "\n" not in line
    assert (
        Row.from_json(line.encode("utf-8", "surrogatepass")) == row if label.isascii() else Row.from_json(line) == row
    )


@pytest.mark.parametrize("line", ["{}", "[]", "3", '{"torn', '{"policy": "a"}'])
def test_what_is_no_row_is_an_error(line: str) -> None:
    with pytest.raises(ConfigError, match="not a row of an evaluation"):
        Row.from_json(line)
