"""How commands write: text made safe for terminals, tables, amounts, one JSON object."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console


def print_json(data: Any) -> None:
    """One JSON object on standard output; ASCII where the output is not UTF-8, so that nothing is lost."""
    utf8 = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "") == "utf8"
    click.echo(json.dumps(data, ensure_ascii=not utf8))


def note(text: str, *, nl: bool = True) -> None:
    """A remark on standard error, dim on a terminal."""
    click.secho(safe(text), err=True, dim=True, nl=nl)


def warn(text: str) -> None:
    """What somebody should read, on standard error."""
    click.echo(safe(text), err=True)


def safe(text: str) -> str:
    """Text without control characters: what a model says must not steer the terminal it is shown on."""
    return "".join(c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs") else "\ufffd" for c in text)


def console() -> Console:
    """Standard output, styled and wrapped on a terminal; plain and never wrapped elsewhere."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False, soft_wrap=not sys.stdout.isatty())


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns on standard output: wrapped to a terminal, whole and aligned elsewhere."""
    rows = [[safe(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        from rich.table import Table
        from rich.text import Text

        shown = Table(*headers, box=None, pad_edge=False, header_style="bold")
        for row in rows:
            shown.add_row(*(Text(cell) for cell in row))
        console().print(shown)
        return
    flat = [[" ".join(cell.split()) for cell in row] for row in [headers, *rows]]
    widths = [max(len(row[column]) for row in flat) for column in range(len(headers))]
    for row in flat:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def usd(amount: float) -> str:
    """`$0`, `$0.000094`, `$1.23`: enough digits to tell a call's cost."""
    if amount == 0:
        return "$0"
    return f"${amount:.2f}" if amount >= 1 else f"${amount:.6f}" if amount >= 1e-6 else f"${amount:.1e}"


def seconds(duration: float) -> str:
    return (
        f"{duration:.0f} s" if duration >= 100 else f"{duration:.1f} s" if duration >= 1 else f"{duration * 1e3:.0f} ms"
    )


def plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def shorten(text: str, length: int) -> str:
    """One line of at most `length` characters."""
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"
