"""FORC: a meta-model predicts how well each LLM does on each question of a batch, and the batch is assigned under a
budget (Šakota, Peyrard and West, "Fly-Swat or Cannon?", arXiv 2308.06077)."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from antiphon.contracts import MemberView
from antiphon.errors import ConfigError
from antiphon.types import Task

from ._assignment import assign
from ._decision import decide
from ._descent import Parameters, arrays_of, fit_labels, linear, scores_of, tensor, tensors_of
from ._examples import Array, Arrays, Data, Inputs
from ._fitted import Fitted
from ._learned import Learned
from ._scores import Paths, question_key, read_questions
from .mlp import cross_entropy


class FORC(Learned):
    """Asks the member that the batch's assignment gives a question; without a batch, the one of the highest worth.

    Args:
        batch: data sets (JSONL): the questions that are assigned together, when one of them is first asked. A question
            that is not in it is asked at the price of a point that the batch comes to.
        budget_usd: USD a question, on average over the batch, by expected costs.

    Raises:
        ConfigError: as for all learned routers; or one of `batch` and `budget_usd` is given without the other, or with
            `usd_per_point`; when run: the budget is less than the cheapest members cost.
    """

    name = "forc"

    class Settings(Learned.Settings):
        """Attributes: hidden: width of the meta-model's hidden layer."""

        hidden: Annotated[int, Field(ge=1)] = 128
        lr: Annotated[float, Field(gt=0)] = 5e-3

    def __init__(
        self,
        *,
        path: str | None = None,
        scores: Paths | None = None,
        questions: Paths | None = None,
        metric: str | None = None,
        folds: int = 10,
        training: Mapping[str, Any] | None = None,
        usd_per_point: float | None = None,
        answer_by: str = "member",
        batch: Paths | None = None,
        budget_usd: float | None = None,
    ) -> None:
        super().__init__(
            path=path,
            scores=scores,
            questions=questions,
            metric=metric,
            folds=folds,
            training=training,
            usd_per_point=usd_per_point,
            answer_by=answer_by,
        )
        if (batch is None) != (budget_usd is None) or (batch is not None and usd_per_point is not None):
            raise ConfigError(
                "policy forc: give `batch` and `budget_usd` together and no `usd_per_point`, which the budget sets; or "
                "neither"
            )
        if budget_usd is not None and (isinstance(budget_usd, bool) or not 0 <= budget_usd < math.inf):
            raise ConfigError(f"policy forc: budget_usd is USD a question, at least 0; got {budget_usd!r}")
        self._budget = budget_usd
        self._batch = {} if batch is None else read_questions(batch)
        self._assigned: dict[tuple[str, ...], tuple[dict[str, str], float | None]] = {}
        self._assigning = threading.Lock()

    def choose(self, task: Task, pool: Sequence[MemberView]) -> str:
        if self._budget is None:
            return super().choose(task, pool)
        members, usd_per_point = self._assignment(pool)
        if question_key(task.question) in members:
            return members[question_key(task.question)]
        fitted = self.fitted(task, pool)
        return decide(
            _quality(fitted, [task.question], pool)[0], fitted.costs(task.question, pool), pool, usd_per_point
        )

    def _assignment(self, pool: Sequence[MemberView]) -> tuple[dict[str, str], float | None]:
        """Question's key -> member, and what a point comes to."""
        import numpy as np

        names = tuple(view.name for view in pool)
        with self._assigning:
            if names not in self._assigned:
                keys, values, costs = self._predicted(pool)
                budget = (self._budget or 0.0) * len(keys)
                found = assign(values, costs, budget)
                if found is None:
                    least = float(np.where(np.isfinite(values), costs, np.inf).min(axis=1).mean())
                    raise ConfigError(
                        f"policy forc: budget_usd is {self._budget:g}, and the cheapest members come to {least:g} USD "
                        "a question; raise it"
                    )
                columns, usd_per_point = found
                members = {key: names[column] for key, column in zip(keys, columns, strict=True)}
                self._assigned[names] = members, usd_per_point
            return self._assigned[names]

    def _predicted(self, pool: Sequence[MemberView]) -> tuple[list[str], Array, Array]:
        """Keys of the batch, and expected score and USD, (questions, members), each by its own fold's router."""
        import numpy as np

        groups: dict[int, tuple[Fitted, list[str]]] = {}
        for key, text in self._batch.items():
            fitted = self.fitted(Task(text), pool)
            groups.setdefault(id(fitted), (fitted, []))[1].append(key)
        keys, values, costs = [], [], []
        for fitted, some in groups.values():
            texts = [self._batch[key] for key in some]
            keys += some
            values += [[row.get(view.name, math.nan) for view in pool] for row in _quality(fitted, texts, pool)]
            costs += [[cost[view.name] for view in pool] for cost in (fitted.costs(text, pool) for text in texts)]
        return keys, np.array(values), np.array(costs)

    # ---- the meta-model -------------------------------------------------------------------------------------------

    @classmethod
    def fit(cls, data: Data, settings: Any) -> Arrays:
        import torch

        rng = torch.Generator().manual_seed(settings.seed)
        width, llms = data.train.vectors.shape[1], len(data.profiles)
        start = {
            "in": linear(rng, width, settings.hidden),
            "llms": torch.randn(llms, settings.hidden, generator=rng) * 0.5,
            "out": linear(rng, settings.hidden, 1)[:, 0],
            "out_bias": torch.zeros(llms),
        }
        return arrays_of(fit_labels(data, scores_of(data), start, _logits, cross_entropy, settings=settings))

    @classmethod
    def predict(cls, arrays: Arrays, inputs: Inputs) -> Array:
        import torch

        with torch.no_grad():
            predicted: Array = torch.sigmoid(_logits(tensors_of(arrays), tensor(inputs.vectors))).numpy()
        return predicted


def _logits(parameters: Parameters, x: Any) -> Any:
    """One network for all LLMs: it reads the question and which LLM it is about, (questions, LLMs)."""
    import torch

    hidden = torch.relu((x @ parameters["in"])[:, None, :] + parameters["llms"])
    return hidden @ parameters["out"] + parameters["out_bias"]


def _quality(fitted: Fitted, texts: Sequence[str], pool: Sequence[MemberView]) -> list[dict[str, float]]:
    """Expected scores of the members that are there."""
    here = {view.name for view in pool}
    return [{name: value for name, value in row.items() if name in here} for row in fitted.quality(texts, pool)]
