"""FORC: a batch is assigned as well as an exhaustive search would, stays within its budget, and prices the others."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import numpy as np

from antiphon.errors import ConfigError
from antiphon.types import Task
from antiphon_policies._assignment import assign
from antiphon_policies.forc import FORC

from .conftest import PRICES, TOPICS, questions, views

pytestmark = pytest.mark.usefixtures("no_embedder")


def spent(costs: Any, chosen: Any) -> float:
    return float(costs[np.arange(len(costs)), chosen].sum())


@pytest.mark.parametrize("seed", range(5))
def test_the_assignment_is_the_best_that_the_budget_allows_but_for_a_part_of_one_question(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values, costs = rng.random((6, 3)), rng.random((6, 3)) * 1e-5
    values[0, 1] = np.nan
    cheapest = float(np.where(np.isnan(values), np.inf, costs).min(axis=1).sum())
    found = assign(values, costs, cheapest * 1.4)
    assert found is not None
    possible = [
        one for one in itertools.product(range(3), repeat=6) if one[0] != 1 and spent(costs, one) <= cheapest * 1.4
    ]
    best = max(values[np.arange(6), one].sum() for one in possible)
    assert spent(costs, found[0]) <= cheapest * 1.4 * (1 + 1e-9)
    assert best - 1 < values[np.arange(6), found[0]].sum() <= best + 1e-9
    assert assign(values, costs, cheapest * 0.99) is None


def test_an_assignment_by_hand() -> None:
    """Ten points more for 0.001 USD more come to 0.0001 USD a point; the middle LLM is not worth its price."""
    values, costs = np.array([[0.5, 0.51, 0.6]] * 4), np.array([[0.001, 0.0018, 0.002]] * 4)
    for budget, counts, usd_per_point in (
        (0.0080, [0, 0, 4], None),
        (0.0061, [2, 0, 2], 1e-4),
        (0.0045, [4, 0, 0], 1e-4),
    ):
        found = assign(values, costs, budget)
        assert found is not None
        assert np.bincount(found[0], minlength=3).tolist() == counts
        assert found[1] == pytest.approx(usd_per_point)


def test_a_batch_spends_its_budget_where_it_is_worth_most(topical: Any, tmp_path: Path) -> None:
    asked = questions(60, seed=7)
    batch = tmp_path / "batch.jsonl"
    batch.write_text("".join(json.dumps({"question": question}) + "\n" for _, question in asked), "utf-8")
    FORC.train(views(), tmp_path / "forc", scores=topical(), options={"features": "tfidf"})

    def chosen(budget_usd: float) -> list[str]:
        policy = FORC(path=str(tmp_path / "forc"), batch=str(batch), budget_usd=budget_usd)
        return [policy.choose(Task(question), views()) for _, question in asked]

    right = [TOPICS[topic] for topic, _ in asked]
    needed = sum(PRICES[name] * 100e-6 for name in right) / len(right)  # replies are of 100 tokens
    assert sum(a == b for a, b in zip(chosen(needed * 1.05), right, strict=True)) >= 0.95 * len(right)
    tight = chosen(needed / 2)
    assert sum(PRICES[name] * 100e-6 for name in tight) / len(tight) <= needed / 2
    assert "Physicist" in tight  # what costs least for a point comes first
    assert tight.count("Musician") < right.count("Musician")
    assert set(chosen(PRICES["Geographer"] * 100e-6)) == {"Geographer"}

    outside = FORC(path=str(tmp_path / "forc"), batch=str(batch), budget_usd=needed * 1.05)
    assert outside.choose(Task("Which of the operas that Zoe saw?"), views()) == "Musician"
    with pytest.raises(ConfigError, match=r"budget_usd is 1e-06, and the cheapest members come to 2e-05 USD"):
        chosen(1e-6)


def test_settings_that_do_not_go_together_are_told(topical: Any) -> None:
    for wrong in ({"batch": "S"}, {"budget_usd": 1.0}, {"batch": "S", "budget_usd": 1.0, "usd_per_point": 1.0}):
        given: dict[str, Any] = {key: topical(20) if value == "S" else value for key, value in wrong.items()}
        with pytest.raises(ConfigError, match="give `batch` and `budget_usd` together and no `usd_per_point`"):
            FORC(scores=topical(20), **given)
    with pytest.raises(ConfigError, match="budget_usd is USD a question, at least 0; got -1"):
        FORC(scores=topical(20), batch=topical(20), budget_usd=-1)
