"""The benchmark of learned routers: without data it says so, with data it measures what it names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks/routers/run.py"
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
