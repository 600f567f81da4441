"""The questions of an evaluation: read from their plugins, and checked before anything is asked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from antiphon.errors import AntiphonError, ConfigError, PluginError
from antiphon.types import Task

if TYPE_CHECKING:
    from antiphon.config import Config
    from antiphon.evaluate.spec import DatasetEntry, Spec
    from antiphon.registry import Registry


@dataclass(frozen=True, slots=True)
class Survey:
    """What one pass over a data set found: how many questions, and a SHA-256 over ids, questions and golden answers."""

    label: str
    count: int
    hash: str


@dataclass(frozen=True, slots=True)
class Questions:
    """Gives the tasks of a spec's data sets, as often as they are wanted; none are kept."""

    spec: Spec
    config: Config
    registry: Registry

    def __call__(self, entry: DatasetEntry) -> Iterator[tuple[int, Task]]:
        """(place from 0, task) for each question of a data set, checked.

        Raises:
            ConfigError: a task has no golden answer, or one that is no text; names data set and id.
            PluginError: the plugin gave something else than tasks, or failed.
        """
        where = f"dataset {entry.label!r}"
        options = self.config.expand(self.spec.anchored(entry.options), where)
        tasks = islice(iter(self.registry.dataset(entry.name, **options)), self.spec.dataset_limit(entry))
        index = 0
        while True:
            try:
                task = next(tasks, None)
            except AntiphonError:
                raise
            except Exception as error:
                raise PluginError(
                    f"{where}: its plugin {entry.name!r} failed at question {index}: {type(error).__name__}: {error}; "
                    "mend the data or the plugin"
                ) from error
            if task is None:
                return
            if not isinstance(task, Task):
                raise PluginError(f"{where}: its plugin {entry.name!r} gave {type(task).__name__}, not a Task")
            _check(task, where)
            yield index, task
            index += 1

    def survey(self, entry: DatasetEntry) -> Survey:
        """Read a whole data set once.

        Raises:
            ConfigError: it is empty, an id is not unique, or see above.
        """
        content, count, seen = hashlib.sha256(), 0, set[int]()
        for _, task in self(entry):
            key = hash(task.id)
            if key in seen:
                raise ConfigError(f"dataset {entry.label!r}: two questions have the id {task.id!r}; ids must be unique")
            seen.add(key)
            earlier = [(message.role, message.content) for message in task.messages]
            content.update(json.dumps([task.id, task.question, task.golden_answers, earlier]).encode())
            count += 1
        if not count:
            raise ConfigError(f"dataset {entry.label!r} has no questions; check its options")
        return Survey(entry.label, count, content.hexdigest()[:16])


def _check(task: Task, where: str) -> None:
    what = f"{where}, question {task.id!r}"
    if not task.golden_answers:
        raise ConfigError(
            f"{what} has no golden answers; give each question a list of at least one, or leave it out. "
            "Nothing has been asked"
        )
    for answer in task.golden_answers:
        if not isinstance(answer, str) or not answer.strip():
            raise ConfigError(
                f"{what}: the golden answer {answer!r} is not a text; give non-empty strings. Nothing has been asked"
            )
