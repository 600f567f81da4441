"""Lines to judge a router between: the best single member, chosen on other questions, and the oracle, which knows."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.contracts import MemberView
from antiphon.errors import ConfigError
from antiphon.rollout import Rollout
from antiphon.types import Task

from ._answering import AnswerBy, answer_from, checked
from ._scores import Paths, Scored, Scores, best, checked_folds, mean_scores, question_key, training


class BestSingle:
    """Asks the one member of the best mean recorded score, whatever the question: what a router has to beat.

    The trajectory's notes say who that is. A tie goes to the cheaper.

    Args:
        scores, questions, metric, folds: as for `knn`: with folds, the mean is over the other folds' questions.
        answer_by: `member`: its reply is the answer; `base`: the base model reads the reply and answers.

    Raises:
        ConfigError: a file or a setting does not hold; when run: nobody in the pool has scores.
    """

    name = "best_single"

    def __init__(
        self,
        *,
        scores: Paths,
        questions: Paths | None = None,
        metric: str | None = None,
        folds: int = 10,
        answer_by: str = "member",
    ) -> None:
        self._folds = checked_folds(folds, self.name)
        self._answer_by: AnswerBy = checked(answer_by)
        self._scores = Scores.read(scores, metric, questions)

    async def run(self, task: Task, rollout: Rollout) -> str | None:
        rows = training(self._scores.rows, question_key(task.question), self._folds)
        values = mean_scores(rows, self._scores.members(rollout.pool))
        if not values:
            raise ConfigError(f"policy best_single: too few scores in {self._scores.source} for {self._folds} folds")
        member = best(values, rollout.pool)
        rollout.note(f"best_single: {member} ({values[member]:.4f} over {len(rows)} questions)")
        return await answer_from(member, task, rollout, self._answer_by)


class Oracle:
    """Asks the member that is recorded to have answered this very question best. No router can know that: it is the
    upper line of what choosing one member can reach.

    A tie goes to the reply that cost less (quoted output price times recorded output tokens; where these were not
    recorded, to the lower price).

    Args:
        scores, metric: as for `knn`. The line is an upper one only for the metric that it is chosen by.
        answer_by: `member`: its reply is the answer; `base`: the base model reads the reply and answers.

    Raises:
        ConfigError: a file or a setting does not hold; when run: the question has no recorded scores.
    """

    name = "oracle"

    def __init__(self, *, scores: Paths, metric: str | None = None, answer_by: str = "member") -> None:
        self._answer_by: AnswerBy = checked(answer_by)
        self._scores = Scores.read(scores, metric)

    async def run(self, task: Task, rollout: Rollout) -> str | None:
        row = self._scores.of(task.question)
        if row is None:
            raise ConfigError(f"policy oracle: {self._scores.source} has no scores of the question {task.question!r}")
        members = self._scores.members(rollout.pool)
        values = mean_scores([row], members)
        if not values:
            raise ConfigError(f"policy oracle: {self._scores.source} scores nobody in the pool on {task.question!r}")
        return await answer_from(
            best(values, rollout.pool, _costs(row, members, rollout.pool)), task, rollout, self._answer_by
        )


def _costs(row: Scored, members: dict[str, str], pool: Sequence[MemberView]) -> dict[str, float]:
    """Price per million times output tokens where all are recorded, else price per million."""
    known = all(llm in row.tokens for llm in members.values())
    return {
        view.name: (0.0 if view.quote is None else view.quote.output) * (row.tokens[members[view.name]] if known else 1)
        for view in pool
        if view.name in members
    }
