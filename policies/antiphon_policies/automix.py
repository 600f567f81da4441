"""AutoMix: a small member answers, its answer is verified several times, and a doubtful one goes to a large member
(Aggarwal, Madaan et al., arXiv 2310.12963)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Literal

from antiphon.contracts import MemberView
from antiphon.errors import ConfigError, did_you_mean
from antiphon.rollout import Rollout
from antiphon.types import Call, Task

from . import _texts
from ._decision import POINT, TYPICAL_TOKENS, Usd, checked_usd, expected_costs
from ._scores import Paths, Scores, checked_folds, mean_scores, question_key, training
from .fixed import measured

VERDICT_TOKENS = 16
_VERDICT = re.compile(r"\b(in)?correct\b", re.IGNORECASE)


class AutoMix:
    """Asks one member after the other until an answer is trusted; the last one's answer stands.

    Args:
        order: the members to ask, in turn; None: the cheapest and the dearest by output price.
        verifier: who says whether an answer is right: `member`, the one that gave it; `base`, the base model.
        samples: verdicts on an answer. Its confidence is the share of those that say `correct`.
        threshold: an answer of at least this confidence is trusted.
        usd_per_point: in place of the threshold: the next member is asked where the points that it is expected to be
            better by are worth its cost.
        scores, questions, metric, folds: with `usd_per_point`: recorded replies that say what each member is expected
            to score, as for `best_single`. Without them, the next member is taken to be right always.

    Raises:
        ConfigError: a setting does not hold; when run: an unknown member, or one without a price where none may lack.
    """

    name = "automix"

    def __init__(
        self,
        *,
        order: Sequence[str] | None = None,
        verifier: str = "member",
        samples: int = 4,
        threshold: float = 0.5,
        usd_per_point: float | None = None,
        scores: Paths | None = None,
        questions: Paths | None = None,
        metric: str | None = None,
        folds: int = 10,
    ) -> None:
        if order is not None and (isinstance(order, str) or not order):
            raise ConfigError(f"policy automix: order is a list of members' names, got {order!r}")
        if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
            raise ConfigError(f"policy automix: samples is a whole number of at least 1, got {samples!r}")
        if not 0 <= threshold <= 1:
            raise ConfigError(f"policy automix: threshold is between 0 and 1, got {threshold!r}")
        self._order = None if order is None else tuple(order)
        self._verifier = _checked(verifier)
        self._samples, self._threshold = samples, threshold
        self._usd: Usd = checked_usd(usd_per_point, self.name)
        self._scores = None if scores is None else Scores.read(scores, metric, questions)
        self._folds = checked_folds(folds, self.name)

    async def run(self, task: Task, rollout: Rollout) -> str | None:
        members = self._members(rollout.pool)
        answer = None
        for at, member in enumerate(members):
            call = await rollout.ask(member, task.question, messages=_texts.short_answer(task))
            said = _texts.answer_span(call.reply or "") if call.ok else None
            answer = said or answer
            if at + 1 == len(members):
                break
            confidence = 0.0 if said is None else await self._confidence(task, call, said, rollout)
            rollout.note(f"automix: {member} answered; confidence {confidence:g}")
            if said is not None and not self._escalates(confidence, members[at + 1], task, rollout.pool):
                break
        return answer

    async def _confidence(self, task: Task, call: Call, answer: str, rollout: Rollout) -> float:
        """Share of the verdicts that say `correct`; one that says neither does not count; none: a half."""
        prompt = _texts.verify(task, answer)
        if self._verifier == "base":
            hot = {"temperature": 1.0}
            turns = [
                await rollout.generate(rollout.context(prompt), max_tokens=VERDICT_TOKENS, sampling=hot)
                for _ in range(self._samples)
            ]
            texts = [turn.text for turn in turns]
        else:
            asked = (rollout.ask(call.member, task.question, messages=prompt) for _ in range(self._samples))
            texts = [said.reply or "" for said in await asyncio.gather(*asked)]
        known = [one for one in map(verdict, texts) if one is not None]
        return sum(known) / len(known) if known else 0.5

    def _escalates(self, confidence: float, following: str, task: Task, pool: Sequence[MemberView]) -> bool:
        if self._usd is None:
            return confidence < self._threshold
        better = self._expected(task, pool).get(following, 1.0) - confidence
        usual = dict.fromkeys((view.name for view in pool), TYPICAL_TOKENS)
        return self._usd * better / POINT > expected_costs(pool, usual, task.question, self.name)[following]

    def _expected(self, task: Task, pool: Sequence[MemberView]) -> Mapping[str, float]:
        """Member -> its mean score over the recorded questions that this one may be learnt from."""
        if self._scores is None:
            return {}
        key = question_key(task.question)
        return mean_scores(training(self._scores.rows, key, self._folds), self._scores.members(pool))

    def _members(self, pool: Sequence[MemberView]) -> list[str]:
        if self._order is not None:
            return list(self._order)
        prices = measured(pool, lambda view: None if view.quote is None else view.quote.output, self.name, "price")
        return list(dict.fromkeys([min(prices, key=prices.__getitem__), max(prices, key=prices.__getitem__)]))


def verdict(text: str) -> bool | None:
    """Whether the first word of judgement is `correct`, not `incorrect`; None where there is neither."""
    found = _VERDICT.search(text)
    return None if found is None else found[1] is None


def _checked(verifier: str) -> Literal["member", "base"]:
    if verifier == "member":
        return "member"
    if verifier == "base":
        return "base"
    known = ("member", "base")
    raise ConfigError(
        f"policy automix: verifier is 'member' or 'base', not {verifier!r}{did_you_mean(verifier, known)}"
    )
