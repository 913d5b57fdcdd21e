"""Numbers and settings as text, to print and to put into a page: the cells of a comparison are mean ± standard error."""

import math
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

COLUMNS = {
    "caught": "caught ↑",
    "false_alarms": "false alarms ↓",
    "fpr95": "FPR95 ↓",
    "auroc": "AUROC ↑",
    "accuracy": "accuracy ↑",
}
Summary = Mapping[str, Mapping[str, tuple[float, float]]]


def cells(summary: Summary) -> list[list[str]]:
    """One row for each method: its name, then a cell for each of the columns.

    >>> cells({"energy": {name: (0.5, 0.01) for name in COLUMNS}})[0][:2]
    ['energy', '50.0 ± 1.0']
    """
    return [[method, *(_cell(*metrics[name]) for name in COLUMNS)] for method, metrics in summary.items()]


def best_cells(summary: Summary) -> set[tuple[int, int]]:
    """The (row, column) of the best mean of each column in `cells`, and of those that are printed with the same digits.

    >>> sorted(best_cells({"a": dict.fromkeys(COLUMNS, (0.50001, 0.01)), "b": {**dict.fromkeys(COLUMNS, (0.5, 0.01)),
    ...                                                                        "fpr95": (0.2, 0.01)}}))
    [(0, 1), (0, 2), (0, 4), (0, 5), (1, 1), (1, 2), (1, 3), (1, 4), (1, 5)]
    """
    found = set()
    for column, (name, title) in enumerate(COLUMNS.items(), start=1):
        means = [float(_cell(metrics[name][0], math.nan)) for metrics in summary.values()]
        best = max(means) if title.endswith("↑") else min(means)
        found |= {(row, column) for row, mean in enumerate(means) if mean == best}
    return found


def plots_installed() -> bool:
    """Whether figures and pages can be made: they need the `[plots]` extra.

    >>> plots_installed()
    True
    """
    return find_spec("matplotlib") is not None


def settings_text(settings: Mapping[str, Any]) -> str:
    """Settings in one line, without those that say nothing.

    >>> settings_text({"name": "Woods", "alpha": 0.05, "tau": None})
    'alpha 0.05'
    """
    return ", ".join(f"{name} {value}" for name, value in settings.items() if value is not None and name != "name")


def _cell(mean: float, error: float) -> str:
    return f"{100 * mean:.1f}" if math.isnan(error) else f"{100 * mean:.1f} ± {100 * error:.1f}"
