"""Figures are the same bytes for the same run, say in words what they show, and no label lies on another."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import MissingExtra
from antiphon.evaluate.report._frontier import Point, curves_of, frontier
from antiphon.evaluate.report._labels import Box, place, spread
from antiphon.evaluate.report._results import Entry, Estimate, Results, read_summary
from antiphon.evaluate.report.figures import figures

SVG = "{http://www.w3.org/2000/svg}"


def by_alpha(label: str = "R1") -> Results:
    """Two policies that differ in alpha, and one on its own, on two data sets."""
    cells, policies = [], [{"label": "largest", "name": "largest"}]
    for alpha in (0.0, 0.9):
        policies.append(
            {
                "label": f"{label} {alpha}",
                "name": "r1",
                "model": f"r1-{alpha}",
                "options": {"alpha": alpha, "rounds": 4},
            }
        )
    for policy in policies:
        for number, dataset in enumerate(("nq", "popqa"), start=1):
            alpha = policy.get("options", {}).get("alpha", 0.5)
            cells.append({
                "policy": policy["label"], "pool": "paper", "dataset": dataset, "n": 10, "status": "run", "note": None,
                "metrics": {"em": {"mean": 0.5 - alpha / 5, "low": 0.2, "high": 0.6}},
                "raw_cost": {"mean": 150 * (1 - alpha) * number},
                "calls": {"mean": 1 if policy["name"] == "largest" else number},
                "share": {"small": alpha, "large": 1 - alpha},
            })  # fmt: skip
    return Results({"spec": {"policies": policies}, "cells": cells, "baseline": "largest"})


def texts(svg: str) -> list[str]:
    return ["".join(element.itertext()) for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_every_figure_is_drawn_and_says_in_words_what_it_shows() -> None:
    found = {figure.name: figure for figure in figures(by_alpha())}
    assert list(found) == ["frontier", "frontier-nq", "frontier-popqa", "alpha", "calls", "members"]
    for figure in found.values():
        root = ElementTree.fromstring(figure.svg)
        assert root.get("role") == "img"
        ids = [element.get("id") for element in root.iter() if element.get("id")]
        assert len(ids) == len(set(ids))
        assert all(one.startswith(f"{figure.name}-") for one in ids if one)
        title, words = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
        assert title is not None
        assert title.text == figure.title
        assert words is not None
        assert "R1 0.9" in str(words.text) or "alpha 0.9" in str(words.text)
    assert {"largest", "R1 0.0", "R1 0.9"} <= set(texts(found["frontier"].svg))
    assert "Always 1.00: largest." in found["calls"].caption
    assert {"nq", "popqa", "EM", "raw cost a question"} <= set(texts(found["alpha"].svg))
    assert {"small", "large", "90", "10"} <= set(texts(found["members"].svg))


def test_the_same_numbers_give_the_same_bytes_and_no_date() -> None:
    first, second = ([figure.svg for figure in figures(by_alpha())] for _ in range(2))
    assert first == second
    assert not any("<dc:date" in svg or "metadata" in svg for svg in first)


def test_nobodys_settings_show(monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib

    before = [figure.svg for figure in figures(by_alpha())]
    monkeypatch.setitem(matplotlib.rcParams, "axes.grid", True)
    monkeypatch.setitem(matplotlib.rcParams, "lines.linewidth", 9.0)
    assert [figure.svg for figure in figures(by_alpha())] == before
    assert matplotlib.rcParams["lines.linewidth"] == 9.0


@pytest.mark.parametrize("label", ["$\\frac{a}{b", "<b>&\"'", "\x1b[31m\x00red", "模型 甲", "R1 " * 40])
def test_a_name_is_shown_and_never_interpreted(label: str) -> None:
    for figure in figures(by_alpha(label)):
        ElementTree.fromstring(figure.svg)


def test_a_run_without_costs_has_no_frontier() -> None:
    cells = [
        {
            "policy": "a",
            "pool": "p",
            "dataset": "d",
            "n": 3,
            "metrics": {"em": {"mean": 0.5}},
            "raw_cost": {"mean": 0.0},
        }
    ]
    assert figures(Results({"spec": {}, "cells": cells})) == []


def test_the_oracle_is_a_line(make_run: Callable[..., Path]) -> None:
    oracle = [{"pool": "paper", "dataset": "nq", "metric": "em", "mean": 0.987}]
    found = {figure.name: figure for figure in figures(read_summary(make_run(oracle=oracle)))}
    assert "best member per question 0.987" in texts(found["frontier-nq"].svg)
    assert not any("best member" in text for text in texts(found["frontier"].svg))  # not known for the other data set


def test_a_method_at_several_settings_is_a_curve_that_the_legend_names_once() -> None:
    """Its points are joined cheapest first, whatever their order in the spec, and have no names of their own."""
    at = {"MLP $3": (9.0, 0.6), "MLP $1": (4.0, 0.5), "KNN $1": (5.0, 0.55), "largest": (8.0, 0.4)}
    policies = [{"label": label, "name": "x", "curve": label[:3] if "$" in label else None} for label in at]
    cells = [
        {"policy": label, "pool": "p", "dataset": "d", "n": 9, "metrics": {"em": {"mean": em}}, "raw_cost": cost}
        for label, (cost, em) in at.items()
    ]
    results = Results({"spec": {"policies": policies}, "cells": cells})
    [drawn] = [one for one in figures(results) if one.name == "frontier-d"]
    shown = texts(drawn.svg)
    assert shown.count("MLP") == 1
    assert {"KNN $1", "largest"} <= set(shown)  # one point alone is no curve
    assert not {"MLP $1", "MLP $3", "KNN"} & set(shown)
    assert "A thin line joins one policy's points" in drawn.caption
    points = [Point(Entry(label, "p", label), cost, Estimate(em)) for label, (cost, em) in at.items()]
    assert [one.entry.label for one in curves_of(results, points)["MLP"]] == ["MLP $1", "MLP $3"]


def test_without_matplotlib_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"antiphon\[evaluate\]"):
        figures(by_alpha())


def test_the_frontier_is_whom_nobody_beats_for_less() -> None:
    def point(label: str, cost: float, quality: float) -> Point:
        return Point(Entry(label, "p", label), cost, Estimate(quality))

    points = [
        point("dear", 9, 0.5),
        point("good", 5, 0.6),
        point("free", 0, 0.1),
        point("bad", 5, 0.3),
        point("same", 6, 0.6),
    ]
    assert [one.entry.label for one in frontier(points)] == ["free", "good"]


@pytest.mark.parametrize("seed", range(8))
def test_labels_of_a_crowd_lie_neither_on_each_other_nor_on_points(seed: int) -> None:
    rng = random.Random(seed)
    points = [(rng.gauss(250, 90), rng.gauss(150, 50)) for _ in range(16)]
    sizes = [(rng.uniform(40, 110), 9.0) for _ in points]
    inside = Box(0, 0, 520, 320)
    boxes = place(points, sizes, inside, radius=4)
    assert all(one.overlap(other) == 0 for one, other in combinations(boxes, 2))
    marks = [Box(x - 4, y - 4, x + 4, y + 4) for x, y in points]
    assert all(box.overlap(mark) == 0 for box in boxes for mark in marks)
    assert all(box.left >= 0 and box.bottom >= 0 and box.right <= 520 and box.top <= 320 for box in boxes)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=20), st.floats(0.1, 30))
def test_labels_in_a_column_keep_their_order_their_distance_and_their_bounds(wanted: list[float], gap: float) -> None:
    heights = spread(wanted, gap, 0, 100)
    possible = min(gap, 100 / max(1, len(wanted) - 1))
    ordered = sorted(zip(wanted, heights, strict=True))
    assert all(later - earlier >= possible - 1e-6 for earlier, later in pairwise(sorted(heights)))
    assert all(-1e-6 <= height <= 100 + 1e-6 for height in heights)
    assert all(a[1] <= b[1] + 1e-6 for a, b in pairwise(ordered) if a[0] < b[0])


def test_numbers_that_json_cannot_hold_are_no_numbers() -> None:
    values: list[Any] = [json.loads("NaN"), None, True, "0.5", {"mean": None}, {}]
    assert [Estimate.of(value) for value in values] == [None] * 6
    assert Estimate.of({"mean": 1, "low": None}) == Estimate(1.0)
