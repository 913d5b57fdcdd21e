"""The report of many runs: what failed, the tables, the figures of the paper, and a page for each run."""

from collections.abc import Sequence
from html import escape

from wildood.experiments.store import Failure, Result
from wildood.experiments.tables import id_title, method_title, set_title
from wildood.report.beside_panel import beside_panel
from wildood.report.page import Panel, Section, definitions, note
from wildood.report.results_panel import results_panel
from wildood.report.run_page import run_link, run_title
from wildood.report.runs import TITLE, Runs
from wildood.report.runs_panels import constraint_panels, pi_panels, score_panels
from wildood.report.sortable import Block, Column, SortCell, sortable_page, sortable_table

_COLUMNS = (
    Column("run"), Column("method"), Column("ID set"), Column("in the wild"), Column("π"), Column("seed"),
    Column("protocol"), Column("FPR95 ↓"), Column("AUROC ↑", high_first=True), Column("accuracy ↑", high_first=True),
    Column("seconds"),
)  # fmt: skip


def runs_page(runs: Runs, making: dict[str, str], title: str = TITLE) -> str:
    """The page; `making` says what was typed."""
    sections = [
        Section("Failed runs", [_failed(runs.failures)] if runs.failures else [], wide=True),
        Section("Folders left out", [_left_out(runs)] if runs.left_out else [], wide=True),
        Section("Results", [results_panel(table) for table in runs.tables], wide=True),
        Section("PaperComparison the paper", [panel for table in runs.tables if (panel := beside_panel(table))], wide=True),
        Section("More or less OOD in the wild", pi_panels(runs)),
        Section("The constraint on false alarms", constraint_panels(runs)),
        Section("Scores of the test examples", score_panels(runs), wide=True),
        Section("Every run", [_list(runs.results)] if runs.results else [], wide=True),
        Section("How it was made", [Panel("Command and runs", runs.told(), definitions(making))], wide=True),
    ]
    return sortable_page(title, _lead(runs), [section for section in sections if section.panels])


def _lead(runs: Runs) -> str:
    failed = ' <a href="#failed">Those that failed</a> are not in the tables.' if runs.failures else ""
    unfinished = " The tables are of those that are done." if runs.unfinished else ""
    left_out = f" {escape(runs.told_left_out())}." if runs.left_out else ""
    reading = "↑ higher is better, ↓ lower is better. The head of a column sorts the rows of each block by it."
    return f"<p>{escape(runs.told())}{failed}{unfinished}{left_out}</p><p>{reading}</p>"


def _failed(failures: Sequence[Failure]) -> Panel:
    items = "".join(
        f"<li>{run_link(failure.experiment, run_title(failure.experiment))}: {escape(failure.error)}</li>"
        for failure in failures
    )
    count = "One run" if len(failures) == 1 else f"{len(failures):,} runs"
    says = "Without a result. The page of a run has its traceback and its settings."
    return Panel(f"{count} failed", says, f'<ul id="failed">{items}</ul>')


def _left_out(runs: Runs) -> Panel:
    reasons = runs.left_out_by_reason().items()
    items = "".join(f"<li>{escape(', '.join(names))}: {escape(why)}</li>" for why, names in reasons)
    count = "One folder" if len(runs.left_out) == 1 else f"{len(runs.left_out):,} folders"
    return Panel(f"{count} left out", "They are in no table.", f"<ul>{items}</ul>")


def _list(results: Sequence[Result]) -> Panel:
    rows = [_run(result) for result in results]
    listed = sortable_table(_COLUMNS, [Block("", rows)], "every run")
    about = "FPR95 and AUROC: the mean of the OOD sets that it was tested on, in percent."
    body = f"<details><summary>{len(rows):,} runs</summary>{listed}{note(about)}</details>"
    return Panel("A page for each run", "With its settings, its training and its scores.", body)


def _run(result: Result) -> list[SortCell]:
    experiment, tests = result.experiment, list(result.tests.values())
    fpr95, auroc = ([getattr(found, name) for found in tests] for name in ("fpr95", "auroc"))
    method, known = method_title(experiment.method), id_title(experiment.id)
    wild = None if experiment.wild is None else set_title(experiment.wild)
    return [
        SortCell(run_link(experiment, experiment.name), experiment.name),
        SortCell(escape(method), method),
        SortCell(escape(known), known),
        SortCell("–" if wild is None else escape(wild), wild),
        SortCell("–" if wild is None else f"{experiment.pi:g}", None if wild is None else experiment.pi),
        SortCell(str(experiment.seed), experiment.seed),
        SortCell(experiment.protocol.replace("_", " "), experiment.protocol),
        _mean(fpr95),
        _mean(auroc),
        _mean([result.accuracy]),
        SortCell(f"{result.seconds:,.0f}", result.seconds),
    ]


def _mean(shares: Sequence[float]) -> SortCell:
    if not shares:
        return SortCell("–")
    mean = sum(shares) / len(shares)
    return SortCell(f"{100 * mean:.2f}", mean)
