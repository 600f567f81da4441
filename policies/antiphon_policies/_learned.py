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
of torch tensors. A method that reads something else than one vector a question overrides `features`; one that asks more
than one member overrides `run` and uses `self.fitted(task, pool)`. `joins` says what a new LLM needs. List a method in
`plugin.py`, and give it a section in docs/reference/routers.md; tests/policies/test_learned.py tries it by itself.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, ValidationError

from antiphon.contracts import MemberView
from antiphon.descriptor import content_hash, explain
from antiphon.errors import ConfigError, MissingExtra
from antiphon.rollout import Rollout
from antiphon.tables import Table
from antiphon.types import Task

from . import _artefact, _calibration
from ._answering import AnswerBy, answer_from, checked
from ._decision import Usd, checked_usd, decide, expected_costs
from ._examples import Array, Arrays, Data, Inputs, Profile, data_of, mean_tokens, profiles_of
from ._features import Features, fit_features, restore_features
from ._scores import Paths, Scored, Scores, checked_folds, fold_of, question_key, training

if TYPE_CHECKING:
    from collections.abc import Iterable

Joins = Literal["nothing", "descriptor", "labels", "retraining"]


class Fitted:
    """A trained router: weights, features, and what its LLMs are expected to use.

    Attributes:
        profiles: the LLMs it knows, in the order of its columns.
        facts: JSON data: what it was trained on and with.
    """

    def __init__(
        self,
        policy: type[Learned],
        arrays: Arrays,
        features: Features,
        profiles: Sequence[Profile],
        facts: Mapping[str, Any],
        calibration: Arrays,
        tokens: Mapping[str, float],
    ) -> None:
        self.policy, self.arrays, self.features = policy, arrays, features
        self.profiles, self.facts = tuple(profiles), dict(facts)
        self.calibration, self.tokens = calibration, dict(tokens)

    def raw(self, questions: Sequence[str], profiles: Sequence[Profile] | None = None) -> Array:
        """What the method itself predicts, (questions, LLMs)."""
        inputs = Inputs(self.features(questions), tuple(profiles or self.profiles), tuple(questions))
        return self.policy.predict(self.arrays, inputs)

    def quality(self, questions: Sequence[str], pool: Sequence[MemberView]) -> list[dict[str, float]]:
        """Expected score of each member of the pool that it may ask, for each question.

        Raises:
            ConfigError: it does not know a member, and its method cannot take one in.
        """
        profiles = self._of_pool(pool)
        known = [profile.name for profile in self.profiles]
        columns = [known.index(profile.name) if profile.name in known else -1 for profile in profiles]
        values = _calibration.apply(self.calibration, self.raw(questions, profiles), columns)
        names = [profile.name for profile in profiles]
        return [
            {name: float(value) for name, value in zip(names, row, strict=True) if value == value} for row in values
        ]

    def costs(self, question: str, pool: Sequence[MemberView]) -> dict[str, float]:
        """Expected USD of putting a question to each member."""
        return expected_costs(pool, self.tokens, question, self.policy.name)

    def _of_pool(self, pool: Sequence[MemberView]) -> tuple[Profile, ...]:
        """The LLMs to predict for, columns of `predict`: those known, and those of the pool that can join."""
        known = {profile.name for profile in self.profiles}
        here = {view.name for view in pool}
        strangers = [view for view in pool if view.name not in known]
        if not known & here:
            raise ConfigError(
                f"policy {self.policy.name}: {self.facts['source']} knows {', '.join(sorted(known))} and nobody of "
                "this pool; train it for this pool (antiphon train-router)"
            )
        if strangers and self.policy.joins in ("labels", "retraining") and self.facts["strict"]:
            raise ConfigError(
                f"policy {self.policy.name}: {self.facts['source']} was not trained for "
                f"{', '.join(view.name for view in strangers)}; train it with scores of them (antiphon train-router), "
                f"or take a pool of {', '.join(sorted(known))}"
            )
        joining = strangers if self.policy.joins in ("nothing", "descriptor") else []
        return (*self.profiles, *profiles_of(joining))

    def save(self, folder: Path) -> None:
        """Write an artefact, whole or not at all."""
        arrays = {f"method.{name}": value for name, value in self.arrays.items()}
        arrays |= {f"features.{name}": value for name, value in self.features.arrays.items()}
        arrays |= {f"calibration.{name}": value for name, value in self.calibration.items()}
        facts = {
            **self.facts,
            "policy": self.policy.name,
            "members": [profile.to_json() for profile in self.profiles],
            "tokens": self.tokens,
            "features": self.features.facts,
        }
        _artefact.save(folder, facts, arrays)

    @classmethod
    def load(cls, folder: Path, policy: type[Learned]) -> Self:
        """Read an artefact.

        Raises:
            ConfigError: it is none, it is damaged, or another policy's.
        """
        facts, arrays = _artefact.load(folder)
        if facts.get("policy") != policy.name:
            raise ConfigError(f"{folder} is a router of policy {facts.get('policy')!r}, not of {policy.name!r}")

        def part(prefix: str) -> Arrays:
            return {name[len(prefix) :]: value for name, value in arrays.items() if name.startswith(prefix)}

        profiles = [Profile.from_json(data) for data in facts["members"]]
        features = restore_features(facts["features"], part("features."), str(folder))
        facts = {**facts, "source": str(folder), "strict": True}
        return cls(policy, part("method."), features, profiles, facts, part("calibration."), facts["tokens"])


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
        self._settings = _settings(type(self), training or {})
        self._folds = checked_folds(folds, self.name)
        self._usd: Usd = checked_usd(usd_per_point, self.name)
        self._answer_by: AnswerBy = checked(answer_by)
        self._path = None if path is None else Path(path).expanduser()
        self._scores = None if scores is None else Scores.read(scores, metric, questions, replies=self.needs_replies)
        self._routers: dict[Any, Fitted] = {}
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
                    self._routers[key] = learn(type(self), self._scores, rows, pool, self._settings)
            return self._routers[key]

    # ---- what a method says ---------------------------------------------------------------------------------------

    @classmethod
    def features(cls, texts: Sequence[str], settings: Any) -> Features:
        """What a question becomes; fitted on the training part."""
        return fit_features(texts, settings.features, settings.seed)

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


def learn(
    policy: type[Learned], scores: Scores, rows: Iterable[Scored], pool: Sequence[MemberView], settings: Any
) -> Fitted:
    """Train on rows, calibrate on the validation part, and say how it does there."""
    from ._descent import reproducible

    members = scores.members(pool)
    views = [view for view in pool if view.name in members]
    profiles = profiles_of(views)
    started = time.monotonic()
    with reproducible(settings.seed):
        split = data_of(list(rows), members, profiles, settings.validation, settings.seed, scores.source)
        features = policy.features(split.train.texts, settings)
        data = split.with_vectors(features)
        arrays = policy.fit(data, settings)

        def predicted(part: Any) -> Array:
            return policy.predict(arrays, Inputs(part.vectors, profiles, part.texts))

        calibration = _calibration.fit(
            predicted(data.train),
            data.train.scores,
            predicted(data.validation),
            data.validation.scores,
            settings.shrink,
        )
        judged = _calibration.judge(calibration, predicted(data.validation), data.train.scores, data.validation.scores)
    facts = {
        "questions": {"train": len(data.train.texts), "validation": len(data.validation.texts)},
        "source": scores.source,
        "data_hash": content_hash(sorted([row.key, sorted(row.scores.items())] for row in rows)),
        "pool_hash": content_hash([view.descriptor.hash for view in views]),
        "settings": settings.model_dump(mode="json"),
        "seconds": round(time.monotonic() - started, 3),
        "validation": judged,
        "strict": False,
    }
    return Fitted(policy, arrays, features, profiles, facts, calibration, mean_tokens(rows, members))


def need_extra(policy: str) -> None:
    """Raises: MissingExtra: what learned routers are made with is not installed."""
    from importlib.util import find_spec

    if any(find_spec(module) is None for module in ("numpy", "sklearn", "torch", "safetensors")):
        raise MissingExtra(f"policy {policy!r}", "routers")


def _settings(policy: type[Learned], given: Mapping[str, Any]) -> Any:
    try:
        return policy.Settings(**given)
    except ValidationError as error:
        raise ConfigError(f"policy {policy.name}: training: {explain(error, policy.Settings)}") from None
