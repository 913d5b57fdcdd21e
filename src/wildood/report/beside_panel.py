"""Our numbers beside the paper's in a page."""

from html import escape
from itertools import groupby

from wildood.experiments.paper_comparison import PaperComparison, compare_with_paper
from wildood.experiments.tables import METRIC_TITLES, ResultsTable, column_title
from wildood.report.beside_text import WITHIN, beside_note
from wildood.report.page import Panel, note
from wildood.report.sortable import Block, Column, SortCell, sortable_table
from wildood.report.table_text import table_title

_COLUMNS = (
    Column("method"), Column("OOD set"), Column("metric"), Column("ours"), Column("paper"), Column("difference"),
    Column("within 2 SE"),
)  # fmt: skip


def beside_panel(table: ResultsTable) -> Panel | None:
    """A row for each number that the paper prints, too; None if it prints none of them.

    >>> beside_panel(ResultsTable("digits", True, None, "honest", ("digits",), ())) is None
    True
    """
    found = compare_with_paper(table)
    if not found:
        return None
    blocks = [Block(block, [_row(each) for each in rows]) for block, rows in groupby(found, key=lambda each: each.block)]
    title = f"{table_title(table)}, beside the paper"
    shown = sortable_table(_COLUMNS, blocks, title) + note(beside_note(found))
    return Panel(title, _says(found), f"<details><summary>{len(found):,} numbers</summary>{shown}</details>")


def _says(found: list[PaperComparison]) -> str:
    judged = [each.within for each in found if each.within is not None]
    tables = " and ".join(f"Table {name}" for name in sorted({each.paper_table for each in found}))
    if not judged:
        return f"Of {tables}. No number has a standard error both here and there."
    return f"Of {tables}. {sum(judged):,} of the {len(judged):,} numbers with a standard error in both are within 2 SE."


def _row(found: PaperComparison) -> list[SortCell]:
    name = column_title(found.set)
    return [
        SortCell(escape(found.title), found.title),
        SortCell(escape(name), name or None),
        SortCell(METRIC_TITLES[found.metric], found.metric),
        SortCell(_told(found.ours, found.ours_error, 2), found.ours),
        SortCell(_told(found.paper, found.paper_error, 1), found.paper),
        SortCell(f"{found.difference:+.2f}", found.difference),
        SortCell(WITHIN[found.within], WITHIN[found.within] or None),
    ]


def _told(mean: float, error: float | None, decimals: int) -> str:
    return f"{mean:.2f}" if error is None else f"{mean:.2f} ±&nbsp;{error:.{decimals}f}"
