"""A table of results as Markdown, with what must be known to read it: its caption and what is missing in it."""

from collections.abc import Iterable, Iterator

from wildood.experiments.tables import (
    AVERAGE,
    METRIC_TITLES,
    SET_TITLES,
    STAND_INS,
    Cell,
    ResultsTable,
    TableRow,
    column_title,
    id_title,
    set_title,
)
from wildood.report.escaping import escaped_markdown

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


def table_title(table: ResultsTable) -> str:
    """Which table it is.

    >>> table_title(ResultsTable("cifar10", False, "300k", "honest", ("svhn",), ()))
    'CIFAR-10 as ID, 300K Rand. Img. in the wild, honest'
    """
    if not table.stationary:
        wild = f"{set_title(table.wild or '')} in the wild"
    elif all(row.pi is None for row in table.rows):
        wild = "no wild data"
    else:
        wild = "each OOD set in the wild that is tested on"
    parts = [f"{id_title(table.id)} as ID", wild, table.protocol.replace("_", " ")]
    return ", ".join([*parts, table.differs] if table.differs else parts)


def table_convention(table: ResultsTable) -> str:
    """Which share of OOD it holds: at which threshold.

    >>> table_convention(ResultsTable("cifar10", True, None, "as_published", (), ())).partition(" that is")[0]
    'Accepted (FPR in the paper) is the share of OOD'
    """
    return CONVENTIONS[table.metrics[0]]


def table_caption(table: ResultsTable, *, bold: bool = True) -> str:
    """How to read it: metrics, spread, what is bold (if anything is), protocol, and which files stand in for which sets.

    >>> table_caption(ResultsTable("cifar10.npz", True, None, "honest", (), ())).partition("Small")[2]
    ' files: cifar10.npz stands in for CIFAR-10.'
    """
    shares = {row.pi for row in table.rows if row.pi is not None}
    best = "of its block" if len(shares) > 1 else "of the table"
    said = [table_convention(table), _told_seeds(table), f"Bold is the best {best}." if bold else ""]
    said += [f"The share of OOD in the wild data is π = {shares.pop():g}."] if len(shares) == 1 else []
    said += [PROTOCOLS.get(table.protocol, "")]
    made = {"Model": table.model, "starting classifier": table.start}
    said += ["; ".join(f"{name}: {value}" for name, value in made.items() if value) + "." if any(made.values()) else ""]
    said += [_told_stand_ins(table)]
    return " ".join(filter(None, said))


def table_notes(table: ResultsTable) -> list[str]:
    """What is missing in it or not alike, a sentence for each.

    Runs that failed, cells without any run, cells with fewer seeds, choices among fewer settings; different code.

    >>> row = TableRow("π = 0.1", 0.1, "woods", "WOODS", {}, None, 0, {}, 2, ())
    >>> table_notes(ResultsTable("digits", True, None, "honest", ("digits",), (row,)))[0]
    'WOODS, π = 0.1: 2 runs failed: see failure.json in the folder of each run.'
    """
    missing = [f"{row.title}, {row.block}: {note}." for row in table.rows for note in _missing(table, row)]
    return [*missing, *(f"{origin}." for origin in table.origins)]


def table_columns(table: ResultsTable) -> tuple[str, ...]:
    """The OOD sets, and AVERAGE where some row has it.

    >>> table_columns(ResultsTable("digits", True, None, "honest", ("digits",), ()))
    ('digits',)
    """
    return (*table.sets, AVERAGE) if any(AVERAGE in row.cells for row in table.rows) else table.sets


def table_markdown(table: ResultsTable) -> str:
    """As Markdown: title, caption, the table with a line for each block, and notes.

    >>> cells = {"svhn": {"fpr95": Cell(0.1, 0.01), "auroc": Cell(0.9, 0.01)}}
    >>> row = TableRow("π = 0.1", 0.1, "oe", "OE", cells, None, 2, {}, 0, ())
    >>> print(table_markdown(ResultsTable("cifar10", True, None, "honest", ("svhn",), (row,))).splitlines()[-1])
    | OE | 10.00 ± 1.00 | 90.00 ± 1.00 | – | 2 |
    """
    columns = table_columns(table)
    names = [f"{column_title(name)} {METRIC_TITLES[metric]}" for name in columns for metric in table.metrics]
    header = ["method", *names, "accuracy ↑", "seeds"]
    lines = [markdown_line(map(escaped_markdown, header)), markdown_line(["---", *["---:"] * (len(header) - 1)])]
    block = None
    for row in table.rows:
        if row.block != block:
            block = row.block
            lines.append(markdown_line([f"*{escaped_markdown(block)}*", *[""] * (len(header) - 1)]))
        numbers = [_cell(cell) for name in columns for cell in table.shown(row, name)]
        lines.append(markdown_line([escaped_markdown(row.title), *numbers, _cell(row.accuracy), str(row.seeds)]))
    title, caption = escaped_markdown(table_title(table)), escaped_markdown(table_caption(table))
    notes = [f"- {escaped_markdown(note)}" for note in table_notes(table)]
    parts = [f"**{title}.** {caption}", "\n".join(lines), "\n".join(notes)]
    return "\n\n".join(filter(None, parts)) + "\n"


def markdown_line(cells: Iterable[str]) -> str:
    """A line of a Markdown table.

    >>> markdown_line(["WOODS", "0.15"])
    '| WOODS | 0.15 |'
    """
    return f"| {' | '.join(cells)} |"


def _told_seeds(table: ResultsTable) -> str:
    counts = sorted(_seed_counts(table))
    if not counts or counts == [1]:
        return "In percent, of one seed."
    many = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    return f"In percent, mean ± standard error over {many} seeds."


def _told_stand_ins(table: ResultsTable) -> str:
    names = dict.fromkeys([table.id, *([table.wild] if table.wild else []), *table.sets])
    pairs = [f"{name} stands in for {SET_TITLES[STAND_INS[name]]}" for name in names if name in STAND_INS]
    return f"Small files: {', '.join(pairs)}." if pairs else ""


def _missing(table: ResultsTable, row: TableRow) -> Iterator[str]:
    if row.failed:
        yield f"{row.failed} {'run' if row.failed == 1 else 'runs'} failed: {FAILURES}"
    without = [set_title(name) for name in table.sets if name not in row.cells]
    if without:
        yield f"no result on {', '.join(without)}"
    most = max(_seed_counts(table), default=0)
    counts = {name: _seeds(row, name) for name in table.sets if name in row.cells}
    fewer = [f"{count} on {set_title(name)}" for name, count in counts.items() if count < most]
    if fewer:
        yield f"fewer seeds than {most}: {', '.join(fewer)}"
    for told in dict.fromkeys(row.incomplete.values()):
        yield f"{told} on {', '.join(set_title(name) for name, each in row.incomplete.items() if each == told)}"


def _seed_counts(table: ResultsTable) -> set[int]:
    return {_seeds(row, name) for row in table.rows for name in table.sets if name in row.cells}


def _seeds(row: TableRow, name: str) -> int:
    return max(cell.seeds for cell in row.cells[name].values())  # all metrics are of the same runs


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return "–"
    text = cell.percent if cell.error is None else f"{cell.percent} ± {100 * cell.error:.2f}"
    return f"**{text}**" if cell.best else text
