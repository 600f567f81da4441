"""The report of a run: tables, figures and one page to read them in, written from what the run left on disk."""

from __future__ import annotations

import os
from pathlib import Path

from antiphon.errors import MissingExtra
from antiphon.types import clean

PER_CELL = 40
"""Trajectories of one cell (a policy on a data set) that the page holds at most."""


def write(directory: Path, *, per_cell: int = PER_CELL) -> list[Path]:
    """Write `tables/*.md`, `tables/*.tex`, `figures/*.svg` and `report.html` into a run's directory.

    The same run gives the same bytes. Without matplotlib there are no figures, and the page says so.

    Args:
        per_cell: how many trajectories of a cell the page holds at most; fewer where there are many cells.

    Returns:
        What was written, in that order.

    Raises:
        ConfigError: the directory holds no run that has been summarised, or a file of it is damaged.
    """
    from antiphon.evaluate.report._headline import audit, headline
    from antiphon.evaluate.report._markup import files
    from antiphon.evaluate.report._questions import attach, sample
    from antiphon.evaluate.report._results import read_summary
    from antiphon.evaluate.report.figures import Figure, figures
    from antiphon.evaluate.report.html import page
    from antiphon.evaluate.report.tables import tables
    from antiphon.evaluate.store import rows

    results = read_summary(directory)
    made = [headline(results, section)[1] for section in results.sections] + tables(results)
    made += [table for table in (audit(results),) if table is not None]
    drawn: list[Figure] | str
    try:
        drawn = figures(results)
    except MissingExtra as error:
        drawn = str(error)
    samples = sample(rows(directory), results.metric, per_cell)
    attach(directory, samples)
    documents = {f"tables/{name}": text for name, text in files(made).items()}
    if not isinstance(drawn, str):
        documents |= {f"figures/{figure.name}.svg": figure.svg for figure in drawn}
    documents["report.html"] = page(results, made, drawn, samples)
    return [_write(directory / name, text) for name, text in documents.items()]


def _write(path: Path, text: str) -> Path:
    """All of a file or nothing: a reader, or a kill, never meets half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.name}.half")
    half.write_text(clean(text), "utf-8", newline="\n")
    os.replace(half, path)
    return path
