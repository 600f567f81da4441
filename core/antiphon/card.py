"""The card of trained weights: what they were trained with and for, kept beside them and checked where they load."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from antiphon import models
from antiphon.contracts import MemberView, TagGrammar
from antiphon.descriptor import Descriptor, Frozen, Options, Price, content_hash, explain
from antiphon.errors import ConfigError
from antiphon.log import warn
from antiphon.reward import Composition
from antiphon.tables import ModelConfig

FILE = "card.json"


class Base(Frozen):
    """What training began with: the model that was trained, or weights on it; `hash`: SHA-256 of the weights."""

    name: str
    hash: str


class Spoken(Frozen):
    """The grammar that the weights speak.

    Attributes:
        template: hash of the prompt's text, style and examples.
        options: with which the grammar is made again.
    """

    name: str
    version: str
    template: str | None = None
    options: Options = Field(default_factory=dict)

    @classmethod
    def of(cls, grammar: TagGrammar, options: Mapping[str, Any] | None = None) -> Spoken:
        template = getattr(grammar, "template", None)
        return cls(name=grammar.name, version=grammar.version, template=template, options=dict(options or {}))

    def __str__(self) -> str:
        return f"{self.name}/{self.version}, template {self.template or '-'}"


class Member(Frozen):
    """A member as the policy saw it in training: its descriptor without endpoints, and the price it was quoted at."""

    descriptor: dict[str, Any]
    price: Price | None = None

    @classmethod
    def of(cls, view: MemberView) -> Member:
        return cls(descriptor=_seen(view.descriptor), price=view.quote)

    @property
    def name(self) -> str:
        return str(self.descriptor.get("name"))


class Questions(Frozen):
    """A data set; `hash`: of the questions, their ids and golden answers, in order."""

    dataset: str
    split: str | None = None
    tasks: int
    hash: str


class Card(Frozen):
    """What is known of trained weights, and how they were made: by reinforcement learning, or from demonstrations.

    Attributes:
        start: the weights that training began with; None: the base's own.
        policy_options: with which the policy is made again where the configuration says nothing of it.
        reward, algorithm, rollouts: of reinforcement learning: what was earned, how it was learnt from, and how many
            were made a step at what temperature. Empty for weights that learnt from demonstrations.
        demonstrations, fine_tuning: of the latter: the teacher and how many of its demonstrations were kept of those
            asked for, and how they were learnt. Empty for the former.
        steps: updates.
        limits: of a rollout in training.
        randomised: what of the pool changed from question to question (names, order, prices, …).
        results: what was measured, by name (`em on validation`).
        versions: of Antiphon and of what it trained with.
    """

    contract: Literal[1] = 1
    name: str
    base: Base
    start: Base | None = None
    policy: str
    policy_options: Options = Field(default_factory=dict)
    grammar: Spoken | None = None
    pool: tuple[Member, ...] = ()
    randomised: dict[str, Any] = Field(default_factory=dict)
    reward: Composition | None = None
    data: tuple[Questions, ...] = ()
    algorithm: dict[str, Any] = Field(default_factory=dict)
    rollouts: dict[str, Any] = Field(default_factory=dict)
    demonstrations: dict[str, Any] = Field(default_factory=dict)
    fine_tuning: dict[str, Any] = Field(default_factory=dict)
    lora: dict[str, Any] | None = None
    limits: dict[str, Any] = Field(default_factory=dict)
    seeds: tuple[int, ...] = ()
    steps: int = 0
    results: dict[str, float] = Field(default_factory=dict)
    versions: dict[str, str] = Field(default_factory=dict)
    license: str | None = None

    def to_json(self) -> str:
        return json.dumps(self.model_dump(mode="json"), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def read(folder: Path) -> Card | None:
    """The card beside the weights in a folder; None: there is none.

    Raises:
        ConfigError: the file is no card; names the field.
    """
    path = folder / FILE
    try:
        return Card.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        raise ConfigError(f"{path} is no card of this version: {explain(error, Card)}") from None


def of_model(options: Mapping[str, Any]) -> tuple[Path, Card] | None:
    """The card of a model by the options of its generator: its adapter's (`lora`), else its own (`model`).

    Raises:
        ConfigError: the file is no card.
    """
    for key in ("lora", "model"):
        name = options.get(key)
        if not isinstance(name, str):
            continue
        try:
            folder = models.find(name)
        except ConfigError:  # a model of a server, or one that is not there: whoever loads it says so
            continue
        card = read(folder)
        if card is not None:
            return folder, card
    return None


def as_model(folder: Path, generator: str) -> ModelConfig:
    """The model that a folder of weights is: a whole one, or an adapter on the base that it names."""
    options: dict[str, Any] = {"model": str(folder)}
    card = read(folder)
    adapter = folder / "adapter_config.json"
    if adapter.is_file():
        base = card.base.name if card is not None else _base_of(adapter)
        options = {"model": base, "lora": str(folder)}
    if card is None:
        return ModelConfig(generator=generator, options=options)
    turn_tokens = card.limits.get("turn_tokens")
    return ModelConfig(generator=generator, options=options, sampling={"temperature": 0}, turn_tokens=turn_tokens)


def check(
    card: Card,
    where: Path | str,
    *,
    grammar: TagGrammar | None,
    members: Sequence[MemberView],
    how: str = "--grammar {name}, and no options of it in the configuration",
) -> None:
    """Weights speak the grammar and read the prompt that they were trained with; they may ask other members.

    What is different in the pool is logged. A policy without a grammar asks nothing of the weights that could be wrong.

    Args:
        how: the grammar of the training, `{name}`, is taken; for the error.

    Raises:
        ConfigError: another grammar or template; names both.
    """
    trained = card.grammar
    if trained is None or grammar is None:
        return
    now = Spoken.of(grammar)
    if (now.name, now.version, now.template) != (trained.name, trained.version, trained.template):
        raise ConfigError(
            f"{where} was trained with grammar {trained}, and would be used with grammar {now}; take the former "
            f"({how.replace('{name}', trained.name)}), or weights trained with the latter"
        )
    log_pool_changes(card, where, members)


def log_pool_changes(card: Card, where: Path | str, members: Sequence[MemberView]) -> None:
    """Warn of how a pool differs from that of the training, if it does."""
    changes = list(pool_changes(card, members))
    if changes:
        warn("antiphon.card", "the pool is not the one of the training", weights=str(where), changes="; ".join(changes))


def pool_changes(card: Card, members: Sequence[MemberView]) -> Iterator[str]:
    """In words, how a pool differs from that of the training."""
    before, now = {one.name: one for one in card.pool}, {one.name: one for one in map(Member.of, members)}
    yield from (f"{name} is new" for name in now if name not in before)
    yield from (f"{name} is gone" for name in before if name not in now)
    for name in now:
        if name in before and now[name].price != before[name].price:
            yield f"{name} has another price"
        if name in before and content_hash(now[name].descriptor) != content_hash(before[name].descriptor):
            yield f"{name} is described otherwise"


def _seen(descriptor: Descriptor) -> dict[str, Any]:
    """Without what the policy never sees, and what may name a machine: endpoints and prices."""
    data: dict[str, Any] = descriptor.model_dump(mode="json", exclude={"endpoints", "price", "pricing", "pricing_args"})
    return data


def _base_of(adapter: Path) -> str:
    try:
        return str(json.loads(adapter.read_bytes())["base_model_name_or_path"])
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{adapter} does not say which model it belongs to ({error})") from None
