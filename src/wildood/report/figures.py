"""The figures of a report, each from plain arrays or from the history of a run."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from wildood.evaluate.metrics import rejection_rate, roc_curve
from wildood.report.style import DASHES, FAINT, INK, KNOWN, SERIES, UNKNOWN, drawing, percent
from wildood.train.history import Row

Scores = npt.NDArray[np.floating]
SCORE = "score (higher = more unknown)"
MARGIN = "score - threshold of the predicted class"
IN_TRAINING = "labelled, mean of the epoch"
LONGEST = 18  # letters of a class, beside its bar


def histogram(name: str, known: Scores, other: Scores, threshold: float, labels: tuple[str, str], axis: str = SCORE) -> str:
    """Scores of two groups as shares of each, with the threshold between them."""
    with drawing(name, f"Scores of {labels[0]} and {labels[1]}, with the threshold") as (axes, drawn):
        threshold = _densities(axes, known, other, threshold, labels)
        axes.annotate(
            "rejected →", (threshold, 1), xycoords=("data", "axes fraction"), xytext=(4, -4), textcoords="offset points",
            va="top", fontsize=8.5,
        )  # fmt: skip
        axes.set_xlabel(axis)
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.set_ylabel("share")
        percent(axes, "y")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.16), ncols=2)
    return drawn.svg


def small_histogram(name: str, known: Scores, other: Scores, threshold: float, labels: tuple[str, str]) -> str:
    """The same half as wide and without words, as one of many: what it shows is said beside it."""
    says = f"Scores of {labels[0]} and {labels[1]}, with the threshold"
    with drawing(name, says, height=1.15, width=2.2) as (axes, drawn):
        _densities(axes, known, other, threshold, labels)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
    return drawn.svg


def roc(
    name: str,
    scores: Mapping[str, tuple[Scores, Scores, float]],
    zoom: float = 0.3,
    points: Mapping[str, tuple[float, float]] | None = None,
) -> str:
    """ROC of several detectors, each with its deployed threshold as a dot: the part where anybody would operate.

    Args:
        name: of the figure in its page.
        scores: for each detector its scores of ID, its scores of OOD, and its threshold.
        zoom: the largest false-alarm rate shown.
        points: the share of ID and the share of OOD that each rejects, for detectors that have several thresholds.
    """
    points = points or {
        label: (rejection_rate(known, threshold), rejection_rate(unknown, threshold))
        for label, (known, unknown, threshold) in scores.items()
    }
    with drawing(name, f"Share of unknowns caught against false alarms: {', '.join(scores)}", height=3.0) as (axes, drawn):
        styles = list(zip(SERIES, DASHES, strict=True))[: len(scores)]
        for (label, (known, unknown, _)), (colour, dashes) in zip(scores.items(), styles, strict=True):
            axes.plot(*roc_curve(known, unknown), color=colour, dashes=dashes, label=label, drawstyle="steps-post")
            axes.plot(*points[label], "o", color=colour, markersize=6.5, markeredgecolor=INK, clip_on=False, zorder=5)
        axes.set_xlim(0, max(zoom, *(false_alarms for false_alarms, _ in points.values())))
        lowest = min(caught for _, caught in points.values())
        axes.set_ylim(0.0 if lowest < 0.5 else np.floor(10 * lowest - 1) / 10, 1.004)
        axes.set_xlabel("false alarms: share of known rejected")
        axes.set_ylabel("share of unknown caught")
        percent(axes, "x")
        percent(axes, "y")
        axes.legend(loc="lower right")
    return drawn.svg


def by_class(name: str, shares: Sequence[tuple[str, float, float, float]], limit: float | None) -> str:
    """False alarms of each class as bars, with their intervals: class, share, and both ends of its interval."""
    names, values, lows, highs = zip(*shares, strict=True)
    places, height = range(len(shares)), 1.0 + 0.25 * max(3, len(shares))
    with drawing(name, "False alarms of each class, with intervals", height) as (axes, drawn):
        axes.barh(places, values, height=0.62, color=KNOWN, alpha=0.55)
        axes.hlines(places, lows, highs, color=INK, linewidth=1.2)
        axes.set_yticks(places, [each if len(each) <= LONGEST else f"{each[: LONGEST - 1]}…" for each in names])
        axes.set_ylim(len(shares) - 0.4, -0.6)
        axes.set_xlim(0, 1.05 * max(*highs, limit or 0.0))
        axes.grid(visible=False, axis="y")
        if limit is not None:
            axes.axvline(limit, color=INK, linewidth=1.2, linestyle="--")
            axes.annotate(
                f"α = {100 * limit:g} %", (limit, 1), xycoords=("data", "axes fraction"), xytext=(0, 2),
                textcoords="offset points", ha="center", va="bottom", fontsize=8.5,
            )  # fmt: skip
        axes.set_xlabel("share of the class rejected")
        axes.set_ylabel("class")
        percent(axes, "x")
    return drawn.svg


def constraint(name: str, history: Sequence[Row], alpha: float, what: str) -> str:
    """The constraint on false alarms with its limit: Figure 2 (right) of the paper; `what` is the loss it limits."""
    with drawing(name, "The constraint on false alarms over the steps, with its limit alpha") as (axes, drawn):
        _lines(axes, history, {"false_alarm": IN_TRAINING, "holdout_false_alarm": "set aside"}, above=alpha)
        _limit(axes, alpha, f"limit α = {alpha:g}")
        axes.set_ylim(bottom=0)
        axes.set_ylabel(what)
    return drawn.svg


def classification(name: str, history: Sequence[Row]) -> str:
    """The constraint on cross-entropy: its distance from the limit tau."""
    with drawing(name, "Cross-entropy minus its limit tau over the steps") as (axes, drawn):
        _lines(axes, history, {"classification": IN_TRAINING, "holdout_classification": "set aside"})
        _limit(axes, 0, "limit τ", above=True)
        axes.set_ylabel("cross-entropy - τ")
    return drawn.svg


def multipliers(name: str, history: Sequence[Row]) -> str:
    """The two multipliers."""
    with drawing(name, "The multipliers of the two constraints over the steps") as (axes, drawn):
        _lines(axes, history, {"lambda_false_alarm": "λ₁ (false alarms)", "lambda_classification": "λ₂ (cross-entropy)"})
        axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
        axes.set_ylabel("multiplier")
    return drawn.svg


def loss(name: str, history: Sequence[Row]) -> str:
    """The loss of a method without constraints."""
    with drawing(name, "The training loss over the steps") as (axes, drawn):
        _lines(axes, history, {"loss": "loss, mean of the epoch"})
    return drawn.svg


def slope(name: str, history: Sequence[Row]) -> str:
    """The learned slope w of z = w S + b."""
    with drawing(name, "The slope w over the steps") as (axes, drawn):
        _lines(axes, history, {"w": "w (slope)"})
    return drawn.svg


def acceptance(name: str, history: Sequence[Row], kept: int | None, what: str = "wild data") -> str:
    """What chose the epoch (None: it is not known which): how much is accepted, and the accuracy, on data set aside."""
    says = f"{what.capitalize()} accepted and accuracy over the steps"
    with drawing(name, says if kept is None else f"{says}, with the epoch that was kept") as (axes, drawn):
        _lines(axes, history, {"accuracy": "accuracy", "acceptance": f"{what} accepted"})
        if kept is not None:
            axes.axvline(history[kept]["step"], color=INK, linewidth=1.2, linestyle=":")
            side = ("left", 3) if kept == 0 else ("right", -3)
            axes.annotate(
                "kept", (history[kept]["step"], 0.5), xycoords=("data", "axes fraction"), xytext=(side[1], 0),
                textcoords="offset points", ha=side[0], va="center", fontsize=8.5,
            )  # fmt: skip
        axes.set_ylabel("share")
        percent(axes, "y")
    return drawn.svg


def _densities(axes: Axes, known: Scores, other: Scores, threshold: float, labels: tuple[str, str]) -> float:
    """Both groups as bars with the threshold as a line: where it is drawn."""
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


def _lines(axes: Axes, history: Sequence[Row], columns: Mapping[str, str], above: float = 0.0) -> None:
    """Columns of the history over the steps, with their labels; few points are marked, lest one alone be invisible."""
    for (key, label), colour, dashes in zip(columns.items(), (SERIES[2], SERIES[3]), ((1, 0), (4, 1.5)), strict=False):
        steps, values = _column(history, key)
        shifted, marker = [above + value for value in values], "o" if len(steps) < 5 else None
        axes.plot(steps, shifted, color=colour, dashes=dashes, marker=marker, label=label)
    _over_steps(axes)


def _column(history: Sequence[Row], key: str) -> tuple[list[float], list[float]]:
    """Steps and values of a column, where there are any: the start has no training loss."""
    rows = [row for row in history if key in row]
    return [row["step"] for row in rows], [row[key] for row in rows]


def _limit(axes: Axes, level: float, text: str, *, above: bool = False) -> None:
    """A dashed line that a constraint should stay below, with its name at the right end."""
    axes.axhline(level, color=INK, linewidth=1.2, linestyle="--")
    axes.annotate(
        text, (1, level), xycoords=("axes fraction", "data"), xytext=(0, 3 if above else -3), textcoords="offset points",
        ha="right", va="bottom" if above else "top", fontsize=8.5,
    )  # fmt: skip


def _over_steps(axes: Axes) -> None:
    axes.set_xlim(left=0)
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.18), ncols=2)
    axes.tick_params(color=FAINT)
