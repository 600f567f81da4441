"""A cassette's file: SQLite in WAL mode, many readers and writers, each reply on disk before `write` returns."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, cast

from antiphon.contracts import Reply
from antiphon.errors import ConfigError
from antiphon.types import Usage

APPLICATION_ID = 0x416E7450  # what marks a SQLite file as a cassette
VERSION = 1
BUSY_S = 30.0

_NEW = (0, 0, 0)  # what `_state` is of a file that nobody has used

_SCHEMA = """
CREATE TABLE replies (
    key TEXT PRIMARY KEY, request TEXT NOT NULL, sample INTEGER NOT NULL, text TEXT NOT NULL,
    input_tokens INTEGER, output_tokens INTEGER, cached_input_tokens INTEGER, estimated INTEGER,
    served_model TEXT, finish TEXT NOT NULL, latency_s REAL, recorded_at REAL NOT NULL
) WITHOUT ROWID
"""


class Tape:
    """An open cassette. Every method blocks; safe across threads.

    Raises:
        ConfigError: the file is not there to be replayed, cannot be opened, is no cassette, or a newer one.
    """

    def __init__(self, path: Path, *, read_only: bool, where: str) -> None:
        self.path = path.resolve()
        self._where, self._lock = where, threading.Lock()
        if read_only and not self.path.is_file():
            raise ConfigError(f"{where}: {self.path}: no such cassette; record one with mode = 'record_missing'")
        with self._explained():
            if not read_only:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            self._db = self._open(read_only)
            try:
                self._check(read_only)
            except BaseException:
                self._db.close()
                raise

    def read(self, key: str) -> Reply | None:
        with self._lock, self._explained():
            row = self._db.execute(
                "SELECT text, input_tokens, output_tokens, cached_input_tokens, estimated, served_model, finish, "
                "latency_s FROM replies WHERE key = ?",
                (key,),
            ).fetchone()
        if row is None:
            return None
        text, sent, said, cached, estimated, model, finish, latency_s = row
        usage = None if sent is None else Usage(sent, said, cached, bool(estimated))
        return Reply(text, usage, model, cast("Literal['stop', 'length']", finish), latency_s)

    def write(self, key: str, request: str, sample: int, reply: Reply, latency_s: float) -> None:
        """Keep a reply in place of an earlier one; committed and synced when this returns."""
        usage = reply.usage
        counts = (
            (None, None, None, None)
            if usage is None
            else (usage.input_tokens, usage.output_tokens, usage.cached_input_tokens, int(usage.estimated))
        )
        row = (key, request, sample, reply.text, *counts, reply.model, reply.finish, latency_s, time.time())
        with self._lock, self._explained():
            self._db.execute(f"INSERT OR REPLACE INTO replies VALUES ({', '.join('?' * len(row))})", row)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _open(self, read_only: bool) -> sqlite3.Connection:
        mode = "rwc"
        if read_only:  # a folder that cannot be written to has no room for WAL's side files
            mode = "ro" if os.access(self.path.parent, os.W_OK) else "ro&immutable=1"
        uri = f"{self.path.as_uri()}?mode={mode}"
        return sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)

    def _check(self, read_only: bool) -> None:
        """Refuse, untouched, what is no cassette; lay the table of a new one."""
        self._refuse_others(may_be_new=not read_only)
        if read_only:
            return
        self._use_wal()
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("BEGIN IMMEDIATE")  # so that one of several processes lays the table
        if self._state() == _NEW:
            self._db.execute(_SCHEMA)
            self._db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self._db.execute(f"PRAGMA user_version = {VERSION}")
        self._db.execute("COMMIT")
        self._refuse_others(may_be_new=False)

    def _state(self) -> tuple[int, int, int]:
        """Application id, version, and how many tables there are."""
        queries = ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
        application_id, version, tables = (int(self._db.execute(query).fetchone()[0]) for query in queries)
        return application_id, version, tables

    def _refuse_others(self, *, may_be_new: bool) -> None:
        application_id, version, _ = state = self._state()
        if may_be_new and state == _NEW:
            return
        if application_id != APPLICATION_ID:
            raise ConfigError(f"{self._where}: {self.path} is a SQLite file but no cassette; choose another path")
        if version != VERSION:
            raise ConfigError(
                f"{self._where}: {self.path} is a cassette of version {version}, and this release reads {VERSION}; "
                "use the release that wrote it, or another path"
            )

    def _use_wal(self) -> None:
        """Switch to write-ahead logging. SQLite's own waiting does not cover the switch where processes race for it."""
        give_up = time.monotonic() + BUSY_S
        while True:
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > give_up:
                    raise
                time.sleep(0.01)
            else:
                return

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.ProgrammingError as error:
            raise ConfigError(f"{self._where}: cassette {self.path} is closed ({error})") from None
        except sqlite3.OperationalError as error:
            raise ConfigError(
                f"{self._where}: cassette {self.path} cannot be used ({error}); "
                "check the folder, its rights and the disk"
            ) from None
        except sqlite3.DatabaseError as error:
            raise ConfigError(
                f"{self._where}: {self.path} is no cassette, or a damaged one ({error}); choose another path"
            ) from None
        except OSError as error:
            raise ConfigError(f"{self._where}: cassette {self.path} cannot be made: {error}") from None
