"""A trained router: what it predicts and expects to pay, how it is learnt, saved and loaded."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from antiphon.contracts import MemberView
from antiphon.descriptor import content_hash
from antiphon.errors import ConfigError, MissingExtra

from . import _artefact, _calibration
from ._decision import expected_costs
from ._examples import Array, Arrays, Inputs, Part, Profile, data_of, mean_tokens, profiles_of
from ._features import Features
from ._scores import Scored, Scores

if TYPE_CHECKING:
    from ._learned import Learned


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
        *,
        strict: bool = False,
    ) -> None:
        """Args: strict: members of a pool that it does not know are an error, and are not just left unasked."""
        self.policy, self.arrays, self.features = policy, arrays, features
        self.profiles, self.facts = tuple(profiles), dict(facts)
        self.calibration, self.tokens, self.strict = calibration, dict(tokens), strict
        self._llm_vectors: dict[tuple[Profile, ...], Array] = {}

    def raw(self, questions: Sequence[str], profiles: Sequence[Profile] | None = None) -> Array:
        """What the method itself predicts, (questions, LLMs)."""
        profiles = tuple(profiles or self.profiles)
        if profiles not in self._llm_vectors:
            self._llm_vectors[profiles] = self.features([profile.text for profile in profiles])
        inputs = Inputs(self.features(questions), profiles, self._llm_vectors[profiles], tuple(questions))
        return self.policy.predict(self.arrays, inputs)

    def quality(self, questions: Sequence[str], pool: Sequence[MemberView]) -> list[dict[str, float]]:
        """Expected score of each member of the pool that it may ask, for each question.

        Raises:
            ConfigError: it does not know a member, and its method cannot take one in.
        """
        profiles = self.profiles_in(pool)
        known = [profile.name for profile in self.profiles]
        columns = [known.index(profile.name) if profile.name in known else -1 for profile in profiles]
        values = self.raw(questions, profiles)
        if self.policy.calibrated:
            values = _calibration.apply(self.calibration, values, columns)
        names = [profile.name for profile in profiles]
        return [
            {name: float(value) for name, value in zip(names, row, strict=True) if value == value} for row in values
        ]

    def costs(self, question: str, pool: Sequence[MemberView]) -> dict[str, float]:
        """Expected USD of putting a question to each member."""
        return expected_costs(pool, self.tokens, question, self.policy.name)

    def profiles_in(self, pool: Sequence[MemberView]) -> tuple[Profile, ...]:
        """The LLMs to predict for, columns of `predict`: those known, and those of the pool that can join.

        Raises:
            ConfigError: nobody of the pool is known, or a member that cannot join is not, to a strict router.
        """
        known = {profile.name for profile in self.profiles}
        here = {view.name for view in pool}
        strangers = [view for view in pool if view.name not in known]
        if not known & here:
            raise ConfigError(
                f"policy {self.policy.name}: {self.facts['source']} knows {', '.join(sorted(known))} and nobody of "
                "this pool; train it for this pool (antiphon train-router)"
            )
        if strangers and self.policy.joins in ("labels", "retraining") and self.strict:
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

        try:
            profiles = [Profile.from_json(data) for data in facts["members"]]
            features = policy.restore(facts["features"], part("features."), str(folder))
            facts = {**facts, "source": str(folder)}
            calibration, tokens = part("calibration."), facts["tokens"]
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{folder} lacks a part ({error}); train it again") from None
        return cls(policy, part("method."), features, profiles, facts, calibration, tokens, strict=True)


def learn(
    policy: type[Learned], scores: Scores, rows: Sequence[Scored], pool: Sequence[MemberView], settings: Any
) -> Fitted:
    """Train on rows, calibrate on the validation part, and say how it does there."""
    from ._descent import reproducible

    members = scores.members(pool)
    views = [view for view in pool if view.name in members]
    profiles = profiles_of(views)
    started = time.monotonic()
    with reproducible(settings.seed):
        split = data_of(rows, members, profiles, settings.validation, settings.seed, scores.source)
        features = policy.features(policy.corpus(split.train), settings)
        data = split.with_vectors(features)
        arrays = policy.fit(data, settings)

        def predicted(part: Part) -> Array:
            return policy.predict(arrays, Inputs(part.vectors, profiles, data.llm_vectors, part.texts))

        held_out = predicted(data.validation)
        calibration = _calibration.fit(
            predicted(data.train), data.train.scores, held_out, data.validation.scores, settings.shrink
        )
        judged = _calibration.judge(calibration, held_out, data.train.scores, data.validation.scores)
    facts = {
        "questions": {"train": len(data.train.texts), "validation": len(data.validation.texts)},
        "source": scores.source,
        "data_hash": content_hash(sorted([row.key, sorted(row.scores.items())] for row in rows)),
        "pool_hash": content_hash([view.descriptor.hash for view in views]),
        "settings": settings.model_dump(mode="json"),
        "seconds": round(time.monotonic() - started, 3),
        "validation": judged,
    }
    return Fitted(policy, arrays, features, profiles, facts, calibration, mean_tokens(rows, members))


MOST_KEPT = 40
"""Routers kept for policies that differ only in what happens after training, such as the points of a curve."""

_kept: dict[Any, Fitted] = {}
_learning = threading.Lock()


def learnt_once(
    policy: type[Learned], scores: Scores, rows: Sequence[Scored], pool: Sequence[MemberView], settings: Any
) -> Fitted:
    """As `learn`; what this process has learnt from the same data, for the same pool and settings, is used again."""
    data = content_hash([[row.key, dict(row.scores), dict(row.tokens), dict(row.replies)] for row in rows])
    key = (policy, data, settings.model_dump_json(), tuple((view.descriptor.hash, view.quote) for view in pool))
    with _learning:
        if key not in _kept:
            if len(_kept) >= MOST_KEPT:
                del _kept[next(iter(_kept))]
            _kept[key] = learn(policy, scores, rows, pool, settings)
        return _kept[key]


def need_extra(policy: str) -> None:
    """Raises: MissingExtra: what learned routers are made with is not installed."""
    from importlib.util import find_spec

    if any(find_spec(module) is None for module in ("numpy", "sklearn", "torch", "safetensors")):
        raise MissingExtra(f"policy {policy!r}", "routers")
