"""Tables that sort when a column's head is pressed; without JavaScript they are tables like any other."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import wildood
from wildood.experiments.run import code_version
from wildood.report.page import Section, page


class Column(NamedTuple):
    """A column: its head, the head above it that it shares with its neighbours, and where the best values are."""

    head: str
    above: str = ""
    high_first: bool = False


class SortCell(NamedTuple):
    """A cell: its HTML, and what it is sorted by; one without a value stays at the end."""

    html: str
    value: str | float | None = None


class Block(NamedTuple):
    """Rows that are sorted among themselves, below a title of their own if they have one."""

    title: str
    rows: Sequence[Sequence[SortCell]]


def sortable_page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """A page whose tables can be sorted, and that says what made it.

    >>> sortable_page("A title", "<p>A lead.</p>", []).count("<script>")
    1
    """
    html = page(title, lead, sections)
    html = html.replace("</head>", f"{generator()}\n<style>{_STYLE}</style>\n</head>", 1)
    return html.replace("</body>", f"<script>{_SCRIPT}</script>\n</body>", 1)


def generator() -> str:
    """What made a page: a page that says otherwise was made by another version.

    >>> generator()
    '<meta name="generator" content="wildood 0.1.0, code ...">'
    """
    return f'<meta name="generator" content="wildood {wildood.__version__}, code {code_version()}">'


def sortable_table(columns: Sequence[Column], blocks: Sequence[Block], names: str) -> str:
    """A table whose first column names the rows; `names` says what it holds, for readers who cannot see it.

    >>> row = [SortCell("OE", "OE"), SortCell("0.8", 0.8)]
    >>> html = sortable_table([Column("method"), Column("FPR95 ↓", "SVHN")], [Block("", [row])], "results")
    >>> html.count('aria-sort="none"'), html.count('scope="colgroup"'), '<td data-value="0.8">0.8</td>' in html
    (2, 1, True)
    """
    body = "".join(
        f"<tbody>{_block_title(block.title, len(columns))}{''.join(map(_row, block.rows))}</tbody>" for block in blocks
    )
    head = _head(columns)
    return (
        f'<div class="table" role="region" tabindex="0" aria-label="{escape(names)}">'
        f'<table class="sortable"><thead>{head}</thead>{body}</table></div>'
    )


def _head(columns: Sequence[Column]) -> str:
    """One row of heads, or two if some of them share one above."""
    if not any(column.above for column in columns):
        return f"<tr>{''.join(_button(column, number) for number, column in enumerate(columns))}</tr>"
    upper, lower, groups = "", "", [column.above for column in columns]
    for number, column in enumerate(columns):
        if not column.above:
            upper += _button(column, number, rows=2)
            continue
        lower += _button(column, number)
        if number == 0 or groups[number - 1] != column.above:
            width = next((n for n, above in enumerate(groups[number:]) if above != column.above), len(groups) - number)
            upper += f'<th scope="colgroup" colspan="{width}">{escape(column.above)}</th>'
    return f"<tr>{upper}</tr><tr>{lower}</tr>"


def _button(column: Column, number: int, rows: int = 1) -> str:
    first = "descending" if column.high_first else "ascending"
    span = f' rowspan="{rows}"' if rows > 1 else ""
    label = f' aria-label="{escape(column.above)}: {escape(column.head)}"' if column.above else ""
    return (
        f'<th scope="col"{span} aria-sort="none" data-column="{number}" data-first="{first}">'
        f'<button type="button"{label}>{escape(column.head)}</button></th>'
    )


def _block_title(title: str, width: int) -> str:
    return f'<tr class="block"><th scope="rowgroup" colspan="{width}">{escape(title)}</th></tr>' if title else ""


def _row(cells: Sequence[SortCell]) -> str:
    first, *others = cells
    return f'<tr><th scope="row"{_value(first)}>{first.html}</th>' + "".join(map(_cell, others)) + "</tr>"


def _cell(cell: SortCell) -> str:
    return f"<td{_value(cell)}>{cell.html}</td>"


def _value(cell: SortCell) -> str:
    return "" if cell.value is None else f' data-value="{escape(str(cell.value))}"'


_STYLE = """
.sortable { font-size: 0.86rem; }
.sortable th, .sortable td { padding: 0.35rem 0.4rem 0.35rem 0; }
.sortable button { position: relative; font: inherit; color: inherit; background: none; border: 0; padding: 0; margin: 0;
  cursor: pointer; text-align: inherit; }
.sortable button:hover { text-decoration: underline; }
.sortable button::after { position: absolute; left: 100%; bottom: 0.1em; font-size: 0.6em; content: ""; }
.sortable [aria-sort="ascending"] button::after { content: "▲"; }
.sortable [aria-sort="descending"] button::after { content: "▼"; }
.sortable thead th { white-space: normal; text-align: right; }
.sortable thead tr:first-child th:first-child { text-align: left; }
.sortable thead tr + tr th { white-space: nowrap; font-size: 0.85em; }
.sortable th[scope="colgroup"] { text-align: center; border-bottom: 1px solid var(--grid); font-weight: 700; }
.sortable tbody th { text-align: left; background: var(--paper); position: sticky; left: 0; z-index: 1; }
.sortable tbody tr.block th { position: static; padding-top: 0.8rem; color: var(--faint); font-style: italic; }
.sortable tr.block { border-bottom-color: var(--faint); }
.sortable small { display: block; color: var(--faint); font-size: 0.85em; line-height: 1.25; }
.sortable th, .sortable td { vertical-align: top; }
ul.note { padding-left: 1.2rem; }
.multiples { display: grid; gap: 1rem 1.25rem; grid-template-columns: repeat(2, minmax(0, 1fr)); }
@media (min-width: 50rem) { .multiples { grid-template-columns: repeat(4, minmax(0, 1fr)); } }
.multiples figure { margin: 0; min-width: 0; }
.multiples svg { display: block; width: 100%; height: auto; }
.multiples figcaption { font-size: 0.85rem; line-height: 1.35; overflow-wrap: anywhere; }
a { color: var(--known); }
summary { cursor: pointer; margin-bottom: 0.6rem; }
"""
_SCRIPT = """
"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const bodies = Array.from(table.tBodies, body => [body, Array.from(body.querySelectorAll("tr:not(.block)"))]);
  const heads = table.querySelectorAll("th[aria-sort]");
  const compare = (a, b) => a !== "" && b !== "" && !isNaN(a) && !isNaN(b) ? a - b : a.localeCompare(b);
  for (const head of heads) head.querySelector("button").addEventListener("click", () => {
    const first = head.dataset.first, second = first === "ascending" ? "descending" : "ascending";
    const order = { none: first, [first]: second, [second]: "none" }[head.getAttribute("aria-sort")];
    for (const other of heads) other.setAttribute("aria-sort", other === head ? order : "none");
    const value = row => row.cells[head.dataset.column].dataset.value;
    for (const [body, rows] of bodies) {
      const known = rows.filter(row => value(row) !== undefined), rest = rows.filter(row => value(row) === undefined);
      known.sort((a, b) => (order === "descending" ? -1 : 1) * compare(value(a), value(b)));
      body.append(...(order === "none" ? rows : known.concat(rest)));
    }
  });
}
"""
