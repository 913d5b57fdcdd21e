"""The tables of an evaluation, once for all places: cells of text, to print, for a page, as Markdown and as LaTeX."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from wildood.data.fingerprint import role_text
from wildood.evaluate.intervals import Estimate, Share, percent_digits
from wildood.experiments.evaluation import CONFIDENCE, Average, Evaluation, OodResult, PromiseCheck
from wildood.report.escaping import escaped_latex, escaped_markdown, one_line

UNITS = (
    f"In percent, with {100 * CONFIDENCE:g} % intervals in brackets: exact (Clopper-Pearson) for counted shares, of the "
    "bootstrap for FPR95 (but never narrower than the exact one) and AUROC."
)
CONVENTION = (
    "FPR95 is the share of OOD that is accepted when 95 % of ID is accepted (ID is the positive class, as in the paper); "
    "caught is the share of OOD that is rejected at the deployed threshold."
)
UNKNOWABLE = (
    "A set that the detector was fitted on, or that set its threshold, is recognised as a whole, and a line says so. "
    "Whether single examples were used, or the starting classifier was trained on them, cannot be seen: if so, the "
    "numbers are better than they will be in service."
)


class Cells(NamedTuple):
    """A table of text: its first column names the rows; the row number `strong` is a summary of those above it."""

    header: list[str]
    rows: list[list[str]]
    strong: int | None = None


def ood_cells(evaluation: Evaluation) -> Cells:
    """One row for each OOD set, and their mean where there are several.

    >>> from types import SimpleNamespace
    >>> fpr95, auroc, caught = Estimate(0.1, 0.0, 0.2), Estimate(0.98, 0.97, 0.99), Share(0.9, 0.6, 1.0, 9, 10)
    >>> found = OodResult("svhn", 10, fpr95, auroc, aupr_in=0.97, aupr_out=0.96, caught=caught, also_in_id=0)
    >>> ood_cells(SimpleNamespace(ood=[found])).rows
    [['svhn', '90.0 [60.0, 100.0]', '10.0 [0.0, 20.0]', '98.0 [97.0, 99.0]', '97.0', '96.0', '10']]
    """
    header = ["OOD set", "caught ↑", "FPR95 ↓", "AUROC ↑", "AUPR-in ↑", "AUPR-out ↑", "examples"]
    rows = [
        [result.name, _with_interval(result.caught), *_detection(result), f"{result.examples:,}"]
        for result in evaluation.ood
    ]
    if len(rows) == 1:
        return Cells(header, rows)
    mean = ["mean of the sets", percent_digits(evaluation.average.caught), *_detection(evaluation.average), ""]
    return Cells(header, [*rows, mean], strong=len(rows))


def id_cells(evaluation: Evaluation) -> Cells:
    """Accuracy and false alarms on the ID set.

    >>> from types import SimpleNamespace
    >>> found = SimpleNamespace(name="a", accuracy=None, accuracy_of_accepted=None, false_alarms=Share(0.1, 0.0, 0.4, 1, 10))
    >>> id_cells(SimpleNamespace(id=found)).rows
    [['false alarms ↓', '10.0 [0.0, 40.0]', '10']]
    """
    found = evaluation.id
    shares = {
        "accuracy ↑": found.accuracy,
        "accuracy of the accepted ↑": found.accuracy_of_accepted,
        "false alarms ↓": found.false_alarms,
    }
    rows = [[name, _with_interval(share), f"{share.examples:,}"] for name, share in shares.items() if share is not None]
    return Cells([f"ID set: {found.name}", "share", "examples"], rows)


def class_cells(evaluation: Evaluation, names: Sequence[str], most: int) -> Cells:
    """False alarms of each class, the highest share first; no more rows than `most`.

    >>> from types import SimpleNamespace
    >>> shares = {0: Share(0.0, 0.0, 0.5, 0, 5), 2: Share(0.2, 0.0, 0.7, 1, 5)}
    >>> found = SimpleNamespace(id=SimpleNamespace(classes_are="true", false_alarms_by_class=shares))
    >>> [row[0] for row in class_cells(found, ["cat", "dog", "eel"], most=20).rows]
    ['eel', 'cat']
    """
    found = evaluation.id.false_alarms_by_class
    order = sorted(found, key=lambda number: -found[number].value)
    rows = [[names[each], _with_interval(found[each]), f"{found[each].examples:,}"] for each in order[:most]]
    return Cells([f"{evaluation.id.classes_are} class", "false alarms ↓", "examples"], rows)


def promise_text(check: PromiseCheck) -> str:
    """What the false alarms that were found say of those that were promised, as a sentence.

    >>> promise_text(PromiseCheck("holds", "5 of 500 of the ID examples are rejected: the promise of at most 5 % holds"))
    'False alarms: 5 of 500 of the ID examples are rejected: the promise of at most 5 % holds.'
    """
    return f"False alarms: {check.says}."


def used_before(evaluation: Evaluation, escaped: Callable[[str], str] = str) -> list[str]:
    """Which sets the detector has met before, a sentence for each."""
    sets = [(evaluation.id.name, evaluation.id.role_of), *((each.name, each.role_of) for each in evaluation.ood)]
    return [
        f"{escaped(name)}: these examples {role_text(used)}: what is measured here is not new."
        for name, used in sets
        if used
    ]


def unmatched_names(evaluation: Evaluation, escaped: Callable[[str], str] = str) -> list[str]:
    """That the classes of the ID set could not be matched by name, if so: a sentence, or none."""
    said = "the detector has no names for its classes, so those of the labels are numbered in their order."
    return [f"{escaped(evaluation.id.name)}: {said}"] if evaluation.id.unmatched_names else []


def shared_examples(evaluation: Evaluation, escaped: Callable[[str], str] = str) -> str:
    """Which OOD sets have examples that are in the ID set, too; empty if none has."""
    counts = [
        f"{each.also_in_id:,} of {each.examples:,} in {escaped(each.name)}" for each in evaluation.ood if each.also_in_id
    ]
    return f"Examples that are in {escaped(evaluation.id.name)}, too: {', '.join(counts)}." if counts else ""


def markdown(evaluation: Evaluation, promise: PromiseCheck) -> str:
    """The tables with what to know about them, as Markdown."""
    tables = [_markdown_table(cells(evaluation)) for cells in (ood_cells, id_cells)]
    return "\n\n".join([*tables, *_notes(evaluation, promise, escaped_markdown)]) + "\n"


def latex(evaluation: Evaluation, promise: PromiseCheck) -> str:
    """The tables as LaTeX with booktabs; what to know about them is in comments."""
    tables = [_latex_table(cells(evaluation)) for cells in (ood_cells, id_cells)]
    notes = [f"% {note}" for note in _notes(evaluation, promise, one_line)]
    return "\n".join([r"% \usepackage{booktabs}", *notes, tables[0], "", tables[1]]) + "\n"


def _notes(evaluation: Evaluation, promise: PromiseCheck, escaped: Callable[[str], str]) -> list[str]:
    said = [UNITS, CONVENTION, promise_text(promise), *used_before(evaluation, escaped), UNKNOWABLE]
    found = shared_examples(evaluation, escaped)
    return [*said, *unmatched_names(evaluation, escaped), *([found] if found else [])]


def _markdown_table(cells: Cells) -> str:
    rows = [[escaped_markdown(name), *others] for name, *others in (cells.header, *cells.rows)]
    rule = ["---", *("---:" for _ in cells.header[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:]))


def _latex_table(cells: Cells) -> str:
    header, *rows = (rf"{' & '.join(map(escaped_latex, row))} \\" for row in (cells.header, *cells.rows))
    if cells.strong is not None:
        rows.insert(cells.strong, r"\midrule")
    columns = "l" + "r" * (len(cells.header) - 1)
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", header, r"\midrule", *rows, r"\bottomrule", r"\end{tabular}"]
    return "\n".join(lines)


def _detection(result: OodResult | Average) -> list[str]:
    estimates = [_with_interval(result.fpr95), _with_interval(result.auroc)]
    return [*estimates, percent_digits(result.aupr_in), percent_digits(result.aupr_out)]


def _with_interval(found: Estimate | Share) -> str:
    return f"{percent_digits(found.value)} [{percent_digits(found.low)}, {percent_digits(found.high)}]"
