"""A task from the fields of a row of verl's dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from antiphon.errors import ConfigError
from antiphon.types import Message, Task

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_ROLES: Mapping[Any, Literal["system", "user", "assistant"]] = {
    "system": "system",
    "user": "user",
    "assistant": "assistant",
}


def task_of(fields: Mapping[str, Any]) -> Task:
    """The task that a row holds.

    The question is `extra_info.question`, else the last user turn of `raw_prompt` (the turns before it go along). The
    golden answers are `reward_model.ground_truth`: a string, a number, a list of them, or such under `target`; else
    the field `golden_answers`. A row that `antiphon train` wrote holds the task itself, `extra_info.task`.

    Raises:
        ConfigError: no question, or no golden answers; names the row.
    """
    extra = _mapping(fields.get("extra_info"))
    if (whole := extra.get("task")) is not None:
        return _adapter().validate_json(whole)
    dataset = fields.get("data_source")
    id = str(extra.get("id") or f"{dataset or 'row'}-{number(extra.get('index', fields.get('index')))}")
    question, earlier = extra.get("question"), tuple[Message, ...]()
    if question is None:
        question, earlier = _asked(_plain(fields.get("raw_prompt")) or (), id)
    truth = _mapping(fields.get("reward_model")).get("ground_truth", fields.get("golden_answers"))
    return Task(
        str(question),
        id=id,
        golden_answers=golden_answers(truth, id),
        dataset=None if dataset is None else str(dataset),
        messages=earlier,
    )


def whole(task: Task) -> str:
    """A task as JSON, for `extra_info.task`."""
    return _adapter().dump_json(task).decode()


def golden_answers(truth: Any, task: str) -> tuple[str, ...]:
    """Golden answers as strings; numbers become strings.

    Raises:
        ConfigError: none, an empty list, or something that is no answer; names the task.
    """
    truth = _plain(truth)
    if isinstance(truth, Mapping):
        truth = _plain(truth.get("target"))
    answers = truth if isinstance(truth, list | tuple) else [truth]
    if not answers or any(isinstance(a, bool) or not isinstance(a, str | int | float) for a in answers):
        raise ConfigError(
            f"task {task!r}: golden answers are a string, a number or a non-empty list of them, got {truth!r}; "
            "mend reward_model.ground_truth of that row"
        )
    return tuple(str(answer) for answer in answers)


def number(value: Any, default: int = 0) -> int:
    """A whole number from a dataset's field (numpy scalars included), else the default."""
    value = _plain(value)
    return int(value) if isinstance(value, int | float) or (isinstance(value, str) and value.isdecimal()) else default


def _asked(raw_prompt: Sequence[Any], id: str) -> tuple[str, tuple[Message, ...]]:
    messages = [_message(item, id) for item in raw_prompt]
    if not messages or messages[-1].role != "user":
        raise ConfigError(
            f"task {id!r} asks nothing: give extra_info.question, or a raw_prompt that ends with a user message"
        )
    return messages[-1].content, tuple(messages[:-1])


def _message(item: Any, id: str) -> Message:
    message = _mapping(item)
    role, content = _ROLES.get(message.get("role")), message.get("content")
    if role is None or not isinstance(content, str):
        raise ConfigError(
            f"task {id!r}: a message of raw_prompt has role {message.get('role')!r} and {type(content).__name__} "
            "content; Antiphon takes text by system, user or assistant"
        )
    return Message(role, content)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _plain(value: Any) -> Any:
    """A numpy array or scalar as plain Python."""
    return value.tolist() if hasattr(value, "tolist") else value


@cache
def _adapter() -> TypeAdapter[Task]:
    from pydantic import TypeAdapter

    return TypeAdapter(Task)
