"""Prompt LLM: the base model is shown the pool and picks one member by name (the paper's baseline of that name)."""

from __future__ import annotations

import re

from antiphon.contracts import MemberView
from antiphon.names import Names, fold
from antiphon.rollout import Rollout
from antiphon.types import Task

from . import _texts
from ._answering import AnswerBy, answer_from, checked

PICK_TOKENS = 64
"""Enough for any name; a model that rambles on is not waited for."""


class PromptLLM:
    """Asks the member that the base model picks.

    The pick is a line that is a member's name or alias, else the one member whose name stands in the text. Where
    neither holds, the first member of the pool is asked, and the trajectory's notes say so.

    Args:
        answer_by: `member`: its reply is the answer; `base`: the base model reads the reply and answers.
    """

    name = "prompt_llm"

    def __init__(self, *, answer_by: str = "member") -> None:
        self._answer_by: AnswerBy = checked(answer_by)

    async def run(self, task: Task, rollout: Rollout) -> str | None:
        member = await pick(task, rollout)
        return await answer_from(member, task, rollout, self._answer_by)


async def pick(task: Task, rollout: Rollout) -> str:
    """The member that the base model picks for a question; the first of the pool, noted, where it picks none."""
    members = "\n".join(f"- {view.name}: {' '.join(view.descriptor.description.split())}" for view in rollout.pool)
    turn = await rollout.generate(rollout.context(_texts.pick(task, members)), max_tokens=PICK_TOKENS)
    member = picked(turn.text, rollout.pool)
    if member is None:
        member = rollout.pool[0].name
        rollout.note(f"the base model named no member of the pool; asked the first, {member}")
    return member


def picked(text: str, pool: tuple[MemberView, ...]) -> str | None:
    """The member that a text picks; None where it names none or several."""
    names = Names({view.name: view.descriptor.aliases for view in pool})
    for line in text.splitlines():
        name = names.resolve(line.strip(" \t-*`'\".,:;"))
        if name is not None:
            return name
    said = fold(text)
    named = [view.name for view in pool if re.search(rf"(?<![\w.-]){re.escape(fold(view.name))}(?![\w-]|\.\w)", said)]
    return named[0] if len(named) == 1 else None
