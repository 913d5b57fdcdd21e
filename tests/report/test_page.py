"""Whatever a user's texts contain, a page shows them as text."""

import re

import pytest

from wildood.report.page import Panel, Section, code, definitions, note, page, table
from wildood.report.style import COLOURS

EVIL = "<script>alert('1')</script> & \"2\" $title ${lead} &lt;"


def variables(block):
    """`--name: value` of a style sheet's block."""
    return dict(re.findall(r"--(\w+): (#\w+);", block))


def test_titles_headings_and_sentences_are_shown_as_they_are_given(parse):
    tree = parse(page(EVIL, "<p>lead</p>", [Section(EVIL, [Panel(EVIL, EVIL, "<p>body</p>")])]))
    assert tree.all("script") == []
    for tag in ("title", "h1", "h2", "h3"):
        assert tree.one(tag).text == EVIL
    assert tree.one("p", cls="says").text == EVIL


@pytest.mark.parametrize(
    "html",
    [
        table([EVIL], [[EVIL, EVIL]]),
        definitions({EVIL: EVIL}),
        note(EVIL),
        code(EVIL),
    ],
    ids=["table", "definitions", "note", "code"],
)
def test_cells_settings_notes_and_code_are_shown_as_they_are_given(html, parse):
    tree = parse(html)
    assert tree.all("script") == []
    leaves = [element for tag in ("th", "td", "dt", "dd", "p", "code") for element in tree.all(tag)]
    assert [leaf.text for leaf in leaves] == [EVIL] * len(leaves)
    assert leaves


def test_the_lead_and_the_bodies_are_html(parse):
    lead = "<p>a <strong>b</strong></p>"
    tree = parse(page("t", lead, [Section("s", [Panel("p", "says", "<p class='x'>$lead</p>")])]))
    assert tree.one("strong").text == "b"
    assert tree.one("p", cls="x").text == "$lead"


def test_a_table_names_its_columns_and_rows_for_a_screen_reader(parse):
    tree = parse(table(["method", "caught"], [["energy", "71.9"], ["WOODS", "92.5"]]))
    assert [cell.text for cell in tree.all("th", scope="col")] == ["method", "caught"]
    assert [cell.text for cell in tree.all("th", scope="row")] == ["energy", "WOODS"]
    assert tree.rows() == {"energy": ["71.9"], "WOODS": ["92.5"]}


def test_only_the_strong_row_of_a_table_stands_out(parse):
    rows = [["a", "1"], ["b", "2"], ["c", "3"]]
    assert [row.one("th").text for row in parse(table(["", "x"], rows, strong=1)).all("tr", cls="strong")] == ["b"]
    assert parse(table(["", "x"], rows)).all("tr", cls="strong") == []


def test_the_best_cells_of_a_table_stand_out(parse):
    tree = parse(table(["", "x", "y"], [["a", "1", "2"], ["b", "3", "4"]], best={(0, 2), (1, 1)}))
    assert [cell.text for cell in tree.all("td", cls="best")] == ["2", "3"]
    assert parse(table(["", "x"], [["a", "1"]])).all("td", cls="best") == []


def test_a_mean_is_not_torn_from_its_error(parse):
    assert parse(table(["", "x"], [["a", "50.0 ± 1.0"]])).one("td").text == "50.0 ±\N{NO-BREAK SPACE}1.0"


def test_sections_and_panels_keep_their_order(parse):
    sections = [
        Section("first", [Panel("a", "", ""), Panel("b", "", "")]),
        Section("second", [Panel("c", "", "")], wide=True),
    ]
    tree = parse(page("t", "", sections))
    assert [heading.text for heading in tree.all("h2")] == ["first", "second"]
    assert [heading.text for heading in tree.all("h3")] == ["a", "b", "c"]
    layouts = zip(tree.all("section"), ("side", "wide"), strict=True)
    assert [len(section.all("div", cls=layout)) for section, layout in layouts] == [1, 1]


def test_every_colour_has_a_value_by_day_by_night_and_on_paper(parse):
    style = parse(page("t", "", [])).one("style").text
    light, rest = style.split("@media (prefers-color-scheme: dark)")
    dark, paper = rest.split("@media print")
    assert variables(light).items() >= {role: value for role, (value, _) in COLOURS.items()}.items()
    assert variables(dark).items() >= {role: value for role, (_, value) in COLOURS.items()}.items()
    assert variables(paper).items() >= {role: value for role, (value, _) in COLOURS.items()}.items()
    assert (
        set(variables(light)) == set(variables(dark)) == set(variables(paper)) >= set(re.findall(r"var\(--(\w+)\)", style))
    )
