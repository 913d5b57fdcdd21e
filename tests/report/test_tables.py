"""Numbers and settings as a person reads them."""

import math
import sys

import pytest

from wildood.report.tables import COLUMNS, best_cells, cells, plots_installed, settings_text

MEANS = {"fpr95": 0.125, "auroc": 0.98157, "accuracy": 0.9953, "false_alarms": 0.0, "caught": 1.0}


def test_cells_are_percentages_in_the_order_of_the_columns():
    summary = {"energy": {name: (mean, 0.0123) for name, mean in MEANS.items()}}
    assert list(COLUMNS) == ["caught", "false_alarms", "fpr95", "auroc", "accuracy"]
    assert cells(summary) == [["energy", "100.0 ± 1.2", "0.0 ± 1.2", "12.5 ± 1.2", "98.2 ± 1.2", "99.5 ± 1.2"]]


def test_a_single_seed_has_no_error_to_show():
    summary = {"energy": {name: (mean, math.nan) for name, mean in MEANS.items()}}
    assert cells(summary) == [["energy", "100.0", "0.0", "12.5", "98.2", "99.5"]]


def test_the_best_of_each_column_is_marked_and_what_is_printed_like_it():
    rows = {
        "OE": {"caught": 0.906, "false_alarms": 0.032, "fpr95": 0.029, "auroc": 0.993, "accuracy": 0.9953},
        "energy": {"caught": 0.755, "false_alarms": 0.025, "fpr95": 0.131, "auroc": 0.977, "accuracy": 0.9935},
        "WOODS": {"caught": 0.931, "false_alarms": 0.035, "fpr95": 0.0451, "auroc": 0.990, "accuracy": 0.9951},
    }
    best = best_cells({name: {metric: (mean, 0.01) for metric, mean in row.items()} for name, row in rows.items()})
    oe, energy, woods = range(3)
    assert best == {(woods, 1), (energy, 2), (oe, 3), (oe, 4), (oe, 5), (woods, 5)}


def test_methods_keep_their_order():
    summary = {name: dict.fromkeys(COLUMNS, (0.5, 0.1)) for name in ("WOODS", "energy", "a")}
    assert [row[0] for row in cells(summary)] == ["WOODS", "energy", "a"]


def test_columns_say_which_way_is_better():
    assert [name for name, title in COLUMNS.items() if title.endswith("↑")] == ["caught", "auroc", "accuracy"]
    assert [name for name, title in COLUMNS.items() if title.endswith("↓")] == ["false_alarms", "fpr95"]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"name": "Woods", "alpha": 0.05, "tau": None, "published": False}, "alpha 0.05, published False"),
        (
            {"steps": None, "epochs": 3, "weight_decay": 0, "milestones": (0.5, 0.75)},
            "epochs 3, weight_decay 0, milestones (0.5, 0.75)",
        ),
        ({}, ""),
    ],
)
def test_settings_leave_out_only_the_name_and_what_is_not_set(settings, text):
    assert settings_text(settings) == text


def test_without_matplotlib_there_are_no_plots(monkeypatch):
    assert plots_installed()
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    assert not plots_installed()
