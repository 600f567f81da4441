"""What every router learnt from recorded scores shares: its options, its training, its artefact and its decision.

A method is one file with a subclass of `Learned`. The simplest kind (`mlp.py`) is two pure functions over arrays:

    class Mine(Learned):
        name = "mine"

        class Settings(Learned.Settings):  # pydantic; what `training = {…}` and `--option` may say
            hidden: int = 128

        @classmethod
        def fit(cls, data: Data, settings: Settings) -> Arrays:
            ...  # named numpy arrays; they are saved as they are

        @classmethod
        def predict(cls, arrays: Arrays, inputs: Inputs) -> Array:
            ...  # (questions, LLMs), any scale, higher is better

`Data` holds a training and a validation `Part` (vectors, scores with NaN where nothing was recorded, texts, replies)
and the LLMs' `Profile`s. What `predict` gives is calibrated to expected scores (`_calibration.py`) and goes into
`decide`; NaN marks an LLM that is never asked. `_descent.descend` is the training loop with early stopping over a dict
of torch tensors; `fit_labels` runs it from the questions' vectors to labels. A method that reads something else than
one vector a question overrides `features`; one that asks more than one member overrides `run` and uses
`self.fitted(task, pool)`. `joins` says what a new LLM needs. List a method in `plugin.py`, and give it a section in
docs/reference/routers.md; tests/policies/test_learned.py tries it by itself.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationError

from antiphon.contracts import MemberView
from antiphon.descriptor import explain
from antiphon.errors import ConfigError
from antiphon.rollout import Rollout
from antiphon.tables import Table
from antiphon.types import Task

from ._answering import AnswerBy, answer_from, checked
from ._decision import Usd, checked_usd, decide
from ._examples import Array, Arrays, Data, Inputs, Part
from ._features import Features, fit_features, restore_features
from ._fitted import Fitted, learn, learnt_once, need_extra
from ._scores import Paths, Scores, checked_folds, fold_of, question_key, training

Joins = Literal["nothing", "descriptor", "labels", "retraining"]


class Learned:
    """A policy whose choice is learnt from recorded scores, of an artefact or on the spot.

    Args:
        path: an artefact of `antiphon train-router`; nothing is learnt here then, and the pool's members must be known.
        scores, questions, metric: as for `knn`; learnt from when first asked. Members without scores are never asked.
        folds: one router for each fold of the recorded questions, which has not seen that fold. 0: one, of all
            questions; for scores of other questions than those asked.
        training: settings of the training; see the method's `Settings`.
        usd_per_point: USD a question that one more point of quality (0.01 of the score) is worth. None: quality alone
            decides; 0: the cheapest member.
        answer_by: `member`: its reply is the answer; `base`: the base model reads the reply and answers.

    Raises:
        ConfigError: a file or a setting does not hold, or neither or both of `path` and `scores` are given; when run:
            nobody in the pool has scores, is known, or, with `usd_per_point`, has a price.
        MissingExtra: numpy, scikit-learn or torch is not installed.
    """

    name: ClassVar[str]
    joins: ClassVar[Joins] = "retraining"
    needs_replies: ClassVar[bool] = False
    calibrated: ClassVar[bool] = True
    """What `predict` gives is calibrated; otherwise it is taken for expected scores as it is."""
    chooses_by_quality: ClassVar[bool] = True
    """It asks one member of all, by predicted quality and `usd_per_point`."""

    class Settings(Table):
        """How every method is trained.

        Attributes:
            features: `embedder` (the sentence embedder of the model store), `tfidf`, or `auto`: the embedder where it
                is there.
            validation: share of the questions that training stops by and calibration learns from.
            shrink: pull predictions towards the LLMs' means as far as the validation part does not confirm them.
        """

        features: Literal["auto", "embedder", "tfidf"] = "auto"
        seed: Annotated[int, Field(ge=0)] = 0
        validation: Annotated[float, Field(gt=0, lt=1)] = 0.2
        shrink: bool = True
        lr: Annotated[float, Field(gt=0)] = 1e-3
        weight_decay: Annotated[float, Field(ge=0)] = 1e-2
        epochs: Annotated[int, Field(ge=1)] = 100
        batch: Annotated[int, Field(ge=1)] = 64
        patience: Annotated[int, Field(ge=1)] = 10

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
    ) -> None:
        if (path is None) == (scores is None):
            raise ConfigError(
                f"policy {self.name}: give either `path` (an artefact of `antiphon train-router {self.name}`) or "
                "`scores` (recorded replies to learn from)"
            )
        if path is not None and (training or questions is not None or metric is not None):
            raise ConfigError(
                f"policy {self.name}: an artefact (`path`) is trained already; leave `training`, `questions` and "
                "`metric` out, or give `scores` in place of it"
            )
        self._settings = _settings(type(self), training or {})
        self._folds = checked_folds(folds, self.name)
        self._usd: Usd = checked_usd(usd_per_point, self.name)
        self._answer_by: AnswerBy = checked(answer_by)
        self._path = None if path is None else Path(path).expanduser()
        self._scores = None if scores is None else Scores.read(scores, metric, questions, replies=self.needs_replies)
        self._routers: dict[Any, Fitted] = {}
        self._found: dict[Any, Any] = {}  # what a method works out once for a router and a pool
        self._one_at_a_time = threading.Lock()

    async def run(self, task: Task, rollout: Rollout) -> str | None:
        member = await asyncio.to_thread(self.choose, task, rollout.pool)
        return await answer_from(member, task, rollout, self._answer_by)

    def choose(self, task: Task, pool: Sequence[MemberView]) -> str:
        """The member to ask."""
        fitted = self.fitted(task, pool)
        here = {view.name for view in pool}
        [quality] = fitted.quality([task.question], pool)
        quality = {name: value for name, value in quality.items() if name in here}
        if not quality:
            raise ConfigError(
                f"policy {self.name}: none of the members that it chooses among is in this pool; train it for this pool"
            )
        return decide(quality, fitted.costs(task.question, pool) if self._usd is not None else None, pool, self._usd)

    def fitted(self, task: Task, pool: Sequence[MemberView]) -> Fitted:
        """The router that this question may use; trained or loaded when first needed."""
        own = fold_of(question_key(task.question), self._folds) if self._folds else 0
        key = "artefact" if self._path is not None else (own, tuple(view.name for view in pool))
        with self._one_at_a_time:
            if key not in self._routers:
                need_extra(self.name)
                if self._path is not None:
                    self._routers[key] = Fitted.load(self._path, type(self))
                else:
                    assert self._scores is not None
                    rows = training(self._scores.rows, question_key(task.question), self._folds)
                    rows = rows if self._folds else list(self._scores.rows)
                    self._routers[key] = learnt_once(type(self), self._scores, rows, pool, self._settings)
            return self._routers[key]

    # ---- what a method says ---------------------------------------------------------------------------------------

    @classmethod
    def corpus(cls, train: Part) -> Sequence[str]:
        """The texts that features are fitted on."""
        return train.texts

    @classmethod
    def features(cls, texts: Sequence[str], settings: Any) -> Features:
        """What a question becomes; fitted on the corpus."""
        return fit_features(texts, settings.features, settings.seed)

    @classmethod
    def restore(cls, facts: Mapping[str, Any], arrays: Arrays, source: str) -> Features:
        """The features of an artefact."""
        return restore_features(facts, arrays, source)

    @classmethod
    def fit(cls, data: Data, settings: Any) -> Arrays:
        """Train; the weights, by name."""
        raise NotImplementedError

    @classmethod
    def predict(cls, arrays: Arrays, inputs: Inputs) -> Array:
        """(questions, LLMs): higher is better, NaN: never ask."""
        raise NotImplementedError

    # ---- training -------------------------------------------------------------------------------------------------

    @classmethod
    def train(
        cls,
        pool: Sequence[MemberView],
        out: Path,
        *,
        scores: Paths,
        questions: Paths | None = None,
        metric: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Train for a pool and write the artefact `out`, which the option `path` takes; see
        `antiphon.contracts.TrainableRouter`.

        Returns:
            The artefact's facts: questions, members, seconds, and the score on the validation part, beside those of the
            best single LLM and of the oracle.

        Raises:
            ConfigError: a file or a setting does not hold, or nobody in the pool has scores.
            MissingExtra: numpy, scikit-learn or torch is not installed.
        """
        settings = _settings(cls, options or {})
        need_extra(cls.name)
        recorded = Scores.read(scores, metric, questions, replies=cls.needs_replies)
        fitted = learn(cls, recorded, recorded.rows, pool, settings)
        fitted.save(out)
        return fitted.facts


def _settings(policy: type[Learned], given: Mapping[str, Any]) -> Any:
    try:
        return policy.Settings(**given)
    except ValidationError as error:
        raise ConfigError(f"policy {policy.name}: training: {explain(error, policy.Settings)}") from None
