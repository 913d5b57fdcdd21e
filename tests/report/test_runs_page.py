"""The report of many runs as a page: what failed, the tables, every run; safe and on its own."""

import re

import pytest

from wildood.experiments.experiment import Experiment
from wildood.experiments.store import RunStore
from wildood.methods.shipped import METHODS
from wildood.report.run_page import run_page
from wildood.report.runs import Runs
from wildood.report.runs_page import runs_page

SETS = ("svhn", "places365")
EVIL = '<b>&"evil"'  # the name of a set among the runs


def rows(table):
    """The texts of each row of a table of results, by block and name."""
    found = {}
    for body in table.all("tbody"):
        (block,) = body.all("tr", cls="block")
        for row in body.all("tr"):
            if row is not block:
                found[block.text, row.one("th").text] = [cell.text for cell in row.all("td")]
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
        *["21.00±1.00", "90.00±0.00"] * 3, "94.00±0.00", "21 failed",
    ]  # fmt: skip
    assert rows(second.one("table"))["π = 0.5", "OE"][0] == "46.00±1.00"
    assert [head.text for head in first.all("th", scope="colgroup")] == ["SVHN", "Places365", "average"]


def test_the_best_is_bold_in_each_block(tree):
    _, second, _ = tree.section("Results")
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
    first, _ = tree.section("PaperComparison the paper")
    assert (
        first.one("p", cls="says").text == "Of Table A1. 0 of the 8 numbers with a standard error in both are within 2 SE."
    )
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
        assert "http" not in each.one("script").text


def test_the_page_is_the_same_when_it_is_made_again(html, runs):
    assert runs_page(runs, {"command": "wildood report '<runs>'"}) == html
