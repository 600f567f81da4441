"""What training takes from a trajectory and from a row of data; none of it needs an engine."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from antiphon.errors import ConfigError, GeneratorError
from antiphon.reward import Reward, RewardResult
from antiphon.train.samples import sample_of
from antiphon.train.stepped import SteppedReward
from antiphon.train.verl_fields import golden_answers, task_of
from antiphon.types import Message, Segment, Task, Trajectory

PROMPT = Segment("prompt", "p", 0, (1, 2, 3))
FIRST = Segment("policy", "ab", 0, (4, 5), (-0.25, -0.5), trainable=True)
INFORMATION = Segment("information", "i", 0, (6, 7, 8))
SECOND = Segment("policy", "c", 0, (9,), (-1.0,), trainable=True)


def trajectory(*segments: Segment, **fields: Any) -> Trajectory:
    return Trajectory("t", Task("q"), "p", None, "answer", segments=segments, **fields)


# ---- samples ------------------------------------------------------------------------------------------------------


def test_ids_mask_and_log_probabilities_line_up() -> None:
    sample = sample_of(trajectory(PROMPT, FIRST, INFORMATION, SECOND))
    assert sample.prompt_ids == [1, 2, 3]
    assert sample.response_ids == [4, 5, 6, 7, 8, 9]
    assert sample.mask == [1, 1, 0, 0, 0, 1]
    assert sample.logprobs == [-0.25, -0.5, 0.0, 0.0, 0.0, -1.0]
    assert sample.cut == 0


@pytest.mark.parametrize("length", range(8))
def test_a_long_response_is_cut_at_its_end_and_says_how_much(length: int) -> None:
    whole = sample_of(trajectory(PROMPT, FIRST, INFORMATION, SECOND))
    cut = sample_of(trajectory(PROMPT, FIRST, INFORMATION, SECOND), response_length=length)
    assert (cut.response_ids, cut.mask) == (whole.response_ids[:length], whole.mask[:length])
    assert cut.logprobs == (whole.logprobs or [])[:length]
    assert cut.cut == max(0, 6 - length)


def test_log_probabilities_that_nobody_wants_are_none_and_not_missed() -> None:
    bare = replace(FIRST, logprobs=None)
    assert sample_of(trajectory(PROMPT, bare), logprobs=False).logprobs is None
    with pytest.raises(GeneratorError, match=r"2 tokens with no log-probabilities.*calculate_log_probs"):
        sample_of(trajectory(PROMPT, bare))
    with pytest.raises(GeneratorError, match="2 tokens with 1 log-probabilities"):
        sample_of(trajectory(PROMPT, replace(FIRST, logprobs=(-1.0,))))


@pytest.mark.parametrize("segment", [PROMPT, FIRST, INFORMATION])
def test_a_span_without_ids_is_refused(segment: Segment) -> None:
    spans = [
        replace(each, token_ids=None) if each is segment else each for each in (PROMPT, FIRST, INFORMATION, SECOND)
    ]
    with pytest.raises(GeneratorError, match=f"a {segment.kind} span without token ids"):
        sample_of(trajectory(*spans))


def test_the_one_trainable_context_is_taken_wherever_it_stands() -> None:
    helper = [
        replace(segment, context=1, trainable=False, token_ids=(50,), logprobs=(-9.0,)) for segment in (PROMPT, FIRST)
    ]
    assert sample_of(trajectory(PROMPT, helper[0], FIRST, helper[1])).response_ids == [4, 5]


def test_none_or_several_trainable_contexts_are_refused() -> None:
    second = [replace(segment, context=1) for segment in (PROMPT, FIRST)]
    with pytest.raises(ConfigError, match="2 trainable contexts"):
        sample_of(trajectory(PROMPT, FIRST, *second))
    with pytest.raises(ConfigError, match="no trainable context"):
        sample_of(trajectory(PROMPT, replace(FIRST, trainable=False)))
    with pytest.raises(ConfigError, match=r"no trainable context \(it ended in an error: out of disk\)"):
        sample_of(trajectory(error="out of disk"))


def test_a_rollout_that_was_stopped_before_its_first_token_is_a_prompt_alone() -> None:
    sample = sample_of(trajectory(PROMPT))
    assert (sample.prompt_ids, sample.response_ids, sample.mask, sample.logprobs) == ([1, 2, 3], [], [], [])


# ---- rows ---------------------------------------------------------------------------------------------------------


def test_a_row_becomes_a_task() -> None:
    task = task_of(
        {
            "raw_prompt": [{"role": "user", "content": "a whole prompt around the question"}],
            "data_source": "nq",
            "extra_info": {"question": "capital of France?", "index": 7},
            "reward_model": {"ground_truth": {"target": ["Paris"]}},
        }
    )
    assert task == Task("capital of France?", id="nq-7", golden_answers=("Paris",), dataset="nq")


def test_without_a_question_the_last_user_turn_is_asked_and_earlier_ones_go_along() -> None:
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}]
    task = task_of(
        {
            "raw_prompt": [*turns, {"role": "user", "content": "capital of France?"}],
            "golden_answers": "Paris",
            "index": 3,
        }
    )
    assert task.question == "capital of France?"
    assert task.messages == (Message("user", "Hi"), Message("assistant", "Yes?"))
    assert task.id == "row-3"


def test_numpy_values_are_taken_as_they_come_from_a_data_frame() -> None:
    numpy = pytest.importorskip("numpy")
    task = task_of(
        {
            "raw_prompt": numpy.array([{"role": "user", "content": "year?"}], dtype=object),
            "index": numpy.int64(4),
            "reward_model": {"ground_truth": {"target": numpy.array(["1999", "99"], dtype=object)}},
        }
    )
    assert (task.id, task.golden_answers) == ("row-4", ("1999", "99"))


@pytest.mark.parametrize("truth", [None, [], {"target": []}, {}, [None], True, [["x"]]])
def test_golden_answers_that_are_none_are_a_clear_data_error(truth: Any) -> None:
    with pytest.raises(ConfigError, match="task 'nq-1': golden answers are a string"):
        golden_answers(truth, "nq-1")


def test_golden_numbers_become_strings() -> None:
    assert golden_answers([1999, 1.5], "t") == ("1999", "1.5")
    assert golden_answers(7, "t") == ("7",)


@pytest.mark.parametrize(
    ("raw_prompt", "says"),
    [
        ([], "asks nothing"),
        ([{"role": "system", "content": "be brief"}], "asks nothing"),
        ([{"role": "tool", "content": "x"}], "role 'tool'"),
        ([{"role": "user", "content": [{"type": "image"}]}], "list content"),
    ],
)
def test_a_row_that_asks_nothing_we_can_read_is_refused_by_name(raw_prompt: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        task_of({"raw_prompt": raw_prompt, "index": 9, "golden_answers": ["x"]})
    assert "row-9" in str(caught.value)


# ---- steps --------------------------------------------------------------------------------------------------------


class Committed(Reward):
    """A reward that gives 0 and remembers what was committed."""

    def __init__(self) -> None:
        super().__init__(())
        self.steps: list[list[str]] = []

    def commit(self, scored: Any) -> None:
        self.steps.append([trajectory.id for trajectory, _ in scored])


def score(reward: SteppedReward, id: str, step: int | None, order: tuple[int, int]) -> RewardResult:
    return reward(replace(trajectory(), id=id), step=step, order=order)


def test_a_step_is_committed_in_sample_order_when_the_next_begins() -> None:
    kept = Committed()
    reward = SteppedReward(kept)
    for id, order in (("b0", (1, 0)), ("a1", (0, 1)), ("a0", (0, 0))):
        score(reward, id, 1, order)
    assert kept.steps == []
    score(reward, "c", 2, (0, 0))
    assert kept.steps == [["a0", "a1", "b0"]]
    score(reward, "late", 1, (9, 0))  # a straggler of step 1 closes nothing
    assert len(kept.steps) == 1
    reward.commit()
    assert kept.steps[1:] == [["c", "late"]]


def test_without_steps_each_trajectory_is_one() -> None:
    kept = Committed()
    reward = SteppedReward(kept)
    score(reward, "a", None, (0, 0))
    score(reward, "b", None, (0, 0))
    assert kept.steps == [["a"], ["b"]]


# ---- imports ------------------------------------------------------------------------------------------------------


def test_the_package_imports_without_an_engine_and_the_loop_says_what_it_needs() -> None:
    code = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("verl", "ray", "torch", "transformers"):
            raise ImportError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
import antiphon.train.samples, antiphon.train.stepped, antiphon.train.verl_fields, antiphon.train.verl_generator
from antiphon.errors import MissingExtra
try:
    import antiphon.train.agent_loop
except MissingExtra as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert "antiphon.train.agent_loop" in done.stdout
    assert "pip install 'antiphon[train]'" in done.stdout
