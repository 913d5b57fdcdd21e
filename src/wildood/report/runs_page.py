"""The report of many runs: what failed, the tables, the figures of the paper, and a page for each run."""

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Self

from markupsafe import Markup

from wildood.errors import InputError
from wildood.experiments.experiment import Experiment
from wildood.experiments.store import SCORES, Failure, Result, RunStore, Scores
from wildood.experiments.tables import ResultsTable, TableRow, id_title, method_title, paper_set, result_tables, set_title
from wildood.report.figures import CONSTRAINT_NAMES, Curve, Point, constraint_of_runs, over_pi
from wildood.report.page import generator, render
from wildood.report.results_table import paper_table, results_table, table_title
from wildood.report.run_page import ScoreFigure, fpr95_text, run_title, score_figure
from wildood.report.table import Column, Row, Table, TableCell, percent
from wildood.scores.shipped import NAMES as POSTHOC

TITLE = "What was run, and what it found"  # of the page
LISTED = 3  # folders that are left out, or reasons for it, that are named in a sentence
WOODS, USUAL_PI, FIGURE_SET = "woods", 0.1, "places365"  # the paper's


@dataclass(frozen=True)
class Runs:
    """The runs of a store, each read once, so that one that ends meanwhile is not counted twice.

    `unfinished` counts those under way or cut off; `left_out` has the folders that could not be read as runs, and why.
    """

    store: RunStore
    results: tuple[Result, ...]
    failures: tuple[Failure, ...]
    unfinished: int
    left_out: tuple[tuple[str, str], ...] = ()

    @classmethod
    def read(cls, store: RunStore) -> Self:
        """Read a store; one without anything to show is refused."""
        if not store.root.is_dir():
            raise InputError(f"{store.root} is no directory: give the one that wildood reproduce wrote its runs to")
        content = store.contents()
        unfinished = len(content.unfinished)
        runs = cls(store, content.results, content.failures, unfinished, content.left_out)
        if not (content.results or content.failures or unfinished):
            if content.left_out:
                raise InputError(f"{store.root} holds no runs that can be read: {runs.left_out_text()}")
            raise InputError(f"{store.root} holds no runs: give the directory that wildood reproduce wrote them to")
        if not (content.results or content.failures):
            count = "one run that has" if unfinished == 1 else f"{unfinished} runs that have"
            raise InputError(f"{store.root} holds {count} not ended yet: call report again when one has")
        return runs

    @cached_property
    def tables(self) -> list[ResultsTable]:
        """The tables that the runs make."""
        return result_tables(self.results, self.failures)

    @cached_property
    def by_name(self) -> dict[str, Result]:
        """The results by the names of their runs."""
        return {result.experiment.name: result for result in self.results}

    def scores(self, result: Result) -> Scores:
        """The scores of a run; nothing if their file is missing or damaged."""
        if not zipfile.is_zipfile(self.store.place(result.experiment) / SCORES):  # missing, or cut off
            return {}
        try:
            return self.store.scores(result.experiment)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):
            return {}

    def summary(self) -> str:
        """How many there are, as a sentence.

        >>> from pathlib import Path
        >>> Runs(RunStore(Path("runs")), (), (), 2, (("a1", "it is not TOML"),)).summary()
        '2 runs: none is done, none failed, 2 have not ended; 1 folder left out.'
        """
        done, failed = len(self.results), len(self.failures)
        parts = ["none is done" if not done else "1 is done" if done == 1 else f"{done:,} are done"]
        parts.append(f"{failed:,} failed" if failed else "none failed")
        if self.unfinished:
            parts.append(f"{self.unfinished:,} {'has' if self.unfinished == 1 else 'have'} not ended")
        left_out = f"; {_count(len(self.left_out), 'folder')} left out" if self.left_out else ""  # some may have failed, too
        return f"{_count(done + failed + self.unfinished, 'run')}: {', '.join(parts)}{left_out}."

    def left_out_by_reason(self) -> dict[str, list[str]]:
        """The folders that were left out, by why."""
        reasons: dict[str, list[str]] = {}
        for name, why in self.left_out:
            reasons.setdefault(why, []).append(name)
        return reasons

    def left_out_text(self) -> str:
        """Which folders were left out, and why, each reason once; empty if none was."""
        reasons = [f"{_first_few(names)}: {why}" for why, names in self.left_out_by_reason().items()]
        return f"{_count(len(self.left_out), 'folder')} left out: {_first_few(reasons, '; ')}" if reasons else ""


def runs_page(runs: Runs, provenance: dict[str, str], title: str = TITLE) -> str:
    """The page; `provenance` says what was typed."""
    return render(
        "runs.html",
        generator=generator(),
        title=title,
        runs=runs,
        failures=[(run_link(failure.experiment), run_title(failure.experiment), failure.error) for failure in runs.failures],
        results=[_with_settings(results_table(results), results) for results in runs.tables],
        comparisons=list(filter(None, map(paper_table, runs.tables))),
        pi_figures=pi_figures(runs),
        constraint_figures=constraint_figures(runs),
        score_figures=score_figures(runs),
        every_run=_every_run(runs.results),
        provenance=provenance,
    )


def run_link(experiment: Experiment) -> str:
    """From the report to the page of a run."""
    return f"runs/{experiment.name}.html"


class PiFigure(NamedTuple):
    """FPR95 over pi for one OOD set of a table; if a line shows the best without wild data, its and the curves' examples."""

    title: str
    svg: Markup
    examples: tuple[int, int] | None


class ConstraintFigure(NamedTuple):
    """The ID constraint of the WOODS runs of a table, at one pi."""

    title: str
    row: TableRow
    svg: Markup


def pi_figures(runs: Runs) -> list[PiFigure]:
    """FPR95 over pi, for each table that has several."""
    drawn = []
    for number, results in enumerate(runs.tables):
        ood = _figure_set(results)
        rows = [row for row in results.rows if row.pi is not None and ood in row.cells]
        if len({row.pi for row in rows}) < 2:
            continue
        points: dict[tuple[str, str], list[Point]] = {}
        for row in rows:
            cell = row.cells[ood]["fpr95"]
            points.setdefault((row.method, row.title), []).append(Point(row.pi or 0.0, cell.mean, cell.error))
        curves = [Curve(method, title, sorted(each)) for (method, title), each in points.items()]
        best = _best(_without_wild(results, runs.tables), ood)
        level = None if best is None else (f"{best.title}, without wild data", best.cells[ood]["fpr95"].mean)
        # A set that was in the wild keeps only a part for tests, so the line may be measured on fewer examples.
        examples = None if best is None else (max(_examples([best], ood, runs)), min(_examples(rows, ood, runs)))
        title = f"{set_title(ood)}: {table_title(results)}"
        drawn.append(PiFigure(title, over_pi(f"pi-{number}", curves, level), examples))
    return drawn


def constraint_figures(runs: Runs) -> list[ConstraintFigure]:
    """The ID constraint of the WOODS runs of each table, at one pi."""
    drawn = []
    for number, results in enumerate(runs.tables):
        row = _woods(results)
        in_row = [runs.by_name[name] for name in row.runs] if row else []
        histories = [run.history for run in in_row if any({"epoch", "false_alarm"} <= each.keys() for each in run.history)]
        if row and histories:
            settings = in_row[0].experiment.settings
            quantity = CONSTRAINT_NAMES[settings["false_alarm_loss"]]
            svg = constraint_of_runs(f"constraint-{number}", histories, float(settings["tol"]), quantity)
            drawn.append(ConstraintFigure(table_title(results), row, svg))
    return drawn


def score_figures(runs: Runs) -> list[tuple[str, list[ScoreFigure]]]:
    """Scores of ID and OOD, of the best post-hoc score and of WOODS, for each OOD set of each table, with its title."""
    drawn = []
    for number, results in enumerate(runs.tables):
        in_table = []
        for place, (row, result, ood) in enumerate(_shown_runs(results, runs)):
            pi = "" if row.pi is None else f", π = {row.pi:g}"
            run, name = f"{row.title}{pi}, seed {result.experiment.seed}", set_title(ood)
            link = Markup('<a href="{}">{}</a>').format(run_link(result.experiment), run)
            caption = Markup("{}: {}, {}").format(name, link, fpr95_text(result.tests[ood].fpr95))
            figure = score_figure(f"scores-{number}-{place}", runs.scores(result), ood, f"{name} by {run}", caption)
            in_table.append(figure)
        if in_table:
            drawn.append((table_title(results), in_table))
    return drawn


def _count(number: int, noun: str) -> str:
    return f"1 {noun}" if number == 1 else f"{number:,} {noun}s"


def _first_few(texts: Sequence[str], mark: str = ", ") -> str:
    """A few of them, and how many there are more: "a, b, c, and 1 more"."""
    more = [f"and {len(texts) - LISTED:,} more"] if len(texts) > LISTED else []
    return mark.join([*texts[:LISTED], *more])


def _with_settings(table: Table, results: ResultsTable) -> Table:
    """A table whose notes have the settings that validation data chose, too."""
    chosen = [
        f"{row.title}, {row.block}: chosen by validation data: "
        + "; ".join(f"{settings} for {set_title(name)}" for name, settings in row.settings.items())
        + "."
        for row in results.rows
        if row.settings
    ]
    return replace(table, notes=[*table.notes, *chosen])


def _every_run(results: Sequence[Result]) -> Table:
    columns = [
        *map(Column, ("run", "method", "ID set", "in the wild")),
        *(Column("π", digits="{:g}".format), Column("seed", digits=str), Column("protocol")),
        *(Column(head, digits=percent(2)) for head in ("FPR95 ↓", "AUROC ↑", "accuracy ↑")),
        Column("seconds", digits="{:,.0f}".format),
    ]
    rows = []
    for result in results:
        experiment, tests = result.experiment, result.tests.values()
        wild = None if experiment.wild is None else set_title(experiment.wild)
        rows.append(
            Row.of(
                TableCell(experiment.name, link=run_link(experiment)),
                *(method_title(experiment.method), id_title(experiment.id), wild, None if wild is None else experiment.pi),
                *(experiment.seed, experiment.protocol.replace("_", " ")),
                *(_mean([each.fpr95 for each in tests]), _mean([each.auroc for each in tests])),
                *(result.accuracy, result.seconds),
            )
        )
    return Table(columns, rows, title="every run", sortable=True)


def _mean(shares: Sequence[float]) -> float | None:
    return sum(shares) / len(shares) if shares else None


def _examples(rows: Sequence[TableRow], ood: str, runs: Runs) -> set[int]:
    """How many examples of an OOD set were tested on."""
    results = [runs.by_name[name] for row in rows for name in row.runs]
    return {result.tests[ood].examples for result in results if ood in result.tests}


def _figure_set(results: ResultsTable) -> str:
    """Places365, or what stands for it, as in the paper's figure; else the first."""
    return next((name for name in results.sets if paper_set(name) == FIGURE_SET), results.sets[0])


def _without_wild(results: ResultsTable, tables: Sequence[ResultsTable]) -> list[TableRow]:
    """The methods that see no wild data: in this table, or in one that has all else in common with it."""
    here = [row for row in results.rows if row.pi is None]
    alike = [other for other in tables if other.common == results.common]
    return here or [row for other in alike for row in other.rows if row.pi is None]


def _best(rows: Sequence[TableRow], ood: str) -> TableRow | None:
    return min((row for row in rows if ood in row.cells), key=lambda row: row.cells[ood]["fpr95"].mean, default=None)


def _woods(results: ResultsTable) -> TableRow | None:
    """The row of WOODS: at the paper's usual pi if it is there."""
    rows = [row for row in results.rows if row.method == WOODS and row.runs]
    return min(rows, key=lambda row: row.pi != USUAL_PI, default=None)


def _shown_runs(results: ResultsTable, runs: Runs) -> Iterator[tuple[TableRow, Result, str]]:
    """For each OOD set, the best post-hoc score and WOODS: their first seed."""
    posthoc = [row for row in _without_wild(results, runs.tables) if row.method in POSTHOC]
    for ood in results.sets:
        for row in (_best(posthoc, ood), _woods(results)):
            tested = [runs.by_name[name] for name in row.runs if ood in runs.by_name[name].tests] if row else []
            if row and tested:
                yield row, min(tested, key=lambda run: run.experiment.seed), ood
