"""A table of results in a page: two columns for each OOD set, blocks of methods, the best in bold."""

from collections.abc import Sequence
from html import escape
from itertools import groupby

from wildood.experiments.tables import METRIC_TITLES, Cell, ResultsTable, TableRow, column_title, set_title
from wildood.report.page import Panel
from wildood.report.sortable import Block, Column, SortCell, sortable_table
from wildood.report.table_text import table_caption, table_columns, table_notes, table_title


def results_panel(table: ResultsTable) -> Panel:
    """The table with what to know about it.

    >>> cells = {"svhn": {"fpr95": Cell(0.0052, 0.001, best=True), "auroc": Cell(0.9984, None)}}
    >>> row = TableRow("π = 0.1", 0.1, "woods", "WOODS", cells, None, 5, {}, 0, ())
    >>> panel = results_panel(ResultsTable("cifar100", True, None, "honest", ("svhn",), (row,)))
    >>> '<td data-value="0.0052"><b>0.52</b><small>±0.10</small></td><td data-value="0.9984">99.84</td>' in panel.body
    True
    """
    sets, title = table_columns(table), table_title(table)
    columns = [Column("method")]
    for name in sets:
        first, second = (METRIC_TITLES[metric] for metric in table.metrics)
        columns += [Column(first, column_title(name)), Column(second, column_title(name), high_first=True)]
    columns += [Column("accuracy ↑", high_first=True), Column("seeds", high_first=True)]
    blocks = [
        Block(block, [_row(table, row, sets) for row in rows])
        for block, rows in groupby(table.rows, key=lambda row: row.block)
    ]
    notes = [*table_notes(table), *_chosen(table)]
    listed = f'<ul class="note">{"".join(f"<li>{escape(each)}</li>" for each in notes)}</ul>' if notes else ""
    return Panel(title, table_caption(table), sortable_table(columns, blocks, title) + listed)


def _row(table: ResultsTable, row: TableRow, sets: Sequence[str]) -> list[SortCell]:
    numbers = [_number(cell) for name in sets for cell in table.shown(row, name)]
    failed = f"<small>{row.failed} failed</small>" if row.failed else ""
    seeds = SortCell(f"{row.seeds}{failed}", row.seeds)
    return [SortCell(escape(row.title), row.title), *numbers, _number(row.accuracy), seeds]


def _number(cell: Cell | None) -> SortCell:
    if cell is None:
        return SortCell("–")
    spread = "" if cell.error is None else f"<small>±{100 * cell.error:.2f}</small>"
    return SortCell((f"<b>{cell.percent}</b>" if cell.best else cell.percent) + spread, cell.mean)


def _chosen(table: ResultsTable) -> list[str]:
    """The settings that validation data chose."""
    return [
        f"{row.title}, {row.block}: chosen by validation data: "
        + "; ".join(f"{settings} for {set_title(name)}" for name, settings in row.settings.items())
        + "."
        for row in table.rows
        if row.settings
    ]
