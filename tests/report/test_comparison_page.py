"""The page of the demo: a comparison of methods on the digits, in agreement with their detectors."""

import ast
import inspect
import math
import re
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import torch

import wildood
from wildood.experiments.grids import demo_grid
from wildood.experiments.run import perform
from wildood.experiments.split import digits_split
from wildood.experiments.store import OodMetrics
from wildood.experiments.tables import demo_title
from wildood.methods.woods import Woods
from wildood.report.comparison_page import COLUMNS, comparison_page, comparison_table

METHODS = ["max-softmax", "energy", "WOODS", "WOODS-alt"]
MEANS = {"fpr95": 0.125, "auroc": 0.98157, "accuracy": 0.9953, "false_alarms": 0.0, "caught": 1.0}
TRAINING = [
    "The constraint on false alarms over the steps, with its limit alpha",
    "Cross-entropy minus its limit tau over the steps",
    "The multipliers of the two constraints over the steps",
    "The slope w over the steps",
    "Wild data accepted and accuracy over the steps, with the epoch that was kept",
]


class Compared(NamedTuple):
    """Four methods on one seed of the digits, trained for less long than in the demo, by their titles."""

    outcomes: dict
    split: object
    html: str


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    split, place = digits_split(0), tmp_path_factory.mktemp("runs")
    split = replace(split, labelled=tuple(part[:160] for part in split.labelled))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Woods, "schedule", lambda self: wildood.Schedule(steps=12, batch=64))
        experiments = [each for each in demo_grid(0) if demo_title(each.method) in METHODS]
        outcomes = {demo_title(each.method): perform(each, place, split=split) for each in experiments}
    return Compared(outcomes, split, comparison_page(list(outcomes.values()), split, "wildood demo --seeds 1"))


@pytest.fixture(scope="module")
def tree(compared, parse):
    return parse(compared.html)


def percent(share):
    return f"{100 * share:.1f}"


def unknown_share(detector, x):
    return float(np.mean(detector.predict(x) == wildood.UNKNOWN))


def settings_of(tree):
    making = tree.panel("Settings, seeds, versions")
    return dict(zip([term.text for term in making.all("dt")], [text.text for text in making.all("dd")], strict=True))


def comparison_of(tree):
    """The panel with the methods side by side: the first of the page."""
    return tree.all("section")[0].one("div", cls="panel")


@pytest.mark.parametrize(
    ("error", "cells"),
    [
        (0.0123, ["100.0 ± 1.2", "0.0 ± 1.2", "12.5 ± 1.2", "98.2 ± 1.2", "99.5 ± 1.2"]),
        (math.nan, ["100.0", "0.0", "12.5", "98.2", "99.5"]),  # a single seed
    ],
)
def test_cells_are_percentages_in_the_order_of_the_columns(error, cells):
    table = comparison_table({"energy": {name: (mean, error) for name, mean in MEANS.items()}})
    assert list(COLUMNS) == ["caught", "false_alarms", "fpr95", "auroc", "accuracy"]
    assert table.texts(table.rows[0]) == ["energy", *cells]


def test_the_best_of_each_column_is_marked_and_what_is_printed_like_it():
    rows = {
        "OE": {"caught": 0.906, "false_alarms": 0.032, "fpr95": 0.029, "auroc": 0.993, "accuracy": 0.9953},
        "energy": {"caught": 0.755, "false_alarms": 0.025, "fpr95": 0.131, "auroc": 0.977, "accuracy": 0.9935},
        "WOODS": {"caught": 0.931, "false_alarms": 0.035, "fpr95": 0.0451, "auroc": 0.990, "accuracy": 0.9951},
    }
    table = comparison_table({name: {metric: (mean, 0.01) for metric, mean in row.items()} for name, row in rows.items()})
    assert [row.cells[0].value for row in table.rows] == list(rows)
    best = {(row, column) for row in range(3) for column in range(6) if table.rows[row].cells[column].best}
    oe, energy, woods = range(3)
    assert best == {(woods, 1), (energy, 2), (oe, 3), (oe, 4), (oe, 5), (woods, 5)}


def test_the_page_is_one_whole_document_on_its_own(compared, tree):
    assert compared.html.startswith('<!doctype html>\n<html lang="en">')
    assert {element.tag for element in tree.all()} & {"script", "link", "iframe", "object", "embed", "base", "form"} == set()
    ids = tree.ids()
    assert len(ids) == len(set(ids)) > 100
    assert tree.references() <= set(ids)
    assert re.findall(r"&(?!#?\w+;)", compared.html) == []
    assert comparison_page(list(compared.outcomes.values()), compared.split, "wildood demo --seeds 1") == compared.html
    for panel in tree.all("div", cls="panel"):
        assert panel.one("p", cls="says").text.endswith(".")


def test_the_comparison_has_every_figure_and_gallery(tree):
    scores = "Scores of known (0-6) and unknown (7-9), with the threshold"
    roc = f"Share of unknowns caught against false alarms: {', '.join(METHODS)}"
    assert tree.figures() == [scores, scores, roc, *TRAINING]
    assert [heading.text for heading in tree.all("h2")] == [
        "What is caught, and at what cost",
        "A closer look (seed 0)",
        "The training",
        "What it does with single examples",
        "With your own classifier",
        "How it was made",
    ]


def test_the_comparisons_table_is_what_its_detectors_do(tree, compared):
    panel = comparison_of(tree)
    rows = panel.rows()
    assert list(rows) == METHODS
    for method, (result, scores, detector) in compared.outcomes.items():
        caught, alarms, _, _, right = rows[method]
        assert caught == percent(np.mean(scores["digits"] > detector.threshold))
        assert alarms == percent(np.mean(scores["id"] > detector.threshold))
        assert right == percent(result.accuracy)
    split, woods = compared.split, compared.outcomes["WOODS"].detector
    assert rows["WOODS"][0] == percent(unknown_share(woods, split.test_ood))
    assert rows["WOODS"][4] == percent(np.mean(woods.classify(split.test_id[0]) == split.test_id[1]))
    columns = list(zip(*(map(float, cells) for cells in rows.values()), strict=True))
    best = [pick(column) for pick, column in zip((max, min, min, max, max), columns, strict=True)]
    bold = [value for row in zip(*columns, strict=True) for value, wanted in zip(row, best, strict=True) if value == wanted]
    assert [float(cell.text) for cell in panel.all("td", cls="best")] == bold
    assert panel.all("tr", cls="strong") == []
    says = "In percent, on 214 known and 160 unknown scans that nobody has trained on; seed 0."
    assert panel.one("p", cls="says").text == says


def test_the_comparison_is_over_its_seeds_and_looks_closer_at_the_first(compared, parse, undrawn):
    by_hand = {  # accepted, false alarms, accuracy
        ("energy", 3): (0.60, 0.01, 0.95),
        ("energy", 4): (0.50, 0.03, 0.97),
        ("woods", 3): (0.30, 0.02, 0.94),
        ("woods", 4): (0.10, 0.06, 0.90),
    }

    def outcome(found, seed):
        method = found.result.experiment.method
        accepted, false_alarms, accuracy = by_hand.get((method, seed), (0.5, 0.5, 0.5))
        metrics = OodMetrics(0.25, 0.01, 0.9, 0.9, 0.9, accepted, 100)
        experiment = replace(found.result.experiment, seed=seed)
        result = replace(found.result, experiment=experiment, tests={"digits": metrics}, accuracy=accuracy)
        other = compared.outcomes["max-softmax"].detector
        result = replace(result, false_alarms=false_alarms)
        return found._replace(result=result, detector=found.detector if seed == 3 else other)

    outcomes = [outcome(found, seed) for seed in (3, 4) for found in compared.outcomes.values()]
    tree = parse(comparison_page(outcomes, compared.split, "wildood demo"))
    # Two values that differ by d have the standard error d / 2.
    rows = {
        name: [cell.replace("\N{NO-BREAK SPACE}", " ") for cell in cells]
        for name, cells in comparison_of(tree).rows().items()
    }
    assert rows["energy"] == ["45.0 ± 5.0", "2.0 ± 1.0", "25.0 ± 0.0", "90.0 ± 0.0", "96.0 ± 1.0"]
    assert rows["WOODS"] == ["80.0 ± 10.0", "4.0 ± 2.0", "25.0 ± 0.0", "90.0 ± 0.0", "92.0 ± 2.0"]
    assert "mean ± standard error over the seeds 3, 4." in comparison_of(tree).one("p", cls="says").text
    lead = tree.one("div", cls="lead")
    assert [number.text for number in lead.all("strong")] == ["80.0 %", "4.0 %"]
    assert "(before, by its energy: 45.0 %)" in lead.text
    assert "(promised: at most 5 %)" in lead.text
    assert "the accuracy was 96.0 % and is 92.0 %" in lead.text
    assert "A closer look (seed 3)" in [heading.text for heading in tree.all("h2")]
    assert settings_of(tree)["seeds"] == "3, 4 (figures: 3)"
    woods = compared.outcomes["WOODS"].detector
    assert settings_of(tree)["threshold"] == f"{woods.threshold:.6g}: {woods.promise}"


@pytest.mark.parametrize(("panel", "method"), [("Before", "energy"), ("After", "WOODS")])
def test_the_closer_look_says_what_each_accepts(tree, compared, panel, method):
    _, scores, detector = compared.outcomes[method]
    known, unknown = (np.mean(scores[name] <= detector.threshold) for name in ("id", "digits"))
    says = tree.panel(panel).one("p", cls="says").text
    assert says.endswith(f": {percent(known)} % of the known, {percent(unknown)} % of the unknown.")


def test_the_comparison_shows_the_mistakes_of_woods(tree, compared):
    detector = compared.outcomes["WOODS"].detector
    parts = compared.split
    known, (unknown, called) = detector.score(parts.test_id[0]), detector.score_and_classify(parts.test_ood)
    answers = [f"“{name}”, {score:.1f}" for name, score in zip(called, unknown, strict=True)]
    truths = [f"a {name}, {score:.1f}" for name, score in zip(parts.test_id[1], known, strict=True)]
    for title, scores, captions, chosen, sign in (
        ("Unknown and rejected", unknown, answers, unknown > detector.threshold, -1),
        ("Unknown but accepted", unknown, answers, unknown <= detector.threshold, 1),
        ("False alarms", known, truths, known > detector.threshold, -1),
    ):
        panel = tree.panel(title)
        assert panel.one("h3").text.startswith(f"{title}: {chosen.sum()} of {len(scores)}")
        order = [number for number in np.argsort(sign * scores) if chosen[number]][:16]
        assert [caption.text for caption in panel.all("figcaption")] == [captions[number] for number in order]


def test_the_comparison_says_how_it_was_made(tree):
    settings = settings_of(tree)
    assert settings["command"] == "wildood demo --seeds 1"
    assert settings["seeds"] == "0 (figures: 0)"
    assert settings["method"].startswith("Woods: alpha 0.05")
    assert settings["schedule"].startswith("steps 12, batch 64")
    assert settings["versions"].startswith(f"wildood {wildood.__version__}, torch {torch.__version__}")


def test_the_lines_for_ones_own_classifier_are_python_that_fit_understands(tree):
    lines = tree.panel("The lines to change").one("code").text
    (call,) = (
        node for node in ast.walk(ast.parse(lines)) if isinstance(node, ast.Call) and ast.unparse(node.func) == "wildood.fit"
    )
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    bound = inspect.signature(wildood.fit).bind(*map(ast.unparse, call.args), **given)
    assert bound.arguments == {"model": "model", "labelled": "(x, y)", "wild": "x_wild", "holdout": "(x_new, y_new)"}
