"""The results of runs as tables, and next to the paper's numbers, with the title, caption and notes to read them by."""

import re
from collections.abc import Iterator, Sequence

from wildood.experiments.paper_comparison import PaperComparison, compare_with_paper
from wildood.experiments.tables import (
    AVERAGE,
    ID_ONLY,
    METRIC_TITLES,
    SET_TITLES,
    STAND_INS,
    WITH_WILD,
    Cell,
    Metric,
    ResultsTable,
    TableRow,
    column_title,
    id_title,
    set_title,
)
from wildood.report.table import Column, Row, Table, TableCell, escape_latex, latex_line, percent, to_csv, to_latex

CONVENTIONS = {
    "fpr95": "FPR95 is the share of OOD that is accepted at the threshold that accepts at least 95 % of the ID test "
    "examples (ID is the positive class).",
    "accepted": "Accepted (FPR in the paper) is the share of OOD that is accepted at the threshold that ID validation "
    "examples set, as in the paper's Tables 1 and A1; FPR95 at the threshold of the ID test examples is in tables.csv.",
}
PROTOCOLS = {
    "honest": "Protocol: honest; no test example and no OOD label chose an epoch, a setting or a threshold.",
    "as_published": "Protocol: as published; as in the released code, data known to be OOD chose epochs and settings.",
}
LATEX_SCALE = 0.64  # the paper's
LATEX_BLOCKS = {
    ID_ONLY: r"\textbf{With $P_{\mathrm{in}}$ only}",
    WITH_WILD: r"\textbf{With $P_{\mathrm{in}}$ and $P_{\mathrm{wild}}$}",
}
CSV_COLUMNS = ("table", "id", "wild", "protocol", "block", "pi", "method", "set", "metric", "mean", "error", "seeds", "best")
PAPER_CSV_COLUMNS = (
    *("table", "id", "protocol", "paper_table", "block", "pi", "method", "set", "metric"),
    *("ours", "ours_error", "paper", "paper_error", "difference", "within_2_se"),
)
WITHIN = {True: "yes", False: "no", None: ""}
PAPER_NOTE = (
    "Only numbers that the paper prints, too, have a row. The difference is ours minus the paper's, in points. It is within "
    "2 SE if it is at most twice its standard error; where one of the two numbers has none, nothing is said. The paper "
    "rounds its standard errors to 0.1."
)
SAME_THRESHOLD = "The accepted share is compared with the paper's FPR95, which is measured in the same way."
OTHER_THRESHOLD = (
    "The FPR95 of the paper's Tables 1 and A1 is measured at the threshold of validation examples, ours at that of the ID "
    "test examples."
)


def table_title(results: ResultsTable) -> str:
    """Which table it is.

    >>> table_title(ResultsTable("cifar10", False, "300k", "honest", ("svhn",), ()))
    'CIFAR-10 as ID, 300K Rand. Img. in the wild, honest'
    """
    if not results.stationary:
        wild = f"{set_title(results.wild or '')} in the wild"
    elif all(row.pi is None for row in results.rows):
        wild = "no wild data"
    else:
        wild = "each OOD set in the wild that is tested on"
    parts = [f"{id_title(results.id)} as ID", wild, results.protocol.replace("_", " "), results.differs]
    return ", ".join(filter(None, parts))


def table_convention(results: ResultsTable) -> str:
    """At which threshold its share of OOD is measured."""
    return CONVENTIONS[results.metrics[0]]


def table_caption(results: ResultsTable, *, bold: bool = True) -> str:
    """How to read it: metrics, spread, what is bold (if anything is), protocol, and which files stand in for which sets."""
    shares = {row.pi for row in results.rows if row.pi is not None}
    sentences = [table_convention(results), _spread(results)]
    if bold:
        sentences.append(f"Bold is the best {'of its block' if len(shares) > 1 else 'of the table'}.")
    if len(shares) == 1:
        sentences.append(f"The share of OOD in the wild data is π = {shares.pop():g}.")
    sentences.append(PROTOCOLS.get(results.protocol, ""))
    origin = {"Model": results.model, "starting classifier": results.start}
    if any(origin.values()):
        sentences.append("; ".join(f"{name}: {value}" for name, value in origin.items() if value) + ".")
    names = dict.fromkeys(filter(None, [results.id, results.wild, *results.sets]))
    stand_ins = [f"{name} stands in for {SET_TITLES[STAND_INS[name]]}" for name in names if name in STAND_INS]
    if stand_ins:
        sentences.append(f"Small files: {', '.join(stand_ins)}.")
    return " ".join(filter(None, sentences))


def table_notes(results: ResultsTable) -> list[str]:
    """A sentence for each thing missing or unlike: failed runs, empty cells, fewer seeds or settings, different code."""
    missing = [f"{row.title}, {row.block}: {note}." for row in results.rows for note in _missing(results, row)]
    return [*missing, *(f"{origin}." for origin in results.origins)]


def results_table(results: ResultsTable, error_decimals: int = 2) -> Table:
    """Two columns for each OOD set, blocks of methods, the best marked.

    >>> cells = {"svhn": {"fpr95": Cell(0.0052, 0.001, best=True), "auroc": Cell(0.9984, None)}}
    >>> row = TableRow("π = 0.1", 0.1, "woods", "WOODS", cells, None, 5, {}, 0, ())
    >>> table = results_table(ResultsTable("cifar100", True, None, "honest", ("svhn",), (row,)))
    >>> table.texts(table.rows[0])
    ['WOODS', '0.52 ± 0.10', '99.84', '–', '5']
    """
    sets = _columns(results)
    digits = percent(2), percent(error_decimals)
    rows = []
    for row in results.rows:
        cells = [_cell(cell) for name in sets for cell in results.shown(row, name)]
        seeds = TableCell(row.seeds, detail=f"{row.failed} failed" if row.failed else "")
        rows.append(Row.of(row.title, *cells, _cell(row.accuracy), seeds, block=row.block))
    columns = [
        Column("method"),
        *(Column(METRIC_TITLES[each], column_title(name), *digits) for name in sets for each in results.metrics),
        *(Column(METRIC_TITLES["accuracy"], "", *digits), Column("seeds", digits=str)),
    ]
    return Table(columns, rows, table_title(results), table_caption(results), table_notes(results), sortable=True)


def metric_table(results: ResultsTable, metric: Metric) -> Table:
    """One metric, and accuracy with the first one: narrow enough for a terminal."""
    sets, accuracy = _columns(results), metric == results.metrics[0]
    columns = [Column(column_title(name), digits=percent(1)) for name in sets]
    columns += [Column(METRIC_TITLES["accuracy"], digits=percent(1))] if accuracy else []
    rows = []
    for row in results.rows:
        cells = [row.cells.get(name, {}).get(metric) for name in sets] + ([row.accuracy] if accuracy else [])
        rows.append(Row.of(row.title, *map(_cell, cells), block=row.block))
    return Table([Column(METRIC_TITLES[metric]), *columns], rows)


def results_latex(results: ResultsTable) -> str:
    """As a `table*` in the paper's layout; it needs booktabs, multirow and graphicx."""
    table = results_table(results, error_decimals=1)
    # The paper has no column of seeds.
    without_seeds = Table(table.columns[:-1], [Row(row.cells[:-1], row.block) for row in table.rows])
    caption = escape_latex(" ".join([table.caption, *table.notes]))
    lines = [
        r"% \usepackage{booktabs,graphicx,multirow}",
        r"\begin{table*}[t]",
        r"\centering",
        rf"\scalebox{{{LATEX_SCALE}}}{{",
        to_latex(without_seeds, _latex_header(results), LATEX_BLOCKS),
        "}",
        rf"\caption{{\small \textbf{{{escape_latex(table.title)}.}} {caption}}}",
        rf"\label{{tab:{re.sub('[^a-z0-9]+', '-', table.title.lower()).strip('-')}}}",
        r"\end{table*}",
    ]
    return "\n".join(lines) + "\n"


def results_csv(tables: Sequence[ResultsTable]) -> str:
    """In long form, a line for each number: names are those of the experiments; accuracy has an empty set; `best` is 1 or 0.

    Every table has both "fpr95", at the threshold of the ID test examples, and "accepted", at that of validation examples.
    """
    rows = [row for results in tables for method in results.rows for row in _csv_rows(results, method)]
    return to_csv(Table(list(map(Column, CSV_COLUMNS)), rows))


def paper_table(results: ResultsTable) -> Table | None:
    """A row for each number that the paper prints, too; None if it prints none of them."""
    compared = compare_with_paper(results)
    if not compared:
        return None
    two, one = "{:.2f}".format, "{:.1f}".format
    columns = [
        *map(Column, ("method", "OOD set", "metric")),
        *(Column("ours", "", two, two), Column("paper", "", two, one), Column("difference", digits="{:+.2f}".format)),
        Column("within 2 SE"),
    ]
    rows = [
        Row.of(
            *(each.title, column_title(each.set), METRIC_TITLES[each.metric]),
            *(TableCell(each.ours, each.ours_error), TableCell(each.paper, each.paper_error)),
            *(each.difference, WITHIN[each.within]),
            block=each.block,
        )
        for each in compared
    ]
    papers = " and ".join(f"Table {name}" for name in sorted({each.paper_table for each in compared}))
    caption = [table_caption(results, bold=False), PAPER_NOTE]
    caption += [SAME_THRESHOLD] if any(each.metric == "accepted" for each in compared) else []
    caption += [OTHER_THRESHOLD] if any(each.other_threshold for each in compared) else []
    title = f"{table_title(results)}, compared with the paper's {papers}"
    return Table(columns, rows, title, " ".join(caption), [_verdict(compared)], sortable=True)


def paper_csv(tables: Sequence[ResultsTable]) -> str:
    """The rows of `paper_table` of several tables as CSV, in percent and points."""
    rows = [
        Row.of(
            *(table_title(results), results.id, results.protocol, each.paper_table, each.block, _number(each.pi, "g")),
            *(each.method, each.set, each.metric, _number(each.ours, ".4f"), _number(each.ours_error, ".4f")),
            *(_number(each.paper, ".2f"), _number(each.paper_error, ".1f"), _number(each.difference, ".4f")),
            WITHIN[each.within],
        )
        for results in tables
        for each in compare_with_paper(results)
    ]
    return to_csv(Table(list(map(Column, PAPER_CSV_COLUMNS)), rows))


def _number(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}"


def _verdict(compared: Sequence[PaperComparison]) -> str:
    judged = [each.within for each in compared if each.within is not None]
    if not judged:
        return "No number has a standard error both here and there."
    return f"{sum(judged):,} of the {len(judged):,} numbers with a standard error in both are within 2 SE."


def _columns(results: ResultsTable) -> tuple[str, ...]:
    """The OOD sets, and AVERAGE where some row has it."""
    return (*results.sets, AVERAGE) if any(AVERAGE in row.cells for row in results.rows) else results.sets


def _cell(cell: Cell | None) -> TableCell:
    return TableCell() if cell is None else TableCell(cell.mean, cell.error, best=cell.best)


def _csv_rows(results: ResultsTable, row: TableRow) -> Iterator[Row]:
    numbers = [(name, metric, cell) for name, cells in row.cells.items() for metric, cell in cells.items()]
    if row.accuracy is not None:
        numbers.append(("", "accuracy", row.accuracy))
    for name, metric, cell in numbers:
        own = name if name != AVERAGE and row.pi is not None else ""  # in a stationary table, each set has its own wild data
        wild = own if results.stationary else results.wild or ""
        error = None if cell.error is None else 100 * cell.error
        yield Row.of(
            *(table_title(results), results.id, wild, results.protocol, row.block, _number(row.pi, "g"), row.method, name),
            *(metric, _number(100 * cell.mean, ".4f"), _number(error, ".4f"), cell.seeds, int(cell.best)),
        )


def _latex_header(results: ResultsTable) -> list[str]:
    columns = _columns(results)
    titles = [rf"\multicolumn{{2}}{{c}}{{\textbf{{{escape_latex(column_title(name))}}}}}" for name in results.sets]
    first = [r"\multirow{3}{*}{\textbf{Method}}", rf"\multicolumn{{{2 * len(titles)}}}{{c}}{{\textbf{{OOD Dataset}}}}"]
    second = ["", *titles]
    if AVERAGE in columns:
        first.append(r"\multicolumn{2}{c}{\multirow{2}{*}{\textbf{Average}}}")
        second.append(r"\multicolumn{2}{c}{}")
    third = ["", *[r"FPR$\downarrow$", r"AUROC$\uparrow$"] * len(columns), ""]
    return [latex_line([*first, r"\multirow{3}{*}{\textbf{Acc.}}"]), latex_line([*second, ""]), latex_line(third)]


def _spread(results: ResultsTable) -> str:
    counts = sorted(_seed_counts(results))
    if not counts or counts == [1]:
        return "In percent, of one seed."
    many = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    return f"In percent, mean ± standard error over {many} seeds."


def _missing(results: ResultsTable, row: TableRow) -> Iterator[str]:
    if row.failed:
        yield f"{row.failed} {'run' if row.failed == 1 else 'runs'} failed: see failure.json in the folder of each run"
    without = [set_title(name) for name in results.sets if name not in row.cells]
    if without:
        yield f"no result on {', '.join(without)}"
    most = max(_seed_counts(results), default=0)
    counts = {name: _seeds(row, name) for name in results.sets if name in row.cells}
    fewer = [f"{count} on {set_title(name)}" for name, count in counts.items() if count < most]
    if fewer:
        yield f"fewer seeds than {most}: {', '.join(fewer)}"
    for reason in dict.fromkeys(row.incomplete.values()):
        yield f"{reason} on {', '.join(set_title(name) for name, each in row.incomplete.items() if each == reason)}"


def _seed_counts(results: ResultsTable) -> set[int]:
    return {_seeds(row, name) for row in results.rows for name in results.sets if name in row.cells}


def _seeds(row: TableRow, name: str) -> int:
    return max(cell.seeds for cell in row.cells[name].values())  # all metrics are of the same runs
