"""The wheel and the sdist hold what they should, install outside the tree, and their console script runs."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("antiphon", "antiphon_plugins", "antiphon_pools", "antiphon_policies")


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)],
        check=True,
        capture_output=True,
        timeout=300,
    )
    return out


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    return next(dist.glob("*.whl"))


def test_the_wheel_holds_the_four_packages_and_their_data(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.split("/")[0] for name in names}
    assert tops == {*PACKAGES, f"{wheel.name.split('-')[0]}-{wheel.name.split('-')[1]}.dist-info"}
    for package in PACKAGES:
        assert f"{package}/py.typed" in names
    tree = {
        f"{path.relative_to(ROOT / room).as_posix()}"
        for room in ("core", "plugins", "pools", "policies")
        for path in (ROOT / room).rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and path.suffix in (".py", ".toml", ".json", ".typed", ".txt", ".safetensors")
    }
    assert tree <= names, f"left out of the wheel: {sorted(tree - names)}"
    assert not [name for name in names if "__pycache__" in name or name.startswith("tests")]


def test_the_sdist_can_be_tested_from(dist: Path) -> None:
    with tarfile.open(next(dist.glob("*.tar.gz"))) as sdist:
        names = {name.split("/", 1)[1] for name in sdist.getnames() if "/" in name}
    for needed in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Makefile", "constraints.txt"):
        assert needed in names
    assert {name.split("/")[0] for name in names} >= {
        "core",
        "plugins",
        "pools",
        "policies",
        "tests",
        "examples",
        "docs",
    }


def test_the_wheel_installs_outside_the_tree_and_its_script_runs(wheel: Path, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True, timeout=300)
    python = venv / "bin" / "python"
    site = Path(
        subprocess.check_output(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
        ).strip()
    )
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)],
        check=True,
        capture_output=True,
        timeout=300,
    )
    # The dependencies are those of this environment; the path is appended, so that antiphon itself is the wheel's.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    where = subprocess.check_output(
        [python, "-c", "import antiphon; print(antiphon.__file__)"], text=True, cwd=tmp_path
    )
    assert Path(where.strip()).is_relative_to(site)
    script = venv / "bin" / "antiphon"
    assert "ask" in subprocess.check_output([script, "--help"], text=True, cwd=tmp_path)
    listed = json.loads(subprocess.check_output([script, "plugins", "--json"], text=True, cwd=tmp_path))
    assert listed, "the built-ins come in through entry points of the installed wheel"


def test_the_version_is_said_once() -> None:
    import tomllib

    import antiphon

    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == antiphon.__version__


def test_compromised_litellm_releases_are_excluded() -> None:
    import tomllib

    from packaging.requirements import Requirement

    requirements = map(Requirement, tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])
    litellm = next(r for r in requirements if r.name == "litellm").specifier
    for bad in ("1.82.7", "1.82.8", "1.107.0", "1.107.3"):
        assert bad not in litellm
    assert "1.110.2" in litellm


def test_import_direction_holds() -> None:
    result = subprocess.run(
        [Path(sys.executable).parent / "lint-imports"], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stdout


def test_every_module_of_the_core_is_kernel_or_application() -> None:
    import tomllib

    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (kernel,) = (c for c in contracts if c["name"] == "the kernel never imports the applications")
    core = ROOT / "core/antiphon"
    modules = {path.stem for path in core.glob("*.py")} | {path.parent.name for path in core.glob("*/__init__.py")}
    listed = [name.removeprefix("antiphon.") for name in (*kernel["source_modules"], *kernel["forbidden_modules"])]
    assert sorted(listed) == sorted(modules - {"__init__", "__main__"})
