"""`check_plugin` finds what is wrong with a package from its source, whatever the package does to the process."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.errors import ConfigError
from antiphon.testing import check_plugin

PROJECT = """
[project]
name = "antiphon-acme"
version = "1.0"
[project.entry-points.antiphon]
acme = "antiphon_acme"
"""


def package(folder: Path, code: str, pyproject: str = PROJECT, source: str = "src") -> Path:
    module = folder / source / "antiphon_acme"
    module.mkdir(parents=True)
    (module / "__init__.py").write_text(code)
    (folder / "pyproject.toml").write_text(pyproject)
    return folder


def messages(folder: Path, severity: str = "error", **options: float) -> list[str]:
    return [problem.message for problem in check_plugin(folder, **options) if problem.severity == severity]


GOOD = """
from antiphon.hookspecs import hookimpl

@hookimpl
def antiphon_metrics():
    print("a plugin that prints does no harm")
    return {"acme": lambda: (lambda prediction, golden: 1.0)}
"""


@pytest.mark.parametrize("source", ["src", ".", "python"])
def test_nothing_is_found_where_nothing_is_wrong(tmp_path: Path, source: str) -> None:
    code = GOOD.replace("lambda: (lambda prediction, golden: 1.0)", "'antiphon_acme.metric:Metric'")
    where = '[tool.hatch.build.targets.wheel]\npackages = ["python/antiphon_acme"]' if source == "python" else ""
    package(tmp_path, code, PROJECT + where, source)
    metric = "class Metric:\n    name = 'acme'\n    def __call__(self, prediction, golden): return 1.0\n"
    (tmp_path / source / "antiphon_acme/metric.py").write_text(metric)
    assert check_plugin(tmp_path) == []
    assert check_plugin(tmp_path / "pyproject.toml") == []


@pytest.mark.parametrize(
    ("pyproject", "what"),
    [
        (None, "pyproject.toml cannot be read"),
        ("[project", "is not TOML"),
        ("[tool.other]", "has no [project] table with a name"),
        ('[project]\nname = "antiphon-acme"', "declares no plugin; add [project.entry-points.antiphon]"),
    ],
)
def test_a_folder_that_is_no_plugin_is_told_so(tmp_path: Path, pyproject: str | None, what: str) -> None:
    if pyproject is not None:
        (tmp_path / "pyproject.toml").write_text(pyproject)
    [message] = messages(tmp_path)
    assert what in message


def test_what_is_not_there_is_an_error_of_the_callers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        check_plugin(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"names 'antiphom', .*did you mean 'antiphon'\?"):
        check_plugin("antiphom")


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("import sys; sys.exit()", "called sys.exit"),
        ("import os; os._exit(7)", "ended the process that checked it (exit 7"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_plugin_that_breaks_is_an_error(tmp_path: Path, code: str, what: str) -> None:
    [message] = messages(package(tmp_path, code))
    assert message.startswith("plugin 'acme' of antiphon-acme 1.0: ")
    assert what in message


def test_a_plugin_that_hangs_is_ended(tmp_path: Path) -> None:
    folder = package(tmp_path, "import threading; threading.Event().wait()")
    [message] = messages(folder, timeout_s=1.0)
    assert "took over 1 s" in message


def test_every_fault_of_what_is_offered_is_found(tmp_path: Path) -> None:
    code = """
from antiphon.hookspecs import hookimpl

MEMBER = {"name": "M", "description": "d", "model": "m", "adapter": "wrong", "price": {"input": 1, "output": 2}}
KEY = "sk-abcdefghijklmnopqrstuvwxyz"

class NoRun:
    name = "no_run"

class Raises:
    def quote(self, descriptor): raise KeyError("quote")
    def cost(self, usage, descriptor): return 0.0
    def upper_bound(self, request, descriptor): return 0.0

@hookimpl
def antiphon_descriptors():
    return [
        MEMBER,
        {**MEMBER, "name": "keyed", "description": f"use {KEY}"},
        {**MEMBER, "name": "optioned", "options": {"api_key": "hunter2hunter2"}},
        {**MEMBER, "name": "swapped", "price": {"input": 2, "output": 1}},
        {**MEMBER, "name": "future", "price": {"input": 1, "output": 1, "as_of": "2999-01-01"}},
        {**MEMBER, "name": "unpriced", "price": None},
        {**MEMBER, "name": "quoted", "pricing": "raises"},
        {**MEMBER, "name": "lost", "pricing": "rases"},
        {**MEMBER, "name": "misspelt", "prise": 1},
    ]

@hookimpl
def antiphon_adapters():
    return {"wrong": lambda url: None}

@hookimpl
def antiphon_policies():
    return {"no_run": NoRun, "gone": "antiphon_acme.gone:Policy", "cheapest": NoRun}

@hookimpl
def antiphon_pricing():
    return {"raises": Raises}
"""
    problems = check_plugin(package(tmp_path, code))
    errors = "\n".join(problem.message for problem in problems if problem.severity == "error")
    warnings = "\n".join(problem.message for problem in problems if problem.severity == "warning")
    for what in (
        "member 'keyed': description holds what looks like a key",
        "member 'optioned': endpoints.0.options: 'api_key' would hold a secret",
        "member 'quoted': pricing 'raises' raised KeyError: 'quote'",
        "member 'misspelt': unknown key 'prise'; did you mean 'price'?",
        "adapter 'wrong' takes no option 'endpoint'",
        "policy 'no_run' gave a NoRun, which has no 'run'",
        "(antiphon_acme.gone:Policy) cannot be imported",
        "policy 'cheapest' is also offered by antiphon 0",
    ):
        assert what in errors
    for what in (
        "member 'swapped': output costs less than input",
        "member 'future': its price was looked up on 2999-01-01",
        "member 'unpriced' has no price",
        "member 'lost' names the pricing 'rases', which neither this plugin nor this environment has",
    ):
        assert what in warnings
    assert "abcdefghij" not in errors + warnings
    assert "hunter2" not in errors + warnings


def test_names_that_may_collide_are_warned_of(tmp_path: Path) -> None:
    pyproject = PROJECT.replace("antiphon-acme", "acme-models").replace("acme =", "antiphon_pools =")
    folder = package(tmp_path, GOOD, pyproject)
    warnings = messages(folder, "warning")
    assert "distribution 'acme-models': plugins are called antiphon-VENDOR" in warnings
    assert any("may be another vendor's too" in text for text in warnings)
    assert any("the plugin name 'antiphon_pools' is taken by antiphon " in text for text in messages(folder))
