"""One style for all figures: small, colour-blind safe, inline SVG whose colours follow the page's light or dark theme."""

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

import matplotlib as mpl
import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Light and dark value of each role; the hues are Okabe and Ito's, which colour-blind readers can tell apart. A figure is
# drawn with the light ones, and the SVG names the role instead, so that the page's style sheet decides.
COLOURS = {
    "ink": ("#1d2126", "#e8eaed"),
    "faint": ("#6b7280", "#9aa3ad"),
    "grid": ("#dfe2e6", "#383e45"),
    "known": ("#0072b2", "#56b4e9"),
    "unknown": ("#d55e00", "#ff9a4d"),
    "first": ("#737373", "#b3b3b3"),
    "second": ("#a87900", "#f0c75e"),
    "third": ("#0073b3", "#57b5ea"),
    "fourth": ("#008f68", "#3ccf9f"),
}
INK, FAINT, GRID, KNOWN, UNKNOWN, *SERIES = (light for light, _ in COLOURS.values())
DASHES = ((1, 1.2), (5, 2), (1, 0), (6, 1.5, 1, 1.5))  # the series are told apart without colour, too

_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: selectable, and in the page's own font
    "text.parse_math": False,  # a $ in the name of a set or of a class is a $
    "font.size": 9.0,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
}


class Drawing:
    """A figure while it is drawn, and the SVG that it became."""

    def __init__(self) -> None:
        self.svg = ""


@contextmanager
def drawing(name: str, says: str, height: float = 2.5, width: float = 4.4) -> Iterator[tuple[Axes, Drawing]]:
    """Axes to draw on; when the block ends, the drawing holds them as SVG for a page.

    Args:
        name: unique in the page; every id in the SVG begins with it.
        says: what the figure shows, for readers who cannot see it.
        height: in inches.
        width: in inches; 4.4, so that the text keeps its size on a phone, but half of it for one of many.

    >>> with drawing("line", "a line") as (axes, drawn):
    ...     _ = axes.plot([0, 1], [0, 1], color=KNOWN)
    >>> drawn.svg.startswith('<svg role="img" aria-label="a line"'), "var(--known)" in drawn.svg
    (True, True)
    """
    drawn = Drawing()
    with mpl.style.context(["default", _SETTINGS | {"svg.hashsalt": name}]):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure.subplots(), drawn
        drawn.svg = _inline(figure, name, says)


def percent(axes: Axes, which: str) -> None:
    """Show the numbers of an axis, shares from 0 to 1, in percent."""
    axis: Any = getattr(axes, f"{which}axis")
    axis.set_major_formatter(lambda value, _position: f"{100 * value:g} %")


def _inline(figure: Figure, name: str, says: str) -> str:
    """The figure as an SVG element with ids of its own and colours by role."""
    buffer = io.StringIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the page's fonts have it, or the reader's machine has
        for _ in range(2):  # settles the layout: ticks change with it, and labels beside them would be cut off
            figure.draw_without_rendering()
        figure.set_layout_engine("none")  # it is settled: once more would take as long as drawing
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(\sid="|href="#|url\(#)', rf"\g<1>{name}-", text)
    box = re.search(r'viewBox="[^"]*"', text)
    assert box is not None  # noqa: S101 - matplotlib writes one
    text = f'<svg role="img" aria-label="{escape(says)}" {box.group()}>' + text[text.index(">") + 1 :]
    for role, (light, _) in COLOURS.items():
        text = text.replace(light, f"var(--{role})")
    return text.strip()
