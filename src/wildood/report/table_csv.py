"""Tables of results as one CSV in long form: a line for each number, in percent, for other programs to read."""

import csv
import io
from collections.abc import Iterator, Sequence

from wildood.experiments.tables import AVERAGE, Cell, Metric, ResultsTable, TableRow
from wildood.report.table_text import table_title

COLUMNS = (
    "table",
    "id",
    "wild",
    "protocol",
    "block",
    "pi",
    "method",
    "set",
    "metric",
    "mean",
    "error",
    "seeds",
    "best",
)


def tables_csv(tables: Sequence[ResultsTable]) -> str:
    """As CSV: names are those of the experiments; accuracy has an empty set; `best` is 1 or 0.

    Every table has both "fpr95", at the threshold of the ID test examples, and "accepted", at that of validation examples.

    >>> tables_csv([]).startswith("table,id,wild,protocol,block,pi,method,set,metric,mean,error,seeds,best")
    True
    """
    lines = [line for table in tables for row in table.rows for line in _lines(table, row)]
    return csv_text(COLUMNS, lines)


def csv_text(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    r"""A header and lines as CSV.

    >>> csv_text(["a", "b"], [["1,5", "x"]])
    'a,b\n"1,5",x\n'
    """
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([header, *lines])
    return file.getvalue()


def _lines(table: ResultsTable, row: TableRow) -> Iterator[list[str]]:
    for name, found in row.cells.items():
        for metric, cell in found.items():
            yield _line(table, row, name, metric, cell)
    if row.accuracy is not None:
        yield _line(table, row, "", "accuracy", row.accuracy)


def _line(table: ResultsTable, row: TableRow, name: str, metric: Metric, cell: Cell) -> list[str]:
    own = name if name != AVERAGE and row.pi is not None else ""  # in a stationary table, each set has its own wild data
    return [
        table_title(table),
        table.id,
        own if table.stationary else table.wild or "",
        table.protocol,
        row.block,
        "" if row.pi is None else f"{row.pi:g}",
        row.method,
        name,
        metric,
        f"{100 * cell.mean:.4f}",
        "" if cell.error is None else f"{100 * cell.error:.4f}",
        str(cell.seeds),
        str(int(cell.best)),
    ]
