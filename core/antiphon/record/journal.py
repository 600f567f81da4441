"""A file of JSON lines that survives a kill: one writer, append-only, on disk before a line counts as written."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Self

from antiphon.errors import ConfigError
from antiphon.types import clean


class Journal:
    """Opened, it holds the file's lock until it is closed; the kernel lets go of it when a process dies.

    A last line that a kill or a full disk tore is cut off. What has been written is read with `rows`.

    Args:
        first_key: with which every line begins; a last line that begins otherwise is not one of ours, and stays.

    Raises:
        ConfigError: another process writes to it, it cannot be opened, or it ends in something that is no line of ours.
    """

    def __init__(self, path: Path, first_key: str) -> None:
        self.path = path
        self._head = f'{{"{first_key}": '.encode()
        self._waiting: list[tuple[bytes, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = path.open("ab+", buffering=0)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from None
        try:
            self._lock()
            self._cut_torn_line()
        except BaseException:
            self._file.close()
            raise

    def rows(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """(line number from 1, object) for each line, in the order written.

        Raises:
            ConfigError: a line is no JSON object; names it.
        """
        with self.path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise ConfigError(f"{self.path}, line {number}: not JSON ({error}); mend or remove it") from None
                if not isinstance(row, Mapping):
                    raise ConfigError(f"{self.path}, line {number}: not a JSON object; is this the right file?")
                yield number, row

    async def write(self, row: Mapping[str, Any]) -> None:
        """Append a row; on disk when this returns. Rows that come while the disk is busy share its next turn.

        Cancelled, it still writes: what is in the row has been paid for.

        Raises:
            ConfigError: it cannot be written (a full disk).
        """
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line = clean(json.dumps(row, ensure_ascii=False, allow_nan=False)).encode() + b"\n"
        self._waiting.append((line, written))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_all())
        await asyncio.shield(written)

    async def drain(self) -> None:
        """Wait until everything is on disk; what could not be written has been told to who wrote it."""
        if self._writing is not None:
            await asyncio.wait([self._writing])

    def close(self) -> None:
        """Let go of the file and its lock."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _write_all(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                await asyncio.to_thread(self._append, b"".join(line for line, _ in batch))
            except OSError as error:
                failure = ConfigError(f"{self.path}: {error.strerror}; what is in it is whole, so make room and go on")
                for _, written in batch:
                    written.set_exception(failure)
            else:
                for _, written in batch:
                    written.set_result(None)

    def _append(self, data: bytes) -> None:
        """Raises: OSError; what was written of it is taken back, so that no torn line gets a successor."""
        start = self._file.seek(0, os.SEEK_END)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(start)
            raise

    def _lock(self) -> None:
        if sys.platform == "win32":
            return  # no advisory locks there
        import fcntl

        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{self.path}: another process is writing to it; wait for it, or use another file"
            ) from None

    def _cut_torn_line(self) -> None:
        size = self._file.seek(0, os.SEEK_END)
        start = self._last_line_at(size)
        self._file.seek(start)
        tail = self._file.read(size - start)
        if not tail:
            return
        if not tail.startswith(self._head) and not self._head.startswith(tail.rstrip(b"\0")):
            raise ConfigError(f"{self.path}: it ends in something else than a recorded line; is this the right file?")
        try:
            json.loads(tail)
        except ValueError:
            self._file.truncate(start)
        else:
            self._append(b"\n")  # whole: only its end is missing

    def _last_line_at(self, size: int) -> int:
        """Where what follows the last line break begins."""
        block, end = 64 * 1024, size
        while end > 0:
            begin = max(0, end - block)
            self._file.seek(begin)
            found = self._file.read(end - begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            end = begin
        return 0
