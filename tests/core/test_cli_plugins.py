"""`antiphon plugins` lists and judges; `antiphon new plugin` writes packages that hold."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from antiphon.cli import run
from antiphon.cli._scaffold import LONGEST_NAME, new_plugin
from antiphon.cli._templates import KINDS
from antiphon.cli.plugins import new, plugins
from antiphon.errors import ConfigError


@pytest.fixture(autouse=True)
def all_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTIPHON_PLUGINS", raising=False)


def test_the_built_ins_are_listed_as_data() -> None:
    result = CliRunner().invoke(plugins, ["--json"])
    assert result.exit_code == 0
    listed = {info["name"]: info for info in json.loads(result.stdout)["plugins"]}
    assert listed["antiphon_policies"]["state"] == "loaded"
    assert listed["antiphon_policies"]["door"] == "hooks"
    assert "router_r1" in listed["antiphon_policies"]["offers"]["policy"]


def test_the_built_ins_are_listed_for_people() -> None:
    result = CliRunner().invoke(plugins, [])
    listed = r"^antiphon_plugins  antiphon [\d.]+  loaded\n(    .*\n)*    metric: choice, contains, em"
    assert re.search(listed, result.stdout, re.M)


def test_a_plugin_that_prints_does_not_spoil_the_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "antiphon_loud.py").write_text("print('hello')\n1 / 0\n")
    info = tmp_path / "antiphon_loud-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: antiphon-loud\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[antiphon]\nloud = antiphon_loud\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    result = CliRunner().invoke(plugins, ["--json"])
    assert result.exit_code == 0  # without --strict a failed plugin is shown and nothing more
    [problem] = json.loads(result.stdout)["problems"]
    assert "ZeroDivisionError" in problem
    assert CliRunner().invoke(plugins, ["--strict"]).exit_code == 1


def test_a_wrong_list_of_plugins_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ANTIPHON_PLUGINS", "antiphon_polices")
    assert run(["plugins"]) == 2
    error = capsys.readouterr().err
    assert "did you mean 'antiphon_policies'?" in error
    assert error.count("\n") == 1


def test_nothing_heavy_is_imported_by_the_command() -> None:
    program = """
import sys
from antiphon.cli import run
assert run(["plugins", "--json"]) == 0
heavy = [name for name in ("torch", "transformers", "vllm", "verl", "litellm") if name in sys.modules]
sys.exit(f"imported {heavy}" if heavy else 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_check_fails_on_errors_and_says_them_as_data(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'antiphon-x'\n")
    result = CliRunner().invoke(plugins, ["check", str(tmp_path), "--json"])
    assert result.exit_code == 1
    verdict = json.loads(result.stdout)
    assert verdict["ok"] is False
    assert [problem["severity"] for problem in verdict["problems"]] == ["error"]
    assert "declares no plugin" in CliRunner().invoke(plugins, ["check", str(tmp_path)]).stderr


# ---- antiphon new plugin ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One package of each kind, one of them with the longest name there can be."""
    parent = tmp_path_factory.mktemp("new")
    longest = ("longest-" * LONGEST_NAME)[: LONGEST_NAME - 1] + "x"
    return [new_plugin("policy", longest, parent), *(new_plugin(k, f"my-{k.replace('_', '-')}", parent) for k in KINDS)]


def test_new_packages_pass_their_own_tests(written: list[Path]) -> None:
    # In one pytest: each test judges its own package, from its source alone.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    path = os.pathsep.join(str(folder) for folder in written)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--import-mode=importlib",
        "-c",
        os.devnull,
    ]
    done = subprocess.run(
        [*command, "--rootdir", str(written[0].parent), *(str(folder) for folder in written)],
        cwd=written[0].parent,
        env={**environment, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    assert f"{2 * len(written) - 1} passed" in done.stdout  # descriptors have nothing to run but the judgement


def test_new_packages_are_clean_by_ruff(written: list[Path]) -> None:
    pytest.importorskip("ruff")
    for folder in written:
        for command in (
            ["check", "--isolated", "--select", "F,W,I,UP,B,SIM,RUF,C4,PT"],
            ["format", "--isolated", "--check"],
        ):
            done = subprocess.run(
                [sys.executable, "-m", "ruff", *command, "."], cwd=folder, capture_output=True, text=True, timeout=300
            )
            assert done.returncode == 0, done.stdout


def test_nothing_is_left_unfilled(written: list[Path]) -> None:
    texts = [file for folder in written for file in folder.rglob("*") if file.suffix in (".py", ".toml", ".md")]
    assert len(texts) >= 5 * len(written) - 1
    for file in texts:
        assert "<<" not in file.read_text("utf-8")


def test_the_command_writes_and_says_how_to_go_on(tmp_path: Path) -> None:
    result = CliRunner().invoke(new, ["plugin", "reward-term", "antiphon-mylab", "--dir", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "antiphon-mylab/antiphon_mylab/reward_term.py").is_file()
    assert f"antiphon plugins check {tmp_path / 'antiphon-mylab'}" in result.stdout


@pytest.mark.parametrize(
    "name", ["", "-", "Acme", "a b", "1a", "a--b", "a_b", "../up", "a/b", "é", "plugins", "pools", "antiphon", "a" * 25]
)
def test_a_name_that_no_package_can_have_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be a plugin's name"):
        new_plugin("metric", name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten_and_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    new_plugin("metric", "mine", tmp_path)
    with pytest.raises(ConfigError, match="exists, and nothing in it is overwritten"):
        new_plugin("metric", "mine", tmp_path)
    with pytest.raises(ConfigError, match=r"no plugin of kind 'metrics' to start; did you mean 'metric'\?"):
        new_plugin("metrics", "other", tmp_path)
