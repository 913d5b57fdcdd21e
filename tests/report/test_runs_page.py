"""The report of many runs: its numbers, its figures, what failed, and a page for each run."""

import re
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.axes import Axes

from wildood.errors import InputError
from wildood.experiments.experiment import Experiment
from wildood.experiments.store import SCORES, TOML, Failure, OnOod, Result, RunStore
from wildood.methods.shipped import SHIPPED as METHODS
from wildood.report import runs_figures
from wildood.report.run_page import failure_page, run_page, run_title
from wildood.report.runs import Runs
from wildood.report.runs_figures import Curve, Point, mean_of_runs
from wildood.report.runs_page import runs_page
from wildood.report.runs_panels import constraint_panels, pi_panels, score_panels
from wildood.report.sortable import Block, Column, SortCell, sortable_table
from wildood.report.style import drawing

SETS = ("svhn", "places365")
EVIL = '<b>&"evil"'
FPR95 = {"energy": 0.6, "max-softmax": 0.7, "oe": 0.4, "woods": 0.2}
ABOUT = {"kept_epoch": 2, "versions": {"torch": "2.13.0"}, "code": "<code>"}


def history(method, seed):
    if method == "oe":
        return [{"epoch": n, "step": 5 * n, "loss": 1 / (n + 1), "accuracy": 0.9, "acceptance": 0.8} for n in range(4)]
    start = {"epoch": 0, "step": 0, "accuracy": 0.9, "acceptance": 0.9, "holdout_false_alarm": 0.3}
    later = {"accuracy": 0.9, "acceptance": 0.8, "w": -1.0, "lambda_false_alarm": 1.0, "lambda_classification": 1.0}
    rows = [
        {"epoch": n, "step": 5 * n, "false_alarm": 0.2 / n + 0.02 * seed, "classification": -0.1, **later} for n in (1, 2, 3)
    ]
    return [start, *rows]


def result(experiment, shift=0.0, **more):
    rng = np.random.default_rng(experiment.seed)
    scores = {"id": rng.normal(size=60).astype("float32")}
    scores |= {name: (rng.normal(size=40) + 2).astype("float32") for name in experiment.test}
    fpr95 = FPR95[experiment.method] + shift + 0.02 * experiment.seed
    tests = {name: OnOod(fpr95, 0.01, 0.9, 0.91, 0.92, 0.123, 40) for name in experiment.test}
    rows = history(experiment.method, experiment.seed) if experiment.trains else ()
    found = {"accuracy": 0.94, "false_alarms": 0.05, "examples": 60, "history": rows, "seconds": 12.5, "about": ABOUT}
    return Result(experiment, tests, **found | {"acceptance": 0.5 if experiment.trains else None} | more), scores


def failed(store, experiment, error="ValueError: <i>no</i>"):
    failure = Failure(experiment, error, f"Traceback:\n  <module>\n{error}\n")
    with store.claimed(experiment):
        store.add_failure(failure)
    return failure


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    made = RunStore(tmp_path_factory.mktemp("runs"))
    for seed in (0, 1):
        for method in ("energy", "max-softmax"):
            made.add(*result(Experiment("cifar10", SETS, method=method, seed=seed)))
        for method in ("oe", "woods"):
            for name in SETS:
                made.add(*result(Experiment("cifar10", (name,), name, 0.1, method, seed=seed)))
            for pi in (0.05, 0.1, 0.5):
                made.add(*result(Experiment("cifar10", SETS, "300k", pi, method, seed=seed), shift=pi / 10))
    made.add(*result(Experiment("own.npz", (f"{EVIL}.npz",), f"{EVIL}.npz", 0.2, "woods")))
    failed(made, Experiment("cifar10", ("svhn",), "svhn", 0.1, "woods", seed=2))
    with made.claimed(Experiment("cifar10", ("svhn",), "svhn", 0.1, "woods", seed=3)):
        pass
    return made


@pytest.fixture(scope="module")
def runs(store):
    return Runs.read(store)


@pytest.fixture(scope="module")
def html(runs):
    return runs_page(runs, {"command": "wildood report '<runs>'"})


@pytest.fixture(scope="module")
def tree(html, parse):
    return parse(html)


@pytest.fixture(scope="module")
def woods(runs):
    return next(each for each in runs.results if each.experiment.wild == "300k" and each.experiment.method == "woods")


def panels(tree, section):
    (found,) = (each for each in tree.all("section") if each.one("h2").text == section)
    return found.all("div", cls="panel")


def rows(table):
    """The texts of each row of a table of results, by block and name."""
    found = {}
    for body in table.all("tbody"):
        (block,) = body.all("tr", cls="block")
        for row in body.all("tr"):
            if row is not block:
                found[block.text, row.one("th").text] = [cell.text for cell in row.all("td")]
    return found


def figures_of(tree):
    return [svg.attributes["aria-label"] for svg in tree.all("svg")]


def test_the_runs_are_counted_once_each(runs):
    assert (len(runs.results), len(runs.failures), runs.unfinished) == (25, 1, 1)
    assert runs.told() == "27 runs: 25 are done, 1 failed, 1 has not ended."


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda place: RunStore(place / "none"), "none is no directory"),
        (RunStore, "holds no runs"),
    ],
)
def test_a_directory_without_runs_is_refused(make, says, tmp_path):
    with pytest.raises(InputError, match=says):
        Runs.read(make(tmp_path))


def test_runs_that_have_all_not_ended_are_refused(tmp_path):
    store = RunStore(tmp_path)
    with store.claimed(Experiment("digits", ("digits",), method="energy")):
        pass
    with pytest.raises(InputError, match="holds one run that has not ended yet: call report again when one has"):
        Runs.read(store)


def test_failed_runs_come_first_with_their_error_as_text(tree, runs):
    (panel,) = panels(tree, "Failed runs")
    assert tree.all("section")[0].one("h2").text == "Failed runs"
    assert panel.one("li").text == "WOODS on CIFAR-10, SVHN in the wild (π = 0.1), seed 2: ValueError: <i>no</i>"
    assert panel.one("a").attributes["href"] == f"runs/{runs.failures[0].experiment.name}.html"
    assert tree.one("div", cls="lead").text.startswith("27 runs: 25 are done, 1 failed, 1 has not ended.")


def test_the_tables_hold_means_and_standard_errors_by_block(tree):
    first, second, _ = panels(tree, "Results")
    table = rows(first.one("table"))
    assert list(table) == [
        ("with P_in only", "MSP"),
        ("with P_in only", "energy"),
        ("with P_in and P_wild", "OE"),
        ("with P_in and P_wild", "WOODS"),
    ]
    # 0.2 and 0.22: their mean is 0.21, its standard error 0.01. One run of WOODS failed.
    assert table["with P_in and P_wild", "WOODS"] == [
        *["21.00±1.00", "90.00±0.00"] * 3, "94.00±0.00", "21 failed",
    ]  # fmt: skip
    assert rows(second.one("table"))["π = 0.5", "OE"][0] == "46.00±1.00"
    assert [head.text for head in first.all("th", scope="colgroup")] == ["SVHN", "Places365", "average"]


def test_the_best_is_bold_in_each_block(tree):
    _, second, _ = panels(tree, "Results")
    for body in second.one("table").all("tbody"):
        *_, oe, woods = body.all("tr")
        assert [cell.text[:2] for cell in oe.all("b")] == ["90", "90", "90", "94"]  # alike in AUROC and accuracy
        assert len(woods.all("b")) == 7


def test_every_column_of_a_table_can_be_sorted_by_value_within_its_block(tree):
    for table in tree.all("table", cls="sortable"):
        heads = [head for head in table.one("thead").all("th") if "aria-sort" in head.attributes]
        assert sorted(int(head.attributes["data-column"]) for head in heads) == list(range(len(heads)))
        for head in heads:
            assert head.attributes["aria-sort"] == "none"
            assert (
                head.attributes["data-first"] == ("descending" if "↑" in head.text else "ascending") or "seeds" in head.text
            )
            assert head.one("button").attributes["type"] == "button"
        for row in table.all("tr"):
            cells = [cell for cell in row.content if cell.tag in {"th", "td"}]
            if row.attributes.get("class") != "block" and "aria-sort" not in cells[0].attributes:
                assert len(cells) == len(heads)
                for cell in cells:
                    assert ("data-value" in cell.attributes) == (cell.text not in {"–", ""})
    cell = panels(tree, "Results")[0].one("table").all("tbody")[1].all("tr")[2].all("td")[0]
    assert float(cell.attributes["data-value"]) == pytest.approx(0.21)


def test_a_head_that_is_there_for_several_sets_is_named_with_its_set(tree):
    buttons = panels(tree, "Results")[0].all("button")
    named = [button.attributes.get("aria-label", button.text) for button in buttons]
    assert len(named) == len(set(named)) == 9
    assert "SVHN: FPR95 ↓" in named


def test_heads_are_shared_only_by_neighbours():
    columns = [Column("a", "x"), Column("b", "y"), Column("c", "y"), Column("d", "x")]
    html = sortable_table(columns, [Block("", [[SortCell("1", 1)] * 4])], "names")
    assert re.findall(r'colspan="(\d)">(\w)<', html) == [("1", "x"), ("2", "y"), ("1", "x")]


def test_every_figure_is_there(tree, runs):
    shown = figures_of(tree)
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
        ({"keep": "last"}, None),
        ({"protocol": "as_published"}, None),
    ],
)
def test_only_runs_alike_in_all_but_wild_data_are_a_line_below_the_curves(other, line, tmp_path):
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
def test_a_line_of_fewer_examples_than_the_curves_says_so(examples, says, tmp_path):
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


def test_the_constraint_is_that_of_woods_at_the_papers_pi(runs):
    says = [panel.says for panel in constraint_panels(runs)]
    assert [re.search("of (.*?):", text).group(1) for text in says] == [
        "WOODS, at π = 0.1", "WOODS, at π = 0.1", "WOODS, at π = 0.2",
    ]  # fmt: skip


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
def test_the_pages_say_that_scores_are_not_there(kind, tmp_path, parse):
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
    (panel,) = panels(parse(runs_page(runs, {})), "Scores of the test examples")
    assert panel.one("p", cls="note").text == f"SVHN by energy, seed 0: {told}"
    assert len(panel.all("figure")) == 1
    energy = next(each for each in runs.results if each.experiment == experiment)
    page = parse(run_page(energy, runs.scores(energy)))
    assert page.panel("ID against each OOD set").one("p", cls="says").text == f"SVHN: {told}"
    assert page.panel("Test numbers").rows()["SVHN"][0].startswith("60.00")


def test_one_set_without_scores_is_told_below_the_others(parse):
    made, scores = result(Experiment("cifar10", SETS, method="energy"))
    page = parse(run_page(made, {name: each for name, each in scores.items() if name != "svhn"}))
    panel = page.panel("ID against each OOD set")
    assert [each.one("figcaption").text.split(":")[0] for each in panel.all("figure")] == ["Places365"]
    assert panel.one("p", cls="note").text.startswith("SVHN: the scores are not there")


def test_folders_that_cannot_be_read_are_left_out_and_told(tmp_path, parse):
    store = RunStore(tmp_path)
    store.add(*result(Experiment("cifar10", ("svhn",), method="energy")))
    for name in "abcd":
        (tmp_path / name).mkdir()
        (tmp_path / name / TOML).write_text("id = <b>")
    runs = Runs.read(store)
    assert (len(runs.results), [name for name, _ in runs.left_out]) == (1, list("abcd"))
    why = runs.left_out[0][1]
    assert runs.told_left_out() == f"4 folders left out: a, b, c, and 1 more: {why}"
    page = parse(runs_page(runs, {}))
    assert page.one("div", cls="lead").text.count(runs.told_left_out()) == 1
    (panel,) = panels(page, "Folders left out")
    assert [item.text for item in panel.all("li")] == [f"a, b, c, d: {why}"]
    assert runs.told() == "1 run: 1 is done, none failed; 4 folders left out, which cannot be read."


def test_a_directory_of_unreadable_folders_is_refused_with_the_reason(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / TOML).write_text("id =")
    with pytest.raises(InputError, match=r"holds no runs that can be read: 1 folder left out: a: .*remove the folder$"):
        Runs.read(RunStore(tmp_path))


def test_a_method_of_a_users_own_has_its_name_as_title(tmp_path, monkeypatch, parse):
    monkeypatch.setitem(METHODS, "mine:A", METHODS["woods"])
    monkeypatch.setitem(FPR95, "mine:A", 0.3)
    store = RunStore(tmp_path)
    for pi in (0.1, 0.5):
        store.add(*result(Experiment("cifar10", SETS, "300k", pi, "mine:A")))
    runs = Runs.read(store)
    page = parse(runs_page(runs, {}))
    assert "FPR95 over π: mine:A" in figures_of(page)
    first = parse(run_page(runs.results[0], runs.scores(runs.results[0])))
    assert first.one("h1").text.startswith("mine:A on CIFAR-10, 300K Rand. Img. in the wild")


def test_methods_of_a_users_own_look_different(monkeypatch):
    drawn = []
    monkeypatch.setattr(Axes, "plot", lambda self, *given, **style: drawn.append(style.get("marker")))
    points = [Point(0.1, 0.2, None), Point(0.5, 0.1, None)]
    with pytest.warns(UserWarning, match="No artists"):
        runs_figures.over_pi("a", [Curve(name, name, points) for name in ("mine:A", "mine:B", "woods")])
    assert len(set(drawn)) == 3


def test_the_papers_numbers_stand_beside_ours(tree):
    first, _ = panels(tree, "Beside the paper")
    assert (
        first.one("p", cls="says").text == "Of Table A1. 0 of the 8 numbers with a standard error in both are within 2 SE."
    )
    (body,) = (body for body in first.all("tbody") if body.one("tr", cls="block").text == "with P_in and P_wild")
    found = [[row.one("th").text, *(cell.text for cell in row.all("td"))] for row in body.all("tr")[1:]]
    ours, theirs = "41.00 ±\N{NO-BREAK SPACE}1.00", "23.47 ±\N{NO-BREAK SPACE}0.5"  # as Table A1 prints it
    assert ["OE", "Places365", "FPR95 ↓", ours, theirs, "+17.53", "no"] in found


def test_every_run_is_listed_with_a_link(tree, runs):
    (panel,) = panels(tree, "Every run")
    links = {link.text: link.attributes["href"] for link in panel.all("a")}
    assert links == {name: f"runs/{name}.html" for name in runs.by_name}


def test_hostile_names_are_shown_as_text(html, tree, runs, parse):
    assert {element.tag for element in tree.all()}.isdisjoint({"i", "iframe", "link"})
    assert EVIL in [head.text for head in tree.all("th", scope="colgroup")]
    assert html.count("<script>") == 1
    assert [element.text for element in tree.all("b") if "evil" in element.text] == []
    own = next(each for each in runs.results if each.experiment.id == "own.npz")
    page = parse(run_page(own, runs.scores(own)))
    assert page.one("h1").text == f"WOODS on own, {EVIL} in the wild (π = 0.2), seed 0"
    assert page.all("b") == []
    assert "<code>" in [text.text for text in page.all("dd")]


def test_a_page_is_on_its_own_and_has_no_id_twice(tree, woods, runs, parse):
    for each in (tree, parse(run_page(woods, runs.scores(woods)))):
        ids = each.ids()
        assert len(ids) == len(set(ids))
        for element in each.all():
            assert not any(name.startswith("on") or name == "src" for name in element.attributes)
            assert element.attributes.get("href", "#").startswith(("#", "runs/", "../report.html"))
        for style in each.all("style"):
            assert re.findall(r"@import|url\(|http", style.text) == []
        assert "http" not in each.one("script").text


def test_the_page_is_the_same_when_it_is_made_again(html, runs):
    assert runs_page(runs, {"command": "wildood report '<runs>'"}) == html


def test_a_run_has_its_numbers_settings_figures_and_making(woods, runs, parse):
    page = parse(run_page(woods, runs.scores(woods)))
    share = f"{100 * woods.tests['svhn'].fpr95:.2f}"
    assert page.panel("Test numbers").rows() == {
        name: [f"{share} ±\N{NO-BREAK SPACE}1.00", "90.00", "91.00", "92.00", "12.30", "40"]
        for name in ("SVHN", "Places365")
    }
    assert figures_of(page) == [
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
    assert page.one("a").attributes["href"] == "../report.html"


def test_a_published_run_says_that_known_ood_chose_its_epoch(parse):
    experiment = Experiment("cifar10", ("svhn",), "svhn", 0.1, "woods", protocol="as_published")
    page = parse(run_page(*result(experiment)))
    assert page.panel("Which epoch").one("p", cls="says").text.startswith("Of the OOD data that was set aside, 80.0 %")
    last = parse(run_page(*result(replace(experiment, protocol="honest", keep="last"), about={})))
    assert last.panel("Which epoch").one("p", cls="says").text.endswith("The last epoch is kept, as asked.")
    unknown = parse(run_page(*result(experiment, about={})))
    assert unknown.panel("What is accepted").one("svg").attributes["aria-label"].endswith("over the steps")


def test_a_post_hoc_run_has_no_training_and_says_what_it_chose(parse):
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
