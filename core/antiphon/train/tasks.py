"""The questions of a run: read and checked once, then dealt out step by step in an order that only the seed decides."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from antiphon.errors import AntiphonError, ConfigError, PluginError
from antiphon.train.spec import is_file
from antiphon.types import Task

if TYPE_CHECKING:
    from antiphon.config import Config
    from antiphon.registry import Registry
    from antiphon.train.spec import Data


@dataclass(frozen=True, slots=True)
class Tasks:
    """The questions of a data set.

    Attributes:
        hash: SHA-256 over ids, questions and golden answers.
    """

    tasks: tuple[Task, ...]
    hash: str

    def step(self, step: int, count: int, seed: int) -> list[Task]:
        """The questions of a step, counted from 1. Each epoch is a permutation of its own; a step may span two."""
        size = len(self.tasks)
        places = range((step - 1) * count, step * count)
        return [self.tasks[_order(size, seed, place // size)[place % size]] for place in places]


def read_tasks(data: Data, config: Config, registry: Registry) -> Tasks:
    """Read a data set.

    Raises:
        ConfigError: it is empty, a question has no golden answers, or two have one id; or as its plugin says.
        PluginError: its plugin failed, or gave something else than tasks.
    """
    name, options = ("jsonl", {"path": data.dataset}) if is_file(data.dataset) else (data.dataset, {})
    options |= data.options | ({} if data.split is None else {"split": data.split})
    where = f"dataset {data.dataset!r}"
    try:
        found = list(registry.dataset(name, **config.expand(options, where)))[: data.limit]
    except AntiphonError:
        raise
    except Exception as error:
        raise PluginError(f"{where}: its plugin {name!r} failed: {type(error).__name__}: {error}") from error
    _check(found, where)
    return Tasks(tuple(found), content_hash(found))


def content_hash(tasks: Sequence[Task]) -> str:
    """SHA-256 over ids, questions and golden answers, in their order."""
    content = hashlib.sha256()
    for task in tasks:
        content.update(json.dumps([task.id, task.question, task.golden_answers]).encode())
    return content.hexdigest()


def sampling_seed(*parts: object) -> int:
    """A seed that these parts alone decide, of 31 bits."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


@lru_cache(maxsize=4)
def _order(size: int, seed: int, epoch: int) -> list[int]:
    return random.Random(f"{seed}/{epoch}").sample(range(size), size)


def _check(found: Sequence[Any], where: str) -> None:
    if not found:
        raise ConfigError(f"{where} has no questions; check its options and split")
    ids: set[str] = set()
    for task in found:
        if not isinstance(task, Task):
            raise PluginError(f"{where}: its plugin gave {type(task).__name__}, not a Task")
        if not task.golden_answers:
            raise ConfigError(f"{where}, question {task.id!r} has no golden answers: nothing can be learnt from it")
        if task.id in ids:
            raise ConfigError(f"{where}: two questions have the id {task.id!r}; ids must be unique")
        ids.add(task.id)
