"""A table as data, and its five forms: terminal, Markdown, LaTeX, CSV and HTML."""

import csv
import io
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from textwrap import dedent
from typing import IO

from markupsafe import Markup
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from wildood.detect.card import escape_markdown, one_line
from wildood.report.page import render

WIDTH = 120  # of a table that is printed to a file or a pipe
EMPTY = "–"
Digits = Callable[[float], str]
_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "±": r"$\pm$",
    "π": r"$\pi$",
    "–": "--",
}


def percent(decimals: int) -> Digits:
    """How shares from 0 to 1 are written in percent."""
    return lambda share: f"{100 * share:.{decimals}f}"


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        head: its title; an arrow at its end says which values are better, as in "FPR95 ↓".
        group: a title above the head that neighbours share, such as an OOD set.
        digits: how numbers in it are written; None for a column of text.
        error_digits: how their errors are written, if not in the same way.
    """

    head: str
    group: str = ""
    digits: Digits | None = None
    error_digits: Digits | None = None


@dataclass(frozen=True)
class TableCell:
    """A number (with its standard error or interval), a text or nothing; only pages show detail and link."""

    value: float | str | None = None
    error: float | None = None
    interval: tuple[float, float] | None = None
    best: bool = False
    detail: str = ""
    link: str = ""

    def number(self, column: Column) -> str:
        """The value as text, with its interval, but without its error."""
        if self.value is None:
            return EMPTY
        if isinstance(self.value, str) or column.digits is None:
            return str(self.value)
        low_high = "" if self.interval is None else " [{}, {}]".format(*map(column.digits, self.interval))
        return column.digits(self.value) + low_high

    def error_text(self, column: Column) -> str:
        """The standard error as text; empty if there is none."""
        digits = column.error_digits or column.digits
        return "" if self.error is None or digits is None else digits(self.error)

    def text(self, column: Column) -> str:
        """The whole cell: "12.34 ± 0.56", or "90.0 [60.0, 100.0]"."""
        error = self.error_text(column)
        return f"{self.number(column)} ± {error}" if error else self.number(column)


@dataclass(frozen=True)
class Row:
    """A row: its cells, the title of its block, and whether it summarises the rows above it."""

    cells: Sequence[TableCell]
    block: str = ""
    strong: bool = False

    @classmethod
    def of(cls, *values: TableCell | float | str | None, block: str = "", strong: bool = False) -> "Row":
        """A row of cells or of their values."""
        cells = [value if isinstance(value, TableCell) else TableCell(value) for value in values]
        return cls(cells, block, strong)


@dataclass(frozen=True)
class Table:
    """A table; its first column names the rows, and the rows of a block follow one another.

    Notes are sentences. The rows of a `sortable` table can be sorted in a page, each block by itself.

    >>> columns = [Column("method"), Column("FPR95 ↓", digits=percent(1)), Column("AUROC ↑", digits=percent(1))]
    >>> table = Table(columns, [Row.of("energy", 0.131, TableCell(0.97, error=0.01, best=True))])
    >>> print(to_markdown(table))
    | method | FPR95 ↓ | AUROC ↑ |
    | --- | ---: | ---: |
    | energy | 13.1 | **97.0 ± 1.0** |
    """

    columns: Sequence[Column]
    rows: Sequence[Row]
    title: str = ""
    caption: str = ""
    notes: Sequence[str] = ()
    sortable: bool = False

    @property
    def blocks(self) -> list[tuple[str, list[Row]]]:
        """The rows of each block, by its title."""
        return [(title, list(rows)) for title, rows in groupby(self.rows, key=lambda row: row.block)]

    @property
    def groups(self) -> list[tuple[str, list[tuple[int, Column]]]]:
        """Neighbouring columns, with their numbers, by the title above them."""
        numbered = groupby(enumerate(self.columns), key=lambda each: each[1].group)
        return [(group, list(columns)) for group, columns in numbered]

    def texts(self, row: Row) -> list[str]:
        """The cells of a row as text."""
        return [cell.text(column) for cell, column in zip(row.cells, self.columns, strict=True)]

    def __html__(self) -> str:
        """For templates: a table is HTML already."""
        return render("table.html", table=self)


def to_csv(table: Table) -> str:
    """With one line of heads."""
    file = io.StringIO()
    heads = [column.head for column in table.columns]
    csv.writer(file, lineterminator="\n").writerows([heads, *map(table.texts, table.rows)])
    return file.getvalue()


def print_table(table: Table) -> None:
    """To standard output; the best cells and the summary are bold in a terminal. Titles above heads are left out."""
    _console(sys.stdout, None if sys.stdout.isatty() else WIDTH).print(_rich(table))


def to_text(table: Table) -> str:
    """As `print_table` prints it to a file.

    >>> columns = [Column("method"), Column("FPR95 ↓", digits=percent(1))]
    >>> print(to_text(Table(columns, [Row.of("energy", 0.131), Row.of("woods", 0.02)])))
    method   FPR95 ↓
    ────────────────
    energy      13.1
    woods        2.0
    """
    file = io.StringIO()
    _console(file, WIDTH, plain=True).print(_rich(table))  # else rich would display it in a notebook, not write it
    return dedent("\n".join(line.rstrip() for line in file.getvalue().splitlines() if line.strip()))


def to_html(tables: Iterable[Table], notes: Iterable[str] = ()) -> str:
    """Tables and sentences below them as a piece of a page, such as a notebook shows.

    >>> print(to_html([], ["a < b"]))
    <p>a &lt; b</p>
    """
    return "\n".join([*(table.__html__() for table in tables), *(Markup("<p>{}</p>").format(note) for note in notes)])


def _console(file: IO[str], width: int | None, *, plain: bool = False) -> Console:
    never = False if plain else None
    return Console(
        file=file,
        width=width,
        soft_wrap=True,
        highlight=False,
        markup=False,  # names are shown as they are
        emoji=False,
        force_terminal=never,
        force_jupyter=never,
    )


def _rich(table: Table) -> RichTable:
    shown = RichTable(*(column.head for column in table.columns), box=SIMPLE_HEAD, pad_edge=False)
    for column in shown.columns[1:]:
        column.justify = "right"
    for block, rows in table.blocks:
        if block:
            shown.add_row(block, style="italic")
        for row in rows:
            name, *texts = table.texts(row)
            styles = ["bold" if cell.best else "" for cell in row.cells[1:]]
            shown.add_row(f"  {name}" if block else name, *map(Text, texts, styles), style="bold" if row.strong else None)
    return shown


def to_markdown(table: Table) -> str:
    """Title, caption, the table with a line for the title of each block, and notes."""
    heads = [f"{column.group} {column.head}".strip() for column in table.columns]
    lines = [
        _markdown_line(map(escape_markdown, heads)),
        _markdown_line("---" if column.digits is None else "---:" for column in table.columns),
    ]
    for block, rows in table.blocks:
        if block:
            lines.append(_markdown_line([f"*{escape_markdown(block)}*", *[""] * (len(heads) - 1)]))
        lines += [_markdown_line(map(_markdown_cell, row.cells, table.columns)) for row in rows]
    title = f"**{escape_markdown(table.title)}.** {escape_markdown(table.caption)}" if table.title else ""
    notes = "\n".join(f"- {escape_markdown(note)}" for note in table.notes)
    return "\n\n".join(filter(None, [title, "\n".join(lines), notes]))


def to_latex(table: Table, header: Sequence[str] = (), block_titles: Mapping[str, str] | None = None) -> str:
    """A `tabular` with booktabs; the header and the titles of blocks may be replaced by LaTeX."""
    body = []
    for block, rows in table.blocks:
        body.append(r"\midrule")
        if block:
            title = (block_titles or {}).get(block) or escape_latex(block)
            body.append(rf"\multicolumn{{{len(table.columns)}}}{{c}}{{{title}}} \\")
        for row in rows:
            body += [r"\midrule"] if row.strong else []
            body.append(latex_line(map(_latex_cell, row.cells, table.columns)))
    alignment = "".join("l" if column.digits is None else "r" for column in table.columns)
    header = header or [latex_line(escape_latex(column.head) for column in table.columns)]
    start = [rf"\begin{{tabular}}{{{alignment}}}", r"\toprule", *header]
    return "\n".join([*start, *body, r"\bottomrule", r"\end{tabular}"])


def escape_latex(text: str) -> str:
    """Text as LaTeX shows it, in a table or out of it."""
    text = re.sub("-(?=-)", "-\0", one_line(text))  # two in a row would become a dash
    escaped = "".join(_LATEX.get(character, character) for character in text).replace("\0", "{}")
    # At the start of a row, these would belong to the end of the row before.
    return f"{{}}{escaped}" if escaped[:1] in {"[", "*"} else escaped


def latex_line(cells: Iterable[str]) -> str:
    """A row of a LaTeX table."""
    return rf"{' & '.join(cells)} \\"


def _markdown_line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown_cell(cell: TableCell, column: Column) -> str:
    text = escape_markdown(cell.value) if isinstance(cell.value, str) else cell.text(column)
    return f"**{text}**" if cell.best else text


def _latex_cell(cell: TableCell, column: Column) -> str:
    text, error = escape_latex(cell.number(column)), cell.error_text(column)
    text = rf"\textbf{{{text}}}" if cell.best else text
    return rf"{text}$^{{\pm {error}}}$" if error else text
