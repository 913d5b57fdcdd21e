"""The results of runs as a table, with what must be known to read it: its title, caption and notes."""

import re
from collections.abc import Iterator, Sequence

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
FAILURES = "see failure.json in the folder of each run"
LATEX_SCALE = 0.64  # the paper's
LATEX_BLOCKS = {
    ID_ONLY: r"\textbf{With $P_{\mathrm{in}}$ only}",
    WITH_WILD: r"\textbf{With $P_{\mathrm{in}}$ and $P_{\mathrm{wild}}$}",
}
CSV_COLUMNS = (
    *("table", "id", "wild", "protocol", "block", "pi", "method", "set"),
    *("metric", "mean", "error", "seeds", "best"),
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
    """At which threshold its share of OOD is measured.

    >>> table_convention(ResultsTable("cifar10", True, None, "as_published", (), ())).partition(" that is")[0]
    'Accepted (FPR in the paper) is the share of OOD'
    """
    return CONVENTIONS[results.metrics[0]]


def table_caption(results: ResultsTable, *, bold: bool = True) -> str:
    """How to read it: metrics, spread, what is bold (if anything is), protocol, and which files stand in for which sets.

    >>> table_caption(ResultsTable("cifar10.npz", True, None, "honest", (), ())).partition("Small")[2]
    ' files: cifar10.npz stands in for CIFAR-10.'
    """
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
    """What is missing in it or not alike, a sentence for each.

    Runs that failed, cells without any run, cells with fewer seeds, choices among fewer settings; different code.

    >>> row = TableRow("π = 0.1", 0.1, "woods", "WOODS", {}, None, 0, {}, 2, ())
    >>> table_notes(ResultsTable("digits", True, None, "honest", ("digits",), (row,)))[0]
    'WOODS, π = 0.1: 2 runs failed: see failure.json in the folder of each run.'
    """
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
    return Table(
        columns=[
            Column("method"),
            *(Column(METRIC_TITLES[each], column_title(name), *digits) for name in sets for each in results.metrics),
            Column(METRIC_TITLES["accuracy"], "", *digits),
            Column("seeds", digits=str),
        ],
        rows=rows,
        title=table_title(results),
        caption=table_caption(results),
        notes=table_notes(results),
        sortable=True,
    )


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
    r"""As a `table*` in the paper's layout; it needs booktabs, multirow and graphicx.

    >>> print(results_latex(ResultsTable("digits", True, None, "honest", ("digits",), ())).splitlines()[0])
    % \usepackage{booktabs,graphicx,multirow}
    """
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

    >>> results_csv([]).startswith("table,id,wild,protocol,block,pi,method,set,metric,mean,error,seeds,best")
    True
    """
    rows = [row for results in tables for method in results.rows for row in _csv_rows(results, method)]
    return to_csv(Table([Column(name) for name in CSV_COLUMNS], rows))


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
        pi = "" if row.pi is None else f"{row.pi:g}"
        error = "" if cell.error is None else f"{100 * cell.error:.4f}"
        described = table_title(results), results.id, wild, results.protocol, row.block, pi, row.method, name, metric
        yield Row.of(*described, f"{100 * cell.mean:.4f}", error, cell.seeds, int(cell.best))


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
        yield f"{row.failed} {'run' if row.failed == 1 else 'runs'} failed: {FAILURES}"
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
