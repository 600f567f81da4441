"""The benchmark of learned routers: without data it says so, with data it measures what it names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks/routers/run.py"
DATA = os.environ.get("ANTIPHON_DATA")


def test_without_data_it_says_not_run() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "ANTIPHON_DATA"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--json"], capture_output=True, text=True, check=True, env=environment
    )
    assert json.loads(done.stdout)["status"] == "not run"


@pytest.mark.slow
@pytest.mark.skipif(not DATA, reason="ANTIPHON_DATA names no recorded data")
def test_it_measures_knn_on_the_split_that_it_names(tmp_path: Path) -> None:
    environment = {**os.environ, "ANTIPHON_HOME": str(tmp_path)}  # no embedder: TF-IDF
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--json", "--only", "knn"], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["questions"] == {"train": 2646, "test": 446}  # of 3,010 and 499, those that were judged
    assert result["features"] == "tfidf"
    [row] = result["rows"]
    assert row["method"] == "knn"
    assert row["decisions_per_s"] > 0
    assert 0.75 < row["score"] < 0.9


# ---- the bandit ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bandit() -> ModuleType:
    spec = util.spec_from_file_location("bandit", ROOT / "benchmarks/routers/bandit.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def committed() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "benchmarks/results/routers/bandit.json").read_text("utf-8"))
    return found


def test_the_regret_that_is_kept_grows_slower_than_the_questions_with_every_seed() -> None:
    found = committed()["synthetic"]
    assert found["seeds"] >= 2
    assert max(found["c2mabv"]["slope_by_seed"]) < 0.6
    for reference in ("uniform", "epsilon-greedy 0.1"):
        assert min(found[reference]["slope_by_seed"]) > 0.9
        assert found[reference]["regret"][-1] > 10 * found["c2mabv"]["regret"][-1]


def test_the_regret_that_is_kept_is_what_the_command_finds(bandit: ModuleType) -> None:
    """At the shortest length; the longest takes a minute."""
    found = committed()["synthetic"]
    lost = [bandit.regret(bandit.Ours(), found["lengths"][0], seed) for seed in range(found["seeds"])]
    assert round(sum(lost) / len(lost), 1) == found["c2mabv"]["regret"][0]


def test_on_recorded_questions_it_comes_near_the_best_member_as_they_repeat_one_at_a_time_or_many() -> None:
    for found in committed()["recorded"].values():
        for at_once in ("1 at once", "64 at once"):
            rewards = found[at_once]["reward_by_pass"]
            assert found["best_single"][1] - rewards[-1] < 0.02
            assert rewards[0] < rewards[-1]


def test_the_slope_by_hand(bandit: ModuleType) -> None:
    assert bandit.slope([3.0 * length**0.5 for length in bandit.LENGTHS]) == pytest.approx(0.5)
