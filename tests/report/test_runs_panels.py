"""Which figures a report of many runs has, and of which numbers."""

import re
from dataclasses import replace

import pytest

from wildood.experiments.experiment import Experiment
from wildood.experiments.store import RunStore
from wildood.report.runs import Runs
from wildood.report.runs_panels import constraint_panels, pi_panels, score_panels

SETS = ("svhn", "places365")
EVIL = '<b>&"evil"'  # the name of a set among the runs


def test_every_figure_is_there(tree, runs):
    shown = tree.figures()
    assert [label for label in shown if label.startswith("FPR95")] == ["FPR95 over π: OE, WOODS, energy, without wild data"]
    assert [label for label in shown if label.startswith("The ID")] == [
        f"The ID constraint over the epochs of {count} runs, with the tolerance" for count in (4, 2, 1)
    ]
    scores = [re.search("and (.*), seed", label).group(1) for label in shown if label.startswith("Scores")]
    in_tables = [f"{name} by {method}" for name in ("SVHN", "Places365") for method in ("energy", "WOODS, π = 0.1")]
    assert scores == [*in_tables, *in_tables, f"{EVIL} by WOODS, π = 0.2"]


def test_the_pi_figure_has_the_numbers_of_places365(runs, monkeypatch):
    asked = []
    monkeypatch.setattr("wildood.report.runs_panels.over_pi", lambda *given: asked.append(given) or "")
    (panel,) = pi_panels(runs)
    assert panel.title.startswith("Places365: CIFAR-10 as ID")
    ((_, (oe, woods), level),) = asked
    assert (oe.title, woods.title) == ("OE", "WOODS")
    expected = [(pi, pytest.approx(0.21 + pi / 10), pytest.approx(0.01)) for pi in (0.05, 0.1, 0.5)]
    assert [tuple(point) for point in woods.points] == expected
    assert level == ("energy, without wild data", pytest.approx(0.61))


@pytest.mark.parametrize(
    ("other", "line"),
    [
        ({}, "energy, without wild data"),
        ({"model_settings": {"depth": 16}}, None),
        ({"start": "all"}, None),
        ({"keep": "best"}, None),
        ({"protocol": "as_published"}, None),
    ],
)
def test_only_runs_alike_in_all_but_wild_data_are_a_line_below_the_curves(other, line, tmp_path, result):
    store = RunStore(tmp_path)
    store.add(*result(Experiment("cifar10", SETS, method="energy", **other)))
    for pi in (0.1, 0.5):
        store.add(*result(Experiment("cifar10", SETS, "300k", pi, "woods")))
    (panel,) = pi_panels(runs := Runs.read(store))
    assert ("energy, without wild data" in panel.body) == (line is not None)
    assert ("The dotted line" in panel.says) == (line is not None)
    (shown,) = (panel for panel in score_panels(runs) if "300K" in panel.title)
    assert ("by energy" in shown.body) == (line is not None)


@pytest.mark.parametrize(
    ("examples", "says"),
    [
        (
            1200,
            "no wild data; it is measured on the test part of the set (1,200 examples), the curves on all of it (4,000).",
        ),
        (4000, "no wild data."),
    ],
)
def test_a_line_of_fewer_examples_than_the_curves_says_so(examples, says, tmp_path, result):
    def add(experiment, count):
        found, scores = result(experiment)
        tests = {name: replace(each, examples=count) for name, each in found.tests.items()}
        store.add(replace(found, tests=tests), scores)

    store = RunStore(tmp_path)
    add(Experiment("cifar10", SETS, method="energy"), examples)
    for pi in (0.1, 0.5):
        add(Experiment("cifar10", SETS, "300k", pi, "woods"), 4000)
    (panel,) = pi_panels(Runs.read(store))
    assert panel.says.endswith(f"The dotted line is the best of the methods that see {says}")


def test_the_constraint_is_that_of_woods_at_the_papers_pi(runs):
    says = [panel.says for panel in constraint_panels(runs)]
    assert [re.search("of (.*?):", text).group(1) for text in says] == [
        "WOODS, at π = 0.1", "WOODS, at π = 0.1", "WOODS, at π = 0.2",
    ]  # fmt: skip
