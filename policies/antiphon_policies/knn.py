"""KNN router: asks the member that did best on the recorded questions most like this one (the paper's baseline of that
name; the rule is that of RouterBench, arXiv 2403.12031, section 4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from antiphon.contracts import MemberView
from antiphon.errors import ConfigError
from antiphon.rollout import Rollout
from antiphon.types import Task

from ._answering import AnswerBy, answer_from, checked
from ._decision import Usd, checked_usd, decide, expected_costs
from ._examples import mean_tokens
from ._neighbours import Neighbours
from ._scores import Paths, Scored, Scores, best, checked_folds, fold_of, mean_scores, question_key, training
from .fixed import measured


@dataclass(frozen=True, slots=True)
class _Fitted:
    """Questions to learn from, the place of each by its key, and their index."""

    rows: list[Scored]
    places: dict[str, int]
    neighbours: Neighbours


class KNN:
    """Asks the member of the highest mean score over the `k` nearest recorded questions, less what its price weighs.

    Members without scores are never asked. Where no recorded question shares a word, all of them count as near.

    Args:
        scores: files of recorded replies (JSONL, as the `recorded` adapter reads); a path, a glob or a list.
        questions: data sets (JSONL); only their questions are learnt from.
        metric: judge the recorded responses by this metric, in place of their recorded `score`.
        k: neighbours that count.
        folds: recorded questions of the task's own fold (by the hash of their words) are left out, as in
            cross-validation, so that scores and test may hold the same questions. 0: the task's own question alone is
            left out, for scores of other questions than those asked.
        cost_weight: taken off a member's score: this times its quoted output price over the dearest member's.
        usd_per_point: as for all learned routers: USD a question that one more point of the score (0.01) is worth; in
            place of `cost_weight`.
        answer_by: `member`: its reply is the answer; `base`: the base model reads the reply and answers.

    Raises:
        ConfigError: a file or a setting does not hold; when run: nobody in the pool has scores, or, with a cost weight
            or `usd_per_point`, a price.
    """

    name = "knn"

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
        answer_by: str = "member",
    ) -> None:
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise ConfigError(f"policy knn: k is a whole number of at least 1, got {k!r}")
        if not isinstance(cost_weight, int | float) or not 0 <= cost_weight < math.inf:
            raise ConfigError(f"policy knn: cost_weight is a number of at least 0, got {cost_weight!r}")
        if cost_weight and usd_per_point is not None:
            raise ConfigError("policy knn: cost_weight and usd_per_point both weigh cost; give one of them")
        self._folds = checked_folds(folds, "knn")
        self._usd: Usd = checked_usd(usd_per_point, "knn")
        self._answer_by: AnswerBy = checked(answer_by)
        self._k, self._cost_weight = k, cost_weight
        self._scores = Scores.read(scores, metric, questions)
        self._fitted: dict[int, _Fitted] = {}

    async def run(self, task: Task, rollout: Rollout) -> str | None:
        return await answer_from(self.choose(task.question, task, rollout), task, rollout, self._answer_by)

    def choose(self, query: str, task: Task, rollout: Rollout) -> str:
        """The member to put `query` to. What it learns from depends on the task's own question: see `folds`."""
        key = question_key(task.question)
        fitted = self._fit(key)
        rows = fitted.rows
        near = [rows[place] for place in fitted.neighbours.nearest(query, self._k, without=fitted.places.get(key))]
        if not near:
            near = [row for row in rows if row.key != key]
            rollout.note("knn: no recorded question shares a word with this one; all of them count")
        members = self._scores.members(rollout.pool)
        values = mean_scores(near, members) or mean_scores(rows, members)
        if not values:
            raise ConfigError(f"policy knn: too few scores in {self._scores.source} for {self._folds} folds")
        if self._usd is not None:
            known = [view for view in rollout.pool if view.name in values]
            costs = expected_costs(known, mean_tokens(rows, members), query, "knn")
            return decide(values, costs, known, self._usd)
        fees = self._fees(rollout.pool)
        return best({name: value - fees[name] for name, value in values.items()}, rollout.pool)

    def _fit(self, key: str) -> _Fitted:
        """What a question may use; one index for each fold, so that not even its word counts know the fold left out."""
        own = fold_of(key, self._folds) if self._folds else 0
        if own not in self._fitted:
            rows = training(self._scores.rows, key, self._folds) if self._folds else list(self._scores.rows)
            places = {row.key: place for place, row in enumerate(rows)}
            self._fitted[own] = _Fitted(rows, places, Neighbours([row.text for row in rows]))
        return self._fitted[own]

    def _fees(self, pool: Sequence[MemberView]) -> dict[str, float]:
        if not self._cost_weight:
            return {view.name: 0.0 for view in pool}
        prices = measured(pool, lambda view: None if view.quote is None else view.quote.output, "knn", "price")
        dearest = max(prices.values()) or 1.0
        return {name: self._cost_weight * price / dearest for name, price in prices.items()}
