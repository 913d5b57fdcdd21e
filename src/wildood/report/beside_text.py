"""Our numbers beside the paper's as Markdown and as CSV."""

from collections.abc import Sequence

from wildood.experiments.paper_comparison import PaperComparison, compare_with_paper
from wildood.experiments.tables import METRIC_TITLES, ResultsTable, column_title
from wildood.report.escaping import escaped_markdown
from wildood.report.table_csv import csv_text
from wildood.report.table_text import markdown_line, table_caption, table_title

WITHIN = {True: "yes", False: "no", None: ""}
NOTE = (
    "Only numbers that the paper prints, too, have a row. "
    "The difference is ours less the paper's, in points. It is within 2 SE if it is at most twice its standard error; where "
    "one of the two numbers has none, nothing is said. The paper rounds its standard errors to 0.1."
)
SAME = "What is accepted stands beside the paper's FPR95, which is measured in the same way."
OTHER = (
    "The FPR95 of the paper's Tables 1 and A1 is measured at the threshold of validation examples, ours at that of the ID "
    "test examples."
)
COLUMNS = (
    "table",
    "id",
    "protocol",
    "paper_table",
    "block",
    "pi",
    "method",
    "set",
    "metric",
    "ours",
    "ours_error",
    "paper",
    "paper_error",
    "difference",
    "within_2_se",
)


def beside_markdown(table: ResultsTable) -> str:
    """A line for each number that the paper prints, too; empty if it prints none of them.

    >>> beside_markdown(ResultsTable("digits", True, None, "honest", ("digits",), ()))
    ''
    """
    found = compare_with_paper(table)
    if not found:
        return ""
    header = ["method", "block", "OOD set", "metric", "ours", "paper", "difference", "within 2 SE"]
    lines = [markdown_line(header), markdown_line([*["---"] * 4, *["---:"] * 3, "---"])]
    lines += [markdown_line(_cells(each)) for each in found]
    tables = sorted({each.paper_table for each in found})
    title = f"{table_title(table)}, beside the paper's {' and '.join(f'Table {name}' for name in tables)}"
    said = escaped_markdown(f"{table_caption(table, bold=False)} {beside_note(found)}")
    return f"**{escaped_markdown(title)}.** {said}\n\n" + "\n".join(lines) + "\n"


def beside_note(found: Sequence[PaperComparison]) -> str:
    """How the numbers are compared.

    >>> beside_note([PaperComparison("", None, "oe", "OE", "svhn", "auroc", 99.0, None, 98.0, None, "A1")]) == NOTE
    True
    """
    said = [NOTE, SAME if any(each.metric == "accepted" for each in found) else ""]
    return " ".join(filter(None, [*said, OTHER if any(each.other_threshold for each in found) else ""]))


def beside_csv(tables: Sequence[ResultsTable]) -> str:
    """The same of several tables as CSV, in percent and points.

    >>> beside_csv([]).startswith("table,id,protocol,paper_table,block,pi,method,set,metric,ours,ours_error,paper")
    True
    """
    lines = [_values(table, each) for table in tables for each in compare_with_paper(table)]
    return csv_text(COLUMNS, lines)


def _cells(found: PaperComparison) -> list[str]:
    named = [escaped_markdown(text) for text in (found.title, found.block, column_title(found.set))]
    ours, paper = _told(found.ours, found.ours_error, 2), _told(found.paper, found.paper_error, 1)
    return [*named, METRIC_TITLES[found.metric], ours, paper, f"{found.difference:+.2f}", WITHIN[found.within]]


def _values(table: ResultsTable, found: PaperComparison) -> list[str]:
    return [
        table_title(table),
        table.id,
        table.protocol,
        found.paper_table,
        found.block,
        "" if found.pi is None else f"{found.pi:g}",
        found.method,
        found.set,
        found.metric,
        f"{found.ours:.4f}",
        "" if found.ours_error is None else f"{found.ours_error:.4f}",
        f"{found.paper:.2f}",
        "" if found.paper_error is None else f"{found.paper_error:.1f}",
        f"{found.difference:.4f}",
        WITHIN[found.within],
    ]


def _told(mean: float, error: float | None, decimals: int) -> str:
    return f"{mean:.2f}" if error is None else f"{mean:.2f} ± {error:.{decimals}f}"
