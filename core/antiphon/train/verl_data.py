"""The questions of a run as the parquet files that verl reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphon.errors import MissingExtra
from antiphon.train.verl_fields import whole
from antiphon.types import Message, Task

if TYPE_CHECKING:
    from antiphon.train.tasks import Tasks


def write_train(tasks: Tasks, path: Path, *, first: int, last: int, count: int, seed: int) -> None:
    """The questions of the steps `first` to `last`, `count` a step, in the order in which they are to be asked.

    A question's index is its place in the whole run, whichever part of it this is.
    """
    asked = (task for step in range(first, last + 1) for task in tasks.step(step, count, seed))
    _write((_row(task, index, "train") for index, task in enumerate(asked, (first - 1) * count)), path)


def write_validation(tasks: Iterable[Task], path: Path) -> None:
    """The questions of a validation, in their order."""
    _write((_row(task, index, "validation") for index, task in enumerate(tasks)), path)


def _row(task: Task, index: int, split: str) -> Mapping[str, Any]:
    """verl's usual fields; the agent loop itself goes by `extra_info.task`."""
    asked = [*task.messages, Message("user", task.question)]
    return {
        "data_source": task.dataset or "questions",
        "prompt": [{"role": message.role, "content": message.content} for message in asked],
        "reward_model": {"style": "rule", "ground_truth": list(task.golden_answers or ())},
        "extra_info": {"index": index, "split": split, "task": whole(task)},
    }


def _write(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("writing questions for verl", "train") from None
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
