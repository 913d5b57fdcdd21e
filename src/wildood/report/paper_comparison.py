"""Our numbers next to the paper's: a table of those that the paper prints, too, and the same as CSV."""

from collections.abc import Sequence

from wildood.experiments.paper_comparison import PaperComparison, compare_with_paper
from wildood.experiments.tables import METRIC_TITLES, ResultsTable, column_title
from wildood.report.results_table import table_caption, table_title
from wildood.report.table import Column, Row, Table, TableCell, to_csv

WITHIN = {True: "yes", False: "no", None: ""}
NOTE = (
    "Only numbers that the paper prints, too, have a row. The difference is ours minus the paper's, in points. It is within "
    "2 SE if it is at most twice its standard error; where one of the two numbers has none, nothing is said. The paper "
    "rounds its standard errors to 0.1."
)
SAME_THRESHOLD = "The accepted share is compared with the paper's FPR95, which is measured in the same way."
OTHER_THRESHOLD = (
    "The FPR95 of the paper's Tables 1 and A1 is measured at the threshold of validation examples, ours at that of the ID "
    "test examples."
)
CSV_COLUMNS = (
    *("table", "id", "protocol", "paper_table", "block", "pi", "method", "set", "metric"),
    *("ours", "ours_error", "paper", "paper_error", "difference", "within_2_se"),
)


def comparison_table(results: ResultsTable) -> Table | None:
    """A row for each number that the paper prints, too; None if it prints none of them.

    >>> comparison_table(ResultsTable("digits", True, None, "honest", ("digits",), ())) is None
    True
    """
    compared = compare_with_paper(results)
    if not compared:
        return None
    two, one = "{:.2f}".format, "{:.1f}".format
    return Table(
        columns=[
            *(Column("method"), Column("OOD set"), Column("metric")),
            *(Column("ours", "", two, two), Column("paper", "", two, one), Column("difference", digits="{:+.2f}".format)),
            Column("within 2 SE"),
        ],
        rows=[
            Row.of(
                *(each.title, column_title(each.set), METRIC_TITLES[each.metric]),
                TableCell(each.ours, each.ours_error),
                TableCell(each.paper, each.paper_error),
                *(each.difference, WITHIN[each.within]),
                block=each.block,
            )
            for each in compared
        ],
        title=f"{table_title(results)}, compared with the paper's {_paper_tables(compared)}",
        caption=f"{table_caption(results, bold=False)} {_comparability(compared)}",
        notes=[_verdict(compared)],
        sortable=True,
    )


def comparison_csv(tables: Sequence[ResultsTable]) -> str:
    """The same of several tables as CSV, in percent and points.

    >>> comparison_csv([]).startswith("table,id,protocol,paper_table,block,pi,method,set,metric,ours,ours_error,paper")
    True
    """
    rows = [_csv_row(results, each) for results in tables for each in compare_with_paper(results)]
    return to_csv(Table([Column(name) for name in CSV_COLUMNS], rows))


def _comparability(compared: Sequence[PaperComparison]) -> str:
    """How the numbers are compared, and at which thresholds they are measured."""
    same = SAME_THRESHOLD if any(each.metric == "accepted" for each in compared) else ""
    other = OTHER_THRESHOLD if any(each.other_threshold for each in compared) else ""
    return " ".join(filter(None, [NOTE, same, other]))


def _verdict(compared: Sequence[PaperComparison]) -> str:
    judged = [each.within for each in compared if each.within is not None]
    if not judged:
        return "No number has a standard error both here and there."
    return f"{sum(judged):,} of the {len(judged):,} numbers with a standard error in both are within 2 SE."


def _paper_tables(compared: Sequence[PaperComparison]) -> str:
    return " and ".join(f"Table {name}" for name in sorted({each.paper_table for each in compared}))


def _csv_row(results: ResultsTable, each: PaperComparison) -> Row:
    return Row.of(
        *(table_title(results), results.id, results.protocol, each.paper_table, each.block),
        "" if each.pi is None else f"{each.pi:g}",
        *(each.method, each.set, each.metric, f"{each.ours:.4f}"),
        "" if each.ours_error is None else f"{each.ours_error:.4f}",
        f"{each.paper:.2f}",
        "" if each.paper_error is None else f"{each.paper_error:.1f}",
        *(f"{each.difference:.4f}", WITHIN[each.within]),
    )
