"""The figures of an evaluation: cost against quality, alpha, calls by data set, who answers what."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from antiphon.evaluate.report._labels import Box, place, spread
from antiphon.evaluate.report._results import Entry, Estimate, Results, Section
from antiphon.evaluate.report.tables import metric_name
from antiphon.report.svg import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    MARKS,
    MUTED,
    ORANGE,
    SERIES,
    Figure,
    check_matplotlib,
    figure,
    plain,
    svg,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_LABEL = 36
"""Characters of a name in a figure."""


@dataclass(frozen=True, slots=True)
class Point:
    """A policy at its cost and quality."""

    entry: Entry
    cost: float
    quality: Estimate


def figures(results: Results) -> list[Figure]:
    """Every figure that the run has numbers for.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    check_matplotlib()
    return [drawn for section in results.sections for drawn in _section(results, section)]


def frontier(points: Sequence[Point]) -> list[Point]:
    """Those that nobody beats at their cost or less, cheapest first."""
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (p.cost, -p.quality.mean)):
        if not best or point.quality.mean > best[-1].quality.mean:
            best.append(point)
    return best


def _section(results: Results, section: Section) -> Iterator[Figure]:
    suffix = f"-{_file(section.slug)}" if section.slug else ""
    metric = results.metric
    if len(section.datasets) > 1:
        points = [p for e in section.entries if (p := _mean_point(results, e, section.datasets)) is not None]
        upper = results.oracle_mean(section, metric)
        yield from _frontier(results, section, points, upper, f"frontier{suffix}", "average over the data sets")
    for dataset in section.datasets:
        points = [p for entry in section.entries if (p := _point(results, entry, dataset)) is not None]
        upper = results.oracle(section, dataset, metric)
        yield from _frontier(results, section, points, upper, f"frontier{suffix}-{_file(dataset)}", dataset)
    yield from _alpha(results, section, f"alpha{suffix}")
    if len(section.datasets) > 1:
        yield from _calls(results, section, f"calls{suffix}")
    yield from _members(results, section, f"members{suffix}")


# ---- cost and quality -----------------------------------------------------------------------------------------------


def _point(results: Results, entry: Entry, dataset: str) -> Point | None:
    quality = results.value(entry.policy, entry.pool, dataset, results.metric)
    cost = results.value(entry.policy, entry.pool, dataset, "raw_cost")
    return None if quality is None or cost is None else Point(entry, cost.mean, quality)


def _mean_point(results: Results, entry: Entry, datasets: Sequence[str]) -> Point | None:
    quality, cost = results.average(entry, results.metric, datasets), results.mean(entry, "raw_cost", datasets)
    if quality is None or cost is None or set(quality[1]) < set(datasets):
        return None
    return Point(entry, cost, quality[0])


def _frontier(
    results: Results, section: Section, given: Sequence[Point], oracle: float | None, name: str, where: str
) -> Iterator[Figure]:
    upper = [point.quality.mean for point in given if point.entry.policy == results.upper]
    oracle = upper[0] if upper else oracle
    points = [point for point in given if not results.is_upper(point.entry.policy)]
    if not points or all(point.cost == 0 for point in points):
        return
    metric, best = metric_name(results.metric), frontier(points)
    with figure(7.2, 4.4) as drawn:
        axes = drawn.add_subplot()
        _cost_axis(axes, [point.cost for point in points])
        axes.set(xlabel="raw cost a question", ylabel=metric)
        axes.grid(axis="y")
        axes.set_axisbelow(True)
        heights = [v for p in points for v in (p.quality.low, p.quality.mean, p.quality.high) if v is not None]
        heights += [oracle] if oracle is not None else []
        margin = 0.12 * (max(heights) - min(heights)) or 0.05
        axes.set_ylim(max(0.0, min(heights) - margin), max(heights) + margin)
        right = axes.get_xlim()[1]
        steps = [(p.cost, p.quality.mean) for p in best]
        axes.step(
            [x for x, _ in steps] + [right], [y for _, y in steps] + [steps[-1][1]], where="post", color=GREEN, lw=1.4
        )
        said: list[Any] = []
        if oracle is not None:
            axes.axhline(oracle, color=MUTED, lw=1.0, ls=(0, (4, 3)))
            words = f"best member per question {oracle:.3f}" if not upper else f"{results.upper} {oracle:.3f}"
            place_ = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
            said.append(axes.annotate(words, (0, oracle), (4, 3), color=MUTED, **place_))
        spots = _spots(points)
        for spot in spots:
            base = any(point.entry.policy == results.baseline for point in spot)
            colour = ORANGE if base else GREEN if any(point in best for point in spot) else BLUE
            cost, quality = spot[0].cost, spot[0].quality
            if quality.low is not None and quality.high is not None:
                axes.plot([cost, cost], [quality.low, quality.high], color=colour, lw=0.9, alpha=0.45)
            axes.plot([cost], [quality.mean], "o", color=colour, ms=5.5)
        _direct_labels(drawn, axes, spots, best, said)
        alt = f"{metric} against raw cost a question, {where}. " + "; ".join(
            f"{p.entry.label} {p.quality.mean:.3f} at {p.cost:.1f}" for p in points
        )
        alt += f". On the frontier: {', '.join(p.entry.label for p in best)}."
        alt += "" if oracle is None else f" Upper line: {oracle:.3f}."
        title = f"Cost and quality, {where}: {section.title}"
        caption = "Green: what nobody beats at that cost or less. Orange: the baseline. Bars: 95 % intervals."
        yield Figure(name, title, caption, svg(drawn, name, title, alt))


def _spots(points: Sequence[Point]) -> list[list[Point]]:
    """Points together that nobody could tell apart: one mark, with a line for each name beside it."""
    spots: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        spots.setdefault((f"{point.cost:.3g}", f"{point.quality.mean:.3f}"), []).append(point)
    return list(spots.values())


def _cost_axis(axes: Any, costs: Sequence[float]) -> None:
    """From nothing to a little over the dearest; logarithmic above the cheapest where they are far apart."""
    from matplotlib.ticker import FuncFormatter, NullLocator, SymmetricalLogLocator

    highest, lowest = max(costs), min(cost for cost in costs if cost > 0)
    if highest / lowest > 15:
        axes.set_xscale("symlog", linthresh=lowest, linscale=0.6)
        axes.xaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=lowest, subs=(1, 2, 5)))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlim(
        -0.06 * (lowest if highest / lowest > 15 else highest), highest * (1.6 if highest / lowest > 15 else 1.12)
    )


def _direct_labels(
    drawn: Any, axes: Any, spots: Sequence[Sequence[Point]], best: Sequence[Point], said: Sequence[Any]
) -> None:
    """Each mark's names beside it, with a line to it where they had to go further away; `said` are other texts."""
    drawn.draw_without_rendering()  # lays out the axes: only now is it known where points are
    drawn.set_layout_engine("none")
    renderer = drawn.canvas.get_renderer()
    names = ["\n".join(_short(point.entry.label) for point in spot) for spot in spots]
    texts = [axes.text(0, 0, name, fontsize=8, color=INK, transform=None, linespacing=1.15) for name in names]
    boxes = [text.get_window_extent(renderer) for text in texts]
    sizes = [(box.width + 2, box.height + 1) for box in boxes]
    points = [spot[0] for spot in spots]
    at = [(float(x), float(y)) for x, y in axes.transData.transform([(p.cost, p.quality.mean) for p in points])]
    frame = axes.get_window_extent(renderer)
    inside = Box(frame.x0, frame.y0, drawn.bbox.x1, frame.y1)
    others = [Box(*map(float, text.get_window_extent(renderer).extents)) for text in said]
    lines = [*_bars(axes, points), *_steps(axes, best), *others]
    places = place(at, sizes, inside, radius=4, lines=lines)
    for text, (x, y), box in zip(texts, at, places, strict=True):
        text.set(position=(box.left + 1, box.bottom + 1), va="bottom", ha="left")
        near = (min(max(x, box.left), box.right), min(max(y, box.bottom), box.top))
        if (near[0] - x) ** 2 + (near[1] - y) ** 2 > 9**2:
            axes.plot([x, near[0]], [y, near[1]], color=MUTED, lw=0.6, transform=None, clip_on=False, zorder=1)


def _bars(axes: Any, points: Sequence[Point]) -> Iterator[Box]:
    """Where the intervals are drawn."""
    for point in points:
        low, high = point.quality.low, point.quality.high
        if low is not None and high is not None:
            yield _line_box(axes, (point.cost, low), (point.cost, high))


def _steps(axes: Any, best: Sequence[Point]) -> Iterator[Box]:
    """Where the frontier is drawn."""
    for point, dearer in zip(best, [*best[1:], None], strict=True):
        right = axes.get_xlim()[1] if dearer is None else dearer.cost
        yield _line_box(axes, (point.cost, point.quality.mean), (right, point.quality.mean))
        if dearer is not None:
            yield _line_box(axes, (right, point.quality.mean), (right, dearer.quality.mean))


def _line_box(axes: Any, start: tuple[float, float], end: tuple[float, float]) -> Box:
    (left, bottom), (right, top) = axes.transData.transform([start, end])
    return Box(float(left) - 1.5, float(bottom) - 1.5, float(right) + 1.5, float(top) + 1.5)


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
            both = [(a, _point(results, entry, dataset)) for a, entry in family]
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
            _short(label, 20),
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
            axes.set_title(_short(label), fontsize=8.5)
            known = dict(found)
            for row, dataset in enumerate(section.datasets):
                value = known.get(dataset)
                axes.barh(row, value or 0.0, height=0.62, color=BLUE)
                words = "not run" if value is None else f"{value:.2f}"
                axes.text((value or 0.0) + widest * 0.02, row, words, va="center", fontsize=7.5, color=INK)
            axes.set_yticks(range(len(section.datasets)), [_short(d, 18) for d in section.datasets], fontsize=8)
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
            [c + 0.5 for c in range(len(members))], [_short(m) for m in members], rotation=30, ha="left", fontsize=8
        )
        axes.xaxis.tick_top()
        axes.set_yticks([r + 0.5 for r in range(len(shares))], [_short(label) for label, _ in shares], fontsize=8)
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


def _short(text: str, most: int = MOST_LABEL) -> str:
    line = plain(" ".join(text.split()))
    return line if len(line) <= most else line[: most - 1] + "…"


def _file(name: str) -> str:
    """A name for a file: letters, digits, dot and dash."""
    return "".join(c if c.isascii() and (c.isalnum() or c in ".-") else "_" for c in name).strip(".") or "_"
