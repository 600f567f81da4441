"""A run's directory loses nothing that was committed, whatever a kill left behind, and has one writer."""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon.errors import ConfigError
from antiphon.evaluate import store as stores
from antiphon.evaluate.rows import Judge, Key, Row
from antiphon.evaluate.store import Store, rows, trajectory
from antiphon.types import Task, Trajectory

SPEC = {"evaluate": {"seeds": [0]}, "policies": [{"label": "a"}]}
judge = Judge({}, []).row


def key(index: int) -> Key:
    return Key("a", "pool", "data: ü\u2028", f'q"{index}', 0, index)


def made(index: int) -> Trajectory:
    return Trajectory(f"t{index}", Task(f"Question\n{index}, \u2028?", f'q"{index}', ("x",)), "a", f"{index}", "answer")


def fill(directory: Path, indices: Iterator[int] | range) -> None:
    with Store(directory, SPEC) as store:
        for index in indices:
            if key(index) not in store.done:
                store.commit(key(index), made(index), judge)


def resume(directory: Path) -> list[Row]:
    """Open it again, make the rows that are missing, and read all of them."""
    with Store(directory, SPEC) as store:
        for which, what, file, line in store.unjudged():
            store.add_row(judge(which, what, file, line))
        count = store.done.count
    found = list(rows(directory))
    assert len(found) == count
    return found


def test_what_is_committed_is_there_with_a_row_that_leads_to_it(tmp_path: Path) -> None:
    fill(tmp_path, range(5))
    found = resume(tmp_path)
    assert [row.index for row in found] == [0, 1, 2, 3, 4]
    for row in found:
        assert trajectory(tmp_path, row.file, row.line) == made(row.index)


def test_files_are_small_and_go_on_where_they_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "LINES_A_FILE", 3)
    fill(tmp_path, range(4))
    fill(tmp_path, range(8))
    sizes = {path.name: path.read_bytes().count(b"\n") for path in tmp_path.glob("trajectories/*.jsonl")}
    assert sizes == {"0001.jsonl": 3, "0002.jsonl": 3, "0003.jsonl": 2}
    assert [(row.file, row.line) for row in rows(tmp_path)][3:5] == [
        ("trajectories/0002.jsonl", 1),
        ("trajectories/0002.jsonl", 2),
    ]


@pytest.mark.parametrize("seed", range(25))
def test_wherever_a_kill_tears_the_files_whole_lines_stay_and_rows_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(stores, "LINES_A_FILE", 4)
    fill(tmp_path, range(10))
    last, table = tmp_path / "trajectories/0003.jsonl", tmp_path / "rows.jsonl"
    for path in (last, table):
        os.truncate(path, rng.randint(0, path.stat().st_size))
    whole = 8 + last.read_bytes().count(b"\n")
    assert [row.index for row in resume(tmp_path)] == list(range(whole))
    fill(tmp_path, range(12))
    assert [row.index for row in resume(tmp_path)] == list(range(12))


def test_rows_that_ran_ahead_of_trajectories_are_cut(tmp_path: Path) -> None:
    fill(tmp_path, range(4))
    file = tmp_path / "trajectories/0001.jsonl"
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:2]))
    assert [row.index for row in resume(tmp_path)] == [0, 1]


def test_damage_in_the_middle_is_no_torn_line_and_is_left_as_it_is(tmp_path: Path) -> None:
    fill(tmp_path, range(3))
    file = tmp_path / "trajectories/0001.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    damaged = lines[0] + b"{torn\n" + lines[2]
    file.write_bytes(damaged)
    with pytest.raises(ConfigError, match=r"0001\.jsonl, line 2 is damaged"):
        Store(tmp_path, SPEC)
    assert file.read_bytes() == damaged


def test_a_line_that_is_there_twice_is_an_error(tmp_path: Path) -> None:
    fill(tmp_path, range(1))
    file = tmp_path / "trajectories/0001.jsonl"
    file.write_bytes(file.read_bytes() * 2)
    with pytest.raises(ConfigError, match="line 2 is there twice"):
        Store(tmp_path, SPEC)


def test_another_spec_is_refused_in_words(tmp_path: Path) -> None:
    fill(tmp_path, range(1))
    other = {"evaluate": {"seeds": [0, 1]}, "policies": [{"label": "a"}, {"label": "b"}]}
    with pytest.raises(ConfigError) as error:
        Store(tmp_path, other)
    assert "evaluate.seeds: [0] before, [0, 1] now; policies.b: only now" in str(error.value)
    assert "--out" in str(error.value)


def test_a_second_writer_is_refused_and_told_who_is_there(tmp_path: Path) -> None:
    with Store(tmp_path, SPEC), pytest.raises(ConfigError, match=f"in use by process {os.getpid()} on"):
        Store(tmp_path, SPEC)
    Store(tmp_path, SPEC).close()


def test_the_lock_of_a_killed_process_is_stale_at_once_and_the_kill_is_known(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from antiphon.evaluate.store import Store\n"
        f"Store(Path(sys.argv[1]), {SPEC!r}); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=300, check=False)
    assert done.returncode == -9
    assert (tmp_path / "lock").read_text().startswith("process ")
    with Store(tmp_path, SPEC) as store:
        assert store.was_killed
    with Store(tmp_path, SPEC) as store:
        assert not store.was_killed


def test_what_was_spent_for_nothing_is_added_up(tmp_path: Path) -> None:
    with Store(tmp_path, SPEC) as store:
        assert store.discarded_usd() == 0
        store.discard(0.25, "why")
        store.discard(0.0, "nothing")
        store.discard(-1e-9, "rounding")
        store.discard(0.5, "why")
        assert store.discarded_usd() == 0.75


def test_a_full_disk_says_so_and_what_was_committed_is_whole(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk: it too takes half a line."""
    fill(tmp_path, range(2))
    file = tmp_path / "trajectories/0001.jsonl"
    before, (soft, hard) = file.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    store = Store(tmp_path, SPEC)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 50, hard))
    try:
        with pytest.raises(ConfigError, match=r"0001\.jsonl: File too large.*run the same command again"):
            store.commit(key(2), made(2), judge)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        store.close()
    assert file.read_bytes() == before
    assert [row.index for row in resume(tmp_path)] == [0, 1]


@pytest.mark.parametrize(("content", "message"), [(None, "holds no evaluation"), ("{}\n", "line 1: not a row")])
def test_reading_what_is_no_run(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "rows.jsonl").write_text(content)
    with pytest.raises(ConfigError, match=message):
        list(rows(tmp_path))


def test_a_row_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    fill(tmp_path, range(2))
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write('{"policy": "a", "po')
    assert [row.index for row in rows(tmp_path)] == [0, 1]


def test_the_spec_is_kept_as_json(tmp_path: Path) -> None:
    fill(tmp_path, range(1))
    assert json.loads((tmp_path / "spec.json").read_text()) == SPEC
