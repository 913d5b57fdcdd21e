"""The numbers that the paper prints, and ours compared with them.

The paper's numbers are kept as printed. Three things in them do not agree with the rest:

- Table A1: Mahalanobis' average AUROC is printed as 93.34; its five columns give 93.39.
- Table 1: the bold average AUROC is WOODS-alt's 97.43, but WOODS has 97.45. A bold value elsewhere is the best of its
  column: for accuracy, among the methods with P_in only or among those with P_wild; in tables 2 and A2, at that pi. In
  Table A2 (pi = 1.0, AUROC on LSUN-C), OE's 99.50 equals WOODS' bold one and is not bold.
- Table 1: the averages of WOODS-alt have an error of 0.5, more than the mean of the five columns' errors (0.2 and 0.1),
  which the standard error of an average cannot exceed.
"""

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from wildood.experiments.tables import AVERAGE, Metric, ResultsTable, TableRow, paper_set

PAPER_WILD = "300k"  # in the wild data of the paper's tables 2 and A2
STATIONARY_TABLES = {"1", "A1"}  # whose FPR95 is measured at the threshold of validation examples
ERRORS_APART = 2.0  # how many standard errors two numbers may be apart and still be called the same


@dataclass(frozen=True)
class PublishedNumber:
    """One cell of a table, in percent.

    Attributes:
        table: "1" and "A1": the OOD set in the wild is the one of the test; "2" and "A2": it is 300K Random Images.
        pi: the share of OOD in the wild data; None for a method that sees no wild data.
        method: "energy-logistic" is the paper's "Energy (w/ OE)", "max-softmax" its MSP.
        set: the OOD set of the test, or "average" over five of them; empty for accuracy.
        metric: "fpr95", "auroc" or "accuracy".
        error: the standard error, to one decimal; None where the paper prints none.
    """

    table: str
    id: str
    pi: float | None
    method: str
    set: str
    metric: str
    value: float
    error: float | None
    bold: bool

    @property
    def stationary(self) -> bool:
        """Whether the OOD of the wild data is that of the test."""
        return self.table in STATIONARY_TABLES


@cache
def published_numbers() -> tuple[PublishedNumber, ...]:
    """Every number of tables 1, 2, A1 and A2, row by row.

    >>> len(published_numbers())
    650
    """
    text = resources.files("wildood.experiments").joinpath("published.csv").read_text(encoding="utf-8")
    numbers = []
    for row in csv.DictReader(text.splitlines()):
        values: dict[str, Any] = {name: float(row[name]) if row[name] else None for name in ("pi", "value", "error")}
        numbers.append(PublishedNumber(**row | values | {"bold": row["bold"] == "1"}))
    return tuple(numbers)


def find_published(
    id: str,  # noqa: A002 - the field's own word
    method: str,
    set: str,  # noqa: A002 - the field's own word
    metric: str,
    pi: float | None = None,
    *,
    stationary: bool,
) -> PublishedNumber | None:
    """The number that the paper prints for this, or None if it prints none.

    A method that sees no wild data has the same number whatever the wild data is: pi and `stationary` do not matter to
    it. `set` is empty for accuracy.

    >>> find_published("cifar100", "woods", "svhn", "fpr95", 0.1, stationary=True).value
    0.52
    >>> find_published("cifar100", "woods", "svhn", "fpr95", 0.1, stationary=False).value
    71.67
    """
    for number in published_numbers():
        if (number.id, number.method, number.set, number.metric) == (id, method, set, metric) and (
            number.pi is None or (number.stationary == stationary and pi is not None and math.isclose(number.pi, pi))
        ):
            return number
    return None


@dataclass(frozen=True)
class PaperComparison:
    """A number of ours and the one of the paper, in percent.

    Attributes:
        block: of the row, as in the table.
        set: our OOD set, or AVERAGE; empty for accuracy.
        metric: of ours; "accepted" is compared with an FPR95 of the paper that is measured in the same way.
        ours_error: the standard error over seeds; None for one seed.
        paper_error: to one decimal; None where the paper prints none.

    >>> comparison = PaperComparison("π = 0.1", 0.1, "oe", "OE", "svhn", "fpr95", 13.9, 0.4, 13.18, 1.3, "A2")
    >>> round(comparison.difference, 2), comparison.within
    (0.72, True)
    """

    block: str
    pi: float | None
    method: str
    title: str
    set: str
    metric: Metric
    ours: float
    ours_error: float | None
    paper: float
    paper_error: float | None
    paper_table: str

    @property
    def difference(self) -> float:
        """Ours less theirs, in points."""
        return self.ours - self.paper

    @property
    def other_threshold(self) -> bool:
        """Whether the paper's FPR95 is measured at the threshold of validation examples, and ours is not."""
        return self.metric == "fpr95" and self.paper_table in STATIONARY_TABLES

    @property
    def within(self) -> bool | None:
        """Whether they are at most two standard errors of the difference apart; None where one of them has none."""
        if self.ours_error is None or self.paper_error is None:
            return None
        return abs(self.difference) <= ERRORS_APART * math.hypot(self.ours_error, self.paper_error)


def compare_with_paper(table: ResultsTable) -> list[PaperComparison]:
    """Compare each number of a table that the paper prints, too; a small file counts as the set that it stands in for.

    Numbers that do not mean the same are left out: an average over other sets than the paper's, the accuracy of
    trainings on other sets, and wild data from another set than 300K Random Images where the paper has those.
    """
    return [comparison for row in table.rows for comparison in _compare_row(table, row)]


def _compare_row(table: ResultsTable, row: TableRow) -> Iterator[PaperComparison]:
    metrics: tuple[Metric, ...] = ("fpr95", "auroc")
    for name, metric in [*((name, metric) for name in row.cells for metric in metrics), ("", "accuracy")]:
        paper = find_published(paper_set(table.id), row.method, paper_set(name), metric, row.pi, stationary=table.stationary)
        if paper is None or not _is_comparable(table, row, paper):
            continue
        # The FPR95 of Tables 1 and A1 is measured at the threshold of validation examples.
        validated = metric == "fpr95" and paper.table in STATIONARY_TABLES and table.protocol == "as_published"
        ours: Metric = "accepted" if validated else metric
        cell = row.accuracy if metric == "accuracy" else row.cells[name].get(ours)
        if cell is None:
            continue
        error = None if cell.error is None else 100 * cell.error
        numbers = 100 * cell.mean, error, paper.value, paper.error, paper.table
        yield PaperComparison(row.block, row.pi, row.method, row.title, name, ours, *numbers)


def _is_comparable(table: ResultsTable, row: TableRow, paper: PublishedNumber) -> bool:
    if paper.pi is not None and not table.stationary and paper_set(table.wild or "") != PAPER_WILD:
        return False
    trained_for_each = paper.set == "" and paper.pi is not None and table.stationary
    if paper.set != AVERAGE and not trained_for_each:
        return True
    paper_sets = {number.set for number in published_numbers() if number.table == paper.table} - {AVERAGE, ""}
    return AVERAGE in row.cells and sorted(map(paper_set, table.sets)) == sorted(paper_sets)
