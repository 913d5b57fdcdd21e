"""The report of many runs as a page: what failed, the tables, every run; safe and on its own."""

import re
from dataclasses import replace

import pytest

from wildood.errors import InputError
from wildood.experiments.experiment import Experiment
from wildood.experiments.store import TOML, RunStore
from wildood.methods.shipped import METHODS
from wildood.report import runs_page as runs_pages
from wildood.report.run_page import run_page
from wildood.report.runs_page import Runs, constraint_figures, pi_figures, runs_page, score_figures

SETS = ("svhn", "places365")
EVIL = '<b>&"evil"'  # the name of a set among the runs


def rows(table):
    """The texts of each row of a table of results, by block and name."""
    found = {}
    for body in table.all("tbody"):
        (block,) = body.all("tr", cls="block")
        for row in body.all("tr"):
            if row is not block:
                found[block.text, row.one("th").text] = [
                    cell.text.replace("\N{NO-BREAK SPACE}", " ") for cell in row.all("td")
                ]
    return found


def test_failed_runs_come_first_with_their_error_as_text(tree, runs):
    (panel,) = tree.section("Failed runs")
    assert tree.all("section")[0].one("h2").text == "Failed runs"
    assert panel.one("li").text == "WOODS on CIFAR-10, SVHN in the wild (π = 0.1), seed 2: ValueError: <i>no</i>"
    assert panel.one("a").attributes["href"] == f"runs/{runs.failures[0].experiment.name}.html"
    assert tree.one("div", cls="lead").text.startswith("27 runs: 25 are done, 1 failed, 1 has not ended.")


def test_the_tables_hold_means_and_standard_errors_by_block(tree):
    first, second, _ = tree.section("Results")
    table = rows(first.one("table"))
    assert list(table) == [
        ("with P_in only", "MSP"),
        ("with P_in only", "energy"),
        ("with P_in and P_wild", "OE"),
        ("with P_in and P_wild", "WOODS"),
    ]
    # 0.2 and 0.22: their mean is 0.21, its standard error 0.01. One run of WOODS failed.
    assert table["with P_in and P_wild", "WOODS"] == [
        *["21.00 ± 1.00", "90.00 ± 0.00"] * 3, "94.00 ± 0.00", "2 1 failed",
    ]  # fmt: skip
    assert rows(second.one("table"))["π = 0.5", "OE"][0] == "46.00 ± 1.00"
    assert [head.text for head in first.all("th", scope="colgroup")] == ["SVHN", "Places365", "average"]


def test_the_best_is_bold_in_each_block(tree):
    _, second, _ = tree.section("Results")
    for body in second.one("table").all("tbody"):
        *_, oe, woods = body.all("tr")
        assert [cell.text[:2] for cell in oe.all("td", cls="best")] == [
            "90",
            "90",
            "90",
            "94",
        ]  # alike in AUROC and accuracy
        assert len(woods.all("td", cls="best")) == 7


def test_every_column_of_a_table_can_be_sorted_by_value_within_its_block(tree):
    for table in tree.all("table", cls="sortable"):
        heads = [head for head in table.one("thead").all("th") if "aria-sort" in head.attributes]
        assert sorted(int(head.attributes["data-column"]) for head in heads) == list(range(len(heads)))
        for head in heads:
            assert head.attributes["aria-sort"] == "none"
            assert head.attributes["data-first"] == ("descending" if "↑" in head.text else "ascending")
            assert head.one("button").attributes["type"] == "button"
        for row in table.all("tr"):
            cells = [cell for cell in row.content if cell.tag in {"th", "td"}]
            if row.attributes.get("class") != "block" and "aria-sort" not in cells[0].attributes:
                assert len(cells) == len(heads)
                for cell in cells:
                    assert ("data-value" in cell.attributes) == (cell.text not in {"–", ""})
    cell = tree.section("Results")[0].one("table").all("tbody")[1].all("tr")[2].all("td")[0]
    assert float(cell.attributes["data-value"]) == pytest.approx(0.21)


def test_a_head_that_is_there_for_several_sets_is_named_with_its_set(tree):
    buttons = tree.section("Results")[0].all("button")
    named = [button.attributes.get("aria-label", button.text) for button in buttons]
    assert len(named) == len(set(named)) == 9
    assert "SVHN: FPR95 ↓" in named


def test_a_method_of_a_users_own_has_its_name_as_title(tmp_path, monkeypatch, parse, result):
    monkeypatch.setitem(METHODS, "mine:A", METHODS["woods"])
    store = RunStore(tmp_path)
    for pi in (0.1, 0.5):
        store.add(*result(Experiment("cifar10", SETS, "300k", pi, "mine:A")))
    runs = Runs.read(store)
    page = parse(runs_page(runs, {}))
    assert "FPR95 over π: mine:A" in page.figures()
    first = parse(run_page(runs.results[0], runs.scores(runs.results[0])))
    assert first.one("h1").text.startswith("mine:A on CIFAR-10, 300K Rand. Img. in the wild")


def test_the_papers_numbers_stand_beside_ours(tree):
    first, _ = tree.section("Comparison with the paper")
    assert first.one("p", cls="says").text == "0 of the 8 numbers with a standard error in both are within 2 SE."
    assert first.one("h3").text.endswith("compared with the paper's Table A1")
    (body,) = (body for body in first.all("tbody") if body.one("tr", cls="block").text == "with P_in and P_wild")
    found = [[row.one("th").text, *(cell.text for cell in row.all("td"))] for row in body.all("tr")[1:]]
    ours, theirs = "41.00 ±\N{NO-BREAK SPACE}1.00", "23.47 ±\N{NO-BREAK SPACE}0.5"  # as Table A1 prints it
    assert ["OE", "Places365", "FPR95 ↓", ours, theirs, "+17.53", "no"] in found


def test_every_run_is_listed_with_a_link(tree, runs):
    (panel,) = tree.section("Every run")
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
    assert "http" not in tree.one("script").text


def test_the_page_is_the_same_when_it_is_made_again(html, runs):
    assert runs_page(runs, {"command": "wildood report '<runs>'"}) == html


def test_the_runs_are_counted_once_each(runs):
    assert (len(runs.results), len(runs.failures), runs.unfinished) == (25, 1, 1)
    assert runs.summary() == "27 runs: 25 are done, 1 failed, 1 has not ended."


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


def test_folders_that_cannot_be_read_are_left_out_and_told(tmp_path, parse, result):
    store = RunStore(tmp_path)
    store.add(*result(Experiment("cifar10", ("svhn",), method="energy")))
    for name in "abcd":
        (tmp_path / name).mkdir()
        (tmp_path / name / TOML).write_text("id = <b>")
    runs = Runs.read(store)
    assert (len(runs.results), [name for name, _ in runs.left_out]) == (1, list("abcd"))
    why = runs.left_out[0][1]
    assert runs.left_out_text() == f"4 folders left out: a, b, c, and 1 more: {why}"
    page = parse(runs_page(runs, {}))
    assert page.one("div", cls="lead").text.count(runs.left_out_text()) == 1
    (panel,) = page.section("Folders left out")
    assert [item.text for item in panel.all("li")] == [f"a, b, c, d: {why}"]
    assert runs.summary() == "1 run: 1 is done, none failed; 4 folders left out."


def test_a_directory_of_unreadable_folders_is_refused_with_the_reason(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / TOML).write_text("id =")
    with pytest.raises(InputError, match=r"holds no runs that can be read: 1 folder left out: a: .*remove the folder$"):
        Runs.read(RunStore(tmp_path))


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
    monkeypatch.setattr(runs_pages, "over_pi", lambda *words: asked.append(words) or "")
    (figure,) = pi_figures(runs)
    assert figure.title.startswith("Places365: CIFAR-10 as ID")
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
def test_only_runs_alike_in_all_but_wild_data_are_a_line_below_the_curves(other, line, tmp_path, parse, result, undrawn):
    store = RunStore(tmp_path)
    store.add(*result(Experiment("cifar10", SETS, method="energy", **other)))
    for pi in (0.1, 0.5):
        store.add(*result(Experiment("cifar10", SETS, "300k", pi, "woods")))
    (figure,) = pi_figures(runs := Runs.read(store))
    assert ("energy, without wild data" in figure.svg) == (line is not None)
    assert ("The dotted line" in parse(runs_page(runs, {})).panel(figure.title).one("p", cls="says").text) == (
        line is not None
    )
    (shown,) = (figures for title, figures in score_figures(runs) if "300K" in title)
    assert any("by energy" in figure.says for figure in shown) == (line is not None)


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
def test_a_line_of_fewer_examples_than_the_curves_says_so(examples, says, tmp_path, parse, result, undrawn):
    def add(experiment, count):
        found, scores = result(experiment)
        tests = {name: replace(each, examples=count) for name, each in found.tests.items()}
        store.add(replace(found, tests=tests), scores)

    store = RunStore(tmp_path)
    add(Experiment("cifar10", SETS, method="energy"), examples)
    for pi in (0.1, 0.5):
        add(Experiment("cifar10", SETS, "300k", pi, "woods"), 4000)
    (panel,) = parse(runs_page(Runs.read(store), {})).section("More or less OOD in the wild")
    assert panel.one("p", cls="says").text.endswith(f"The dotted line is the best of the methods that see {says}")


def test_the_constraint_is_that_of_woods_at_the_papers_pi(runs, tree):
    says = [panel.one("p", cls="says").text for panel in tree.section("The constraint on false alarms")]
    assert len(constraint_figures(runs)) == len(says)
    assert [re.search("of (.*?):", text).group(1) for text in says] == [
        "WOODS, at π = 0.1", "WOODS, at π = 0.1", "WOODS, at π = 0.2",
    ]  # fmt: skip
