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


class SFT(Direct):
    """A base model fine-tuned on questions and answers, asked as `direct` asks. The policy adds nothing to it: name the
    fine-tuned weights as the model (a configured model, or a folder of weights)."""

    name = "sft"


class ChainOfThought:
    """The base model thinks, then answers on a line that begins with `Answer:`; without one, its last line counts."""

    name = "cot"

    async def run(self, task: Task, rollout: Rollout) -> str | None:
        said = await base_answer(_texts.chain_of_thought(task), rollout, max_tokens=None)
        return None if said is None else _texts.answer_line(said)
