"""The curves of training runs by step, runs drawn over each other (arXiv 2506.09033, figures 4b and 4c, and more)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from antiphon.report.svg import SERIES, Figure, check_matplotlib, figure, plain, svg
from antiphon.train.report._runs import Run

SMOOTHED = 30
"""Steps from which on a moving mean is drawn over the values."""

COLUMNS = 2


@dataclass(frozen=True, slots=True)
class Panel:
    """One metric by step; `validation` is drawn as marks over it."""

    title: str
    key: str
    validation: str | None = None


def figures(runs: Sequence[Run]) -> list[Figure]:
    """Every figure that the runs have numbers for.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    check_matplotlib()
    terms = dict.fromkeys(term for run in runs for term in run.terms)
    groups = (
        ("reward", "Reward and entropy", [Panel("reward", "reward", "val_reward"), Panel("entropy, nats", "entropy")]),
        (
            "quality",
            "Quality and form",
            [Panel("EM", "em", "val_em"), Panel("well-formed", "format_ok", "val_format_ok")],
        ),
        ("cost", "Cost and calls", [Panel("raw cost", "cost", "val_cost"), Panel("calls", "calls", "val_calls")]),
        ("parts", "The reward's parts", [Panel(term, f"reward_{term}", f"val_reward_{term}") for term in terms]),
        (
            "policy",
            "The policy's change and length",
            [Panel("KL to the reference, nats", "kl"), Panel("tokens of the policy", "response_tokens")],
        ),
        (
            "loss",
            "Loss, and what there is to learn from",
            [
                Panel("loss", "loss"),
                Panel("norm of the gradient", "grad_norm"),
                Panel("share of questions whose samples differ", "split_groups"),
            ],
        ),
    )
    return [drawn for name, title, panels in groups for drawn in _figure(runs, name, title, panels)]


def _figure(runs: Sequence[Run], name: str, title: str, panels: Sequence[Panel]) -> Iterator[Figure]:
    panels = [panel for panel in panels if any(run.series(panel.key) for run in runs)]
    if not panels:
        return
    rows = math.ceil(len(panels) / COLUMNS)
    with figure(7.2, 0.4 + 2.4 * rows) as drawn:
        grid = drawn.subplots(rows, COLUMNS, squeeze=False)
        for place, axes in enumerate(grid.flat):
            if place < len(panels):
                _panel(axes, runs, panels[place])
            else:
                axes.set_visible(False)
        if len(runs) > 1:
            handles, labels = grid[0][0].get_legend_handles_labels()
            drawn.legend(handles, labels, loc="outside lower left", ncols=3, frameon=False, fontsize=8)
        marks = any(panel.validation and run.series(panel.validation) for panel in panels for run in runs)
        caption = "A rollout's mean by step." + (" Dots: validation, greedy." if marks else "")
        if any(len(run.rows) >= SMOOTHED for run in runs):
            caption += " Pale: as measured; strong: moving mean."
        yield Figure(name, title, caption, svg(drawn, f"{name}-figure", title, _alt(runs, title, panels)))


def _panel(axes: Any, runs: Sequence[Run], panel: Panel) -> None:
    for index, run in enumerate(runs):
        colour = SERIES[index % len(SERIES)]
        series = run.series(panel.key)
        steps, values = [step for step, _ in series], [value for _, value in series]
        smooth = _moving_mean(values) if len(values) >= SMOOTHED else values
        if smooth is not values:
            axes.plot(steps, values, color=colour, lw=0.7, alpha=0.3)
        few = "." if len(values) < 3 else None
        axes.plot(steps, smooth, color=colour, lw=1.4, marker=few, label=_short(run.name))
        marks = run.series(panel.validation) if panel.validation else []
        axes.plot([step for step, _ in marks], [value for _, value in marks], "o", color=colour, ms=3.5)
    axes.set(xlabel="step", title=panel.title)
    axes.grid(axis="y")
    axes.set_axisbelow(True)


def _moving_mean(values: Sequence[float]) -> list[float]:
    """Over a twentieth of the run around each value, less where there is less."""
    half = len(values) // 40
    windows = (values[max(0, i - half) : i + half + 1] for i in range(len(values)))
    return [math.fsum(window) / len(window) for window in windows]


def _alt(runs: Sequence[Run], title: str, panels: Sequence[Panel]) -> str:
    """The numbers in words: where each curve begins and ends."""
    said = []
    for panel in panels:
        for run in runs:
            for what, key in ((panel.title, panel.key), (f"validation {panel.title}", panel.validation)):
                series = run.series(key) if key else []
                if series:
                    (first, start), (last, end) = series[0], series[-1]
                    said.append(f"{run.name}, {what}: {start:.3g} at step {first}, {end:.3g} at step {last}")
    return f"{title} by step. {'; '.join(said)}."


def _short(name: str) -> str:
    line = plain(" ".join(name.split()))
    return line if len(line) <= 40 else f"…{line[-39:]}"
