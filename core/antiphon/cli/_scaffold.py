"""Writes a new plugin package: pyproject, module, README and a test of its own (`antiphon new plugin`)."""

from __future__ import annotations

import re
from pathlib import Path

from antiphon.cli._templates import (
    DESCRIPTORS,
    INIT,
    KINDS,
    MEMBERS,
    PLUGIN,
    PYPROJECT,
    README,
    TEST,
    TEST_IMPORTS,
    Template,
)
from antiphon.errors import ConfigError, did_you_mean

# Ours already: antiphon_plugins, antiphon_pools and antiphon_policies are the built-in rooms.
RESERVED = ("antiphon", "plugins", "pools", "policies")
LONGEST_NAME = 24


def new_plugin(kind: str, name: str, parent: Path) -> Path:
    """Write a plugin package and return its folder, `parent/antiphon-NAME`.

    Raises:
        ConfigError: an unknown kind, a name that no package can have, or a folder that exists.
    """
    kind = kind.replace("-", "_")
    if kind not in KINDS:
        raise ConfigError(f"there is no plugin of kind {kind!r} to start{did_you_mean(kind, KINDS)}")
    name = name.removeprefix("antiphon-")
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name) or len(name) > LONGEST_NAME or name in RESERVED:
        raise ConfigError(
            f"{name!r} cannot be a plugin's name; give the vendor's in lower case: letters, digits and single hyphens, "
            f"at most {LONGEST_NAME} characters, none of {', '.join(RESERVED)}"
        )
    folder = parent / f"antiphon-{name}"
    if folder.exists():
        raise ConfigError(f"{folder} exists, and nothing in it is overwritten; choose another name or --dir")
    words = _words(kind, name)
    for path, template in _files(kind, KINDS[kind]).items():
        file = folder / _fill(path, words)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(_fill(template, words), "utf-8")
    return folder


def _words(kind: str, name: str) -> dict[str, str]:
    template = KINDS[kind]
    snake = name.replace("-", "_")
    module = f"antiphon_{snake}"
    return {
        "distribution": f"antiphon-{name}",
        "module": module,
        "name": snake,
        "class": "".join(part.capitalize() for part in name.split("-")),
        "upper": snake.upper(),
        "kind": kind,
        "hook": template.hook,
        "summary": template.summary,
        "group": "antiphon" if template.hook else '"antiphon.descriptors"',
        "target": f"{module}.plugin" if template.hook else f"{module}:MEMBERS",
        "dependencies": 'dependencies = ["antiphon>=0.1"]\n' if template.hook else "",
    }


def _files(kind: str, template: Template) -> dict[str, str]:
    files = {"pyproject.toml": PYPROJECT, "README.md": README, "<<module>>/py.typed": ""}
    if not template.hook:
        return {
            **files,
            "<<module>>/__init__.py": DESCRIPTORS,
            "<<module>>/members.toml": MEMBERS,
            "tests/test_<<name>>.py": TEST,
        }
    return {
        **files,
        "<<module>>/__init__.py": INIT,
        "<<module>>/plugin.py": PLUGIN,
        "<<module>>/<<kind>>.py": template.code,
        "tests/test_<<name>>.py": _test(kind, template),
    }


def _test(kind: str, template: Template) -> str:
    """The common test with the kind's own and its imports, sorted as linters want them."""
    standard, public, contracts = TEST_IMPORTS[kind]
    own = "from <<module>>.<<kind>> import <<class>>"
    head, _, body = TEST.partition("from pathlib import Path\n\nfrom antiphon.testing import check_plugin\n")
    first = [f"import {standard}"] if standard else []
    first += ["from pathlib import Path"] + (["from typing import Any"] if "Any" in template.test else [])
    second = [line for line in (public, contracts) if line] + ["from antiphon.testing import check_plugin"]
    imports = "\n\n".join(("\n".join(first), "\n".join(second), own))
    return f"{head}{imports}\n{body}{template.test}"


def _fill(text: str, words: dict[str, str]) -> str:
    for word, value in words.items():
        text = text.replace(f"<<{word}>>", value)
    return text
