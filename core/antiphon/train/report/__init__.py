"""The report of training runs: curves, rollouts step by step and the card on one page, from what runs left on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from antiphon.errors import MissingExtra

NAME = "report.html"


def write(folders: Sequence[Path], out: Path | None = None) -> Path:
    """Write one page about runs, several of them drawn over each other; a run may still be under way.

    Without matplotlib there are no curves, and the page says so.

    Args:
        out: default: `report.html` in the first run's folder.

    Raises:
        ConfigError: a folder holds no run, or a file of it is damaged.
    """
    from antiphon.report import page
    from antiphon.train.report._runs import read_runs
    from antiphon.train.report.figures import figures
    from antiphon.train.report.html import html

    runs = read_runs(folders)
    try:
        drawn: Any = figures(runs)
    except MissingExtra as error:
        drawn = str(error)
    return page.write(out or folders[0] / NAME, html(runs, drawn))


def summary(folders: Sequence[Path]) -> dict[str, Any]:
    """The same in numbers: JSON data, an entry a run.

    Raises:
        ConfigError: a folder holds no run, or a file of it is damaged.
    """
    from antiphon.train.report._runs import read_runs

    return {"runs": [run.summary() for run in read_runs(folders)]}
