"""Questions are checked before anything is asked: each fault is one error that names data set and question."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from antiphon.config import load_config
from antiphon.errors import AntiphonError, ConfigError, PluginError
from antiphon.evaluate.questions import Questions
from antiphon.evaluate.spec import make_spec
from antiphon.hookspecs import hookimpl
from antiphon.registry import Registry
from antiphon.types import Task


def questions(factory: Callable[..., Any], **entry: Any) -> Questions:
    class Plugin:
        @hookimpl
        def antiphon_datasets(self) -> dict[str, Callable[..., Any]]:
            return {"made_up": factory}

    data = {"policies": [{"name": "largest"}], "datasets": [{"name": "made_up", "label": "ours", **entry}]}
    registry = Registry.load(only=[], local={"mine": Plugin()})
    return Questions(make_spec(data, "test"), load_config(), registry)


def tasks(count: int = 3, **changes: Any) -> list[Task]:
    return [Task(f"Question {n}?", **{"id": f"q{n}", "golden_answers": ("x",), **changes}) for n in range(count)]


def test_a_survey_counts_and_hashes_what_matters() -> None:
    survey = questions(tasks).survey
    one = survey(questions(tasks).spec.datasets[0])
    assert (one.label, one.count) == ("ours", 3)

    def other() -> list[Task]:
        return tasks(golden_answers=("y",))

    again, changed = (questions(make) for make in (tasks, other))
    assert again.survey(again.spec.datasets[0]).hash == one.hash
    assert changed.survey(changed.spec.datasets[0]).hash != one.hash


def test_a_limit_reads_no_further() -> None:
    def endless() -> Iterator[Task]:
        yield from tasks(2)
        raise AssertionError("read on")

    found = questions(endless, limit=2)
    assert [index for index, _ in found(found.spec.datasets[0])] == [0, 1]


def test_options_reach_the_plugin() -> None:
    found = questions(tasks, options={"count": 5})
    assert found.survey(found.spec.datasets[0]).count == 5


@pytest.mark.parametrize(
    ("golden", "message"),
    [
        (None, "question 'q0' has no golden answers"),
        ((), "question 'q0' has no golden answers"),
        (("x", ""), "the golden answer '' is not a text"),
        (("  ",), "is not a text"),
    ],
)
def test_golden_answers_that_do_not_hold(golden: Any, message: str) -> None:
    found = questions(lambda: tasks(golden_answers=golden))
    with pytest.raises(ConfigError) as error:
        found.survey(found.spec.datasets[0])
    assert str(error.value).startswith("dataset 'ours', question 'q0'")
    assert message in str(error.value)
    assert "Nothing has been asked" in str(error.value)


@pytest.mark.parametrize("golden", [3, (None,), ({"a": 1},)])
def test_ill_typed_golden_answers_are_one_error_whoever_notices(golden: Any) -> None:
    def make() -> Iterator[Task]:
        yield Task("Who?", "q0", golden)

    found = questions(make)
    with pytest.raises(AntiphonError, match=r"'ours'|'q0'"):
        found.survey(found.spec.datasets[0])


def test_ids_are_unique_and_a_set_is_not_empty() -> None:
    twice = questions(lambda: tasks(id="same"))
    with pytest.raises(ConfigError, match="two questions have the id 'same'"):
        twice.survey(twice.spec.datasets[0])
    none = questions(list)
    with pytest.raises(ConfigError, match="dataset 'ours' has no questions"):
        none.survey(none.spec.datasets[0])


def test_a_plugin_that_breaks_or_gives_something_else_is_named() -> None:
    def breaks() -> Iterator[Task]:
        yield from tasks(1)
        raise OSError("the line is dead")

    found = questions(breaks)
    with pytest.raises(
        PluginError, match=r"dataset 'ours': its plugin 'made_up' failed at question 1: OSError: the line"
    ):
        found.survey(found.spec.datasets[0])
    other = questions(lambda: ["a question"])
    with pytest.raises(PluginError, match="gave str, not a Task"):
        other.survey(other.spec.datasets[0])
