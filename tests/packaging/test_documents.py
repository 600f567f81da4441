"""What the README and the docs show is there, runs, and prints what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md"), ROOT / "benchmarks/README.md"]
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_page_of_the_docs_is_reached_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for page in ROOT.glob("docs/**/*.md"):
        assert str(page.relative_to(ROOT)) in readme


@pytest.mark.parametrize(("page", "prints"), [("README.md", None), ("docs/tutorial/first-steps.md", "Lima")])
def test_the_policy_shown_runs_and_prints_what_the_page_says(page: str, prints: str | None, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    code = next(block for block in blocks if "async def run" in block)
    said = prints or re.search(r"^# (Lima .*)$", code, re.MULTILINE)[1]  # type: ignore[index]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ANTIPHON_")}
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert result.stdout.strip() == said, result.stderr


def test_the_twelve_lines_of_the_readme_are_those_that_are_tried() -> None:
    """The hooks page holds the plugin that `test_plugins_install.py` builds, installs and loads."""
    hooks = (ROOT / "docs/reference/hooks.md").read_text(encoding="utf-8")
    lines = [
        line
        for block in re.findall(
            r"```(?:toml|python)\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL
        )
        if "acme" in block
        for line in block.splitlines()
        if not line.startswith("# ")
    ]
    assert 12 <= len(lines) <= 13
    for line in lines:
        assert line in hooks, line


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        named = set(re.findall(r"^ {4}make ([a-z-]+)|`make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE))
        assert {name for pair in named for name in pair if name} <= targets


def test_the_project_speaks_of_itself_alone() -> None:
    """No machine's paths, and no package index by name, in anything that ships."""
    tracked = (
        subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
        if (ROOT / ".git").exists()
        else []
    )
    hosts = re.compile(r"/(?:work|root)/\w|pypi\.org|files\.pythonhosted|download\.pytorch")
    for name in tracked:
        path = ROOT / name
        if (
            path.name == Path(__file__).name
            or not path.is_file()
            or path.suffix not in (".py", ".md", ".toml", ".txt", ".json", "")
        ):
            continue
        found = hosts.search(path.read_text(encoding="utf-8", errors="replace"))
        assert found is None, f"{name}: {found and found[0]}"
