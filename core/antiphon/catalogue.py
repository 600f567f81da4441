"""Every descriptor known, from plugins and configuration; named pools are chosen from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from antiphon.config import Config, merge
from antiphon.descriptor import SHORT_KEYS, Descriptor, Endpoint
from antiphon.errors import ConfigError, did_you_mean
from antiphon.names import Names, fold
from antiphon.tables import PoolConfig

if TYPE_CHECKING:
    from pathlib import Path

    from antiphon.registry import Registry

CONFIG_SOURCE = "config"
"""The source of members that the configuration defines by itself."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One member of the catalogue.

    Attributes:
        source: the distribution that brought it, or `config`.
        descriptor: with the configuration's overrides applied.
        overridden: the keys that the configuration overrides.
        version: the distribution's, where known.
    """

    source: str
    descriptor: Descriptor
    overridden: tuple[str, ...] = ()
    version: str | None = None

    @property
    def name(self) -> str:
        return self.descriptor.name

    @property
    def ref(self) -> str:
        """The reference that means this entry and no other."""
        return f"{self.source}:{self.name}"


class Catalogue:
    """Who can be in a pool. Members are found by name, by alias, or as `distribution:name`.

    Names need not be unique here; they must be within a pool.
    """

    def __init__(self, entries: Iterable[Entry], config: Config) -> None:
        self.entries = tuple(entries)
        self.config = config

    @classmethod
    def of(cls, registry: Registry, config: Config) -> Catalogue:
        """Plugins' descriptors under the configuration: config > plugin > default, field by field.

        A `[members."NAME"]` table that is a whole descriptor defines a member of its own and takes nothing from
        plugins; any other overrides fields of the member it names.

        Raises:
            ConfigError: an override is of nobody, or of more than one; or the result does not hold.
        """
        versions = {plugin.distribution: plugin.version for plugin in registry.plugins}
        entries = [
            Entry(found.source, found.descriptor, version=versions.get(found.source)) for found in registry.descriptors
        ]
        own: list[Entry] = []
        for ref, table in config.members.items():
            if _is_whole(table):
                own.append(Entry(CONFIG_SOURCE, Descriptor.of({"name": ref, **table}, source="the configuration")))
                continue
            entry = _find(entries, ref, f'[members."{ref}"]')
            if entry is None:
                known = _spellings(entries)
                raise ConfigError(
                    f'[members."{ref}"] overrides a member that nobody brings (to define a new one, give it a '
                    f"description and a model too){did_you_mean(ref, known)}"
                )
            entries[entries.index(entry)] = replace(
                entry,
                descriptor=overridden(entry.descriptor, table),
                overridden=tuple(sorted({*entry.overridden, *table})),
            )
        return cls([*own, *entries], config)

    def find(self, ref: str) -> Descriptor:
        """A member by name, alias or `distribution:name`; case, dashes and spaces fold.

        Raises:
            ConfigError: nobody is called so, or several are; says what to write.
        """
        return self.entry(ref).descriptor

    def entry(self, ref: str) -> Entry:
        """Like `find`, with where it came from."""
        entry = _find(self.entries, ref, "the catalogue")
        if entry is None:
            hint = did_you_mean(ref, _spellings(self.entries))
            raise ConfigError(f"nobody whom a plugin or the configuration brings is called {ref!r}{hint}")
        return entry

    def pool(self, name: str | None = None) -> tuple[Descriptor, ...]:
        """A named pool's members in the order listed, ready to be asked: paths expanded.

        Raises:
            ConfigError: the pool or a member is unknown, two members share a name, or a path needs a variable that
                is not set.
        """
        name = name or self.config.defaults.pool
        return tuple(self._with_paths(entry.descriptor, name) for entry in self.pool_entries(name))

    def pool_entries(self, name: str | None = None) -> tuple[Entry, ...]:
        """A named pool's members as configured: paths not expanded, so that they are the same on every machine."""
        name = name or self.config.defaults.pool
        pool = self.config.pool(name)
        try:
            members = [self.entry(ref) for ref in pool.members]
            names = {self.entry(ref).ref: called for ref, called in pool.names.items()}
            if strangers := names.keys() - {entry.ref for entry in members}:
                raise ConfigError(f"`names` renames {', '.join(sorted(strangers))}, who is not among its members")
            renamed = [_called(entry, names.get(entry.ref)) for entry in members]
        except ConfigError as error:
            raise ConfigError(f"pool {name!r}: {error}") from None
        entries = tuple(replace(entry, descriptor=_in_pool(entry.descriptor, pool)) for entry in renamed)
        Names.of((entry.descriptor for entry in entries), f"pool {name!r}")
        return entries

    def lock(self, name: str | None = None) -> dict[str, Any]:
        """What the lock file holds of a pool (see `antiphon.lock`)."""
        from antiphon.lock import locked

        return locked(self, name)

    def check_lock(self, name: str | None = None, path: Path | None = None) -> tuple[str, ...]:
        """How a pool differs from what was locked, in words; nothing where it does not, or was never locked."""
        from antiphon.lock import check

        return check(self, name, path)

    def _with_paths(self, descriptor: Descriptor, pool: str) -> Descriptor:
        owner = f"pool {pool!r}, member {descriptor.name!r}"
        return _changed(descriptor, lambda endpoint: {"options": self.config.expand(endpoint.options, owner)})


def overridden(descriptor: Descriptor, table: Mapping[str, Any]) -> Descriptor:
    """A descriptor with a `[members."NAME"]` table laid over it, field by field, and validated again.

    Where a price changes and the table does not say when and where it was looked up, the old date and source go. The
    arguments of another pricing function go too. `model` replaces all endpoints; `api_base`, `api_key_env`, `adapter`
    and `options` alone change the one endpoint there is.
    """
    base = descriptor.model_dump(exclude_defaults=True)
    if base.get("price") and {"input", "output", "cached_input"} & set(table.get("price", ())):
        base["price"] = {key: value for key, value in base["price"].items() if key not in ("as_of", "source")}
    if table.get("pricing", descriptor.pricing) != descriptor.pricing:
        base.pop("pricing_args", None)
    short = {key: table[key] for key in SHORT_KEYS if key in table}
    if "model" in short or "endpoints" in table:
        base.pop("endpoints")
    elif short:
        if len(descriptor.endpoints) > 1:
            raise ConfigError(
                f'[members."{descriptor.name}"]: it has {len(descriptor.endpoints)} endpoints, and '
                f"`{next(iter(short))}` does not say which; list them in full under `endpoints`"
            )
        base["endpoints"] = (merge(base["endpoints"][0], short),)
        table = {key: value for key, value in table.items() if key not in short}
    return Descriptor.of(merge(base, table), source="overridden by the configuration")


def _spellings(entries: Iterable[Entry]) -> list[str]:
    return [name for entry in entries for name in (entry.name, *entry.descriptor.aliases)]


def _is_whole(table: Mapping[str, Any]) -> bool:
    """It says who the member is and how to reach it: all that a descriptor must."""
    return "description" in table and ("model" in table or "endpoints" in table)


def _find(entries: Sequence[Entry], ref: str, where: str) -> Entry | None:
    """The one entry that `ref` means; the configuration's own come before plugins', names before aliases."""
    key = fold(ref)
    source, colon, rest = ref.partition(":")
    ways: tuple[Callable[[Entry], bool], ...] = (
        lambda entry: entry.source == CONFIG_SOURCE and fold(entry.name) == key,
        lambda entry: fold(entry.name) == key,
        lambda entry: any(fold(alias) == key for alias in entry.descriptor.aliases),
        lambda entry: bool(colon) and entry.source == source.strip() and fold(entry.name) == fold(rest),
    )
    for matches in ways:
        found = [entry for entry in entries if matches(entry)]
        if len({entry.ref for entry in found}) < len(found):
            raise ConfigError(f"{found[0].source} brings more than one member called {ref!r}; it has to rename one")
        if len(found) > 1:
            raise ConfigError(
                f"{where}: {ref!r} could be any of {len(found)} members; write one of "
                + ", ".join(repr(entry.ref) for entry in found)
            )
        if found:
            return found[0]
    return None


def _called(entry: Entry, name: str | None) -> Entry:
    """The entry under the name that a pool gives it, if any; found by its own too."""
    if name is None or name == entry.name:
        return entry
    table = {"name": name, "aliases": (entry.name, *entry.descriptor.aliases)}
    return replace(entry, descriptor=overridden(entry.descriptor, table))


def _in_pool(descriptor: Descriptor, pool: PoolConfig) -> Descriptor:
    """A member as this pool reaches it: by the pool's adapter, or through it, if it has one; with its concurrency."""
    if pool.adapter is not None:
        only = Endpoint(adapter=pool.adapter, model=descriptor.endpoints[0].model, options=pool.options)
        descriptor = descriptor.model_copy(update={"endpoints": (only,)})

    def reached(endpoint: Endpoint) -> dict[str, Any]:
        change: dict[str, Any] = {"concurrency": endpoint.concurrency or pool.concurrency}
        if pool.wrap is not None:
            change["adapter"] = pool.wrap
            change["options"] = {**pool.options, "adapter": endpoint.adapter, "inner": endpoint.options}
        return change

    return _changed(descriptor, reached)


def _changed(descriptor: Descriptor, change: Callable[[Endpoint], dict[str, Any]]) -> Descriptor:
    """The descriptor with each endpoint updated by what `change` says of it."""
    endpoints = tuple(endpoint.model_copy(update=change(endpoint)) for endpoint in descriptor.endpoints)
    return descriptor.model_copy(update={"endpoints": endpoints})
