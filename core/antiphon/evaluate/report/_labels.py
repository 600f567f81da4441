"""Where labels go, so that each stands at its point and none lies on another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

from antiphon.report.svg import plain

MOST_LABEL = 36
"""Characters of a name in a figure."""


class Box(NamedTuple):
    """A rectangle: left, bottom, right, top."""

    left: float
    bottom: float
    right: float
    top: float

    def overlap(self, other: Box) -> float:
        """The area in common."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.top, other.top) - max(self.bottom, other.bottom)
        return width * height if width > 0 and height > 0 else 0.0


def place(
    points: Sequence[tuple[float, float]],
    sizes: Sequence[tuple[float, float]],
    inside: Box,
    *,
    radius: float,
    lines: Sequence[Box] = (),
) -> list[Box]:
    """A box for the label of each point: as near as it can be without lying on a label, a point, or outside.

    Where no place is free, the one with the least overlap is taken.

    Args:
        points: where the marks are; `sizes`: width and height of each label; all in one unit.
        inside: where labels may be.
        radius: of a mark.
        lines: what a label had better not lie on.
    """
    marks = [Box(x - radius, y - radius, x + radius, y + radius) for x, y in points]
    placed: dict[int, Box] = {}
    crowded = sorted(range(len(points)), key=lambda i: (-_neighbours(points, i, 12 * radius), i))
    for index in crowded:
        taken = [*placed.values(), *(mark for other, mark in enumerate(marks) if other != index), marks[index]]
        best: tuple[float, Box] | None = None
        for cost, box in _candidates(points[index], sizes[index], radius):
            if best is not None and cost >= best[0]:
                break  # they come by distance: nothing better follows
            outside = (box.right - box.left) * (box.top - box.bottom) - box.overlap(inside)
            cost += 0.05 * sum(box.overlap(line) for line in lines)
            cost += 1e3 * (sum(box.overlap(other) for other in taken) + max(0.0, outside - 1e-6))
            if best is None or cost < best[0]:
                best = (cost, box)
        assert best is not None  # there are always candidates
        placed[index] = best[1]
    return [placed[index] for index in range(len(points))]


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Heights for labels in one column, in the order wanted, at least `gap` apart where there is room for all."""
    order = sorted(range(len(wanted)), key=lambda i: (wanted[i], i))
    gap = min(gap, (high - low) / max(1, len(order) - 1))
    heights = [min(max(wanted[i], low), high) for i in order]
    for i in range(1, len(heights)):
        heights[i] = max(heights[i], heights[i - 1] + gap)
    if heights and heights[-1] > high:
        heights[-1] = high
        for i in range(len(heights) - 2, -1, -1):
            heights[i] = min(heights[i], heights[i + 1] - gap)
    result = [0.0] * len(wanted)
    for place_, index in enumerate(order):
        result[index] = heights[place_]
    return result


def short(text: str, most: int = MOST_LABEL) -> str:
    """A name on one line, cut where it is long."""
    line = plain(" ".join(text.split()))
    return line if len(line) <= most else line[: most - 1] + "…"


def _candidates(point: tuple[float, float], size: tuple[float, float], radius: float) -> list[tuple[float, Box]]:
    """Boxes around a point, nearest first, with their cost: the distance, and a little for less usual sides."""
    (x, y), (width, height) = point, size
    found = []
    for step, angle in product(range(14), range(0, 360, 15)):
        reach = radius * (1.4 + 1.2 * step)
        dx, dy = math.cos(math.radians(angle)), math.sin(math.radians(angle))
        left = x + reach * dx - width * (1 - dx) / 2
        bottom = y + reach * dy - height * (1 - dy) / 2
        usual = (0.0 if angle % 90 == 0 else 0.3) + (0.2 if dx < -0.1 else 0.0)
        found.append((step + usual, Box(left, bottom, left + width, bottom + height)))
    return sorted(found, key=lambda pair: pair[0])


def _neighbours(points: Sequence[tuple[float, float]], index: int, distance: float) -> int:
    return sum(math.dist(points[index], other) < distance for other in points) - 1
