"""A table of results as LaTeX, in the paper's layout; it needs booktabs, multirow and graphicx."""

import re
from itertools import groupby

from wildood.experiments.tables import AVERAGE, ID_ONLY, WITH_WILD, Cell, ResultsTable, column_title
from wildood.report.escaping import escaped_latex
from wildood.report.table_text import table_caption, table_columns, table_notes, table_title

SCALE = 0.64  # the paper's
_BLOCKS = {
    ID_ONLY: r"\textbf{With $P_{\mathrm{in}}$ only}",
    WITH_WILD: r"\textbf{With $P_{\mathrm{in}}$ and $P_{\mathrm{wild}}$}",
}


def table_latex(table: ResultsTable) -> str:
    r"""As a `table*`, with FPR (the caption says which) and AUROC under each OOD set, and a title above each block.

    >>> print(table_latex(ResultsTable("digits", True, None, "honest", ("digits",), ())).splitlines()[0])
    % \usepackage{booktabs,graphicx,multirow}
    """
    columns = table_columns(table)
    width = 2 * len(columns) + 2
    body = []
    for block, rows in groupby(table.rows, key=lambda row: row.block):
        body += [r"\midrule", rf"\multicolumn{{{width}}}{{c}}{{{_BLOCKS.get(block) or escaped_latex(block)}}} \\"]
        for row in rows:
            numbers = [_cell(cell) for name in columns for cell in table.shown(row, name)]
            body.append(_line([escaped_latex(row.title), *numbers, _cell(row.accuracy)]))
    title, caption = escaped_latex(table_title(table)), [table_caption(table), *table_notes(table)]
    lines = [
        r"% \usepackage{booktabs,graphicx,multirow}",
        r"\begin{table*}[t]",
        r"\centering",
        rf"\scalebox{{{SCALE}}}{{",
        rf"\begin{{tabular}}{{l{'r' * (width - 1)}}}",
        r"\toprule",
        *_header(table, columns),
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        "}",
        rf"\caption{{\small \textbf{{{title}.}} {escaped_latex(' '.join(caption))}}}",
        rf"\label{{tab:{re.sub('[^a-z0-9]+', '-', table_title(table).lower()).strip('-')}}}",
        r"\end{table*}",
    ]
    return "\n".join(lines) + "\n"


def _header(table: ResultsTable, columns: tuple[str, ...]) -> list[str]:
    averaged = AVERAGE in columns
    first = [r"\multirow{3}{*}{\textbf{Method}}", rf"\multicolumn{{{2 * len(table.sets)}}}{{c}}{{\textbf{{OOD Dataset}}}}"]
    second = ["", *(rf"\multicolumn{{2}}{{c}}{{\textbf{{{escaped_latex(column_title(name))}}}}}" for name in table.sets)]
    if averaged:
        first.append(r"\multicolumn{2}{c}{\multirow{2}{*}{\textbf{Average}}}")
        second.append(r"\multicolumn{2}{c}{}")
    third = ["", *[r"FPR$\downarrow$", r"AUROC$\uparrow$"] * len(columns), ""]
    return [_line([*first, r"\multirow{3}{*}{\textbf{Acc.}}"]), _line([*second, ""]), _line(third)]


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return "--"
    mean = rf"\textbf{{{cell.percent}}}" if cell.best else cell.percent
    return mean if cell.error is None else rf"{mean}$^{{\pm {100 * cell.error:.1f}}}$"


def _line(cells: list[str]) -> str:
    return rf"{' & '.join(cells)} \\"
