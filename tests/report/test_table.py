"""A table says the same in each of its forms, and whatever a user's texts contain, it shows them as text."""

import csv
import io
import re
from dataclasses import replace
from functools import partial

import pytest
from markupsafe import escape

from wildood.detect.card import escape_markdown
from wildood.report import table as tables
from wildood.report.table import (
    Column,
    Row,
    Table,
    TableCell,
    escape_latex,
    print_table,
    to_csv,
    to_html,
    to_latex,
    to_markdown,
    to_text,
)

EVIL = "<script>alert('1')</script> & \"2\" $title ${lead} &lt; {{ 1 }}"
ONE = "{:.1f}".format
COLUMNS = [Column("method"), Column("caught ↑", digits=ONE), Column("FPR95 ↓", digits=ONE)]
ROWS = [
    Row.of("energy", TableCell(71.92, error=1.26), TableCell(13.1, interval=(11.0, 15.04)), block="post hoc"),
    Row.of("WOODS", TableCell(92.5, error=0.5, best=True), None, block="trained"),
]
TABLE = Table(COLUMNS, ROWS, title="A title", caption="How to read it.", notes=["a_b."], sortable=True)


def test_each_form_has_the_same_numbers(capsys, parse):
    assert [TABLE.texts(row) for row in ROWS] == [
        ["energy", "71.9 ± 1.3", "13.1 [11.0, 15.0]"],
        ["WOODS", "92.5 ± 0.5", "–"],
    ]
    assert to_markdown(TABLE).splitlines() == [
        *("**A title.** How to read it.", "", "| method | caught ↑ | FPR95 ↓ |", "| --- | ---: | ---: |"),
        *("| *post hoc* |  |  |", "| energy | 71.9 ± 1.3 | 13.1 [11.0, 15.0] |"),
        *("| *trained* |  |  |", "| WOODS | **92.5 ± 0.5** | – |", "", r"- a\_b."),
    ]
    assert to_latex(TABLE).splitlines() == [
        *(r"\begin{tabular}{lrr}", r"\toprule", r"method & caught $\uparrow$ & FPR95 $\downarrow$ \\"),
        *(r"\midrule", r"\multicolumn{3}{c}{post hoc} \\", r"energy & 71.9$^{\pm 1.3}$ & 13.1 [11.0, 15.0] \\"),
        *(r"\midrule", r"\multicolumn{3}{c}{trained} \\", r"WOODS & \textbf{92.5}$^{\pm 0.5}$ & -- \\"),
        *(r"\bottomrule", r"\end{tabular}"),
    ]
    assert list(csv.reader(io.StringIO(to_csv(TABLE))))[1:] == [TABLE.texts(row) for row in ROWS]
    print_table(TABLE)
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["energy", "71.9", "±", "1.3", "13.1", "[11.0,", "15.0]"] in printed
    assert ["post", "hoc"] in printed
    cells = [cell.text.replace("\N{NO-BREAK SPACE}", " ") for cell in parse(escape(TABLE)).all("td")]
    assert cells == ["71.9 ± 1.3", "13.1 [11.0, 15.0]", "92.5 ± 0.5", "–"]


def test_the_best_cells_and_the_summary_are_bold_on_a_terminal(capsys, monkeypatch):
    console = partial(tables.Console, force_terminal=True, color_system="standard")
    monkeypatch.setattr(tables, "Console", console)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    print_table(Table(COLUMNS, [ROWS[1], Row.of("mean", 50.0, 10.0, strong=True)]))
    assert re.findall(r"\x1b\[1m *([\w.]+)", capsys.readouterr().out) == [
        *("method", "caught", "FPR95"),
        *("92.5", "mean", "50.0", "10.0"),
    ]


def test_errors_may_have_other_digits():
    columns = [Column("method"), Column("caught ↑", "", "{:.2f}".format, "{:.0f}".format), COLUMNS[2]]
    assert replace(TABLE, columns=columns).texts(ROWS[0])[1] == "71.92 ± 1"


def test_cells_and_heads_are_shown_as_they_are_given_in_a_page(parse):
    group, block = f"group {EVIL}", f"block {EVIL}"
    rows = [Row.of(EVIL, TableCell(EVIL, detail=EVIL, link=EVIL), block=block)]
    tree = parse(escape(Table([Column(EVIL), Column(EVIL, group)], rows, title=EVIL, sortable=True)))
    assert tree.all("script") == []
    assert [tree.one("th", scope=scope).text for scope in ("colgroup", "rowgroup", "row")] == [group, block, EVIL]
    assert tree.one("td").text == f"{EVIL} {EVIL}"
    assert tree.one("a").attributes["href"] == tree.one("div").attributes["aria-label"] == EVIL


def test_a_table_names_its_columns_and_rows_for_a_screen_reader(parse):
    tree = parse(escape(Table(COLUMNS, [replace(row, block="") for row in ROWS])))
    assert [cell.text for cell in tree.all("th", scope="col")] == ["method", "caught ↑", "FPR95 ↓"]
    assert [cell.text for cell in tree.all("th", scope="row")] == ["energy", "WOODS"]
    assert list(tree.rows()) == ["energy", "WOODS"]
    assert tree.all("button") == []


def test_only_the_summary_and_the_best_cells_stand_out(parse):
    rows = [Row.of("a", "1"), Row.of("b", TableCell("2", best=True)), Row.of("mean", "1.5", strong=True)]
    table = Table([Column(""), Column("x")], rows)
    tree = parse(escape(table))
    assert [row.one("th").text for row in tree.all("tr", cls="strong")] == ["mean"]
    assert [cell.text for cell in tree.all("td", cls="best")] == ["2"]
    lines = to_latex(table).splitlines()
    assert lines[lines.index(r"mean & 1.5 \\") - 1] == r"\midrule"


def test_a_mean_is_not_torn_from_its_error_nor_the_ends_of_an_interval_apart(parse):
    first, second, *_ = (cell.text for cell in parse(escape(TABLE)).all("td"))
    assert first == "71.9 ±\N{NO-BREAK SPACE}1.3"
    assert second == "13.1 [11.0,\N{NO-BREAK SPACE}15.0]"


def test_heads_are_shared_only_by_neighbours():
    columns = [Column("a", "x"), Column("b", "y"), Column("c", "y"), Column("d", "x")]
    html = escape(Table(columns, [Row.of(1, 1, 1, 1)], sortable=True))
    assert re.findall(r'colspan="(\d)">(\w)<', html) == [("1", "x"), ("2", "y"), ("1", "x")]


def test_rows_are_sorted_by_value_where_there_is_one_and_the_best_come_first(parse):
    tree = parse(escape(replace(TABLE, rows=[*ROWS, Row.of("", "", "")])))
    assert [cell.attributes.get("data-value") for cell in tree.all("td")] == ["71.92", "13.1", "92.5", None, None, None]
    assert [head.attributes["data-first"] for head in tree.all("th", scope="col")] == [
        "ascending",
        "descending",
        "ascending",
    ]
    plain = parse(escape(replace(TABLE, sortable=False)))
    assert [cell for cell in plain.all() if {"data-value", "aria-sort"} & cell.attributes.keys()] == []


NASTY = r"a|b_*c*[x](y)<i>&amp;`~$1$\%#{}^--z"


def test_markdown_shows_texts_as_they_are():
    text = escape_markdown(NASTY)
    assert re.search(r"(?<!\\)[`*_\[\]<>|&~$]", text) is None  # nothing of it is Markdown
    assert re.sub(r"\\([\\`*_\[\]<>|&~$])", r"\1", text) == NASTY
    assert escape_markdown("line\nbreak") == "line break"


def latex_to_text(text):
    """What LaTeX would print of a name."""
    words = {r"\textbackslash{}": "\0", r"\textasciitilde{}": "~", r"\textasciicircum{}": "^"}
    words |= {r"\textless{}": "<", r"\textgreater{}": ">"}
    for word, character in words.items():
        text = text.replace(word, character)
    text = text.replace("-{}", "-").removeprefix("{}")
    assert re.search(r"(?<!\\)[&%$#_{}~^]", text.replace("~", "").replace("^", "")) is None
    return re.sub(r"\\([&%$#_{}])", r"\1", text).replace("\0", "\\")


@pytest.mark.parametrize("name", [NASTY, "[1]", "*", "a---b", "plain"])
def test_latex_shows_texts_as_they_are(name):
    text = escape_latex(name)
    assert latex_to_text(text) == name
    assert text[0] not in "[*"  # which would be an argument of the end of the row above
    assert "--" not in text


def test_the_text_is_what_is_printed_even_where_rich_would_colour_or_display_it(capsys, monkeypatch):
    print_table(TABLE)
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert [f" {line}" for line in to_text(TABLE).splitlines()] == printed
    assert capsys.readouterr().out == ""


def test_html_has_tables_and_escaped_sentences(parse):
    tree = parse(to_html([TABLE, Table([Column(EVIL)], [Row.of(EVIL)])], [EVIL]))
    assert len(tree.all("table")) == 2
    assert tree.all("script") == []
    assert tree.one("p").text == EVIL
