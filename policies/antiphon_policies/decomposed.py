"""Prompt LLM* and KNN Router* of the paper: the base model splits the question, each part is routed on its own, and the
base model answers from the replies."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

from antiphon.errors import ConfigError
from antiphon.rollout import Rollout
from antiphon.types import Call, Message, Task

from . import _texts
from ._answering import SHORT_TOKENS, base_answer
from ._scores import Paths
from .knn import KNN
from .prompted import pick

_MARK = re.compile(r"^\s*(?:[-*•]+|\(?\d{1,2}[.):])?\s*")


class PromptLLMStar:
    """The base model picks a member for each part.

    Args:
        parts: most parts; each costs a call. They are asked at once, in one round.
    """

    name = "prompt_llm_star"

    def __init__(self, *, parts: int = 4) -> None:
        self._parts = _checked(parts, self.name)

    async def run(self, task: Task, rollout: Rollout) -> str | None:
        async def choose(part: str) -> str:
            return await pick(Task(part, task.id), rollout)

        return await decomposed(task, rollout, self._parts, choose)


class KNNStar:
    """The member that did best on the recorded questions nearest to a part is asked it.

    Args:
        parts: most parts; each costs a call. They are asked at once, in one round.
        scores, questions, metric, k, folds, cost_weight, usd_per_point: as for `knn`. What is learnt from depends on
            the task's own question, for every part.
    """

    name = "knn_star"

    def __init__(
        self,
        *,
        scores: Paths,
        questions: Paths | None = None,
        metric: str | None = None,
        k: int = 20,
        folds: int = 10,
        cost_weight: float = 0.0,
        usd_per_point: float | None = None,
        parts: int = 4,
    ) -> None:
        self._parts = _checked(parts, self.name)
        self._knn = KNN(
            scores=scores,
            questions=questions,
            metric=metric,
            k=k,
            folds=folds,
            cost_weight=cost_weight,
            usd_per_point=usd_per_point,
        )

    async def run(self, task: Task, rollout: Rollout) -> str | None:
        async def choose(part: str) -> str:
            return self._knn.choose(part, task, rollout)

        return await decomposed(task, rollout, self._parts, choose)


async def decomposed(task: Task, rollout: Rollout, most: int, choose: Callable[[str], Awaitable[str]]) -> str | None:
    """Split in one context, choose and ask for each part, answer in another context.

    Where the base model gives no parts, the question is the one part, and the trajectory's notes say so.
    """
    turn = await rollout.generate(rollout.context(_texts.decompose(task, most)), max_tokens=SHORT_TOKENS)
    parts = parts_of(turn.text, most)
    if not parts:
        parts = [task.question]
        rollout.note("the base model gave no parts; the question was put as it is")
    chosen = [await choose(part) for part in parts]
    calls = await asyncio.gather(*(_ask(rollout, member, part) for member, part in zip(chosen, parts, strict=True)))
    for call in calls:
        if not call.ok:
            rollout.note(f"{call.member} gave no reply ({call.outcome}) to {call.query!r}")
    return await base_answer(_texts.combine(task, [call for call in calls if call.ok]), rollout)


async def _ask(rollout: Rollout, member: str, part: str) -> Call:
    return await rollout.ask(member, part, messages=[Message("system", _texts.MEMBER_PROMPT), Message("user", part)])


def parts_of(text: str, most: int) -> list[str]:
    """The first `most` lines that hold words, without bullets and numbers, each once; headings are left out."""
    lines = (_MARK.sub("", line).strip() for line in text.splitlines())
    parts = [line for line in lines if any(char.isalpha() for char in line) and not line.endswith(":")]
    return list(dict.fromkeys(parts))[:most]


def _checked(parts: int, policy: str) -> int:
    if isinstance(parts, bool) or not isinstance(parts, int) or parts < 1:
        raise ConfigError(f"policy {policy}: parts is a whole number of at least 1, got {parts!r}")
    return parts
