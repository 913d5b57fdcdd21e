"""The figures of all pages: inline SVG in one style, colour-blind safe, in the page's light or dark theme.

Matplotlib is an extra and slow to import, so it is imported when the first figure is drawn.
"""

import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from wildood.evaluate.metrics import accepting_threshold, rejection_rate, roc_curve
from wildood.evaluate.mixture import FprByShare
from wildood.train.history import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Scores = npt.NDArray[np.floating]
SCORE = "score (higher = more unknown)"
MARGIN = "score - threshold of the predicted class"
IN_TRAINING = "labelled, mean of the epoch"
LONGEST = 18  # letters of a class name next to its bar

# Light and dark value of each role. The hues are Okabe and Ito's, which colour-blind readers can tell apart. A figure is
# drawn with the light values; its SVG then refers to the role, so that the style sheet of the page decides.
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
DASHES = ((1, 1.2), (5, 2), (1, 0), (6, 1.5, 1, 1.5))  # the series differ without colour, too
SMALL_TEXT = 8.5
# A method looks the same in every figure: colour, dashes, marker.
METHOD_STYLES = {
    "oe": (SERIES[0], DASHES[0], "s"),
    "energy-margin": (UNKNOWN, (3, 1, 1, 1), "v"),
    "energy-logistic": (SERIES[1], DASHES[1], "^"),
    "woods": (SERIES[2], DASHES[2], "o"),
    "woods-alt": (SERIES[3], DASHES[3], "D"),
}
OWN_MARKERS = "xP*+"  # of a user's own methods

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
    "legend.fontsize": SMALL_TEXT,
}
CONSTRAINT_NAMES = {  # by `Woods.false_alarm_loss`: what the constraint on false alarms averages
    "sigmoid": "soft false-alarm rate",
    "logistic": "mean of log(1 + exp(z))",
    "hinge": "mean hinge, max(1 + g, 0)",
}


def plots_installed() -> bool:
    """Whether figures, and so pages, can be made: they need the `[plots]` extra."""
    return find_spec("matplotlib") is not None


class Drawing:
    """A figure while it is drawn, and the SVG that it became."""

    def __init__(self) -> None:
        self.svg = Markup()


@contextmanager
def drawing(
    name: str, says: str, height: float = 2.5, width: float = 4.4, *, x: str = "", y: str = "", percent: str = ""
) -> Iterator[tuple["Axes", Drawing]]:
    """Axes to draw on; when the block ends, the drawing holds them as SVG for a page.

    Args:
        name: unique in the page; every id in the SVG begins with it.
        says: what the figure shows, for readers who cannot see it.
        height: in inches.
        width: in inches; 4.4, so that the text keeps its size on a phone.
        x: the label of the x axis.
        y: the label of the y axis.
        percent: the axes ("x", "y" or "xy") that hold shares from 0 to 1, shown in percent.
    """
    import matplotlib.style as mpl_style  # noqa: PLC0415 - an extra
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

    drawn = Drawing()
    with mpl_style.context(["default", _SETTINGS | {"svg.hashsalt": name}]):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots()
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        for which in percent:
            axis: Any = getattr(axes, f"{which}axis")
            axis.set_major_formatter(lambda value, _position: f"{100 * value:g} %")
        yield axes, drawn
        drawn.svg = _inline(figure, name, says)


def histogram(
    name: str, known: Scores, other: Scores, threshold: float, labels: tuple[str, str], axis: str = SCORE
) -> Markup:
    """Scores of two groups as shares of each, with the threshold between them."""
    says = f"Scores of {labels[0]} and {labels[1]}, with the threshold"
    with drawing(name, says, x=axis, y="share", percent="y") as (axes, drawn):
        threshold = _densities(axes, known, other, threshold, labels)
        _annotate(axes, "rejected →", (threshold, 1), ("data", "axes fraction"), (4, -4), va="top")
        _few_ticks(axes, 6)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.16), ncols=2)
    return drawn.svg


def small_histogram(name: str, known: Scores, other: Scores, label: str) -> Markup:
    """Scores of ID and of one OOD set, half as wide and without words: one of many, with a caption below it.

    The line is the threshold that accepts 95 % of ID.
    """
    with drawing(name, f"Scores of ID and {label}, with the threshold", height=1.15, width=2.2) as (axes, drawn):
        _densities(axes, known, other, accepting_threshold(known), ("ID", label))
        _few_ticks(axes, 4)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
    return drawn.svg


def roc(
    name: str,
    scores: Mapping[str, tuple[Scores, Scores, float]],
    zoom: float = 0.3,
    points: Mapping[str, tuple[float, float]] | None = None,
) -> Markup:
    """ROC of several detectors up to the false-alarm rate `zoom`, each with its deployed threshold as a dot.

    `scores` has the scores of ID, those of OOD and the threshold of each. `points` has the shares of ID and OOD that each
    rejects, for detectors that have several thresholds.
    """
    points = points or {
        label: (rejection_rate(known, threshold), rejection_rate(unknown, threshold))
        for label, (known, unknown, threshold) in scores.items()
    }
    says = f"Share of unknowns caught against false alarms: {', '.join(scores)}"
    x, y = "false alarms: share of known rejected", "share of unknown caught"
    with drawing(name, says, height=3.0, x=x, y=y, percent="xy") as (axes, drawn):
        styles = list(zip(SERIES, DASHES, strict=True))[: len(scores)]
        for (label, (known, unknown, _)), (colour, dashes) in zip(scores.items(), styles, strict=True):
            axes.plot(*roc_curve(known, unknown), color=colour, dashes=dashes, label=label, drawstyle="steps-post")
            axes.plot(*points[label], "o", color=colour, markersize=6.5, markeredgecolor=INK, clip_on=False, zorder=5)
        axes.set_xlim(0, max(zoom, *(false_alarms for false_alarms, _ in points.values())))
        lowest = min(caught for _, caught in points.values())
        axes.set_ylim(0.0 if lowest < 0.5 else np.floor(10 * lowest - 1) / 10, 1.004)
        axes.legend(loc="lower right")
    return drawn.svg


def by_class(name: str, shares: Sequence[tuple[str, float, float, float]], limit: float | None) -> Markup:
    """False alarms of each class as bars, with their intervals: class, share, and both ends of its interval."""
    names, values, lows, highs = zip(*shares, strict=True)
    places, height = range(len(shares)), 1.0 + 0.25 * max(3, len(shares))
    says, x = "False alarms of each class, with intervals", "share of the class rejected"
    with drawing(name, says, height, x=x, y="class", percent="x") as (axes, drawn):
        axes.barh(places, values, height=0.62, color=KNOWN, alpha=0.55)
        axes.hlines(places, lows, highs, color=INK, linewidth=1.2)
        axes.set_yticks(places, [each if len(each) <= LONGEST else f"{each[: LONGEST - 1]}…" for each in names])
        axes.set_ylim(len(shares) - 0.4, -0.6)
        axes.set_xlim(0, 1.05 * max(*highs, limit or 0.0))
        axes.grid(visible=False, axis="y")
        if limit is not None:
            axes.axvline(limit, color=INK, linewidth=1.2, linestyle="--")
            where = ("data", "axes fraction")
            _annotate(axes, f"α = {100 * limit:g} %", (limit, 1), where, (0, 2), ha="center", va="bottom")
    return drawn.svg


def accepted_unknowns(name: str, curve: FprByShare, bound: float) -> Markup:
    """The share of unknowns accepted for each pi that may be the true one, with its band; a line at the bound on pi."""
    says = "Share of unknowns accepted, for each share of unknowns that the traffic may have"
    x, y = "π: share of the traffic that is unknown", "unknowns accepted"
    with drawing(name, says, x=x, y=y, percent="xy") as (axes, drawn):
        some = curve.possible
        axes.fill_between(curve.share, curve.lower, curve.upper, where=some.tolist(), color=UNKNOWN, alpha=0.3, linewidth=0)
        axes.plot(curve.share[some], curve.fpr[some], color=UNKNOWN)
        if bound > 0:
            axes.axvline(bound, color=INK, linewidth=1.2, linestyle="--")
        axes.set_xlim(0, curve.share[-1])
        axes.set_ylim(-0.02, 1.02)
    return drawn.svg


def constraint(name: str, history: Sequence[Row], alpha: float, loss_name: str) -> Markup:
    """The constraint on false alarms with its limit: Figure 2 (right) of the paper."""
    says = "The constraint on false alarms over the steps, with its limit alpha"
    columns = {"false_alarm": IN_TRAINING, "holdout_false_alarm": "set aside"}
    with _over_steps(name, says, history, columns, y=loss_name, above=alpha) as (axes, drawn):
        _limit(axes, alpha, f"limit α = {alpha:g}")
        axes.set_ylim(bottom=0)
    return drawn.svg


def classification(name: str, history: Sequence[Row]) -> Markup:
    """The constraint on cross-entropy: its distance from the limit tau."""
    columns = {"classification": IN_TRAINING, "holdout_classification": "set aside"}
    says = "Cross-entropy minus its limit tau over the steps"
    with _over_steps(name, says, history, columns, y="cross-entropy - τ") as (axes, drawn):
        _limit(axes, 0, "limit τ", above=True)
    return drawn.svg


def multipliers(name: str, history: Sequence[Row]) -> Markup:
    """The two multipliers."""
    columns = {"lambda_false_alarm": "λ₁ (false alarms)", "lambda_classification": "λ₂ (cross-entropy)"}
    says = "The multipliers of the two constraints over the steps"
    with _over_steps(name, says, history, columns, y="multiplier") as (axes, drawn):
        axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    return drawn.svg


def loss(name: str, history: Sequence[Row]) -> Markup:
    """The loss of a method without constraints."""
    with _over_steps(name, "The training loss over the steps", history, {"loss": "loss, mean of the epoch"}) as (_, drawn):
        pass
    return drawn.svg


def slope(name: str, history: Sequence[Row]) -> Markup:
    """The learned slope w of z = w S + b."""
    with _over_steps(name, "The slope w over the steps", history, {"w": "w (slope)"}) as (_, drawn):
        pass
    return drawn.svg


def acceptance(name: str, history: Sequence[Row], kept: int | None, kind: str = "wild data") -> Markup:
    """What chose the epoch: accuracy and the share of data accepted, on data set aside; `kept` may be unknown."""
    says = f"{kind.capitalize()} accepted and accuracy over the steps"
    says = says if kept is None else f"{says}, with the epoch that was kept"
    columns = {"accuracy": "accuracy", "acceptance": f"{kind} accepted"}
    with _over_steps(name, says, history, columns, y="share", percent="y") as (axes, drawn):
        if kept is not None:
            step = history[kept]["step"]
            axes.axvline(step, color=INK, linewidth=1.2, linestyle=":")
            side, offset = ("left", 3) if kept == 0 else ("right", -3)
            _annotate(axes, "kept", (step, 0.5), ("data", "axes fraction"), (offset, 0), ha=side, va="center")
    return drawn.svg


class Point(NamedTuple):
    """FPR95 at one pi: the mean over seeds and its standard error, if there are several."""

    pi: float
    mean: float
    error: float | None


class Curve(NamedTuple):
    """A method at every pi that it was run at."""

    method: str
    title: str
    points: Sequence[Point]


def over_pi(name: str, curves: Sequence[Curve], level: tuple[str, float] | None = None) -> Markup:
    """FPR95 over the share of OOD in the wild data, a curve for each method: Figure 2, left and middle.

    `level` is a method that sees no wild data, with its FPR95.
    """
    shares = sorted({point.pi for curve in curves for point in curve.points})
    titles = [curve.title for curve in curves] + ([level[0]] if level else [])
    own = dict.fromkeys(curve.method for curve in curves if curve.method not in METHOD_STYLES)
    markers = {method: OWN_MARKERS[place % len(OWN_MARKERS)] for place, method in enumerate(own)}
    styles = METHOD_STYLES | {method: (INK, (1, 1), marker) for method, marker in markers.items()}
    says, x = f"FPR95 over π: {', '.join(titles)}", "π, the share of OOD in the wild data"
    with drawing(name, says, height=3.0, x=x, y="FPR95", percent="y") as (axes, drawn):
        for number, (method, title, points) in enumerate(curves):
            colour, dashes, marker = styles[method]
            aside = 0.05 * (number - (len(curves) - 1) / 2)  # so that error bars do not hide one another
            places = [shares.index(point.pi) + aside for point in points]
            means, errors = [point.mean for point in points], [point.error or 0.0 for point in points]
            axes.errorbar(places, means, errors, fmt="none", ecolor=colour, elinewidth=1.2, capsize=2.5)
            axes.plot(places, means, color=colour, dashes=dashes, marker=marker, markersize=4.5, label=title)
        if level:
            axes.axhline(level[1], color=FAINT, linewidth=1.2, linestyle=":", label=level[0])
        axes.set_xticks(range(len(shares)), [f"{share:g}" for share in shares])
        axes.set_ylim(bottom=0)
        axes.grid(visible=False, axis="x")
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    return drawn.svg


def constraint_of_runs(name: str, histories: Sequence[Sequence[Row]], tolerance: float, quantity: str) -> Markup:
    """The ID constraint over the epochs of several runs, thin, and their mean: Figure 2, right."""
    count = len(histories)
    says = f"The ID constraint over the epochs of {count} runs, with the tolerance"
    with drawing(name, says, x="epoch", y=f"{quantity} - α") as (axes, drawn):
        for number, history in enumerate(histories):
            label = "each run" if number == 0 and count > 1 else None
            axes.plot(*_column(history, "false_alarm", "epoch"), color=FAINT, linewidth=0.6, alpha=0.7, label=label)
        epochs, values = mean_of_runs(histories)
        label = f"mean of {count} runs" if count > 1 else "one run"
        axes.plot(epochs, values, color=SERIES[2], marker="o" if len(epochs) < 5 else None, label=label)
        axes.axhline(0, color=INK, linewidth=0.8)
        axes.axhline(tolerance, color=INK, linewidth=1.2, linestyle="--", label=f"tolerance {tolerance:g}")
        axes.set_xlim(left=0)
        _few_ticks(axes, 6, integer=True)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    return drawn.svg


def mean_of_runs(histories: Sequence[Sequence[Row]]) -> tuple[list[float], list[float]]:
    """The mean of the ID constraint, at the epochs that all runs have."""
    columns = [dict(zip(*_column(history, "false_alarm", "epoch"), strict=True)) for history in histories]
    epochs = sorted(set.intersection(*(set(column) for column in columns)))
    return epochs, [float(np.mean([column[epoch] for column in columns])) for epoch in epochs]


def _densities(axes: "Axes", known: Scores, other: Scores, threshold: float, labels: tuple[str, str]) -> float:
    """Both groups as bars with the threshold as a line; returns where it is drawn."""
    both = np.concatenate([known, other])
    finite = both[np.isfinite(both)]
    low, high = np.quantile(finite, [0.002, 0.998]) if len(finite) else (0.0, 1.0)
    threshold = float(np.clip(threshold, low, high)) if np.isinf(threshold) else threshold
    edges = np.linspace(min(low, threshold), max(high, threshold), 41).tolist()
    groups = ((known, KNOWN, "", labels[0]), (other, UNKNOWN, "////", labels[1]))
    for scores, colour, hatch, label in groups:
        shares = np.full(len(scores), 1 / len(scores))
        inside = np.clip(scores.astype(np.float64), edges[0], edges[-1])  # outliers: in the outermost bars
        style = {"color": colour, "alpha": 0.55, "label": label}
        axes.hist(inside, edges, weights=shares, histtype="stepfilled", **style)  # type: ignore[arg-type]
        axes.hist(inside, edges, weights=shares, histtype="step", color=colour, hatch=hatch, linewidth=1)
    axes.axvline(threshold, color=INK, linewidth=1.2, linestyle="--")
    axes.margins(y=0.15)
    return threshold


@contextmanager
def _over_steps(
    name: str, says: str, history: Sequence[Row], columns: Mapping[str, str], above: float = 0.0, **labels: Any
) -> Iterator[tuple["Axes", Drawing]]:
    """Axes with columns of the history over the steps, by their labels, `above` added to each value."""
    with drawing(name, says, x="step", **labels) as (axes, drawn):
        for (key, label), colour, dashes in zip(columns.items(), (SERIES[2], SERIES[3]), ((1, 0), (4, 1.5)), strict=False):
            steps, values = _column(history, key, "step")
            shifted, marker = [above + value for value in values], "o" if len(steps) < 5 else None  # one point is no line
            axes.plot(steps, shifted, color=colour, dashes=dashes, marker=marker, label=label)
        axes.set_xlim(left=0)
        _few_ticks(axes, 6, integer=True)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.18), ncols=2)
        axes.tick_params(color=FAINT)
        yield axes, drawn


def _column(history: Sequence[Row], key: str, over: str) -> tuple[list[float], list[float]]:
    """A column over steps or epochs, where there are values: the start has no training loss."""
    rows = [row for row in history if {over, key} <= row.keys()]
    return [row[over] for row in rows], [row[key] for row in rows]


def _limit(axes: "Axes", level: float, text: str, *, above: bool = False) -> None:
    """A dashed line that a constraint should stay below, with its name at the right end."""
    axes.axhline(level, color=INK, linewidth=1.2, linestyle="--")
    offset, side = (3, "bottom") if above else (-3, "top")
    _annotate(axes, text, (1, level), ("axes fraction", "data"), (0, offset), ha="right", va=side)


def _annotate(
    axes: "Axes", text: str, place: tuple[float, float], coords: tuple[str, str], offset: tuple[float, float], **align: str
) -> None:
    """A small text next to a place."""
    style: dict[str, Any] = {"xycoords": coords, "xytext": offset, "textcoords": "offset points", **align}
    axes.annotate(text, place, fontsize=SMALL_TEXT, **style)


def _few_ticks(axes: "Axes", most: int, *, integer: bool = False) -> None:
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 - an extra

    axes.xaxis.set_major_locator(MaxNLocator(most, integer=integer))


def _inline(figure: "Figure", name: str, says: str) -> Markup:
    """The figure as an SVG element with ids of its own and colours by role."""
    buffer = io.StringIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the page's fonts have it, or the reader's machine has
        for _ in range(2):  # settles the layout: ticks change with it, and labels next to them would be cut off
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
    return Markup(text.strip())  # noqa: S704 - its texts are escaped by matplotlib
