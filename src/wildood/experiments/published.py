"""The numbers that the paper prints, from its four tables, to set beside our own.

They are kept as printed. Three things in them do not agree with the rest:

- Table A1: Mahalanobis' average AUROC is printed as 93.34; its five columns give 93.39.
- Table 1: the bold average AUROC is WOODS-alt's 97.43, but WOODS has 97.45. A bold value elsewhere is the best of its
  column: for accuracy, among the methods with P_in only or among those with P_wild; in tables 2 and A2, at that pi. In
  Table A2 (pi = 1.0, AUROC on LSUN-C), OE's 99.50 equals WOODS' bold one and is not bold.
- Table 1: the averages of WOODS-alt have an error of 0.5, more than the mean of the five columns' errors (0.2 and 0.1),
  which the standard error of an average cannot exceed.
"""

import csv
import math
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True)
class PublishedNumber:
    """One cell of a table, in percent.

    Attributes:
        table: "1" and "A1": the OOD set in the wild is the one of the test; "2" and "A2": it is 300K Random Images.
        id: the ID set, "cifar10" or "cifar100".
        pi: the share of OOD in the wild data; None for a method that sees no wild data.
        method: "energy-logistic" is the paper's "Energy (w/ OE)", "max-softmax" its MSP.
        set: the OOD set of the test, or "average" over five of them; empty for accuracy.
        metric: "fpr95", "auroc" or "accuracy".
        value: in percent, to two decimals.
        error: the standard error, to one decimal; None where the paper prints none.
        bold: whether the paper prints it in bold.

    >>> number = PublishedNumber("1", "cifar100", 0.1, "woods", "svhn", "fpr95", 0.52, error=0.1, bold=False)
    >>> number in published_numbers()
    True
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
        return self.table in {"1", "A1"}


@cache
def published_numbers() -> tuple[PublishedNumber, ...]:
    """Every number of tables 1, 2, A1 and A2, row by row.

    >>> len(published_numbers())
    650
    """
    text = resources.files("wildood.experiments").joinpath("published.csv").read_text(encoding="utf-8")
    return tuple(_number(row) for row in csv.DictReader(text.splitlines()))


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
    it. Accuracy is found with an empty `set`.

    >>> found = find_published("cifar100", "woods", "svhn", "fpr95", 0.1, stationary=True)
    >>> found.value, found.error
    (0.52, 0.1)
    >>> find_published("cifar100", "woods", "svhn", "fpr95", 0.1, stationary=False).value
    71.67
    >>> find_published("cifar100", "max-softmax", "svhn", "fpr95", 0.2, stationary=False).value
    84.59
    """
    for number in published_numbers():
        if (number.id, number.method, number.set, number.metric) == (id, method, set, metric) and (
            number.pi is None or (number.stationary == stationary and pi is not None and math.isclose(number.pi, pi))
        ):
            return number
    return None


def _number(row: dict[str, str]) -> PublishedNumber:
    return PublishedNumber(
        table=row["table"],
        id=row["id"],
        pi=float(row["pi"]) if row["pi"] else None,
        method=row["method"],
        set=row["set"],
        metric=row["metric"],
        value=float(row["value"]),
        error=float(row["error"]) if row["error"] else None,
        bold=row["bold"] == "1",
    )
