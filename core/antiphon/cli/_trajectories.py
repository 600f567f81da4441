"""Files of saved trajectories as commands read them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

from antiphon.errors import ConfigError

if TYPE_CHECKING:
    from antiphon.types import Trajectory

MOST_LINE_BYTES = 256 * 1024 * 1024


def documents(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """JSON documents with their line numbers: one a line, or the whole file where it is one indented object.

    Raises:
        ConfigError: a line is longer than any trajectory; names file and line.
    """
    first = True
    for number, line in enumerate(iter(lambda: file.readline(MOST_LINE_BYTES + 1), b""), start=1):
        if len(line) > MOST_LINE_BYTES:
            raise ConfigError(f"{file.name}, line {number}: longer than {MOST_LINE_BYTES} bytes; this is no trajectory")
        if not line.strip():
            continue
        if first and line.strip() in (b"{", b"\xef\xbb\xbf{"):
            yield number, line.removeprefix(b"\xef\xbb\xbf") + file.read(MOST_LINE_BYTES)
            return
        yield number, line.removeprefix(b"\xef\xbb\xbf") if first else line
        first = False


def parsed(line: bytes, file: BinaryIO, number: int) -> Trajectory:
    """The trajectory of a line, as `ask --save`, a run of `evaluate` or a training run wrote it.

    Raises:
        ConfigError: it is none; names file and line.
    """
    from antiphon.evaluate.store import bare
    from antiphon.types import Trajectory

    try:
        return Trajectory.from_json(bare(line))
    except ConfigError as error:
        raise ConfigError(f"{file.name}, line {number}: {error}") from None
