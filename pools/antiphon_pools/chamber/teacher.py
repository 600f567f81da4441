"""A teacher for the warm start: it follows a task's plan, asking whoever in the shown pool has the skill.

It knows the members by their endpoints, whatever they are called and however they are described. Which of the twins is
the better one it does not know: it picks one at random and, told that this one does not know, tries the other one only
half of the time. That is left to reinforcement learning.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from antiphon.contracts import MemberView
from antiphon.types import Call, Task
from antiphon_pools.chamber.facts import UNKNOWN

SKILLS = {
    "raven": ("capital", "continent"),
    "wren": ("capital", "continent"),
    "owl": ("symbol", "number"),
    "swift": ("sum",),
    "crane": ("currency",),
    "letters": ("letters", "first", "last"),
    "calculator": ("difference", "product"),
}
"""The end of a member's LoRA folder or function -> what it can do."""

GIVEN_UP = "unknown"
"""The answer where nobody knew."""


def teacher(task: Task, members: Sequence[MemberView], calls: Sequence[Call], *, seed: int = 0) -> str:
    """The next turn, in the tags of the grammar `router_r1`: short thinking, then a call or the answer.

    Raises:
        KeyError: the task is not of the data set `chamber`.
    """
    plan: list[tuple[str, str]] = task.metadata["plan"]
    replies = [call.reply for call in calls if call.ok and call.reply is not None and call.reply != UNKNOWN]
    if len(replies) == len(plan):
        return _turn(f"It is {replies[-1]}.", "answer", replies[-1])
    skill, query = plan[len(replies)]
    for place, reply in enumerate(replies, 1):
        query = query.replace(f"{{{place}}}", reply)
    random = Random(f"{seed}/{task.id}/{len(calls)}")
    asked = {call.member for call in calls if call.query == query}
    able = [view.name for view in members if skill in skills(view) and view.name not in asked]
    if not able or (asked and random.random() < 0.5):
        return _turn("Nobody knows." if asked else "Nobody here can tell.", "answer", GIVEN_UP)
    said = "It does not know. " if asked else f"It is {replies[-1]}. " if replies else ""
    return _turn(f"{said}I need: {query}", "search", f"{random.choice(able)}: {query}")


def skills(view: MemberView) -> tuple[str, ...]:
    """What a member can do, by its first endpoint; nothing where it is none of the chamber's specialists."""
    endpoint = view.descriptor.endpoints[0]
    where = str(endpoint.options.get("lora") or endpoint.model)
    return SKILLS.get(where.replace(":", "/").rpartition("/")[2], ())


def _turn(thinking: str, tag: str, text: str) -> str:
    """With a space before the text: to a tokeniser a word is another after a bracket than after a space, and names and
    replies are easier to copy as they were read."""
    return f"<think>{thinking}</think>\n<{tag}> {text}</{tag}>"
