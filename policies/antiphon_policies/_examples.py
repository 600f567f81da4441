"""What a router is trained on: questions x LLMs as arrays, split by question, and who the LLMs are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from antiphon.contracts import MemberView
from antiphon.errors import ConfigError

from ._scores import Scored

Array: TypeAlias = Any
"""A numpy array; nothing here imports numpy before it is needed."""

Arrays = dict[str, Any]
"""Name -> numpy array."""

FEWEST = 10
"""Questions that can be split into a training and a validation part."""


@dataclass(frozen=True, slots=True)
class Profile:
    """An LLM as a router may know it without asking it: what its descriptor says.

    Attributes:
        price: USD per million output tokens as quoted; None: unpriced.
        size: active parameters in billions; None: unknown.
    """

    name: str
    text: str
    price: float | None
    size: float | None

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "text": self.text, "price": self.price, "size": self.size}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Profile:
        return cls(data["name"], data["text"], data["price"], data["size"])


@dataclass(frozen=True, slots=True)
class Inputs:
    """Questions to predict for.

    Attributes:
        vectors: (questions, width).
        llm_vectors: (LLMs, width), of what the profiles say.
        texts: the questions.
    """

    vectors: Any
    profiles: tuple[Profile, ...]
    llm_vectors: Any
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """Some questions.

    Attributes:
        vectors: (questions, width); None until the features are fitted.
        scores: (questions, LLMs), NaN where nothing was recorded.
        tokens: output tokens likewise.
        replies: of each question, LLM's column -> what it said; empty for methods that do not read them.
    """

    texts: tuple[str, ...]
    vectors: Any
    scores: Any
    tokens: Any
    replies: tuple[Mapping[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Data:
    """A training and a validation part without a common question; columns are the LLMs of `profiles`.

    Attributes:
        llm_vectors: (LLMs, width), of what the profiles say.
        features: texts -> vectors.
    """

    train: Part
    validation: Part
    profiles: tuple[Profile, ...]
    llm_vectors: Any = None
    features: Callable[[Sequence[str]], Any] | None = None

    def with_vectors(self, features: Callable[[Sequence[str]], Any]) -> Data:
        return replace(
            self,
            features=features,
            llm_vectors=features([profile.text for profile in self.profiles]),
            train=replace(self.train, vectors=features(self.train.texts)),
            validation=replace(self.validation, vectors=features(self.validation.texts)),
        )


def data_of(
    rows: Sequence[Scored],
    members: Mapping[str, str],
    profiles: tuple[Profile, ...],
    validation: float,
    seed: int,
    source: str,
) -> Data:
    """Rows as arrays, split by question.

    Raises:
        ConfigError: too few questions have scores of the pool's members.
    """
    import numpy as np

    llms = [members[profile.name] for profile in profiles]
    rows = [row for row in rows if any(llm in row.scores for llm in llms)]
    if len(rows) < FEWEST:
        raise ConfigError(
            f"{source}: {len(rows)} questions have scores of this pool's members; a router needs {FEWEST} at least"
        )
    order = np.random.default_rng(seed).permutation(len(rows))
    cut = max(1, round(validation * len(rows)))

    def part(places: Any) -> Part:
        chosen = [rows[place] for place in places]
        missing = float("nan")
        return Part(
            tuple(row.text for row in chosen),
            None,
            np.array([[row.scores.get(llm, missing) for llm in llms] for row in chosen], dtype=np.float64),
            np.array([[row.tokens.get(llm, missing) for llm in llms] for row in chosen], dtype=np.float64),
            tuple({at: row.replies[llm] for at, llm in enumerate(llms) if llm in row.replies} for row in chosen),
        )

    return Data(part(sorted(order[cut:])), part(sorted(order[:cut])), profiles)


def profiles_of(views: Iterable[MemberView]) -> tuple[Profile, ...]:
    return tuple(
        Profile(
            view.name,
            " ".join([view.descriptor.description, *view.descriptor.strengths]),
            None if view.quote is None else view.quote.output,
            view.descriptor.active_parameters_b or view.descriptor.parameters_b,
        )
        for view in views
    )


def mean_tokens(rows: Iterable[Scored], members: Mapping[str, str]) -> dict[str, float]:
    """Member -> mean output tokens, where they were recorded."""
    found: dict[str, list[float]] = {name: [] for name in members}
    for row in rows:
        for name, llm in members.items():
            if llm in row.tokens:
                found[name].append(row.tokens[llm])
    return {name: sum(some) / len(some) for name, some in found.items() if some}
