"""Real distributions, built and installed into a venv, load through the same doors as the built-ins."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import venv
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from antiphon.cli._scaffold import new_plugin

pytestmark = pytest.mark.skipif(
    not (find_spec("pip") and find_spec("hatchling")), reason="building a distribution needs pip and hatchling"
)

REPO = Path(__file__).parents[2]
SKIPPED = shutil.ignore_patterns("__pycache__", ".*", "dist", "build")


@dataclass(frozen=True, slots=True)
class Venv:
    """A venv that also sees this environment's packages."""

    folder: Path
    sources: Path

    def run(self, *arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        """Its Python, with these arguments."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ANTIPHON_", "PYTEST_"))}
        command = [str(self.folder / "bin/python"), *arguments]
        where = cwd or self.folder  # never the repository: only what is installed counts
        return subprocess.run(
            command, cwd=where, env={**kept, **environment}, capture_output=True, text=True, timeout=300
        )

    def plugins(self, **environment: str) -> dict[str, dict[str, Any]]:
        """`antiphon plugins --json`, by plugin name."""
        done = self.run("-m", "antiphon.cli", "plugins", "--json", **environment)
        assert done.returncode == 0, done.stderr
        return {info["name"]: info for info in json.loads(done.stdout)["plugins"]}

    @property
    def site(self) -> Path:
        [site] = self.folder.glob("lib/python*/site-packages")
        return site


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Venv:
    """Both examples, the plugin of the reference page, and a scaffolded one, installed with one pip command."""
    folder = tmp_path_factory.mktemp("install")
    made = Venv(folder / "venv", folder / "sources")
    for name in ("antiphon-acme", "antiphon-contract"):
        shutil.copytree(REPO / "examples" / name, made.sources / name, ignore=SKIPPED)
    new_plugin("policy", "mylab", made.sources)
    write_the_plugin_of_the_reference(made.sources / "antiphon-tiny")
    venv.create(made.folder, with_pip=False, symlinks=True)
    seen = [path for path in sys.path if path.endswith("site-packages")]
    (made.site / "outer.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in seen))
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    done = made.run("-m", "pip", "install", *options, *(str(path) for path in sorted(made.sources.iterdir())))
    assert done.returncode == 0, done.stderr
    return made


def write_the_plugin_of_the_reference(folder: Path) -> None:
    """The two files that docs/reference/hooks.md shows, called `tiny`, so that it stands beside the example."""
    page = (REPO / "docs/reference/hooks.md").read_text("utf-8")
    section = page.partition("## Descriptors without code")[2]
    blocks = re.findall(r"```(?:toml|python)\n(.*?)```", section, re.DOTALL)[:2]
    assert sum(len(block.splitlines()) for block in blocks) == 12
    pyproject, module = (block.replace("acme", "tiny").replace("Acme", "Tiny") for block in blocks)
    if find_spec("setuptools") is None:  # what pip falls back on where no build system is named
        pyproject = f'[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n{pyproject}'
    folder.mkdir()
    (folder / "pyproject.toml").write_text(pyproject)
    (folder / "antiphon_tiny.py").write_text(module)


def test_what_is_installed_is_loaded(installed: Venv) -> None:
    plugins = installed.plugins()
    seen = {name: (plugins[name]["distribution"], plugins[name]["version"], plugins[name]["state"]) for name in plugins}
    assert (
        seen.items()
        >= {
            "acme": ("antiphon-acme", "1.0.0", "loaded"),
            "contract": ("antiphon-contract", "1.0.0", "loaded"),
            "mylab": ("antiphon-mylab", "0.1.0", "loaded"),
            "tiny": ("antiphon-tiny", "1.0", "loaded"),
        }.items()
    )
    assert plugins["acme"]["offers"] == {"descriptor": ["Acme-Abacus-9B", "Acme-Atlas-70B"]}
    assert plugins["contract"]["offers"] == {"reward_term": ["contract_share"], "pricing": ["volume_discount"]}
    assert plugins["mylab"]["offers"] == {"policy": ["mylab"]}
    assert plugins["tiny"]["offers"] == {"descriptor": ["Tiny-7B"]}
    assert [info["problems"] for info in plugins.values()] == [[]] * len(plugins)


def test_a_member_of_one_plugin_is_priced_by_another(installed: Venv, tmp_path: Path) -> None:
    readme = (REPO / "examples/antiphon-contract/README.md").read_text("utf-8")
    [override] = re.findall(r"(    \[members\..*?\n)\n", readme, re.DOTALL)
    pool = '[pools.mine]\nmembers = ["Acme-Abacus-9B", "Acme-Atlas-70B"]\n'
    (tmp_path / "antiphon.toml").write_text(pool + override)
    done = installed.run("-m", "antiphon.cli", "pool", "show", "mine", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "0.1 / 0.25" in done.stdout  # Abacus, at its list price
    assert "0.54 / 0.72" in done.stdout  # Atlas, 10 % off


def test_its_reward_term_composes_with_the_built_in_ones(installed: Venv) -> None:
    readme = (REPO / "examples/antiphon-contract/README.md").read_text("utf-8")
    [block] = re.findall(r"(    from antiphon\.registry.*?)\n\nIts tests", readme, re.DOTALL)
    program = f"""{textwrap.dedent(block)}
from antiphon import Call, Task, Trajectory
calls = tuple(Call(member, "?", "ok") for member in ("Acme-Atlas-70B", "Acme-Abacus-9B"))
task = Task("2 + 2?", golden_answers=("4",))
print(round(reward(Trajectory("t", task, "p", "4", "answer", calls=calls)).total, 6))
"""
    done = installed.run("-c", program)
    assert done.stdout == "1.05\n", done.stderr  # a right answer, and a tenth of half the calls


def test_the_list_leaves_the_others_out_unimported(installed: Venv) -> None:
    plugins = installed.plugins(ANTIPHON_PLUGINS="acme,antiphon-tiny")
    states = {name: info["state"] for name, info in plugins.items() if info["distribution"] != "antiphon"}
    assert states == {"acme": "loaded", "contract": "disabled", "mylab": "disabled", "tiny": "loaded"}
    done = installed.run("-m", "antiphon.cli", "plugins", ANTIPHON_PLUGINS="acmee")
    assert done.returncode == 2
    assert "did you mean 'acme'?" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["antiphon-acme", "contract", "antiphon-mylab", "tiny"])
def test_each_holds_as_installed(installed: Venv, name: str) -> None:
    done = installed.run("-m", "antiphon.cli", "plugins", "check", name)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{name}: 0 errors, 0 warnings\n", "")


def test_the_examples_pass_their_own_tests_as_installed(installed: Venv) -> None:
    folders = [str(installed.sources / name) for name in ("antiphon-acme", "antiphon-contract")]
    options = ["-q", "-p", "no:cacheprovider", "--import-mode=importlib", "-c", os.devnull]
    done = installed.run("-m", "pytest", *options, "--rootdir", str(installed.sources), *folders)
    assert done.returncode == 0, done.stdout
    assert "10 passed" in done.stdout


def test_one_that_breaks_is_named_and_the_others_stay(installed: Venv, tmp_path: Path) -> None:
    # A copy of the installed files, broken, in front on the path: the same distribution twice as well.
    broken = tmp_path / "site"
    for path in installed.site.glob("antiphon_contract*"):
        shutil.copytree(path, broken / path.name)
    (broken / "antiphon_contract/plugin.py").write_text("raise SystemExit('licence expired')")
    plugins = installed.plugins(PYTHONPATH=str(broken))
    assert plugins["contract"]["state"] == "failed"
    assert "antiphon-contract 1.0.0" in plugins["contract"]["reason"]
    assert "sys.exit" in plugins["contract"]["reason"]
    assert {plugins[name]["state"] for name in ("acme", "mylab", "tiny", "antiphon_plugins")} == {"loaded"}
    done = installed.run("-m", "antiphon.cli", "plugins", "--strict", PYTHONPATH=str(broken))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
