"""The figures of the page, as SVG elements: small, quick to draw, coloured by the page's style sheet."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from wildood.evaluate.intervals import in_percent

Floats = npt.NDArray[np.float64]
WIDTH, LEFT, RIGHT, TOP, BOTTOM = 360.0, 44.0, 10.0, 26.0, 38.0
BINS = 40  # of a histogram
TAIL = 6  # standard deviations of a histogram's tails; what is further out is in the outermost bins
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


class Tick(NamedTuple):
    """A labelled place on an axis."""

    at: float
    label: str


class Bar(NamedTuple):
    """Answers in a stretch of time, as rates; `says` is shown for the bar under the pointer."""

    start: float
    end: float
    known: float
    unknown: float
    says: str


class Bound(NamedTuple):
    """The share of unknowns in a stretch of time was at least `bound`."""

    start: float
    end: float
    bound: float
    says: str


class Plot:
    """An SVG element with two axes, to draw on. Every text is escaped.

    >>> plot = Plot("A line", (0, 1), (0, 1))
    >>> plot.line([(0, 0), (1, 1)], "known")
    >>> "line known" in plot.markup()
    True
    """

    def __init__(
        self, says: str, x: tuple[float, float], y: tuple[float, float], *, height: float = 205.0, x_label: str = ""
    ) -> None:
        self.says, self.x, self.y, self.x_label = says, x, y, x_label
        self.height, self.bottom = height, BOTTOM if x_label else BOTTOM - 18
        self._parts: list[Markup] = []

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Where a point is drawn; beyond an axis, at its end."""
        along = (x - self.x[0]) / (self.x[1] - self.x[0])
        up = (y - self.y[0]) / (self.y[1] - self.y[0])
        width, height = WIDTH - LEFT - RIGHT, self.height - TOP - self.bottom
        return LEFT + width * min(1.0, max(0.0, along)), TOP + height * (1 - min(1.0, max(0.0, up)))

    def bar(self, x: tuple[float, float], y: tuple[float, float], role: str) -> None:
        """A filled rectangle."""
        (left, bottom), (right, top) = self.place(x[0], y[0]), self.place(x[1], y[1])
        if bottom - top > 0.05:
            form = '<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>'
            self._add(form, f"bar {role}", left, top, max(0.6, right - left), bottom - top)

    def line(self, points: Sequence[tuple[float, float]], role: str, *, closed: bool = False) -> None:
        """A line through points; closed: filled."""
        path = " L".join("{:.1f} {:.1f}".format(*self.place(*point)) for point in points)
        self._add('<path class="{}" d="M{}"/>', f"{'area' if closed else 'line'} {role}", path + (" Z" if closed else ""))

    def whisker(self, x: tuple[float, float], y: float) -> None:
        """A thin line along x, if it has a length."""
        (left, up), (right, _) = self.place(x[0], y), self.place(x[1], y)
        if right > left:
            self._add('<path class="whisker" d="M{:.1f} {:.1f} H{:.1f}"/>', left, up, right)

    def vertical(self, x: float, label: str, *, to_the_left: bool = False) -> None:
        """A dashed line with a name beside its upper end."""
        (left, bottom), (_, top) = self.place(x, self.y[0]), self.place(x, self.y[1])
        self._add('<path class="limit" d="M{:.1f} {:.1f} V{:.1f}"/>', left, bottom, top)
        self.text(left + (-4 if to_the_left else 4), top + 10, label, "end" if to_the_left else "start")

    def region(self, x: tuple[float, float], says: str) -> None:
        """A column without colour that says something under the pointer."""
        (left, _), (right, _) = self.place(x[0], 0), self.place(x[1], 0)
        form = '<rect class="hover" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}</title></rect>'
        self._add(form, left, TOP, max(0.6, right - left), self.height - TOP - self.bottom, says)

    def text(self, x: float, y: float, text: str, anchor: str = "middle", role: str = "") -> None:
        """A text at a place in the element's own units."""
        self._add('<text class="{}" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>', role, x, y, anchor, text)

    def axes(self, x: Sequence[Tick], y: Sequence[Tick]) -> None:
        """Grid lines, ticks, and the name of the x axis. A label that would touch the next one is left out."""
        end, bottom = WIDTH - RIGHT, self.height - self.bottom
        for tick in y:
            _, height = self.place(self.x[0], tick.at)
            self._add('<path class="{}" d="M{} {:.1f} H{}"/>', "grid" if tick.at else "axis", LEFT, height, end)
            self.text(LEFT - 6, height + 4, tick.label, "end")
        free = WIDTH
        for tick in reversed(x):
            along, _ = self.place(tick.at, self.y[0])
            self._add('<path class="axis" d="M{:.1f} {:.1f} v4"/>', along, bottom)
            half = 3.4 * len(tick.label) + 2
            middle = min(along, WIDTH - half)
            if middle + half <= free:
                self.text(middle, bottom + 16, tick.label)
                free = middle - half - 4
        if self.x_label:
            self.text((LEFT + end) / 2, self.height - 5, self.x_label)

    def legend(self, entries: Sequence[tuple[str, str]]) -> None:
        """Names of what is drawn, above the plot, with a patch of their colours."""
        along = LEFT
        for role, name in entries:
            form = '<rect class="{}" x="{:.1f}" y="4" width="14" height="10"/>'
            self._add(form, f"bar {role}", along)
            self.text(along + 19, 13, name, "start")
            along += 34 + 6.4 * len(name)

    def markup(self) -> Markup:
        """The SVG element; what it shows is also said in words."""
        head = Markup('<svg class="chart" role="img" aria-label="{}" viewBox="0 0 {:.0f} {:.0f}">')
        return head.format(self.says, WIDTH, self.height) + Markup("").join(self._parts) + Markup("</svg>")

    def _add(self, form: str, *values: object) -> None:
        self._parts.append(Markup(form).format(*values))  # noqa: S704 - forms are ours, and values are escaped


def ticks(most: float, *, percent: bool = False, count: int = 4) -> list[Tick]:
    """Round numbers from 0 to at least `most`.

    >>> [tick.label for tick in ticks(17)], [tick.label for tick in ticks(0.08, percent=True)]
    (['0', '5', '10', '15', '20'], ['0', '2 %', '4 %', '6 %', '8 %'])
    """
    most = most or 1.0
    rough = most / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(each * power for each in _STEPS if each * power >= rough * 0.999)
    values = [number * step for number in range(math.ceil(most / step - 1e-9) + 1)]
    return [Tick(value, f"{100 * value:g} %" if percent and value else f"{value:,.6g}") for value in values]


def traffic(bars: Sequence[Bar], unit: str, x: tuple[float, float], x_ticks: Sequence[Tick]) -> Markup:
    """Answers per unit of time: known below, unknown on top."""
    y = ticks(max(bar.known + bar.unknown for bar in bars))
    plot = Plot(f"Answers per {unit} over time, known and unknown", x, (0, y[-1].at))
    plot.axes(x_ticks, y)
    for bar in bars:
        gap = 0.12 * (bar.end - bar.start)
        across = (bar.start + gap, bar.end - gap)
        plot.bar(across, (0, bar.known), "known")
        plot.bar(across, (bar.known, bar.known + bar.unknown), "unknown")
    for bar in bars:
        plot.region((bar.start, bar.end), bar.says)
    plot.legend([("known", "known"), ("unknown", "unknown")])
    return plot.markup()


def bounds(points: Sequence[Bound], promotions: Sequence[Tick], x: tuple[float, float], x_ticks: Sequence[Tick]) -> Markup:
    """The lower bound on the share of unknowns over time, as steps; the dashed lines are promotions."""
    y = ticks(min(1.0, max(0.02, *(point.bound for point in points), 0.02)), percent=True)
    plot = Plot("A lower bound on the share of unknowns over time", x, (0, y[-1].at))
    plot.axes(x_ticks, y)
    for point in points:
        plot.bar((point.start, point.end), (0, point.bound), "unknown pale")
        plot.line([(point.start, point.bound), (point.end, point.bound)], "unknown")
        plot.region((point.start, point.end), point.says)
    for promotion in promotions:
        late = promotion.at > x[0] + 0.85 * (x[1] - x[0])
        plot.vertical(promotion.at, promotion.label, to_the_left=late)
    plot.legend([("unknown", "at least this share is unknown")])
    return plot.markup()


def scores(known: Floats, now: Floats, threshold: float, axis: str) -> Markup:
    """The scores of the holdout and of the present traffic as shares of each, with the threshold."""
    low, high = _range(known, now, threshold)
    threshold = min(max(threshold, low), high)
    pad = 0.02 * (high - low) or 1.0
    edges = np.linspace(low - pad, high + pad, BINS + 1)
    heights = [_shares(group, edges) for group in (known, now)]
    axis_range = float(edges[0]), float(edges[-1])
    y = ticks(min(1.0, 1.08 * float(max(each.max() for each in heights))), percent=True)
    plot = Plot(
        "Scores of the holdout and of the latest answers, with the threshold", axis_range, (0, y[-1].at), x_label=axis
    )
    plot.axes(_score_ticks(*axis_range), y)
    for role, shares in zip(("known", "unknown"), heights, strict=True):
        outline = [(edges[0], 0.0)]
        for left, right, share in zip(edges, edges[1:], shares.tolist(), strict=False):
            outline += [(left, share), (right, share)]
        outline.append((edges[-1], 0.0))
        plot.line(outline, f"{role} pale", closed=True)
        plot.line(outline, role)
    is_late = threshold > edges[0] + 0.75 * (edges[-1] - edges[0])
    plot.vertical(threshold, "← known" if is_late else "unknown →", to_the_left=is_late)
    plot.legend([("known", "holdout"), ("unknown", "latest answers")])
    return plot.markup()


def acceptance(champion: tuple[str, float], challenger: tuple[str, float], error: float) -> Markup:
    """The share of later traffic that each accepts at equal false alarms, as two bars; less is better."""
    rows = (champion, challenger)
    x = ticks(max(0.01, *(share for _, share in rows)), percent=True)
    plot = Plot(
        "Traffic accepted at equal false alarms",
        (0, 1.2 * x[-1].at),
        (0, 2),
        height=138.0,
        x_label="traffic accepted: less is better",
    )
    plot.axes(x, [])
    for number, (name, share) in enumerate(rows):
        middle = 1.5 - number
        plot.bar((0, share), (middle - 0.32, middle + 0.32), ("first", "fourth")[number])
        reach = share + 2 * error * number  # the error is that of the difference
        plot.whisker((share - 2 * error * number, reach), middle)
        along, up = plot.place(reach, middle)
        plot.text(along + 6, up + 4, in_percent(share), "start")
        plot.text(LEFT - 6, up + 4, name, "end")
    return plot.markup()


def _range(known: Floats, now: Floats, threshold: float) -> tuple[float, float]:
    """The scores to show: nearly all, but of heavy tails no more than `TAIL` spreads beyond the middle and the threshold."""
    both = np.concatenate([known, now])
    both = both[np.isfinite(both)]
    if not len(both):
        return 0.0, 1.0
    low, left, middle, right, high = (float(each) for each in np.quantile(both, [0.002, 0.16, 0.5, 0.84, 0.998]))
    reach = TAIL * (right - left) / 2
    if reach > 0:
        low, high = max(low, min(middle, threshold) - reach), min(high, max(middle, threshold) + reach)
    return low, high


def _shares(values: Floats, edges: Floats) -> Floats:
    """The share of values in each bin; outliers are in the outermost ones."""
    inside = np.clip(np.nan_to_num(values, nan=edges[-1]), edges[0], edges[-1])
    counts, _ = np.histogram(inside, edges)
    return counts / max(1, len(values))


def _score_ticks(low: float, high: float) -> list[Tick]:
    step = ticks(high - low, count=5)[1].at
    first = math.ceil(low / step)
    return [Tick(number * step, f"{number * step:g}") for number in range(first, math.floor(high / step) + 1)]
