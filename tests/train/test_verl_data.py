"""The parquet files: verl's real data set reads them, in our order, and the agent loop gets the very task back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from antiphon.train.tasks import Tasks
from antiphon.train.verl_data import write_train, write_validation
from antiphon.train.verl_fields import task_of
from antiphon.types import Message, Task

TASKS = Tasks(
    tuple(
        Task(
            f"What is {n} + {n}?",
            id=f"sum-{n}",
            golden_answers=(str(2 * n), f"{2 * n}.0"),
            dataset="sums" if n % 2 else None,
            messages=(Message("user", "Hello <image>"), Message("assistant", "Yes?")) if n == 3 else (),
            metadata={"hops": n, "plan": [["add", "{1}"]]},
        )
        for n in range(5)
    ),
    hash="-",
)


def rows(path: Path, tokenizer: Any) -> list[dict[str, Any]]:
    """What verl's data set hands to an agent loop."""
    pytest.importorskip("verl")
    from omegaconf import OmegaConf
    from verl.utils.dataset.rl_dataset import RLHFDataset

    config = OmegaConf.create({"prompt_key": "prompt", "filter_overlong_prompts": False, "max_prompt_length": 9})
    dataset = RLHFDataset(str(path), tokenizer, config, None)
    return [dataset[index] for index in range(len(dataset))]


def test_verl_asks_each_steps_questions_in_their_order(tokenizer: Any, tmp_path: Path) -> None:
    write_train(TASKS, tmp_path / "t.parquet", first=1, last=4, count=3, seed=7)
    read = rows(tmp_path / "t.parquet", tokenizer)
    asked = [task for step in range(1, 5) for task in TASKS.step(step, 3, 7)]
    assert [task_of(row) for row in read] == asked
    assert [row["index"] for row in read] == list(range(12))
    assert {row["extra_info"]["split"] for row in read} == {"train"}
    assert read[0]["reward_model"]["ground_truth"] == list(asked[0].golden_answers or ())


def test_a_part_of_a_run_begins_where_the_one_before_ended(tokenizer: Any, tmp_path: Path) -> None:
    whole, part = tmp_path / "whole.parquet", tmp_path / "part.parquet"
    write_train(TASKS, whole, first=1, last=4, count=3, seed=7)
    write_train(TASKS, part, first=3, last=4, count=3, seed=7)

    def told(path: Path) -> list[Any]:
        return [(row["index"], task_of(row)) for row in rows(path, tokenizer)]

    assert told(part) == told(whole)[6:]


def test_a_validation_is_asked_as_it_stands(tokenizer: Any, tmp_path: Path) -> None:
    write_validation(TASKS.tasks, tmp_path / "v.parquet")
    read = rows(tmp_path / "v.parquet", tokenizer)
    assert [task_of(row) for row in read] == list(TASKS.tasks)
    assert {row["extra_info"]["split"] for row in read} == {"validation"}
    assert [message["content"] for message in read[3]["raw_prompt"]] == ["Hello <image>", "Yes?", "What is 3 + 3?"]
