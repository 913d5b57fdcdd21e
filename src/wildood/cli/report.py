"""`wildood report`: a directory of runs in, tables, figures and pages out."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from wildood.cli.main import say
from wildood.cli.options import named, parse
from wildood.data.files import write_text
from wildood.errors import InputError
from wildood.experiments.grids import register
from wildood.experiments.store import FAILURE, RESULT, RunStore
from wildood.experiments.tables import ResultsTable
from wildood.report.figures import plots_installed
from wildood.report.page import generator
from wildood.report.results_table import (
    metric_table,
    paper_csv,
    paper_table,
    results_csv,
    results_latex,
    results_table,
    table_convention,
    table_notes,
    table_title,
)
from wildood.report.run_page import failure_page, run_page
from wildood.report.runs_page import TITLE, Runs, runs_page
from wildood.report.table import Table, print_table, to_markdown
from wildood.train.progress import logger, progress_bar, verbose_logging


@dataclass(frozen=True)
class ReportOptions:
    """Tables, figures and a page of runs, and a page for each of them; also while other runs are still going on.

    Attributes:
        runs: the directory that reproduce wrote its runs to.
        out: the directory to write to (default: RUNS/report).
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
    """The tables as files of text, and a comparison with the paper if it prints any of their numbers."""
    files = {
        "tables.md": _markdown([results_table(results) for results in tables]),
        "tables.tex": "\n".join(map(results_latex, tables)),
        "tables.csv": results_csv(tables),
    }
    compared = list(filter(None, map(paper_table, tables)))
    return files | ({"beside.md": _markdown(compared), "beside.csv": paper_csv(tables)} if compared else {})


def _markdown(tables: Sequence[Table]) -> str:
    return "\n".join(f"{to_markdown(table)}\n" for table in tables)


def _write_pages(out: Path, runs: Runs, making: dict[str, str], title: str) -> None:
    """The report and a page for each run, if figures can be drawn."""
    if not plots_installed():
        logger.info("for pages with figures: pip install matplotlib, then the same command again")
        return
    write_text(out / "report.html", runs_page(runs, making, title))
    logger.info("%s shows them as a page", out / "report.html")
    with progress_bar(len(runs.results), 0, "a page for each run", "pages") as bar:
        for number, result in enumerate(runs.results, 1):
            page = out / "runs" / f"{result.experiment.name}.html"
            if not _is_current(page, runs.store.place(result.experiment) / RESULT):
                write_text(page, run_page(result, runs.scores(result)))
            bar.at(number)
    for failure in runs.failures:
        page = out / "runs" / f"{failure.experiment.name}.html"
        if not _is_current(page, runs.store.place(failure.experiment) / FAILURE):
            write_text(page, failure_page(failure))


def _is_current(page: Path, source: Path) -> bool:
    """Whether a page need not be drawn again: hundreds of them take minutes."""
    if not page.exists() or page.stat().st_mtime_ns <= source.stat().st_mtime_ns:
        return False
    return generator() in page.read_text(encoding="utf-8")


def _print(runs: Runs, out: Path, files: Sequence[str]) -> None:
    """The tables, what failed, and where everything is."""
    for results in runs.tables:
        say(f"{table_title(results)}:")
        for metric in results.metrics:
            print_table(metric_table(results, metric))
        for note in table_notes(results):
            say(f"- {note}", indent=2)
    conventions = dict.fromkeys(map(table_convention, runs.tables))
    say(f"In percent, mean ± standard error over the seeds. {' '.join(conventions)}")
    for failure in runs.failures:
        say(f"failed: {failure.experiment.name}: {failure.error}", indent=8)
    if runs.left_out:
        say(runs.left_out_text(), indent=8)
    say(f"{runs.summary()}\n{out}: {', '.join(files)}")
