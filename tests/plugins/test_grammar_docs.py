"""The reference names every problem code, reason, style and placeholder that the grammars know."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from antiphon_plugins.grammars import _prompts

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs/reference/grammars.md").read_text("utf-8")
SOURCES = [path.read_text("utf-8") for path in (ROOT / "plugins/antiphon_plugins/grammars").glob("*.py")]
CODES = {code for source in SOURCES for code in re.findall(r'(?:append|Invalid)\(\s*"([a-z_]+)"', source)}
CODES |= {"nested", "unopened", "unclosed", "forged_information"}  # chosen between, where they are appended


def test_the_codes_are_found():
    assert {"no_colon", "bad_json", "empty_answer", "no_think"} <= CODES


@pytest.mark.parametrize("name", sorted(CODES | set(_prompts.STYLES)))
def test_it_is_documented(name):
    assert f"`{name}`" in DOCS


@pytest.mark.parametrize("field", _prompts._FIELDS)
def test_the_placeholder_is_documented(field):
    assert f"| `{{{{{field}}}}}` |" in DOCS
