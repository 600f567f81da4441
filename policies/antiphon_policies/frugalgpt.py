"""FrugalGPT: ask a cheap LLM, judge its reply with a learnt scorer, go on to a dearer one where it does not convince
(Chen, Zaharia and Zou, arXiv 2305.05176)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from antiphon.contracts import MemberView
from antiphon.rollout import Rollout
from antiphon.types import Task

from . import _texts
from ._answering import base_answer
from ._decision import POINT, decide, expected_costs
from ._examples import Array, Arrays, Data, Inputs, Part
from ._fitted import Fitted
from ._learned import Learned

LONGEST = 3
"""Members that a cascade asks at most, as in the paper."""

LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Quantiles of the scorer's values that are tried as thresholds."""

ERRORS = 2.0
"""Standard errors by which a cascade has to beat asking one member on the validation part: thousands are tried."""

RIGHT = 0.5
"""A score from which a reply counts as right to the scorer."""


@dataclass(frozen=True, slots=True)
class Cascade:
    """Whom to ask in turn; a reply that the scorer gives its threshold or more is taken, and the last one always."""

    members: tuple[str, ...]
    thresholds: tuple[float, ...] = ()


class FrugalGPT(Learned):
    """Asks members in turn until a reply is trusted.

    Order and thresholds are the best on the validation part for `usd_per_point`: mean points times it, less mean USD;
    without it, quality alone. Where no cascade is clearly better than one member, that one is asked.
    """

    name = "frugalgpt"
    needs_replies: ClassVar[bool] = True
    chooses_by_quality: ClassVar[bool] = False

    class Settings(Learned.Settings):
        """Attributes: features: TF-IDF unless said otherwise: all replies are read, too; strength: C of the scorer."""

        features: Literal["auto", "embedder", "tfidf"] = "tfidf"
        strength: Annotated[float, Field(gt=0)] = 1.0

    async def run(self, task: Task, rollout: Rollout) -> str | None:
        fitted, cascade = await asyncio.to_thread(self.cascade, task, rollout.pool)
        said: tuple[str, str] | None = None
        for place, member in enumerate(cascade.members):
            call = await rollout.ask(member, task.question, messages=_texts.short_answer(task))
            if not call.ok:
                continue
            said = member, call.reply or ""
            if place < len(cascade.thresholds):
                trusted = await asyncio.to_thread(trust, fitted, task.question, *said)
                rollout.note(f"frugalgpt: {member} {trusted:.3f} of {cascade.thresholds[place]:.3f}")
                if trusted >= cascade.thresholds[place]:
                    break
        if self._answer_by == "member":
            return None if said is None else _texts.answer_span(said[1])
        return await base_answer(_texts.direct(task) if said is None else _texts.read(task, *said), rollout)

    def cascade(self, task: Task, pool: Sequence[MemberView]) -> tuple[Fitted, Cascade]:
        """The router that the question may use, and its best cascade of the pool's members; found once for both."""
        fitted = self.fitted(task, pool)
        key = (id(fitted), tuple((view.name, view.quote) for view in pool))
        with self._one_at_a_time:
            if key not in self._found:
                self._found[key] = best_cascade(fitted, pool, self._usd)
            return fitted, self._found[key]

    @classmethod
    def corpus(cls, train: Part) -> Sequence[str]:
        return (*train.texts, *(reply for replies in train.replies for reply in replies.values()))

    @classmethod
    def fit(cls, data: Data, settings: Any) -> Arrays:
        """The scorer: logistic regression on question, reply, LLM and length; and what cascades are chosen by."""
        import numpy as np
        from sklearn.linear_model import LogisticRegression

        rows, right = [], []
        for inputs, columns, scores in _replies(data, data.train):
            rows.append(inputs)
            right += list(scores[columns] >= RIGHT)
        x = np.concatenate(rows) if rows else np.zeros((0, 1))
        if len(set(right)) < 2:  # all replies are right, or all wrong, or there are none: nothing to tell apart
            weights, bias = np.zeros(x.shape[1]), 0.0
        else:
            fitted = LogisticRegression(C=settings.strength, max_iter=500).fit(x, right)
            weights, bias = fitted.coef_[0], float(fitted.intercept_[0])
        arrays = {"weights": weights, "bias": np.array([bias])}
        trusted = np.full(data.validation.scores.shape, np.nan)
        for row, (inputs, columns, _) in enumerate(_replies(data, data.validation, every=True)):
            if columns:
                trusted[row, columns] = _sigmoid(inputs @ weights + bias)
        return {**arrays, "trusted": trusted, "scores": data.validation.scores}

    @classmethod
    def predict(cls, arrays: Arrays, inputs: Inputs) -> Array:
        """Nothing of a question alone: its expected scores are the LLMs' means."""
        import numpy as np

        return np.zeros((len(inputs.texts), len(inputs.profiles)))


def trust(fitted: Fitted, question: str, member: str, reply: str) -> float:
    """How likely the scorer holds a reply to be right."""
    names = [profile.name for profile in fitted.profiles]
    inputs = _scorer_inputs(fitted.features, question, [(names.index(member), reply)], len(names))
    return float(_sigmoid(inputs @ fitted.arrays["weights"] + fitted.arrays["bias"])[0])


def best_cascade(fitted: Fitted, pool: Sequence[MemberView], usd_per_point: float | None) -> Cascade:
    """The cascade of the highest worth on the validation part, or the best single member (see `ERRORS`)."""
    import numpy as np

    here = {view.name for view in pool}
    names = [profile.name for profile in fitted.profiles]
    columns = [column for column, name in enumerate(names) if name in here]
    [means] = fitted.quality([""], pool)
    costs = dict.fromkeys(names, 0.0)
    if usd_per_point is not None:
        costs |= expected_costs(pool, fitted.tokens, "", fitted.policy.name)
    single = decide(
        {name: value for name, value in means.items() if name in here},
        costs if usd_per_point is not None else None,
        pool,
        usd_per_point,
    )
    trusted, scores = fitted.arrays["trusted"], fitted.arrays["scores"]
    point = 1.0 if usd_per_point is None else usd_per_point / POINT
    fees = np.array([costs[name] for name in names])
    baseline = point * scores[:, names.index(single)] - fees[names.index(single)]
    best, most = Cascade((single,)), 0.0
    for order, thresholds in _candidates(trusted, columns):
        gain = _worth(scores, trusted, fees, point, order, thresholds) - baseline
        gain = gain[np.isfinite(gain)]
        if len(gain) < 2:
            continue
        error = float(gain.std(ddof=1)) / len(gain) ** 0.5
        if gain.mean() > ERRORS * error and gain.mean() > most + 1e-12:
            best = Cascade(tuple(names[column] for column in order), thresholds)
            most = float(gain.mean())
    return best


def _candidates(trusted: Array, columns: Sequence[int]) -> Iterator[tuple[tuple[int, ...], tuple[float, ...]]]:
    """Orders of two members or more, with thresholds for all but the last."""
    import numpy as np

    known = [column for column in columns if np.isfinite(trusted[:, column]).any()]
    levels = {column: np.unique(np.nanquantile(trusted[:, column], LEVELS)).tolist() for column in known}
    for length in range(2, LONGEST + 1):
        for order in permutations(known, length):
            for thresholds in product(*(levels[column] for column in order[:-1])):
                yield order, thresholds


def _worth(
    scores: Array, trusted: Array, fees: Array, point: float, order: tuple[int, ...], thresholds: tuple[float, ...]
) -> Array:
    """Of each validation question under a cascade; NaN where a reply that it needs was not recorded."""
    import numpy as np

    worth = point * scores[:, order[-1]] - fees[order[-1]]
    for column, threshold in zip(reversed(order[:-1]), reversed(thresholds), strict=True):
        worth = np.where(trusted[:, column] >= threshold, point * scores[:, column], worth) - fees[column]
        worth = np.where(np.isfinite(trusted[:, column]), worth, np.nan)
    return worth


def _replies(data: Data, part: Part, *, every: bool = False) -> Iterator[tuple[Any, list[int], Array]]:
    """Of each question: the scorer's inputs, (replies, width), whose columns they are, and the question's scores."""
    import numpy as np

    for text, replies, scores in zip(part.texts, part.replies, part.scores, strict=True):
        columns = [column for column in replies if np.isfinite(scores[column])]
        said = [(column, replies[column]) for column in columns]
        if said:
            yield _scorer_inputs(data.features, text, said, len(data.profiles)), columns, scores
        elif every:
            yield None, [], scores


def _scorer_inputs(features: Any, question: str, replies: Sequence[tuple[int, str]], llms: int) -> Array:
    """(replies, width): vectors of question and reply, who said it, how long it is."""
    import numpy as np

    vectors = features([question, *(reply for _, reply in replies)])
    own = np.zeros((len(replies), llms + 1))
    for row, (column, reply) in enumerate(replies):
        own[row, column] = 1.0
        own[row, -1] = np.log1p(len(reply)) / 5
    return np.concatenate([np.repeat(vectors[:1], len(replies), axis=0), vectors[1:], own], axis=1)


def _sigmoid(x: Array) -> Array:
    import numpy as np

    return 1 / (1 + np.exp(-np.clip(x, -50, 50)))
