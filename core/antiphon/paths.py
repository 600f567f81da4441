"""Paths in a configuration: which options hold them, and how they become absolute."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

PATH_OPTIONS = ("path", "paths", "scores", "questions", "state", "template", "chat_template")
"""Options that hold paths."""

NAME_OR_PATH = ("model", "lora", "tokenizer")
"""Options that hold the name of a model, or a path: one that begins with `./` or `../` in a file."""


def map_paths(
    options: Mapping[str, Any],
    change: Callable[[str], str],
    names: Sequence[str] = (*PATH_OPTIONS, *NAME_OR_PATH),
) -> dict[str, Any]:
    """Options with `change` applied to every text under one of `names`, however deep."""

    def walk(key: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {inner: walk(inner, item) for inner, item in value.items()}
        if isinstance(value, list | tuple):
            return [walk(key, item) for item in value]
        return change(value) if isinstance(value, str) and key in names else value

    return {key: walk(key, value) for key, value in options.items()}


def anchored(data: dict[str, Any], directory: Path) -> dict[str, Any]:
    """A file's settings with its relative paths made absolute."""

    def anchor(text: str) -> str:
        return text if text.startswith(("${", "~")) else str(directory / text)

    def near(text: str) -> str:
        return str(directory / text) if text.startswith(("./", "../")) else text

    result = {
        table: map_paths(map_paths(value, anchor, PATH_OPTIONS), near, NAME_OR_PATH)
        if table != "defaults" and isinstance(value, dict)
        else value
        for table, value in data.items()
    }
    defaults = result.get("defaults")
    if isinstance(defaults, dict) and isinstance(defaults.get("data"), str):
        result["defaults"] = {**defaults, "data": str(directory / os.path.expanduser(defaults["data"]))}
    return result
