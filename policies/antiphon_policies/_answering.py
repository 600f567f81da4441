"""How the policies that choose one member come to an answer, the same for all of them."""

from __future__ import annotations

from typing import Literal

from antiphon.errors import ConfigError, did_you_mean
from antiphon.rollout import Rollout
from antiphon.types import Message, Task

from . import _texts

AnswerBy = Literal["member", "base"]

SHORT_TOKENS = 256
"""Of a base model that was asked for the answer alone; one that rambles on is not waited for."""


def checked(answer_by: str) -> AnswerBy:
    """The setting, if it is one.

    Raises:
        ConfigError: it is neither `member` nor `base`.
    """
    if answer_by == "member":
        return "member"
    if answer_by == "base":
        return "base"
    raise ConfigError(
        f"answer_by is 'member' or 'base', not {answer_by!r}{did_you_mean(answer_by, ('member', 'base'))}"
    )


async def answer_from(member: str, task: Task, rollout: Rollout, answer_by: AnswerBy) -> str | None:
    """Put the question to a member and make an answer of its reply.

    `member`: the last `<answer>` span of the reply, else the whole of it; None where the call failed. `base`: the base
    model reads the reply and answers, alone where the call failed (the setting of the paper's query-based routers).
    """
    call = await rollout.ask(member, task.question, messages=_texts.short_answer(task))
    if answer_by == "member":
        return _texts.answer_span(call.reply or "") if call.ok else None
    if not call.ok:
        rollout.note(f"{member} gave no reply ({call.outcome}); the base model answers alone")
        return await base_answer(_texts.direct(task), rollout)
    return await base_answer(_texts.read(task, member, call.reply or ""), rollout)


async def base_answer(prompt: list[Message], rollout: Rollout, max_tokens: int | None = SHORT_TOKENS) -> str | None:
    """What the base model says, in at most `max_tokens` (None: the limit of a turn); None where it says nothing."""
    turn = await rollout.generate(rollout.context(prompt), max_tokens=max_tokens)
    return turn.text.strip() or None
