"""A checkpoint is there whole or not at all; what need not be kept goes; a state is read back equal."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from antiphon.errors import ConfigError
from antiphon.train.checkpoint import (
    Checkpoints,
    load_state,
    random_states,
    save_state,
    set_random_states,
)

torch = pytest.importorskip("torch")


def fill(folder: Path) -> None:
    (folder / "weights").write_text("w")
    (folder / "state.pt").write_text("s")


def names(checkpoints: Checkpoints) -> list[str]:
    return [path.name for path in checkpoints.all]


def test_the_last_ones_the_best_and_every_so_many_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2, keep_every=4)
    for step in range(10):
        checkpoints.save(step, fill, best=step == 3)
    assert names(checkpoints) == [f"step-{step:06d}" for step in (0, 3, 4, 8, 9)]
    assert checkpoints.latest == tmp_path / "step-000009"
    assert checkpoints.best == tmp_path / "step-000003"
    whole = [path.name for path in checkpoints.all if (path / "state.pt").exists()]
    assert whole == ["step-000008", "step-000009"], "of the others, the weights alone"


def test_a_fault_while_writing_leaves_what_was_there(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, fill)

    def broken(folder: Path) -> None:
        (folder / "weights").write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        checkpoints.save(2, broken)
    assert names(checkpoints) == ["step-000001"]
    assert checkpoints.latest == tmp_path / "step-000001"
    checkpoints.save(2, fill)
    assert (tmp_path / "step-000002" / "weights").read_text() == "w"
    assert not list(tmp_path.glob(".step*"))


def test_a_step_that_comes_again_replaces_its_checkpoint(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, lambda folder: (folder / "old").touch())
    checkpoints.save(1, fill)
    assert sorted(path.name for path in (tmp_path / "step-000001").iterdir()) == ["state.pt", "weights"]


def test_without_checkpoints_there_is_no_latest(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "none").latest is None


def test_a_pointer_to_nothing_is_named(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, fill)
    (tmp_path / "latest").write_text("../elsewhere\n")
    with pytest.raises(ConfigError, match=r"latest names '../elsewhere', which is no checkpoint.*step-000001"):
        _ = checkpoints.latest


def test_a_state_is_read_back_and_nothing_in_it_is_run(tmp_path: Path) -> None:
    state = {"weights": {"a": torch.ones(2)}, "best": float("-inf"), "window": [1.0, 2.0], "random": random_states()}
    save_state(tmp_path, state)
    back = load_state(tmp_path)
    assert torch.equal(back["weights"]["a"], torch.ones(2))
    assert (back["best"], back["window"]) == (float("-inf"), [1.0, 2.0])
    torch.save({"run": print}, tmp_path / "state.pt")
    with pytest.raises(ConfigError, match="cannot be read as a training state"):
        load_state(tmp_path)


def test_random_numbers_go_on_where_they_stood() -> None:
    states = random_states()
    drawn = (random.random(), float(torch.rand(1)))
    set_random_states(states)
    assert (random.random(), float(torch.rand(1))) == drawn
