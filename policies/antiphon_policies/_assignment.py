"""Who answers what, so that many questions together stay within a budget."""

from __future__ import annotations

from collections.abc import Iterator

from ._decision import POINT
from ._examples import Array


def assign(values: Array, costs: Array, budget: float) -> tuple[Array, float | None] | None:
    """A column for each row, total cost within the budget, total value the highest but for less than one question's.

    A multiple-choice knapsack, by its linear relaxation (Sinha and Zoltners 1979): every question starts at its
    cheapest LLM and moves up its cost-value hull; all questions' steps are taken by value for money while they fit.

    Args:
        values, costs: (questions, LLMs); a value of NaN: never.
        budget: USD of all questions together.

    Returns:
        The columns, and USD that a point of quality comes to at the margin: of the first step that did not fit, None
        where all did. None in place of both: even the cheapest costs more than the budget.
    """
    import numpy as np

    prices = np.where(np.isfinite(values), costs, np.inf)
    cheapest = prices.min(axis=1, keepdims=True)
    chosen = np.where(prices <= cheapest, values, -np.inf).argmax(axis=1)
    left = budget - float(cheapest.sum())
    if left < -1e-9 * budget:
        return None
    steps = sorted(
        step for row in range(len(values)) for step in _hull(row, int(chosen[row]), values[row], prices[row])
    )
    stopped: set[int] = set()
    margin = None
    for usd_per_value, row, column in steps:
        extra = float(prices[row, column] - prices[row, chosen[row]])
        if row in stopped or extra > left + 1e-9 * budget:
            stopped.add(row)
            margin = usd_per_value * POINT if margin is None else margin
        else:
            chosen[row], left = column, left - extra
    return chosen, margin


def _hull(row: int, at: int, values: Array, prices: Array) -> Iterator[tuple[float, int, int]]:
    """Steps (USD for a unit of value, row, column) from the cheapest LLM upwards, each dearer a unit than the last."""
    import numpy as np

    while True:
        better = np.flatnonzero((values > values[at]) & np.isfinite(prices))
        if not len(better):
            return
        rates = (prices[better] - prices[at]) / (values[better] - values[at])
        least = rates.min()
        at = int(max(better[rates <= least * (1 + 1e-12)], key=lambda column: values[column]))
        yield float(least), row, at
