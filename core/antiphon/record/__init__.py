"""Recording an application of the pool: what members really said, in files that recorded pools read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from antiphon.errors import ConfigError, did_you_mean
from antiphon.record.journal import Journal
from antiphon.record.rows import FIRST_KEY, Row, Totals, read_row
from antiphon.record.run import Recorder

if TYPE_CHECKING:
    from antiphon.catalogue import Catalogue
    from antiphon.pool import Pool
    from antiphon.registry import Registry
    from antiphon.types import Task

__all__ = ["FIRST_KEY", "Journal", "Recorder", "Row", "Totals", "make_pool", "questions", "read_row"]


def make_pool(
    catalogue: Catalogue,
    registry: Registry,
    name: str,
    *,
    members: Sequence[str] | None = None,
    temperature: float | None = None,
) -> Pool:
    """A configured pool, or some of its members, at a temperature of one's own choice.

    Raises:
        ConfigError: there is no such pool or member, or the pool does not hold.
    """
    from antiphon import _setup
    from antiphon.names import Names

    descriptors = catalogue.pool(name)
    if members is not None:
        names = Names.of(descriptors)
        chosen = {member: names.resolve(member) for member in members}
        for member, found in chosen.items():
            if found is None:
                hint = did_you_mean(member, names.names)
                raise ConfigError(f"nobody in pool {name!r} is called {member!r}{hint}")
        descriptors = tuple(each for each in descriptors if each.name in chosen.values())
    if temperature is not None:
        descriptors = tuple(
            each.model_copy(update={"sampling": {**each.sampling, "temperature": temperature}}) for each in descriptors
        )
    known = tuple(entry.descriptor for entry in catalogue.entries)
    allow_unpriced = catalogue.config.pool(name).allow_unpriced
    return _setup.make_pool(descriptors, catalogue.config, registry, allow_unpriced=allow_unpriced, known=known)


def questions(
    registry: Registry, dataset: str, options: Mapping[str, Any], limit: int | None = None
) -> tuple[Task, ...]:
    """The first `limit` questions of a dataset, each with the dataset's name.

    Raises:
        ConfigError: there is no such dataset, it has no questions, or two of the same id.
    """
    tasks = [
        task if task.dataset else replace(task, dataset=dataset)
        for task in islice(registry.dataset(dataset, **options), limit)
    ]
    if not tasks:
        raise ConfigError(f"dataset {dataset!r} has no questions")
    seen: set[tuple[str | None, str]] = set()
    for task in tasks:
        if (task.dataset, task.id) in seen:
            raise ConfigError(f"dataset {dataset!r}: two questions have the id {task.id!r}; give each its own")
        seen.add((task.dataset, task.id))
    return tuple(tasks)
