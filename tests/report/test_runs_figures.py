"""The figures over many runs, drawn."""

import pytest
from matplotlib.axes import Axes

from wildood.report import runs_figures
from wildood.report.runs_figures import Curve, Point, mean_of_runs
from wildood.report.style import drawing


def test_a_curve_over_pi_has_a_point_with_its_error_for_each_pi(monkeypatch):
    seen = []

    class Remembering:
        def __init__(self, *words, **options):
            self.drawing = drawing(*words, **options)

        def __enter__(self):
            seen.append(self.drawing.__enter__())
            return seen[0]

        def __exit__(self, *error):
            return self.drawing.__exit__(*error)

    monkeypatch.setattr(runs_figures, "drawing", Remembering)
    points = [Point(0.05, 0.3, 0.02), Point(1.0, 0.1, None)]
    runs_figures.over_pi("a", [Curve("woods", "WOODS", points)])
    ((axes, _),) = seen
    (line,) = (line for line in axes.get_lines() if line.get_label() == "WOODS")
    assert line.get_xydata().tolist() == [[0.0, 0.3], [1.0, 0.1]]
    ends = axes.collections[0].get_segments()
    assert [end[:, 1].tolist() for end in ends] == [pytest.approx([0.28, 0.32]), pytest.approx([0.1, 0.1])]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0.05", "1"]


def test_the_mean_constraint_is_over_the_epochs_that_all_runs_have():
    one = [{"epoch": 0, "accuracy": 0.9}, {"epoch": 1, "false_alarm": 0.2}, {"epoch": 2, "false_alarm": 0.1}]
    two = [{"epoch": 1, "false_alarm": 0.4}]
    assert mean_of_runs([one, two]) == ([1], [pytest.approx(0.3)])


def test_methods_of_a_users_own_look_different(monkeypatch):
    drawn = []
    monkeypatch.setattr(Axes, "plot", lambda self, *given, **style: drawn.append(style.get("marker")))
    points = [Point(0.1, 0.2, None), Point(0.5, 0.1, None)]
    with pytest.warns(UserWarning, match="No artists"):
        runs_figures.over_pi("a", [Curve(name, name, points) for name in ("mine:A", "mine:B", "woods")])
    assert len(set(drawn)) == 3
