"""A run's directory: one writer at a time, trajectories and rows that survive a kill, and where to go on."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from antiphon.errors import ConfigError
from antiphon.evaluate.files import append_to, is_json_line, keep_lines, locked, make_directory, whole_lines, write
from antiphon.evaluate.rows import Key, Row
from antiphon.evaluate.spec import differences
from antiphon.types import Trajectory

if TYPE_CHECKING:
    from collections.abc import Callable

SPEC, ROWS, SUMMARY, LOCK, TRAJECTORIES = "spec.json", "rows.jsonl", "summary.json", "lock", "trajectories"
DISCARDED = "discarded.jsonl"
"""What was spent on rollouts that are asked again: a line each."""

RUNNING = "running"
"""There while somebody writes; left behind by a process that was killed."""

LINES_A_FILE = 1000
SYNC_EVERY, SYNC_S = 64, 1.0
"""Lines and seconds after which what the operating system holds is forced to disk: a power cut costs no more."""

_KEY_AT = len('{"key": ')
_BETWEEN = ', "trajectory": '


class Done:
    """Which rollouts are committed: a byte each, in place of their names."""

    def __init__(self) -> None:
        self._marks: dict[tuple[str, str, str, int], bytearray] = {}
        self.count = 0

    def add(self, key: Key) -> bool:
        """Mark it; False where it was marked before."""
        marks = self._marks.setdefault((key.policy, key.pool, key.dataset, key.seed), bytearray())
        if len(marks) <= key.index:
            marks.extend(bytes(key.index + 1 - len(marks)))
        if marks[key.index]:
            return False
        marks[key.index] = 1
        self.count += 1
        return True

    def __contains__(self, key: Key) -> bool:
        marks = self._marks.get((key.policy, key.pool, key.dataset, key.seed), b"")
        return key.index < len(marks) and bool(marks[key.index])


class Store:
    """A run's directory, open for writing; held by a lock until it is closed (or its process is gone).

    A trajectory is with the operating system when `commit` returns, so that a kill costs none. Rows follow in batches:
    they are always those of the first so many trajectories, and what a kill keeps from being written is made again.

    Args:
        spec: what runs here. A directory that another spec ran in is refused.

    Attributes:
        done: what is committed.
        was_killed: the last process that wrote here did not close it.

    Raises:
        ConfigError: another process writes here, another spec ran here, or a file is damaged.
    """

    def __init__(self, directory: Path, spec: Mapping[str, Any]) -> None:
        self.directory = directory
        self.done = Done()
        self._row_count = 0
        self._waiting: list[bytes] = []  # rows
        self._synced_at = time.monotonic()
        self._trajectories: BinaryIO | None = None
        self._file, self._line = 0, 0
        make_directory(directory / TRAJECTORIES)
        self._lock = locked(directory / LOCK)
        try:
            self._check_spec(spec)
            self._recover()
            self._rows: BinaryIO = append_to(directory / ROWS)
            self.was_killed = (directory / RUNNING).exists()
            (directory / RUNNING).touch()
        except BaseException:
            self._lock.close()
            raise

    def commit(self, key: Key, trajectory: Trajectory, judge: Callable[[Key, Trajectory, str, int], Row]) -> Row:
        """Keep a trajectory and its row; the process may die right after this, and keeps both.

        Raises:
            ConfigError: the disk is full, or the like; what was committed before is whole.
        """
        line = f'{{"key": {key.to_json()}{_BETWEEN}{trajectory.to_json()}}}\n'
        if self._trajectories is None or self._line >= LINES_A_FILE:
            self._next_file()
        assert self._trajectories is not None
        write(self._trajectories, line.encode())
        self._line += 1
        self.done.add(key)
        row = judge(key, trajectory, self._name(self._file), self._line)
        self.add_row(row)
        return row

    def unjudged(self) -> Iterator[tuple[Key, Trajectory, str, int]]:
        """Committed trajectories without a row: those that a kill fell between. Each must be given to `add_row`."""
        skip = self._row_count
        if skip == self.done.count:
            return
        for number in self._files():
            with (self.directory / self._name(number)).open("rb") as lines:
                for line_number, line in enumerate(lines, 1):
                    if skip:
                        skip -= 1
                        continue
                    key, text = _split(line)
                    yield key, Trajectory.from_json(text), self._name(number), line_number

    def discard(self, usd: float, why: str) -> None:
        """Keep what rollouts cost that are no result and will be asked again."""
        if usd > 0:
            with append_to(self.directory / DISCARDED) as file:
                write(file, json.dumps({"usd": usd, "why": why}).encode() + b"\n")

    def discarded_usd(self) -> float:
        """USD that was spent on rollouts without a result."""
        path = self.directory / DISCARDED
        if not path.exists():
            return 0.0
        with path.open("rb") as lines:
            return sum(float(json.loads(line)["usd"]) for line in lines if is_json_line(line))

    def add_row(self, row: Row) -> None:
        """Keep the row of a committed trajectory, in the order of the trajectories."""
        self._waiting.append(row.to_json().encode() + b"\n")
        if len(self._waiting) >= SYNC_EVERY or time.monotonic() - self._synced_at > SYNC_S:
            self.sync()

    def sync(self) -> None:
        """Force everything to disk, trajectories before their rows."""
        waiting, self._waiting = self._waiting, []
        if self._trajectories is not None:
            os.fsync(self._trajectories.fileno())
        write(self._rows, b"".join(waiting))
        os.fsync(self._rows.fileno())
        self._synced_at = time.monotonic()

    def close(self) -> None:
        """Force everything to disk and let the directory go."""
        try:
            self.sync()
            (self.directory / RUNNING).unlink(missing_ok=True)
            self._lock.truncate(0)
        finally:
            for file in (self._trajectories, self._rows, self._lock):
                if file is not None:
                    file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- opening --------------------------------------------------------------------------------------------------

    def _check_spec(self, spec: Mapping[str, Any]) -> None:
        path = self.directory / SPEC
        if not path.exists():
            write_json(path, spec)
            return
        changed = differences(read_json(path), json.loads(json.dumps(spec)))
        if changed:
            raise ConfigError(
                f"{self.directory} holds another evaluation's run ({'; '.join(changed[:6])}"
                f"{'; …' if len(changed) > 6 else ''}); choose another directory (--out), or undo the change"
            )

    def _recover(self) -> None:
        """Cut what a kill tore, and learn what is committed."""
        files = self._files()
        for number in files:
            path = self.directory / self._name(number)
            self._file, self._line = number, 0
            last = number == files[-1]
            for line in whole_lines(path, cut=last):
                self._line += 1
                try:
                    key, _ = _split(line)
                except ValueError as error:
                    raise ConfigError(
                        f"{path}, line {self._line} is damaged ({error}); put back a copy of it, or start in another "
                        "directory"
                    ) from None
                if not self.done.add(key):
                    raise ConfigError(f"{path}, line {self._line} is there twice; remove one, with {ROWS}")
        self._row_count = keep_lines(self.directory / ROWS, self.done.count)
        if files:
            self._trajectories = append_to(self.directory / self._name(self._file))

    def _files(self) -> list[int]:
        found = (self.directory / TRAJECTORIES).glob("*.jsonl")
        return sorted(int(path.stem) for path in found if path.stem.isdecimal())

    def _name(self, number: int) -> str:
        return f"{TRAJECTORIES}/{number:04d}.jsonl"

    def _next_file(self) -> None:
        if self._trajectories is not None:
            self.sync()
            self._trajectories.close()
        self._file, self._line = self._file + 1, 0
        self._trajectories = append_to(self.directory / self._name(self._file))


# ---- reading ------------------------------------------------------------------------------------------------------


def rows(directory: Path) -> Iterator[Row]:
    """The rows of a run, in the order in which they were committed; a line that is being written is left out.

    Raises:
        ConfigError: the directory holds no run, or a line is no row.
    """
    path = directory / ROWS
    if not path.is_file():
        raise ConfigError(
            f"{directory} holds no evaluation ({ROWS} is missing); `antiphon evaluate --out DIR` makes one"
        )
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield Row.from_json(line)
            except ConfigError as error:
                raise ConfigError(f"{path}, line {number}: {error}") from None


def trajectory(directory: Path, file: str, line: int) -> Trajectory:
    """The trajectory behind a row, by the row's `file` and `line`.

    Raises:
        ConfigError: it is not there.
    """
    path = directory / file
    try:
        with path.open("rb") as lines:
            for number, text in enumerate(lines, 1):
                if number == line:
                    return Trajectory.from_json(_split(text)[1])
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}, line {line}: {error}") from None
    raise ConfigError(f"{path} has no line {line}")


def bare(line: bytes) -> bytes:
    """The trajectory in a line of a run's file, without its key; any other line as it is."""
    try:
        return _split(line)[1].encode()
    except ValueError:
        return line


def read_json(path: Path) -> Any:
    """Raises: ConfigError: no such file, or not JSON."""
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; is {path.parent} the directory of an evaluation?") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON ({error})") from None


def write_json(path: Path, data: Any) -> None:
    """Write it whole or not at all."""
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        file.write(json.dumps(data, ensure_ascii=False, indent=1, allow_nan=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def _split(line: bytes) -> tuple[Key, str]:
    """Key and trajectory of a line, without reading the trajectory.

    Raises:
        ValueError: it is no line of ours.
    """
    text = line.decode()
    if not text.startswith('{"key": ') or not text.endswith("}\n"):
        raise ValueError("it is no trajectory with its key")
    try:
        data, end = json.JSONDecoder().raw_decode(text, _KEY_AT)
        key = Key.of(data)
    except (KeyError, TypeError) as error:
        raise ValueError(f"its key lacks {error}") from None
    if not text.startswith(_BETWEEN, end):
        raise ValueError("it has no trajectory")
    return key, text[end + len(_BETWEEN) : -2]
