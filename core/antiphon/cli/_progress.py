"""A bar on a terminal for what takes a while; nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Update = Callable[[int, Callable[[], str]], None]
"""`update(done, say)`: so many are done; `say` words what is to be read beside the bar."""


@contextmanager
def bar(total: int, done: int) -> Iterator[Update]:
    """A bar on standard error, with the time left; where that is no terminal, updates do nothing."""
    if not sys.stderr.isatty():
        yield lambda done, say: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[said]}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as shown:
        row = shown.add_task("", total=total, completed=done, said="")
        yield lambda done, say: shown.update(row, completed=done, said=say())
