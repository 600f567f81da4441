"""A teacher for real questions: it asks members at random, and knows the answer when it reads it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from antiphon.contracts import MemberView
from antiphon.registry import default_registry
from antiphon.types import Call, Task

MOST = 3


def teacher(task: Task, members: Sequence[MemberView], calls: Sequence[Call]) -> str:
    """Asks somebody the question itself; answers by the golden answer that a reply contains, else asks somebody else.

    Whom to ask first is left to reinforcement learning.
    """
    found = _contained(task, calls[-1].reply) if calls and calls[-1].reply else None
    if found is not None:
        return f"<think>{calls[-1].member} says it.</think>\n<answer>{found}</answer>"
    left = [view.name for view in members if view.name not in {call.member for call in calls}]
    if len(calls) == MOST or not left:
        return "<think>Nobody knows.</think>\n<answer>unknown</answer>"
    why = "I ask another one." if calls else "I need to ask."
    name = Random(f"{task.id}/{len(calls)}").choice(left)
    return f"<think>{why}</think>\n<search>{name}: {task.question}</search>"


def contained(task: Task, members: Sequence[MemberView], calls: Sequence[Call]) -> str:
    """The reader's: the golden answer that the reply contains; where it contains none, there is nothing to read."""
    return (_contained(task, calls[-1].reply) if calls and calls[-1].reply else None) or ""


def _contained(task: Task, reply: str) -> str | None:
    """The longest golden answer that a reply contains."""
    contains = default_registry().metric("contains")
    found = [answer for answer in task.golden_answers or () if contains(reply, [answer]) == 1]
    return max(found, key=len, default=None)
