"""Matplotlib figures as SVG text: the same bytes for the same numbers, real text, fit for light and dark pages."""

from __future__ import annotations

import re
import unicodedata
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any
from xml.etree import ElementTree

from antiphon.errors import MissingExtra

INK, MUTED, FAINT = "#1b1f24", "#68707a", "#c9ced6"
"""Text and axes; secondary text; grid lines. A page may replace them (see `inline`)."""

BLUE, ORANGE, GREEN, PINK, SKY, AMBER = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"
"""Okabe and Ito's colours, told apart by colour-blind readers and on light and dark ground."""

SERIES = (BLUE, ORANGE, GREEN, PINK, SKY, AMBER)
MARKS = "osD^vPX"
"""More of them than colours, so that a line is told apart by both."""

_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_STYLE = {
    "svg.hashsalt": "antiphon",
    "svg.fonttype": "none",  # text stays text: read aloud, searched, small
    "text.parse_math": False,  # a `$` in a name is a dollar
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9.0,
    "axes.titlelocation": "left",
    "axes.unicode_minus": True,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "grid.alpha": 0.6,
}


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawn figure: its file's name without the ending, what it is, how to read it, and the SVG (with its numbers in
    words, for those who do not see it)."""

    name: str
    title: str
    caption: str
    svg: str


def check_matplotlib() -> None:
    """Raises: MissingExtra: matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401 - is it there?
    except ImportError:
        raise MissingExtra("a figure", "evaluate") from None


@contextmanager
def figure(width: float, height: float) -> Iterator[Any]:
    """A `matplotlib.figure.Figure` of that many inches, in our style, for as long as it is drawn on and saved."""
    from matplotlib import rc_context, rcParamsDefault
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    settings: Any = {**_own(rcParamsDefault), **_STYLE}
    with warnings.catch_warnings(), rc_context(settings):
        warnings.filterwarnings("ignore", message="Glyph .* missing from font", category=UserWarning)
        drawn = Figure(figsize=(width, height), dpi=72, layout="constrained")  # SVG's own: pixels are points
        FigureCanvasAgg(drawn)
        yield drawn


def svg(drawn: Any, name: str, title: str, alt: str) -> str:
    """The figure as an SVG document.

    Args:
        name: put before every id in it, so that several can stand in one page.
        title: what it is; `alt`: what it shows, for those who do not see it.
    """
    buffer = BytesIO()
    drawn.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(buffer.getvalue())
    for child in list(root):
        if child.tag == f"{{{_SVG}}}metadata":
            root.remove(child)
    for element in root.iter():
        for key, value in list(element.attrib.items()):
            if key == "id":
                element.set(key, f"{name}-{value}")
            elif key == f"{{{_XLINK}}}href":
                element.set(key, f"#{name}-{value[1:]}")
            elif "url(#" in value:
                element.set(key, value.replace("url(#", f"url(#{name}-"))
            if key == "style" and element.tag == f"{{{_SVG}}}text":
                element.set(key, value.replace("'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif"))
    for tag, text in (("desc", alt), ("title", title)):
        about = ElementTree.Element(f"{{{_SVG}}}{tag}", {"id": f"{name}-{tag}"})
        about.text = plain(text)
        root.insert(0, about)
    root.set("role", "img")
    root.set("aria-labelledby", f"{name}-title {name}-desc")
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def inline(document: str) -> str:
    """For a page: no fixed size, and the page's own colours for text and lines."""
    document = re.sub(r'^(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r'^(<svg[^>]*?) height="[^"]*"', r"\1", document))
    for colour, own in ((INK, "currentColor"), (MUTED, "var(--muted)"), (FAINT, "var(--line)")):
        document = document.replace(f": {colour}", f": {own}")
    return document


def plain(text: str) -> str:
    """Text that XML takes: no control characters."""
    return "".join(c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs") else "\ufffd" for c in text)


def _own(defaults: Any) -> dict[str, Any]:
    """Matplotlib's defaults, so that nobody's matplotlibrc shows; the backend is not ours to set."""
    return {key: value for key, value in defaults.items() if not key.startswith(("backend", "date.epoch"))}
