"""Finds, checks and names plugins; one broken plugin never takes another down.

Entry points are loaded here and not by pluggy, whose loader loses all of them on one ImportError, skips a second
distribution of one name in silence, and does not say whose hook raised. pluggy still checks each hook.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, cast

from antiphon._entry_points import HOOKS, LOCAL, Door, EntryPoint, Fault, clashes, find, load, said, select
from antiphon._factories import Offer, contested
from antiphon._observers import EXIT_TIMEOUT_S, Observer, Observers
from antiphon._offers import FACTORY_HOOKS, Offers, of_descriptors, of_hooks
from antiphon.contracts import Adapter, Generator, Metric, Policy, Pricing, RewardTerm, TagGrammar
from antiphon.errors import AntiphonError, ConfigError, PluginError, did_you_mean
from antiphon.names import fold

if TYPE_CHECKING:
    from antiphon.descriptor import Descriptor, Endpoint
    from antiphon.types import Task, Trajectory


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """What became of one entry point.

    Attributes:
        state: `disabled` plugins were left out by ANTIPHON_PLUGINS and never imported.
        reason: why it failed, in one text that names distribution, version, hook and remedy.
        offers: kind ("adapter", "descriptor", "observer", …) -> names.
        problems: contributions that do not hold, while the plugin's others do.
    """

    name: str
    distribution: str
    version: str
    door: Door
    entry_point: str
    state: Literal["loaded", "disabled", "failed"]
    reason: str | None = None
    offers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Contribution:
    """A descriptor, and the distribution that brought it."""

    source: str
    descriptor: Descriptor


class Registry:
    """Every plugin, what each offers, and one typed method per kind that makes what is asked for by name.

    Make one with `Registry.load()`; `default_registry()` is the process's own.

    Attributes:
        plugins: one entry per entry point found, built-ins first.
        descriptors: every pool member that plugins bring; names may repeat between distributions.
    """

    def __init__(self, read: Sequence[tuple[EntryPoint, Offers | str | None]]) -> None:
        """Args: entry points, each with its offers, or the reason why it failed, or None where it is disabled."""
        self._offers: dict[str, dict[str, list[Offer]]] = {kind: defaultdict(list) for kind in FACTORY_HOOKS}
        good = {point: offers for point, offers in read if isinstance(offers, Offers)}
        for point, offers in good.items():
            for (kind, name), factory in offers.factories.items():
                self._offers[kind][name].append(Offer(point, kind, name, factory))
        self.descriptors: tuple[Contribution, ...] = _told_apart(good)
        self._observers = Observers(
            [Observer(str(point), observe) for point, offers in good.items() for observe in offers.observers]
        )
        for rivals in self._all_offers():
            if len(rivals) > 1:
                for offer in rivals:
                    good[offer.point].problems.append(contested(offer, rivals))
        self.plugins: tuple[PluginInfo, ...] = tuple(_info(point, offers) for point, offers in read)

    @classmethod
    def load(cls, only: Sequence[str] | None = None, *, local: Mapping[str, object] | None = None) -> Registry:
        """Load the plugins of this environment.

        Args:
            only: plugins or distributions to load beside the built-ins; defaults to ANTIPHON_PLUGINS (comma
                separated; set but empty: the built-ins alone), and without it to all.
            local: name -> a module or object with @hookimpl functions, for plugins of this process alone.

        Raises:
            ConfigError: `only` names what is not installed. A plugin that fails raises nothing: see `plugins`.
        """
        where = "the list of plugins"
        asked = os.environ.get("ANTIPHON_PLUGINS")
        if only is None and asked is not None:
            where, only = "ANTIPHON_PLUGINS", [name.strip() for name in asked.split(",") if name.strip()]
        points = find()
        enabled = select(points, only, where=where)
        here = {EntryPoint(name, HOOKS, name, LOCAL, "-"): plugin for name, plugin in (local or {}).items()}
        return cls.of((*points, *here), enabled=enabled | here.keys(), objects=here)

    @classmethod
    def of(
        cls,
        points: Sequence[EntryPoint],
        *,
        enabled: frozenset[EntryPoint] | None = None,
        objects: Mapping[EntryPoint, object] | None = None,
    ) -> Registry:
        """Load these entry points. `objects`: those that need no import."""
        wanted = [point for point in points if enabled is None or point in enabled]
        taken = clashes(wanted)
        read = {point: point.fault or taken.get(point) or _read(point, objects or {}) for point in wanted}
        return cls([(point, read.get(point)) for point in points])

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that is wrong with any plugin: reasons of failure, and contributions that do not hold."""
        return tuple(text for info in self.plugins for text in (info.reason, *info.problems) if text)

    def names(self, kind: str) -> tuple[str, ...]:
        """The names that plugins offer for a kind, sorted.

        Raises:
            ConfigError: there is no such kind.
        """
        return tuple(sorted(self._of_kind(kind)))

    def import_problems(self) -> tuple[str, ...]:
        """Import every factory, without calling it; what goes wrong. (Slow: nothing else imports them all.)"""
        problems = []
        for offer in chain.from_iterable(self._all_offers()):
            try:
                offer.load()
            except AntiphonError as error:
                problems.append(str(error))
        return tuple(problems)

    # ---- one method per kind --------------------------------------------------------------------------------------
    # Each raises ConfigError for a name that nobody or more than one plugin offers and for options that the factory
    # does not take, and PluginError, which names the plugin, where the factory fails or makes the wrong thing.

    def adapter(self, name: str, *, endpoint: Endpoint, descriptor: Descriptor) -> Adapter:
        """A new adapter for one endpoint."""
        return cast("Adapter", self._make("adapter", name, {"endpoint": endpoint, "descriptor": descriptor}))

    def generator(self, name: str, /, **options: Any) -> Generator:
        """A new generator; may load a model."""
        return cast("Generator", self._make("generator", name, options))

    def grammar(self, name: str, /, **options: Any) -> TagGrammar:
        return cast("TagGrammar", self._make("grammar", name, options))

    def policy(self, name: str, /, **options: Any) -> Policy:
        return cast("Policy", self._make("policy", name, options))

    def reward_term(self, name: str, /, **options: Any) -> RewardTerm:
        return cast("RewardTerm", self._make("reward_term", name, options))

    def pricing(self, name: str, /, **options: Any) -> Pricing:
        """A pricing function; `options` are a descriptor's `pricing_args`."""
        return cast("Pricing", self._make("pricing", name, options))

    def metric(self, name: str, /, **options: Any) -> Metric:
        return cast("Metric", self._make("metric", name, options))

    def dataset(self, name: str, /, **options: Any) -> Iterable[Task]:
        return cast("Iterable[Task]", self._make("dataset", name, options))

    def factory(self, kind: str, name: str) -> Callable[..., Any]:
        """What makes it, imported but not called.

        Raises:
            ConfigError: nobody, or more than one plugin, offers the name.
            PluginError: it cannot be imported.
        """
        return self._offer(kind, name).load()

    def replays(self, descriptor: Descriptor) -> bool:
        """Whether an adapter that only replays reaches it: one whose factory says so by an attribute `replays`."""
        adapters = {endpoint.adapter for endpoint in descriptor.endpoints}
        return any(getattr(self.factory("adapter", name), "replays", False) for name in adapters)

    # ---- observers ------------------------------------------------------------------------------------------------

    def on_trajectory(self, trajectory: Trajectory) -> None:
        """Hand a finished trajectory to the observers' queue: never blocks, never raises, never runs them here."""
        self._observers.put(trajectory)

    @property
    def dropped(self) -> int:
        """Trajectories that did not fit into the observers' queue."""
        return self._observers.dropped

    def drain(self, timeout_s: float = EXIT_TIMEOUT_S) -> bool:
        """Wait until observers have seen everything; False where `timeout_s` was not enough."""
        return self._observers.drain(timeout_s)

    def close(self, timeout_s: float = EXIT_TIMEOUT_S) -> bool:
        """End the observers' thread after at most `timeout_s`; it also happens when Python exits."""
        return self._observers.close(timeout_s)

    # ---- within ---------------------------------------------------------------------------------------------------

    def _of_kind(self, kind: str) -> Mapping[str, list[Offer]]:
        if kind not in self._offers:
            raise ConfigError(f"there is no kind {kind!r} of plugin{did_you_mean(kind, self._offers)}")
        return self._offers[kind]

    def _all_offers(self) -> Iterator[list[Offer]]:
        """The offers of each kind and name: more than one where plugins are at odds."""
        return chain.from_iterable(named.values() for named in self._offers.values())

    def _offer(self, kind: str, name: str) -> Offer:
        rivals = self._of_kind(kind).get(name, [])
        if len(rivals) == 1:
            return rivals[0]
        if rivals:
            raise ConfigError(contested(rivals[0], rivals))
        failed = [info.name for info in self.plugins if info.state == "failed"]
        lost = f" (failed plugins: {', '.join(failed)}; see `antiphon plugins`)" if failed else ""
        raise ConfigError(f"there is no {kind} {name!r}{did_you_mean(name, self._of_kind(kind))}{lost}")

    def _make(self, kind: str, name: str, options: Mapping[str, Any]) -> Any:
        return self._offer(kind, name).make(options)


def _read(point: EntryPoint, objects: Mapping[EntryPoint, object]) -> Offers | str:
    try:
        value, folder = (objects[point], None) if point in objects else load(point)
        return of_hooks(point, value, folder) if point.door == "hooks" else of_descriptors(point, value, folder)
    except Fault as fault:
        return point.says(fault.what, fault.remedy)
    except Exception as error:  # looking at a plugin's objects runs its code, and nothing of it may reach the others
        return point.says(f"checking it raised {said(error)}", "repair or uninstall the package")


def _told_apart(good: Mapping[EntryPoint, Offers]) -> tuple[Contribution, ...]:
    """Descriptors by source; a name that one distribution gives to two different members is given to neither."""
    by_name: dict[tuple[str, str], list[tuple[EntryPoint, Offers, Descriptor]]] = defaultdict(list)
    for point, offers in good.items():
        for descriptor in offers.descriptors:
            by_name[point.distribution, fold(descriptor.name)].append((point, offers, descriptor))
    kept = []
    for (source, _), same in by_name.items():
        point, offers, descriptor = same[0]
        if all(other == descriptor for _, _, other in same):
            kept.append(Contribution(source, descriptor))
        else:
            what = f"{len(same)} different members are called {descriptor.name!r}, and none of them is used"
            offers.problems.append(point.says(what, "give each its own name"))
    return tuple(kept)


def _info(point: EntryPoint, offers: Offers | str | None) -> PluginInfo:
    about = (point.name, point.distribution, point.version, point.door, f"{point.group}: {point.name} = {point.value}")
    if not isinstance(offers, Offers):
        return PluginInfo(*about, state="disabled" if offers is None else "failed", reason=offers)
    names = {kind: sorted(name for of, name in offers.factories if of == kind) for kind in FACTORY_HOOKS}
    names["descriptor"] = sorted(descriptor.name for descriptor in offers.descriptors)
    names["observer"] = ["on_trajectory"] if offers.observers else []
    offered = {kind: tuple(some) for kind, some in names.items() if some}
    return PluginInfo(*about, state="loaded", offers=offered, problems=tuple(offers.problems))


_default: Registry | None = None
_default_lock = threading.RLock()
_default_loading = False


def default_registry() -> Registry:
    """The registry of this process, loaded when first asked for.

    Raises:
        ConfigError: see `Registry.load`.
        PluginError: a plugin asks for it while it is being loaded.
    """
    global _default, _default_loading
    with _default_lock:
        if _default is None:
            if _default_loading:
                raise PluginError("the registry was asked for at import or in a hook, while it loads; do so when used")
            _default_loading = True
            try:
                _default = Registry.load()
            finally:
                _default_loading = False
        return _default
