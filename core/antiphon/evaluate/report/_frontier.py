"""The figure of cost against quality: every policy a point, those at several settings a curve, and who is beaten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from antiphon.evaluate.report._labels import Box, place, short
from antiphon.evaluate.report._results import Entry, Estimate, Results, Section
from antiphon.evaluate.report.tables import metric_name
from antiphon.report.svg import BLUE, GREEN, INK, MARKS, MUTED, ORANGE, SERIES, Figure, figure, svg

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Point:
    """A policy at its cost and quality."""

    entry: Entry
    cost: float
    quality: Estimate


def frontier(points: Sequence[Point]) -> list[Point]:
    """Those that nobody beats at their cost or less, cheapest first."""
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (p.cost, -p.quality.mean)):
        if not best or point.quality.mean > best[-1].quality.mean:
            best.append(point)
    return best


def point_of(results: Results, entry: Entry, dataset: str) -> Point | None:
    quality = results.value(entry.policy, entry.pool, dataset, results.metric)
    cost = results.value(entry.policy, entry.pool, dataset, "raw_cost")
    return None if quality is None or cost is None else Point(entry, cost.mean, quality)


def mean_point(results: Results, entry: Entry, datasets: Sequence[str]) -> Point | None:
    quality, cost = results.average(entry, results.metric, datasets), results.mean(entry, "raw_cost", datasets)
    if quality is None or cost is None or set(quality[1]) < set(datasets):
        return None
    return Point(entry, cost, quality[0])


def frontier_figure(
    results: Results, section: Section, given: Sequence[Point], oracle: float | None, name: str, where: str
) -> Iterator[Figure]:
    upper = [point.quality.mean for point in given if point.entry.policy == results.upper]
    oracle = upper[0] if upper else oracle
    points = [point for point in given if not results.is_upper(point.entry.policy)]
    if not points or all(point.cost == 0 for point in points):
        return
    metric, best = metric_name(results.metric), frontier(points)
    curves = curves_of(results, points)
    on_curves = {id(point) for curve in curves.values() for point in curve}
    alone = [point for point in points if id(point) not in on_curves]
    with figure(9.2 if curves else 7.2, 4.4) as drawn:
        axes = drawn.add_subplot()
        _cost_axis(axes, [point.cost for point in points])
        axes.set(xlabel="raw cost a question", ylabel=metric)
        axes.grid(axis="y")
        axes.set_axisbelow(True)
        heights = [v for p in alone for v in (p.quality.low, p.quality.mean, p.quality.high) if v is not None]
        heights += [p.quality.mean for p in points]
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
        _draw_curves(drawn, axes, curves)
        spots = _spots(alone)
        for spot in spots:
            base = any(point.entry.policy == results.baseline for point in spot)
            colour = ORANGE if base else GREEN if any(point in best for point in spot) else BLUE
            cost, quality = spot[0].cost, spot[0].quality
            if quality.low is not None and quality.high is not None:
                axes.plot([cost, cost], [quality.low, quality.high], color=colour, lw=0.9, alpha=0.45)
            axes.plot([cost], [quality.mean], "o", color=colour, ms=5.5)
        _direct_labels(drawn, axes, spots, best, said, [point for curve in curves.values() for point in curve])
        alt = f"{metric} against raw cost a question, {where}. " + "; ".join(
            f"{p.entry.label} {p.quality.mean:.3f} at {p.cost:.1f}" for p in points
        )
        alt += f". On the frontier: {', '.join(p.entry.label for p in best)}."
        alt += "" if oracle is None else f" Upper line: {oracle:.3f}."
        title = f"Cost and quality, {where}: {section.title}"
        caption = "Green: what nobody beats at that cost or less. Orange: the baseline. Bars: 95 % intervals."
        caption += " A thin line joins one policy's points at several settings." if curves else ""
        yield Figure(name, title, caption, svg(drawn, name, title, alt))


def curves_of(results: Results, points: Sequence[Point]) -> dict[str, list[Point]]:
    """Name of a curve -> its points, cheapest first: policies whose entries in the spec name one `curve`."""
    found: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        name = results.given(point.entry.policy).get("curve")
        if name:
            found.setdefault((str(name), point.entry.pool), []).append(point)
    names = Counter(name for name, _ in found)
    return {
        name if names[name] == 1 else f"{name} ({pool})": sorted(some, key=lambda p: (p.cost, p.quality.mean))
        for (name, pool), some in found.items()
        if len(some) > 1
    }


def _draw_curves(drawn: Any, axes: Any, curves: Mapping[str, Sequence[Point]]) -> None:
    """Each with a colour and a mark of its own, which the legend beside the axes names."""
    for index, (name, curve) in enumerate(curves.items()):
        axes.plot(
            [point.cost for point in curve],
            [point.quality.mean for point in curve],
            marker=MARKS[index % len(MARKS)],
            color=SERIES[index % len(SERIES)],
            label=short(name, 24),
            ms=4.0,
            lw=0.9,
            alpha=0.85,
        )
    if curves:
        drawn.legend(loc="outside right upper", frameon=False, fontsize=8)


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
    drawn: Any,
    axes: Any,
    spots: Sequence[Sequence[Point]],
    best: Sequence[Point],
    said: Sequence[Any],
    others: Sequence[Point],
) -> None:
    """Each mark's names beside it, with a line to it where they had to go further away.

    Args:
        said: other texts; `others`: marks that the legend names.
    """
    drawn.draw_without_rendering()  # lays out the axes: only now is it known where points are
    drawn.set_layout_engine("none")
    renderer = drawn.canvas.get_renderer()
    names = ["\n".join(short(point.entry.label) for point in spot) for spot in spots]
    texts = [axes.text(0, 0, name, fontsize=8, color=INK, transform=None, linespacing=1.15) for name in names]
    boxes = [text.get_window_extent(renderer) for text in texts]
    sizes = [(box.width + 2, box.height + 1) for box in boxes]
    points = [spot[0] for spot in spots]
    at = [(float(x), float(y)) for x, y in axes.transData.transform([(p.cost, p.quality.mean) for p in points])]
    frame = axes.get_window_extent(renderer)
    inside = Box(frame.x0, frame.y0, frame.x1 if drawn.legends else drawn.bbox.x1, frame.y1)
    texts_there = [Box(*map(float, text.get_window_extent(renderer).extents)) for text in said]
    marks = [_line_box(axes, (p.cost, p.quality.mean), (p.cost, p.quality.mean)) for p in others]
    lines = [*_bars(axes, points), *_steps(axes, best), *texts_there, *marks]
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
