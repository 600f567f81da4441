"""Baselines that ask nobody: the base model answers at once, or after thinking."""

from __future__ import annotations

from antiphon.rollout import Rollout
from antiphon.types import Task

from . import _texts
from ._answering import base_answer


class Direct:
    """The base model answers; its whole text is the answer."""

    name = "direct"

    async def run(self, task: Task, rollout: Rollout) -> str | None:
        return await base_answer(_texts.direct(task), rollout)


class ChainOfThought:
    """The base model thinks, then answers on a line that begins with `Answer:`; without one, its last line counts."""

    name = "cot"

    async def run(self, task: Task, rollout: Rollout) -> str | None:
        said = await base_answer(_texts.chain_of_thought(task), rollout, max_tokens=None)
        return None if said is None else _texts.answer_line(said)
