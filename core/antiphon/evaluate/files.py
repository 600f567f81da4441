"""Files that survive a kill: appended to by one process at a time, a torn last line cut off."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from antiphon.errors import ConfigError


def make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; choose another directory (--out)") from None


def locked(path: Path) -> BinaryIO:
    """Hold a lock file, with our process id in it; the kernel lets go of it when the process dies, however it dies.

    Raises:
        ConfigError: a living process holds it; says which.
    """
    try:
        file = path.open("ab+", buffering=0)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    if sys.platform == "win32":
        return file  # no advisory locks there
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read(200).decode("utf-8", "replace").strip() or "another process"
        file.close()
        raise ConfigError(
            f"{path.parent} is in use by {holder}; wait for it to end, or choose another directory"
        ) from None
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
    return file


def append_to(path: Path) -> BinaryIO:
    return path.open("ab", buffering=0)


def write(file: BinaryIO, data: bytes) -> None:
    """Append it: in one write where the operating system takes it whole, and not at all where the disk is full.

    Raises:
        ConfigError: it cannot be written.
    """
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[file.write(rest) :]
    except OSError as error:
        if len(rest) < len(data):
            file.truncate(os.fstat(file.fileno()).st_size - (len(data) - len(rest)))
        raise ConfigError(
            f"{file.name}: {error.strerror}; what is in it is whole: make room, and run the same command again"
        ) from None


def whole_lines(path: Path, *, cut: bool) -> Iterator[bytes]:
    """The lines of a file. With `cut`, a torn last one is removed from it; else it is damage."""
    end = 0
    with path.open("rb") as file:
        held: bytes | None = None
        for line in file:
            if held is not None:
                yield held
                end += len(held)
            held = line
    if held is None:
        return
    if not cut or is_json_line(held):
        yield held
    else:
        os.truncate(path, end)


def is_json_line(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return line.endswith(b"\n")


def keep_lines(path: Path, most: int) -> int:
    """Cut a file of rows after its first `most` lines and before a torn one; how many are left."""
    if not path.exists():
        return 0
    count = end = 0
    with path.open("rb") as file:
        for line in file:
            if count == most or not is_json_line(line):
                break
            count, end = count + 1, end + len(line)
    os.truncate(path, end)
    return count
