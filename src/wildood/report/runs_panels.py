"""The figures of a report of many runs: FPR95 over pi, the ID constraint, and the scores of single runs, for each table."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from wildood.experiments.store import KNOWN, Result
from wildood.experiments.tables import ResultsTable, TableRow, paper_set, set_title
from wildood.report.multiples import score_figure
from wildood.report.page import Panel
from wildood.report.run_page import run_link, scores_panel
from wildood.report.runs import Runs
from wildood.report.runs_figures import Curve, Point, constraint_of_runs, over_pi
from wildood.report.table_text import table_title
from wildood.scores.shipped import NAMES as POSTHOC

WOODS, USUAL_PI, FIGURE_SET = "woods", 0.1, "places365"  # the paper's


class Shown(NamedTuple):
    """A run whose scores are shown: the row it is in, and the OOD set."""

    row: TableRow
    result: Result
    ood: str


def pi_panels(runs: Runs) -> list[Panel]:
    """FPR95 over pi, for each table that has several."""
    return [
        _pi_panel(f"pi-{number}", table, runs)
        for number, table in enumerate(runs.tables)
        if len({row.pi for row in table.rows if row.pi is not None and _figure_set(table) in row.cells}) > 1
    ]


def constraint_panels(runs: Runs) -> list[Panel]:
    """The ID constraint of the WOODS runs of each table, at one pi."""
    panels = []
    for number, table in enumerate(runs.tables):
        row = _woods(table)
        found = [runs.by_name[name] for name in row.runs] if row else []
        histories = [run.history for run in found if any({"epoch", "false_alarm"} <= each.keys() for each in run.history)]
        if row and histories:
            tolerance = float(found[0].experiment.settings["tol"])
            at = f", at π = {row.pi:g}" if row.pi is not None else ""
            panels.append(
                Panel(
                    table_title(table),
                    f"The false-alarm constraint of {row.title}{at}: the mean of each epoch on labelled data, minus its "
                    "level α. It is met below 0, and taken as met up to the tolerance.",
                    constraint_of_runs(f"constraint-{number}", histories, tolerance),
                )
            )
    return panels


def score_panels(runs: Runs) -> list[Panel]:
    """Scores of ID and OOD, of the best post-hoc score and of WOODS, for each OOD set of each table."""
    panels: list[Panel] = []
    for number, table in enumerate(runs.tables):
        shown = enumerate(_shown(table, runs))
        drawn = {_says(each): _score_figure(f"scores-{number}-{place}", each, runs) for place, each in shown}
        panels += scores_panel(table_title(table), drawn)
    return panels


def _pi_panel(name: str, table: ResultsTable, runs: Runs) -> Panel:
    ood = _figure_set(table)
    points: dict[tuple[str, str], list[Point]] = {}
    for row in table.rows:
        if row.pi is not None and ood in row.cells:
            cell = row.cells[ood]["fpr95"]
            points.setdefault((row.method, row.title), []).append(Point(row.pi, cell.mean, cell.error))
    curves = [Curve(method, title, sorted(found)) for (method, title), found in points.items()]
    without = _best(_without_wild(table, runs.tables), ood)
    level = None if without is None else (f"{without.title}, without wild data", without.cells[ood]["fpr95"].mean)
    says = "FPR95 over the share of OOD in the wild data, with the standard error over the seeds; lower is better."
    if without is not None:
        says += f" The dotted line is the best of the methods that see no wild data{_other_part(table, without, ood, runs)}."
    return Panel(f"{set_title(ood)}: {table_title(table)}", says, over_pi(name, curves, level))


def _other_part(table: ResultsTable, without: TableRow, ood: str, runs: Runs) -> str:
    """That the line is of fewer examples than the curves, if so: a set that was in the wild keeps only a part for tests."""
    line = _examples([without], ood, runs)
    curves = _examples([row for row in table.rows if row.pi is not None], ood, runs)
    if max(line) >= min(curves):
        return ""
    return (
        f"; it is measured on the test part of the set ({max(line):,} examples), the curves on all of it ({min(curves):,})"
    )


def _examples(rows: Sequence[TableRow], ood: str, runs: Runs) -> set[int]:
    """How many examples of an OOD set were tested on."""
    results = [runs.by_name[name] for row in rows for name in row.runs]
    return {result.tests[ood].examples for result in results if ood in result.tests}


def _figure_set(table: ResultsTable) -> str:
    """Places365, or what stands for it, as in the paper's figure; else the first."""
    return next((name for name in table.sets if paper_set(name) == FIGURE_SET), table.sets[0])


def _without_wild(table: ResultsTable, tables: Sequence[ResultsTable]) -> list[TableRow]:
    """The methods that see no wild data: in this table, or in one that has all else in common with it."""
    here = [row for row in table.rows if row.pi is None]
    alike = [other for other in tables if other.common == table.common]
    return here or [row for other in alike for row in other.rows if row.pi is None]


def _best(rows: Sequence[TableRow], ood: str) -> TableRow | None:
    return min((row for row in rows if ood in row.cells), key=lambda row: row.cells[ood]["fpr95"].mean, default=None)


def _woods(table: ResultsTable) -> TableRow | None:
    """The row of WOODS: at the paper's usual pi if it is there."""
    rows = [row for row in table.rows if row.method == WOODS and row.runs]
    return min(rows, key=lambda row: row.pi != USUAL_PI, default=None)


def _shown(table: ResultsTable, runs: Runs) -> Iterator[Shown]:
    """For each OOD set, the best post-hoc score and WOODS: their first seed."""
    posthoc = [row for row in _without_wild(table, runs.tables) if row.method in POSTHOC]
    for ood in table.sets:
        for row in (_best(posthoc, ood), _woods(table)):
            found = [runs.by_name[name] for name in row.runs if ood in runs.by_name[name].tests] if row else []
            if row and found:
                yield Shown(row, min(found, key=lambda run: run.experiment.seed), ood)


def _score_figure(name: str, shown: Shown, runs: Runs) -> str:
    scores, found = runs.scores(shown.result), shown.result.tests[shown.ood]
    link = run_link(shown.result.experiment, _made_by(shown))
    caption = f"{escape(set_title(shown.ood))}: {link}, FPR95 {100 * found.fpr95:.1f}&nbsp;%"
    return score_figure(name, scores.get(KNOWN), scores.get(shown.ood), _says(shown), caption)


def _says(shown: Shown) -> str:
    return f"{set_title(shown.ood)} by {_made_by(shown)}"


def _made_by(shown: Shown) -> str:
    at = "" if shown.row.pi is None else f", π = {shown.row.pi:g}"
    return f"{shown.row.title}{at}, seed {shown.result.experiment.seed}"
