"""`antiphon train report` and `antiphon train export`: what runs came to, and their weights for use elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from antiphon.cli._options import json_option
from antiphon.cli._output import note, print_json, safe, usd, warn

_run = click.Path(path_type=Path, file_okay=False, exists=True)


@click.command()
@click.argument("runs", type=_run, nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.html",
    help="Where the page is kept [default: report.html in the first RUN].",
)
@json_option
def report(runs: tuple[Path, ...], out: Path | None, as_json: bool) -> None:
    """Write a page about training runs: curves by step, rollouts to browse, the card.

    Several RUNs (seeds, settings) are drawn over each other. A run may still be under way. `--json` prints a summary in
    place of the page, unless --out asks for both.
    """
    from antiphon.train.report import summary, write

    found = summary(runs)
    if out is not None or not as_json:
        note(f"see {write(runs, out)}")
    if as_json:
        print_json(found)
        return
    for run in found["runs"]:
        click.echo(safe(_said(run)))
        if run["collapsed"]:
            warn(f"{run['name']} stopped itself: {run['collapsed']}")


@click.command()
@click.argument("run", type=_run, metavar="RUN")
@click.option("--step", type=click.IntRange(min=0), metavar="N", help="The checkpoint [default: best, else latest].")
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="FOLDER", help="A new folder.")
@click.option("--merge", is_flag=True, help="A whole model, the adapter merged into its base.")
@json_option
def export(run: Path, step: int | None, out: Path, merge: bool, as_json: bool) -> None:
    """Put a run's weights, with their card, into a folder of their own.

    `antiphon ask --model FOLDER` uses them. An adapter needs its base in the model store; --merge makes a Hugging Face
    folder that needs none.
    """
    from antiphon.train.export import checkpoint
    from antiphon.train.export import export as exported

    source = checkpoint(run, step)
    path = exported(source, out, merge=merge)
    if as_json:
        print_json({"checkpoint": source.name, "path": str(path), "merged": merge})
    else:
        click.echo(safe(f"{source.name} of {run} is now in {path}"))


def _said(run: dict[str, Any]) -> str:
    of = "" if run["planned"] is None else f" of {run['planned']}"
    parts = [f"{run['name']}: {run['steps']}{of} steps, {run['hours']:.2f} h, {usd(run['spent_usd'])} spent"]
    for key in ("reward", "em", "val_em", "format_ok", "cost", "calls"):
        if metric := run["metrics"].get(key):
            parts.append(f"{key} {metric['start']:.3g} -> {metric['end']:.3g}")
    return "; ".join(parts)
