"""`wildood report`: a directory of runs in, tables, figures and pages out."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from wildood.cli.main import say
from wildood.cli.options import named, parse
from wildood.data.files import write_text
from wildood.errors import InputError
from wildood.experiments.own_methods import register
from wildood.experiments.store import FAILURE, RESULT, RunStore
from wildood.experiments.tables import METRIC_TITLES, Cell, Metric, ResultsTable, column_title
from wildood.report.beside_text import beside_csv, beside_markdown
from wildood.report.runs import TITLE, Runs
from wildood.report.table_csv import tables_csv
from wildood.report.table_latex import table_latex
from wildood.report.table_text import table_columns, table_convention, table_markdown, table_notes, table_title
from wildood.report.tables import plots_installed
from wildood.train.progress import logger, progress_bar, verbose_logging

WIDTH = 120  # of a table that is printed to a file or a pipe


@dataclass(frozen=True)
class ReportOptions:
    """Tables, figures and a page of runs, and a page for each of them; while others are still going on, too.

    Attributes:
        runs: the directory that reproduce wrote its runs to.
        out: the directory to write to; RUNS/report unless given.
        title: of the page.
        method: a method or score of your own that some of the runs have, as module:Class.
        quiet: show no progress.
    """

    runs: Annotated[Path, tyro.conf.Positional, named("RUNS")]
    out: Annotated[Path | None, named("DIRECTORY")] = None
    title: str = TITLE
    method: Annotated[tuple[str, ...], named("MODULE:CLASS [MODULE:CLASS ...]")] = ()
    quiet: bool = False


def run(words: Sequence[str]) -> None:
    """The tables on standard output, everything else in the directory."""
    options = parse(ReportOptions, "report", words)
    register(options.method)
    runs = Runs.read(RunStore(options.runs))
    out = options.runs / "report" if options.out is None else options.out
    try:
        (out / "runs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {out} cannot be written to ({error.strerror}): give a directory") from error
    files = _texts(runs.tables)
    for name, text in files.items():
        write_text(out / name, text)
    _print(runs, out, list(files))
    with verbose_logging(verbose=not options.quiet):
        _write_pages(out, runs, {"command": shlex.join(["wildood", "report", *words])}, options.title)


def _texts(tables: Sequence[ResultsTable]) -> dict[str, str]:
    """The tables as files of text; what the paper prints is set beside them where it prints any of it."""
    files = {
        "tables.md": "\n".join(map(table_markdown, tables)),
        "tables.tex": "\n".join(map(table_latex, tables)),
        "tables.csv": tables_csv(tables),
    }
    beside = "\n".join(filter(None, map(beside_markdown, tables)))
    return files | ({"beside.md": beside, "beside.csv": beside_csv(tables)} if beside else {})


def _write_pages(out: Path, runs: Runs, making: dict[str, str], title: str) -> None:
    """The report and a page for each run, if what they need is there."""
    if not plots_installed():
        logger.info("for pages with figures: pip install matplotlib, then the same command again")
        return
    from wildood.report.run_page import failure_page, run_page  # noqa: PLC0415 - matplotlib is an extra
    from wildood.report.runs_page import runs_page  # noqa: PLC0415
    from wildood.report.sortable import generator  # noqa: PLC0415

    write_text(out / "report.html", runs_page(runs, making, title))
    logger.info("%s shows them as a page", out / "report.html")
    made_by = generator()
    with progress_bar(len(runs.results), 0, "a page for each run", "pages") as bar:
        for number, result in enumerate(runs.results, 1):
            page = out / "runs" / f"{result.experiment.name}.html"
            if not _is_current(page, runs.store.place(result.experiment) / RESULT, made_by):
                write_text(page, run_page(result, runs.scores(result)))
            bar.at(number)
    for failure in runs.failures:
        page = out / "runs" / f"{failure.experiment.name}.html"
        if not _is_current(page, runs.store.place(failure.experiment) / FAILURE, made_by):
            write_text(page, failure_page(failure))


def _is_current(page: Path, source: Path, made_by: str) -> bool:
    """Whether a page need not be drawn again: hundreds of them take minutes."""
    if not page.exists() or page.stat().st_mtime_ns <= source.stat().st_mtime_ns:
        return False
    return made_by in page.read_text(encoding="utf-8")


def _print(runs: Runs, out: Path, files: Sequence[str]) -> None:
    """The tables, what failed, and where everything is."""
    # Names of sets are shown as they are: no markup, no emoji.
    width = None if sys.stdout.isatty() else WIDTH
    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False, soft_wrap=True, width=width)
    for table in runs.tables:
        say(f"{table_title(table)}:")
        for metric in table.metrics:
            console.print(_table(table, metric))
        for note in table_notes(table):
            say(f"- {note}", indent=2)
    conventions = dict.fromkeys(map(table_convention, runs.tables))
    say(f"In percent, mean ± standard error over the seeds. {' '.join(conventions)}")
    for failure in runs.failures:
        say(f"failed: {failure.experiment.name}: {failure.error}", indent=8)
    if runs.left_out:
        say(runs.told_left_out(), indent=8)
    say(f"{runs.told()}\n{out}: {', '.join(files)}")


def _table(table: ResultsTable, metric: Metric) -> Table:
    """One metric of a table, narrow enough for a terminal."""
    columns = table_columns(table)
    names, with_accuracy = map(column_title, columns), metric == table.metrics[0]
    last = [METRIC_TITLES["accuracy"]] if with_accuracy else []
    shown = Table(METRIC_TITLES[metric], *names, *last, box=SIMPLE_HEAD, pad_edge=False)
    for column in shown.columns[1:]:
        column.justify = "right"
    for block, rows in groupby(table.rows, key=lambda row: row.block):
        shown.add_row(block, style="italic")
        for row in rows:
            cells = [row.cells.get(name, {}).get(metric) for name in columns]
            shown.add_row(f"  {row.title}", *map(_text, [*cells, *([row.accuracy] if with_accuracy else [])]))
    return shown


def _text(cell: Cell | None) -> str:
    if cell is None:
        return "–"
    return f"{100 * cell.mean:.1f}" if cell.error is None else f"{100 * cell.mean:.1f} ± {100 * cell.error:.1f}"
