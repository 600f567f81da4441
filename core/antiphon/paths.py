"""Paths in a configuration: which options hold them, and how they become absolute."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

PATH_OPTIONS = ("path", "paths", "template", "chat_template", "tokenizer")
"""Options that hold paths: `~` and `${NAME}` are expanded in them when they are used, and nowhere else."""


def map_paths(options: Mapping[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """Options with `change` applied to every path in them, however deep."""

    def walk(key: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {inner: walk(inner, item) for inner, item in value.items()}
        if isinstance(value, list | tuple):
            return [walk(key, item) for item in value]
        return change(value) if isinstance(value, str) and key in PATH_OPTIONS else value

    return {key: walk(key, value) for key, value in options.items()}


def anchored(data: dict[str, Any], directory: Path) -> dict[str, Any]:
    """A file's settings with its relative paths made absolute; a model's `./…` is a path too."""

    def anchor(text: str) -> str:
        return text if text.startswith(("${", "~")) else str(directory / text)

    result = {
        table: map_paths(value, anchor) if table != "defaults" and isinstance(value, dict) else value
        for table, value in data.items()
    }
    defaults = result.get("defaults")
    if isinstance(defaults, dict) and isinstance(defaults.get("data"), str):
        result["defaults"] = {**defaults, "data": str(directory / os.path.expanduser(defaults["data"]))}
    models = result.get("models")
    for model in models.values() if isinstance(models, dict) else ():
        options = model.get("options") if isinstance(model, dict) else None
        if isinstance(options, dict) and str(options.get("model", "")).startswith(("./", "../")):
            options["model"] = str(directory / options["model"])
    return result
