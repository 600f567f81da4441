"""What an orchestrator is made of (policy, pool, model, price, versions), put together from names and objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from antiphon import __version__, card
from antiphon.contracts import AsksMembers, Generator, Policy
from antiphon.errors import ConfigError
from antiphon.generation import check_generator
from antiphon.limits import Limits
from antiphon.log import warn
from antiphon.types import Trajectory

if TYPE_CHECKING:
    from antiphon.card import Card
    from antiphon.config import Config
    from antiphon.descriptor import Descriptor, Price
    from antiphon.pool import Pool
    from antiphon.registry import Registry
    from antiphon.tables import ModelConfig


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the caller named or brought; None: as the configuration says."""

    pool: str | AsksMembers | Sequence[Descriptor | Mapping[str, Any]] | None = None
    policy: str | Policy | None = None
    model: str | Generator | None = None
    grammar: str | None = None
    config: str | Path | Config | None = None
    registry: Registry | None = None
    policy_price: Price | None = None
    allow_unpriced: bool | None = None


class OnDemand:
    """Stands in for the policy's model until something of it is needed.

    So a policy that only asks members never loads one. What went wrong when it was made is kept in `error`: a fault of
    the set-up, not of the rollout that met it first.
    """

    def __init__(self, make: Callable[[], Generator]) -> None:
        self._make = make
        self.made: Generator | None = None
        self.error: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        if self.made is None:
            try:
                self.made = self._make()
            except Exception as error:
                self.error = error
                raise
        return getattr(self.made, name)


@dataclass(frozen=True, slots=True)
class Setup:
    """Ready to run rollouts."""

    config: Config
    registry: Registry
    pool: AsksMembers
    policy: Policy
    model: OnDemand
    limits: Limits
    policy_price: Price | None
    sampling: Mapping[str, Any]
    versions: Mapping[str, str]

    @property
    def generator(self) -> Generator:
        return cast(Generator, self.model)

    def finished(self, trajectory: Trajectory) -> Trajectory:
        """The trajectory as it is handed on: with the generator's name where it took part; observers told."""
        if self.model.made is not None and trajectory.segments:
            versions = {**trajectory.versions, "generator": self.model.made.name}
            trajectory = replace(trajectory, versions=dict(sorted(versions.items())))
        self.registry.on_trajectory(trajectory)
        return trajectory


def build(chosen: Chosen, resources: AsyncExitStack) -> Setup:
    """Put the parts together; what is made here (not what the caller brought) is closed with `resources`.

    Raises:
        ConfigError, PluginError, MissingExtra: a name, file or option does not hold; nothing has run then.
    """
    config = _config(chosen.config)
    registry = chosen.registry or registry_for(config)
    pool = _pool(chosen, config, registry, resources)
    model, described = _model(chosen, config, registry, resources)
    carded = card.of_model(described.options) if described is not None else None
    policy = _policy(chosen, config, registry, described, carded[1] if carded else None)
    grammar = getattr(policy, "grammar", None)
    if carded is not None:
        card.check(carded[1], carded[0], grammar=grammar, members=pool.members)
    versions = {"antiphon": __version__, "policy": policy.name}
    if grammar is not None:
        check_generator(grammar, cast(Generator, model))
    if isinstance(pool_hash := getattr(pool, "hash", None), str):
        versions["pool"] = pool_hash
    limits = config.limits.limits()
    if described is not None and described.turn_tokens is not None:
        limits = replace(limits, turn_tokens=min(limits.turn_tokens, described.turn_tokens))
    return Setup(
        config,
        registry,
        pool,
        policy,
        model,
        limits,
        chosen.policy_price or (described.price if described is not None else None),
        described.sampling if described is not None else {},
        versions,
    )


def registry_for(config: Config) -> Registry:
    """The plugins that a configuration allows; without a list of its own, the process's registry."""
    from antiphon.registry import Registry, default_registry

    return default_registry() if config.plugins.only is None else Registry.load(config.plugins.only)


def _config(given: str | Path | Config | None) -> Config:
    from antiphon.config import load_config

    if given is None or isinstance(given, str | Path):
        return load_config(None if given is None else Path(given))
    return given


def _pool(chosen: Chosen, config: Config, registry: Registry, resources: AsyncExitStack) -> AsksMembers:
    from antiphon.catalogue import Catalogue
    from antiphon.descriptor import Descriptor

    given = config.defaults.pool if chosen.pool is None else chosen.pool
    allow_unpriced = chosen.allow_unpriced
    known: tuple[Descriptor, ...] = ()
    if isinstance(given, str):
        catalogue = Catalogue.of(registry, config)
        descriptors = catalogue.pool(given)
        _say_what_changed(given, catalogue.check_lock(given))
        known = tuple(entry.descriptor for entry in catalogue.entries)
        allow_unpriced = config.pool(given).allow_unpriced if allow_unpriced is None else allow_unpriced
    elif isinstance(given, Sequence):
        members = [member for member in given if not isinstance(member, str)]
        if len(members) < len(given):
            raise ConfigError("pool is a list of names: name a pool of antiphon.toml instead, or give descriptors")
        descriptors = tuple(Descriptor.of(member, source="pool") for member in members)
    else:
        return given
    pool = make_pool(descriptors, config, registry, allow_unpriced=bool(allow_unpriced), known=known)
    resources.push_async_callback(pool.aclose)
    return pool


def _say_what_changed(pool: str, changes: Sequence[str]) -> None:
    for change in changes:
        warn("antiphon.pool", "pool changed since it was locked", pool=pool, change=change)


def make_pool(
    descriptors: Sequence[Descriptor],
    config: Config,
    registry: Registry,
    *,
    allow_unpriced: bool,
    known: Sequence[Descriptor] = (),
) -> Pool:
    """A pool with the configuration's retries. `known`: whose prices hold where another model answers."""
    from antiphon.pool import Pool, RetryPolicy

    retry = RetryPolicy(**config.retry.model_dump())
    return Pool(descriptors, registry, allow_unpriced=allow_unpriced, catalogue=known, policy=retry)


def _model(
    chosen: Chosen, config: Config, registry: Registry, resources: AsyncExitStack
) -> tuple[OnDemand, ModelConfig | None]:
    """The generator, and how it is configured; None for one that the caller brought."""
    given = config.defaults.model if chosen.model is None else chosen.model
    if not isinstance(given, str):
        return OnDemand(lambda: given), None
    model = config.model(given)

    def make() -> Generator:
        generator = registry.generator(model.generator, **model.options)
        resources.push_async_callback(generator.aclose)
        return generator

    return OnDemand(make), model


def _policy(
    chosen: Chosen, config: Config, registry: Registry, model: ModelConfig | None, trained: Card | None
) -> Policy:
    given = config.defaults.policy if chosen.policy is None else chosen.policy
    if not isinstance(given, str):
        if not (isinstance(getattr(given, "name", None), str) and callable(getattr(given, "run", None))):
            raise ConfigError(
                f"policy is {type(given).__name__}: give a policy's name, or an object with `name` and "
                "`async def run(self, task, rollout)`"
            )
        if chosen.grammar is not None:
            raise ConfigError(f"policy {given.name!r} is an object that brings its own grammar or none; leave it out")
        return given
    options = config.policy_options(given)
    if not options and trained is not None and trained.policy == given:
        options = dict(trained.policy_options)
    if getattr(registry.factory("policy", given), "needs_grammar", False):
        name = chosen.grammar or options.pop("grammar", None) or config.defaults.grammar
        if name is None:
            raise ConfigError(f"policy {given!r} needs a grammar; name one (--grammar, or defaults.grammar)")
        own = model.grammars.get(name, {}) if model is not None else {}
        configured = {**config.grammar_options(name), **own}
        if not configured and trained is not None and trained.grammar is not None and trained.grammar.name == name:
            configured = trained.grammar.options
        options["grammar"] = registry.grammar(name, **configured)
    elif chosen.grammar is not None:
        raise ConfigError(f"policy {given!r} uses no grammar; leave it out")
    return registry.policy(given, **options)
