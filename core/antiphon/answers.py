"""How a member is asked for a short answer, and what of its reply is the answer: one rule for policies and records."""

from __future__ import annotations

import re

from antiphon.types import Message, Task

SHORT_ANSWER = """\
Answer the user's question. Give the answer itself, as short as it can be, between <answer> and </answer>."""

_ANSWER_SPAN = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)


def short_answer(task: Task) -> list[Message]:
    """What a member is sent that is asked a task's question itself."""
    return [Message("system", SHORT_ANSWER), *task.messages, Message("user", task.question)]


def answer_span(reply: str) -> str | None:
    """A member's answer: the last `<answer>` span, else the whole reply; None where there is nothing."""
    spans = _ANSWER_SPAN.findall(reply)
    return (spans[-1] if spans else reply).strip() or None
