"""A run is stopped when its metrics say, over a whole window, that it has collapsed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from antiphon.train.collapse import CollapseSettings, collapse
from antiphon.train.writers import open_writers, read_rows

WELL = {"format_ok": 0.9, "entropy": 0.4, "kl": 0.1, "calls": 1.5}


def rows(count: int, **metrics: float) -> list[dict[str, Any]]:
    return [{"step": step, **WELL, **metrics} for step in range(1, count + 1)]


SETTINGS = CollapseSettings(window=4)


def test_a_healthy_run_goes_on() -> None:
    assert collapse(rows(50), SETTINGS) is None


@pytest.mark.parametrize(
    ("metric", "value", "said"),
    [
        ("format_ok", 0.04, "4.0% of the rollouts over the last 4 steps were well-formed"),
        ("entropy", 0.0001, "entropy over the last 4 steps was 0.0001"),
        ("kl", 7.0, "divergence from the reference over the last 4 steps was 7 nats"),
        ("kl", float("nan"), "divergence from the reference"),
        ("calls", 0.0, "asked 0 members on average"),
    ],
)
def test_each_bound_stops_it_and_says_which(metric: str, value: float, said: str) -> None:
    bad = {metric: value}
    assert said in (collapse(rows(4, **bad), SETTINGS) or "")
    assert collapse(rows(3, **bad), SETTINGS) is None, "younger than the window"
    assert collapse(rows(4, **bad) + rows(4), SETTINGS) is None, "it has recovered"
    off = CollapseSettings.model_validate({"window": 4, metric: False})
    assert collapse(rows(4, **bad), off) is None, "turned off"


def test_the_mean_of_the_window_counts() -> None:
    assert collapse(rows(3, calls=0.0) + rows(1), SETTINGS) is None
    assert collapse(rows(2, kl=9.0) + rows(2, kl=2.0), SETTINGS) is not None


def test_a_metric_that_is_not_there_is_not_judged() -> None:
    assert collapse([{"step": step} for step in range(9)], SETTINGS) is None


def test_a_row_without_a_metric_leaves_the_judgement_to_the_others() -> None:
    nothing_learnt = {"step": 3, "format_ok": 0.9, "calls": 1.5}
    said = collapse([*rows(2, kl=9.0), nothing_learnt, *rows(1, kl=9.0)], SETTINGS)
    assert said == "the divergence from the reference over the last 4 steps was 9 nats a token, above 5 (kl)"
    assert collapse([*rows(2, kl=1.0), nothing_learnt, *rows(1, kl=1.0)], SETTINGS) is None


@pytest.mark.parametrize("metric", ["kl", "entropy", "format_ok"])
def test_a_number_that_ran_away_is_a_collapse_when_it_is_read_back_too(metric: str, tmp_path: Path) -> None:
    writers = open_writers(tmp_path, ())
    for row in rows(4, **{metric: float("nan")}):
        writers.step(row)
    writers.close()
    kept = read_rows(tmp_path)
    assert kept[0][metric] is None
    assert f"({metric})" in (collapse(kept, SETTINGS) or "")
