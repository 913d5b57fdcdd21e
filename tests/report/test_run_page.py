"""The page of one run, done or failed."""

from dataclasses import replace

import pytest

from wildood.experiments.experiment import Experiment
from wildood.experiments.store import SCORES, RunStore
from wildood.report.run_page import failure_page, run_page, run_title
from wildood.report.runs_page import Runs, runs_page

SETS = ("svhn", "places365")


def damaged(content, kind):
    """A file of scores that is damaged in some way; None if it is gone."""
    return {
        "deleted": None,
        "empty": b"",
        "cut": content[: len(content) // 2],
        "other bytes": content[:200] + b"XXXX" + content[204:],
        "no zip": b"something else",
    }[kind]


@pytest.mark.parametrize("kind", ["deleted", "empty", "cut", "other bytes", "no zip"])
def test_the_pages_say_that_scores_are_not_there(kind, tmp_path, parse, result, undrawn):
    store = RunStore(tmp_path)
    store.add(*result(experiment := Experiment("cifar10", ("svhn",), method="energy")))
    store.add(*result(Experiment("cifar10", ("svhn",), "svhn", 0.1, "woods")))
    file = store.place(experiment) / SCORES
    content = damaged(file.read_bytes(), kind)
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    runs = Runs.read(store)
    told = "the scores are not there: scores.npz in the folder of the run is missing or damaged."
    (panel,) = parse(runs_page(runs, {})).section("Scores of the test examples")
    assert panel.one("p", cls="note").text == f"SVHN by energy, seed 0: {told}"
    assert len(panel.all("figure")) == 1
    energy = next(each for each in runs.results if each.experiment == experiment)
    page = parse(run_page(energy, runs.scores(energy)))
    assert page.panel("ID against each OOD set").one("p", cls="says").text == f"SVHN: {told}"
    assert page.panel("Test numbers").rows()["SVHN"][0].startswith("60.00")


def test_one_set_without_scores_is_told_below_the_others(parse, result):
    made, scores = result(Experiment("cifar10", SETS, method="energy"))
    page = parse(run_page(made, {name: each for name, each in scores.items() if name != "svhn"}))
    panel = page.panel("ID against each OOD set")
    assert [each.one("figcaption").text.split(":")[0] for each in panel.all("figure")] == ["Places365"]
    assert panel.one("p", cls="note").text.startswith("SVHN: the scores are not there")


def test_a_run_has_its_numbers_settings_figures_and_making(woods, runs, parse):
    page = parse(run_page(woods, runs.scores(woods)))
    share = f"{100 * woods.tests['svhn'].fpr95:.2f}"
    assert page.panel("Test numbers").rows() == {
        name: [f"{share} ±\N{NO-BREAK SPACE}1.00", "90.00", "91.00", "92.00", "12.30", "40"]
        for name in ("SVHN", "Places365")
    }
    assert page.figures() == [
        "Scores of ID and SVHN, with the threshold",
        "Scores of ID and Places365, with the threshold",
        "The constraint on false alarms over the steps, with its limit alpha",
        "Cross-entropy minus its limit tau over the steps",
        "The multipliers of the two constraints over the steps",
        "The slope w over the steps",
        "Wild data accepted and accuracy over the steps, with the epoch that was kept",
    ]
    assert page.panel("experiment.toml").one("code").text == woods.experiment.to_toml()
    making = page.panel("Versions")
    told = dict(zip([term.text for term in making.all("dt")], [text.text for text in making.all("dd")], strict=True))
    assert (told["run"], told["seconds"], told["versions"]) == (woods.experiment.name, "12.5", "torch 2.13.0")
    assert told["split"] == "SVHN: labelled 2,500 (ab), wild ood 30 (cd)"
    assert page.one("a").attributes["href"] == "../report.html"


def test_a_published_run_says_that_known_ood_chose_its_epoch(parse, result, undrawn):
    experiment = Experiment("cifar10", ("svhn",), "svhn", 0.1, "woods", protocol="as_published")
    page = parse(run_page(*result(experiment)))
    assert page.panel("Which epoch").one("p", cls="says").text.startswith("Of the OOD data set aside, 80.0 %")
    last = parse(run_page(*result(replace(experiment, protocol="honest", keep="last"), about={})))
    assert last.panel("Which epoch").one("p", cls="says").text.endswith("The last epoch is kept, as asked.")
    unknown = parse(run_page(*result(experiment, about={})))
    assert unknown.panel("What is accepted").one("svg").attributes["aria-label"].endswith("over the steps")


def test_a_post_hoc_run_has_no_training_and_says_what_it_chose(parse, result):
    experiment = Experiment("cifar10", ("svhn",), method="energy")
    page = parse(run_page(*result(experiment, chosen={"epsilon": 0.01})))
    assert "The training" not in [head.text for head in page.all("h2")]
    assert "epsilon 0.01" in [text.text for text in page.all("dd")]


def test_a_failed_run_has_a_page_with_its_error_and_traceback(runs, parse):
    (failure,) = runs.failures
    page = parse(failure_page(failure))
    assert page.one("h1").text == run_title(failure.experiment)
    assert "ValueError: <i>no</i>" in page.one("div", cls="lead").text
    assert page.panel("Traceback").one("code").text == failure.traceback
    assert page.panel("experiment.toml").one("code").text == failure.experiment.to_toml()


@pytest.mark.parametrize(
    "about",
    [
        {"kept_epoch": "x"},
        {"kept_epoch": 99},
        {"kept_epoch": -1},
        {"versions": 3},
        {"split": {"svhn": {"labelled": {"count": "many", "hash": "ab"}}}},
        {"split": 3},
    ],
)
def test_what_is_told_of_the_making_may_be_anything(about, tmp_path, parse, result, undrawn):
    store, experiment = RunStore(tmp_path), Experiment("cifar10", ("svhn",), "svhn", 0.1, "woods", keep="best")
    store.add(*result(experiment, about=about))
    runs = Runs.read(store)
    page = parse(run_page(runs.results[0], {}))
    assert page.panel("What is accepted")  # which epoch was kept is not known
    told = page.panel("Versions").text
    assert str(next(iter(about.values()))) in told
    assert parse(runs_page(runs, {})).section("How it was made")


def test_a_history_that_no_training_writes_is_not_drawn(woods, result, parse):
    """A file may hold anything: the rest of the page is there."""
    posthoc, _ = result(Experiment("cifar10", ("svhn",), method="energy"))
    without_steps = [{name: value for name, value in row.items() if name != "step"} for row in woods.history]
    for odd in (replace(posthoc, history=woods.history), replace(woods, history=without_steps)):
        page = parse(run_page(odd, {}))
        assert "Which epoch was kept" not in page.text
        assert len(page.panel("Test numbers").rows()) == len(odd.tests)
    unseen_start = [{"epoch": 0, "step": 0}, *woods.history[1:]]
    page = parse(run_page(replace(woods, history=unseen_start), {}))
    assert ("What is accepted" in page.text, "Which epoch was kept" in page.text) == (True, False)
