"""The report of a run: tables, figures and one page to read them in, written from what the run left on disk."""

from __future__ import annotations

from pathlib import Path

from antiphon.errors import MissingExtra

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
    from antiphon.evaluate.report.figures import figures
    from antiphon.evaluate.report.html import page as html
    from antiphon.evaluate.report.tables import tables
    from antiphon.evaluate.store import rows
    from antiphon.report import page
    from antiphon.report.svg import Figure

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
    documents["report.html"] = html(results, made, drawn, samples)
    return [page.write(directory / name, text) for name, text in documents.items()]
