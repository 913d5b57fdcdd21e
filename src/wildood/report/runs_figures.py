"""The figures of many runs together: FPR95 over pi, and the ID constraint over the training (Figure 2 of the paper)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.ticker import MaxNLocator

from wildood.report.style import DASHES, FAINT, INK, SERIES, UNKNOWN, drawing, percent
from wildood.train.history import Row

# A method looks the same in every figure.
_STYLES = {
    "oe": (SERIES[0], DASHES[0], "s"),
    "energy-margin": (UNKNOWN, (3, 1, 1, 1), "v"),
    "energy-logistic": (SERIES[1], DASHES[1], "^"),
    "woods": (SERIES[2], DASHES[2], "o"),
    "woods-alt": (SERIES[3], DASHES[3], "D"),
}


_OWN = "xP*+"  # the markers of methods of a user's own


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


def over_pi(name: str, curves: Sequence[Curve], level: tuple[str, float] | None = None) -> str:
    """FPR95 over the share of OOD in the wild data, a curve for each method: Figure 2, left and middle.

    Args:
        name: of the figure in its page.
        curves: of the methods that see wild data.
        level: a method that sees none, with its FPR95.

    >>> svg = over_pi("pi", [Curve("woods", "WOODS", [Point(0.05, 0.2, 0.01), Point(1.0, 0.1, None)])], ("energy", 0.6))
    >>> "FPR95 over π: WOODS, energy" in svg, ">0.05<" in svg
    (True, True)
    """
    shares = sorted({point.pi for curve in curves for point in curve.points})
    titles = [curve.title for curve in curves] + ([level[0]] if level else [])
    own = dict.fromkeys(curve.method for curve in curves if curve.method not in _STYLES)
    styles = _STYLES | {method: (INK, (1, 1), _OWN[place % len(_OWN)]) for place, method in enumerate(own)}
    with drawing(name, f"FPR95 over π: {', '.join(titles)}", height=3.0) as (axes, drawn):
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
        axes.set_xlabel("π, the share of OOD in the wild data")
        axes.set_ylabel("FPR95")
        percent(axes, "y")
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    return drawn.svg


def constraint_of_runs(name: str, histories: Sequence[Sequence[Row]], tolerance: float) -> str:
    """The ID constraint over the epochs of several runs, thin, and their mean: Figure 2, right.

    >>> runs = [[{"epoch": epoch, "false_alarm": level / epoch} for epoch in (1, 2)] for level in (0.2, 0.4)]
    >>> mean_of_runs(runs)
    ([1, 2], [0.30000000000000004, 0.15000000000000002])
    >>> "tolerance 0.05" in constraint_of_runs("constraint", runs, 0.05)
    True
    """
    with drawing(name, f"The ID constraint over the epochs of {len(histories)} runs, with the tolerance") as (axes, drawn):
        for number, history in enumerate(histories):
            epochs, values = _column(history)
            label = "each run" if number == 0 and len(histories) > 1 else None
            axes.plot(epochs, values, color=FAINT, linewidth=0.6, alpha=0.7, label=label)
        what = f"mean of {len(histories)} runs" if len(histories) > 1 else "one run"
        epochs, values = mean_of_runs(histories)
        axes.plot(epochs, values, color=SERIES[2], marker="o" if len(epochs) < 5 else None, label=what)
        axes.axhline(0, color=INK, linewidth=0.8)
        axes.axhline(tolerance, color=INK, linewidth=1.2, linestyle="--", label=f"tolerance {tolerance:g}")
        axes.set_xlim(left=0)
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.set_ylabel("soft false-alarm rate - α")
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    return drawn.svg


def mean_of_runs(histories: Sequence[Sequence[Row]]) -> tuple[list[float], list[float]]:
    """The mean of the ID constraint, at the epochs that all runs have."""
    columns = [dict(zip(*_column(history), strict=True)) for history in histories]
    epochs = sorted(set.intersection(*(set(column) for column in columns)))
    return epochs, [float(np.mean([column[epoch] for column in columns])) for epoch in epochs]


def _column(history: Sequence[Row]) -> tuple[list[float], list[float]]:
    rows = [row for row in history if {"epoch", "false_alarm"} <= row.keys()]
    return [row["epoch"] for row in rows], [row["false_alarm"] for row in rows]
