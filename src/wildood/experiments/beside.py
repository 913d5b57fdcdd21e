"""Our numbers beside the paper's: for each number of a table that the paper prints, too, how far they are apart."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from wildood.experiments.published import PublishedNumber, find_published, published_numbers
from wildood.experiments.table_names import AVERAGE, paper_set
from wildood.experiments.tables import Cell, Metric, ResultsTable, TableRow

PAPER_WILD = "300k"  # in the wild data of the paper's tables 2 and A2
VALIDATED_TABLES = {"1", "A1"}  # whose FPR95 is measured at the threshold of validation examples
ERRORS_APART = 2.0  # how many standard errors two numbers may be apart and still be called the same


@dataclass(frozen=True)
class Beside:
    """A number of ours and the one of the paper, in percent.

    Attributes:
        block: of the row, as in the table.
        pi: the share of OOD in the wild data; None where there was none.
        method: its name in the experiments.
        title: its name for people.
        set: our OOD set, or AVERAGE; empty for accuracy.
        metric: which number of ours it is; "accepted" stands beside an FPR95 of the paper that is measured in the same way.
        ours: the mean over seeds.
        ours_error: its standard error; None for one seed.
        paper: the number that the paper prints.
        paper_error: its standard error, to one decimal; None where the paper prints none.
        paper_table: "1", "2", "A1" or "A2".

    >>> found = Beside("π = 0.1", 0.1, "oe", "OE", "svhn", "fpr95", 13.9, 0.4, 13.18, 1.3, "A2")
    >>> round(found.difference, 2), found.within
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
        return self.metric == "fpr95" and self.paper_table in VALIDATED_TABLES

    @property
    def within(self) -> bool | None:
        """Whether they are at most two standard errors of the difference apart; None where one of them has none."""
        if self.ours_error is None or self.paper_error is None:
            return None
        return abs(self.difference) <= ERRORS_APART * math.hypot(self.ours_error, self.paper_error)


def beside(table: ResultsTable) -> list[Beside]:
    """Every number of a table that the paper prints, too; a small file stands for the set that it stands in for.

    Numbers that would not mean the same are left out: an average over other sets than the paper's, the accuracy of
    trainings on other sets, and wild data from another set than 300K Random Images where the paper has those.

    >>> cells = {"svhn": {"fpr95": Cell(0.4, None), "auroc": Cell(0.9, None)}}
    >>> row = TableRow("with P_in only", None, "energy", "energy", cells, None, 1, {}, 0, ())
    >>> table = ResultsTable("cifar10", True, None, "honest", ("svhn",), (row,))
    >>> [(found.metric, found.paper) for found in beside(table)]
    [('fpr95', 35.59), ('auroc', 90.96)]
    """
    return [found for row in table.rows for found in _of_row(table, row)]


def _of_row(table: ResultsTable, row: TableRow) -> Iterator[Beside]:
    theirs: tuple[Metric, ...] = ("fpr95", "auroc")
    numbers = [(name, metric) for name in row.cells for metric in theirs]
    for name, metric in [*numbers, ("", "accuracy")]:
        published = find_published(
            paper_set(table.id), row.method, paper_set(name), metric, row.pi, stationary=table.stationary
        )
        if published is None or not _means_the_same(table, row, published):
            continue
        # The FPR95 of Tables 1 and A1 is measured at the threshold of validation examples.
        as_theirs = metric == "fpr95" and published.table in VALIDATED_TABLES and table.protocol == "as_published"
        ours: Metric = "accepted" if as_theirs else metric
        cell = row.accuracy if metric == "accuracy" else row.cells[name].get(ours)
        if cell is not None:
            yield _beside(row, name, ours, cell, published)


def _means_the_same(table: ResultsTable, row: TableRow, published: PublishedNumber) -> bool:
    if published.pi is not None and not table.stationary and paper_set(table.wild or "") != PAPER_WILD:
        return False
    trained_for_each = published.set == "" and published.pi is not None and table.stationary
    if published.set != AVERAGE and not trained_for_each:
        return True
    theirs = {number.set for number in published_numbers() if number.table == published.table} - {AVERAGE, ""}
    return AVERAGE in row.cells and sorted(map(paper_set, table.sets)) == sorted(theirs)


def _beside(row: TableRow, name: str, metric: Metric, cell: Cell, published: PublishedNumber) -> Beside:
    return Beside(
        block=row.block,
        pi=row.pi,
        method=row.method,
        title=row.title,
        set=name,
        metric=metric,
        ours=100 * cell.mean,
        ours_error=None if cell.error is None else 100 * cell.error,
        paper=published.value,
        paper_error=published.error,
        paper_table=published.table,
    )
