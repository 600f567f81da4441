"""The figures of an evaluation: cost against quality, alpha, calls by data set, who answers what."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from antiphon.evaluate.report._frontier import frontier_figure, mean_point, point_of
from antiphon.evaluate.report._labels import short, spread
from antiphon.evaluate.report._results import Entry, Estimate, Results, Section
from antiphon.evaluate.report.tables import metric_name
from antiphon.report.svg import (
    BLUE,
    FAINT,
    INK,
    MARKS,
    SERIES,
    Figure,
    check_matplotlib,
    figure,
    svg,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


def figures(results: Results) -> list[Figure]:
    """Every figure that the run has numbers for.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    check_matplotlib()
    return [drawn for section in results.sections for drawn in _section(results, section)]


def _section(results: Results, section: Section) -> Iterator[Figure]:
    suffix = f"-{_file(section.slug)}" if section.slug else ""
    metric = results.metric
    if len(section.datasets) > 1:
        points = [p for e in section.entries if (p := mean_point(results, e, section.datasets)) is not None]
        upper = results.oracle_mean(section, metric)
        yield from frontier_figure(results, section, points, upper, f"frontier{suffix}", "average over the data sets")
    for dataset in section.datasets:
        points = [p for entry in section.entries if (p := point_of(results, entry, dataset)) is not None]
        upper = results.oracle(section, dataset, metric)
        yield from frontier_figure(results, section, points, upper, f"frontier{suffix}-{_file(dataset)}", dataset)
    yield from _alpha(results, section, f"alpha{suffix}")
    if len(section.datasets) > 1:
        yield from _calls(results, section, f"calls{suffix}")
    yield from _members(results, section, f"members{suffix}")


# ---- alpha ----------------------------------------------------------------------------------------------------------


def _alpha(results: Results, section: Section, name: str) -> Iterator[Figure]:
    """The first metric and raw cost by alpha, a line for each data set, for policies that differ in nothing else."""
    families: dict[str, list[tuple[float, Entry]]] = {}
    for entry in section.entries:
        given = dict(results.given(entry.policy))
        options = dict(given.pop("options", None) or {})
        alpha = options.pop("alpha", None)
        for free in ("label", "model"):  # weights trained for one alpha are a model of their own
            given.pop(free, None)
        if isinstance(alpha, int | float) and not isinstance(alpha, bool):
            same = json.dumps([given, options, entry.pool], sort_keys=True, default=str)
            families.setdefault(same, []).append((float(alpha), entry))
    several = [sorted(family, key=lambda pair: pair[0]) for family in families.values() if len(family) > 1]
    lines = []
    for family in several:
        for dataset in section.datasets:
            both = [(a, point_of(results, entry, dataset)) for a, entry in family]
            known = [(a, p) for a, p in both if p is not None]
            if len(known) > 1:
                label = dataset if len(several) == 1 else f"{results.given(family[0][1].policy).get('name')}, {dataset}"
                lines.append((label, known))
    if not lines:
        return
    metric = metric_name(results.metric)
    with figure(7.2, 3.4) as drawn:
        panels = drawn.subplots(1, 2, sharex=True)
        for axes, what in zip(panels, (metric, "raw cost a question"), strict=True):
            ends = []
            for index, (label, known) in enumerate(lines):
                heights = [point.quality.mean if what == metric else point.cost for _, point in known]
                colour = SERIES[index % len(SERIES)]
                mark = MARKS[index % len(MARKS)]
                axes.plot([a for a, _ in known], heights, marker=mark, color=colour, ms=4.5, lw=1.4)
                ends.append((label, known[-1][0], heights[-1], colour))
            axes.set(xlabel="alpha", title=what)
            axes.set_ylim(bottom=0)
            axes.grid(axis="y")
            axes.set_axisbelow(True)
            _end_labels(drawn, axes, ends)
        shown = "; ".join(
            f"{label}: " + ", ".join(f"alpha {a:g} {p.quality.mean:.3f} at {p.cost:.1f}" for a, p in known)
            for label, known in lines
        )
        title = f"{metric} and raw cost by alpha: {section.title}"
        alt = f"{metric} and raw cost a question by alpha. {shown}."
        yield Figure(name, title, "A line for each data set.", svg(drawn, name, title, alt))


def _end_labels(drawn: Any, axes: Any, ends: Sequence[tuple[str, float, float, str]]) -> None:
    """Each line's name at its right end, apart from the others."""
    low, high = axes.get_ylim()
    heights = spread([y for _, _, y, _ in ends], (high - low) * 0.065, low, high)
    furthest = max(x for _, x, _, _ in ends)
    for (label, x, y, colour), height in zip(ends, heights, strict=True):
        axes.annotate(
            short(label, 20),
            (x, y),
            (furthest + (furthest or 1) * 0.06, height),
            fontsize=8,
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "lw": 0.6, "shrinkA": 1, "shrinkB": 3, "relpos": (0, 0.5)},
        )


# ---- calls and members ----------------------------------------------------------------------------------------------


def _calls(results: Results, section: Section, name: str) -> Iterator[Figure]:
    """Calls a question by data set, a panel for each policy; those that always make as many are named alone."""
    panels: list[tuple[str, list[tuple[str, float]]]] = []
    steady: dict[str, list[str]] = {}
    for entry in section.entries:
        found = [(d, v.mean) for d in section.datasets if (v := results.value(entry.policy, entry.pool, d, "calls"))]
        written = {f"{value:.2f}" for _, value in found}
        if len(written) == 1:
            steady.setdefault(written.pop(), []).append(entry.label)
        elif found:
            panels.append((entry.label, found))
    if not panels:
        return
    columns, widest = min(3, len(panels)), max(value for _, found in panels for _, value in found) or 1.0
    rows = -(-len(panels) // columns)
    with figure(7.2, 0.5 + rows * (0.55 + 0.2 * len(section.datasets))) as drawn:
        grid = drawn.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for place_, axes in enumerate(grid.flat):
            if place_ >= len(panels):
                axes.set_visible(False)
                continue
            label, found = panels[place_]
            axes.set_title(short(label), fontsize=8.5)
            known = dict(found)
            for row, dataset in enumerate(section.datasets):
                value = known.get(dataset)
                axes.barh(row, value or 0.0, height=0.62, color=BLUE)
                words = "not run" if value is None else f"{value:.2f}"
                axes.text((value or 0.0) + widest * 0.02, row, words, va="center", fontsize=7.5, color=INK)
            axes.set_yticks(range(len(section.datasets)), [short(d, 18) for d in section.datasets], fontsize=8)
            axes.set_ylim(len(section.datasets) - 0.4, -0.6)
            axes.set_xlim(0, widest * 1.28)
            axes.tick_params(length=0)
            axes.spines["bottom"].set_visible(False)
            axes.set_xticks([])
        alt = "Calls a question by data set. " + "; ".join(
            f"{label}: " + ", ".join(f"{dataset} {value:.2f}" for dataset, value in found) for label, found in panels
        )
        same = "".join(f" Always {value}: {', '.join(labels)}." for value, labels in steady.items())
        title = f"Calls a question by data set: {section.title}"
        yield Figure(name, title, f"Means.{same}", svg(drawn, name, title, f"{alt}.{same}"))


def _members(results: Results, section: Section, name: str) -> Iterator[Figure]:
    """Who is asked: of a policy's calls over all data sets, each member's share."""
    shares: list[tuple[str, dict[str, float]]] = []
    for entry in section.entries:
        total: dict[str, float] = {}
        for dataset in section.datasets:
            cell = results.cell(entry.policy, entry.pool, dataset) or {}
            calls = Estimate.of(cell.get("calls"))
            for member, share in (cell.get("share") or {}).items():
                total[member] = total.get(member, 0.0) + share * (calls.mean if calls else 0.0) * cell["n"]
        whole = sum(total.values())
        if whole > 0:
            shares.append((entry.label, {member: value / whole for member, value in total.items()}))
    members = results.members({member for _, share in shares for member in share})
    if not shares:
        return
    from matplotlib.colors import LinearSegmentedColormap

    with figure(max(4.5, 2.2 + 0.75 * len(members)), 1.4 + 0.27 * len(shares)) as drawn:
        axes = drawn.add_subplot()
        values = [[share.get(member, 0.0) for member in members] for _, share in shares]
        shown = [[value or math.nan for value in line] for line in values]  # nothing is drawn where there is nothing
        blues = LinearSegmentedColormap.from_list("shares", ["#e3eef7", BLUE, "#003a5c"])
        axes.pcolormesh(shown, cmap=blues, vmin=0, vmax=1, edgecolors=FAINT, linewidth=0.4)
        for row, line in enumerate(values):
            for column, value in enumerate(line):
                words = "" if value == 0 else "<1" if value < 0.005 else f"{value:.0%}".rstrip("%")
                colour = "#ffffff" if value > 0.42 else "#101418"
                axes.text(column + 0.5, row + 0.5, words, ha="center", va="center", fontsize=8, color=colour)
        axes.set_xticks(
            [c + 0.5 for c in range(len(members))], [short(m) for m in members], rotation=30, ha="left", fontsize=8
        )
        axes.xaxis.tick_top()
        axes.set_yticks([r + 0.5 for r in range(len(shares))], [short(label) for label, _ in shares], fontsize=8)
        axes.set_ylim(len(shares), 0)
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        alt = "Share of each policy's calls by member, in per cent. " + "; ".join(
            f"{label}: " + ", ".join(f"{m} {v:.0%}" for m, v in sorted(share.items(), key=lambda pair: -pair[1]) if v)
            for label, share in shares
        )
        title = f"Who answers what, per cent of calls: {section.title}"
        caption = "Over all data sets. Policies that made no call are left out."
        yield Figure(name, title, caption, svg(drawn, name, title, alt + "."))


def _file(name: str) -> str:
    """A name for a file: letters, digits, dot and dash."""
    return "".join(c if c.isascii() and (c.isalnum() or c in ".-") else "_" for c in name).strip(".") or "_"
