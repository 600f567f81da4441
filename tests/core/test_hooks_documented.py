"""Every hook stands in the reference with its exact signature and an example that loads."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from antiphon import hookspecs
from antiphon.registry import Registry

REFERENCE = (Path(__file__).parents[2] / "docs/reference/hooks.md").read_text("utf-8")
HOOKS = {name: function for name, function in vars(hookspecs).items() if name.startswith("antiphon_")}
SECTIONS = dict(re.findall(r"^## `(antiphon_\w+)(.*?)(?=^## )", REFERENCE, re.MULTILINE | re.DOTALL))


def test_the_reference_lists_the_hooks_in_order_and_no_others() -> None:
    assert list(SECTIONS) == list(HOOKS)
    assert len(HOOKS) <= 10


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_is_documented_with_its_exact_signature(name: str) -> None:
    # Annotations are strings there: unquoted, they read as in the source.
    signature = str(inspect.signature(HOOKS[name])).replace("'", "")
    assert f"## `{name}{signature}`\n" in REFERENCE


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_has_a_sentence_and_an_example_that_loads(name: str) -> None:
    section = SECTIONS[name]
    assert "\n\nReturns " in section
    [example] = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    namespace: dict[str, object] = {}
    exec(compile(example, name, "exec"), namespace)
    registry = Registry.load([], local={"example": SimpleNamespace(**{name: namespace[name]})})
    [info] = [info for info in registry.plugins if info.name == "example"]
    assert info.state == "loaded", info.reason
    assert info.problems == ()
    assert info.offers
    if name == "antiphon_datasets":
        assert [task.id for task in registry.dataset("sums", up_to=2)] == ["sum-0", "sum-1"]


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_has_its_docstring(name: str) -> None:
    assert inspect.getdoc(HOOKS[name])
