"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def config_options(command: F) -> F:
    """`--config FILE` and `--data DIR`, as `config_file` and `data`."""
    command = click.option(
        "--data",
        type=click.Path(path_type=Path, file_okay=False, exists=True),
        metavar="DIR",
        help="What ${ANTIPHON_DATA} stands for in the paths of recorded pools.",
    )(command)
    return click.option(
        "--config",
        "config_file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Configuration [default: $ANTIPHON_CONFIG, else ./antiphon.toml].",
    )(command)


def json_option(command: F) -> F:
    """`--json`, as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(command)
