"""The rows of a table of results: a method's mean and standard error over seeds on each OOD set, and which are best."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from wildood.evaluate.metrics import mean_and_error
from wildood.experiments.choosing_settings import chosen_runs
from wildood.experiments.results import Failure, OnOod, Result
from wildood.experiments.table_names import AVERAGE, method_title

Metric = Literal["fpr95", "accepted", "auroc", "accuracy"]
ON_OOD: tuple[Metric, ...] = ("fpr95", "accepted", "auroc")  # the metrics of each OOD set
_BETTER: Mapping[Metric, Callable[[Iterable[float]], float]] = {"fpr95": min, "accepted": min, "auroc": max, "accuracy": max}


@dataclass(frozen=True)
class Cell:
    """A number of a table, as shares from 0 to 1.

    Attributes:
        mean: over the seeds.
        error: the standard error over the seeds; None for one seed.
        best: whether no row that it is compared with has a better one, to the two decimals of percent that are printed;
            never if no other row has any. With several pi a row is compared within its block, else with all rows.
        seeds: how many there are in it.
    """

    mean: float
    error: float | None
    best: bool = False
    seeds: int = 1

    @classmethod
    def over(cls, seeds: Sequence[float]) -> "Cell":
        """Of one number for each seed.

        >>> Cell.over([0.25, 0.75]), Cell.over([0.5]).error
        (Cell(mean=0.5, error=0.25, best=False, seeds=2), None)
        """
        mean, error = mean_and_error(seeds)
        return cls(mean, None if math.isnan(error) else error, seeds=len(seeds))

    @property
    def percent(self) -> str:
        """The mean as it is printed.

        >>> Cell(0.1234, None).percent
        '12.34'
        """
        return f"{100 * self.mean:.2f}"


@dataclass(frozen=True)
class TableRow:
    """A method in one block of a table.

    Attributes:
        block: what the row stands under: "with P_in only", "with P_in and P_wild", or "π = 0.1".
        pi: the share of OOD in its wild data; None where there was none.
        method: its name in the experiments.
        title: its name for people, with what differs where a method has several rows in a block.
        cells: for each OOD set (and AVERAGE, if there are several and all are there) a number for each metric: "fpr95" at
            the threshold of the ID test examples, "accepted" at the deployed one, which validation examples set, "auroc".
        accuracy: on the ID test examples, over all runs of the row.
        seeds: how many seeds are in it (the smallest number over the cells).
        settings: the settings that were chosen among several, for each OOD set; empty where there was no choice.
        failed: how many runs of it failed.
        runs: the names of the runs whose numbers are in it.
        incomplete: which seeds had fewer settings to choose among than others, for each OOD set where some had.
    """

    block: str
    pi: float | None
    method: str
    title: str
    cells: Mapping[str, Mapping[Metric, Cell]]
    accuracy: Cell | None
    seeds: int
    settings: Mapping[str, str]
    failed: int
    runs: tuple[str, ...]
    incomplete: Mapping[str, str] = field(default_factory=dict)


def row_of(runs: Sequence[Result | Failure], sets: Sequence[str], block: str, differs: str = "") -> TableRow:
    """What the runs of one method, with one pi, come to on these OOD sets; compared with no other row yet.

    Args:
        runs: of the method.
        sets: the OOD sets of the table.
        block: what the row stands under.
        differs: what tells the runs from others of the method in the table.

    >>> from wildood.experiments.experiment import Experiment
    >>> found = Result(Experiment("cifar10", ("svhn",), method="odin"), {}, 0.9, 0.05, 100)
    >>> row_of([found], ["svhn"], "with P_in only").title
    'ODIN'
    """
    first = runs[0].experiment
    results = [run for run in runs if isinstance(run, Result)]
    candidates = {name: [run for run in results if name in run.tests] for name in sets}
    choices = {name: chosen_runs(found) for name, found in candidates.items() if found}
    seeds = sorted({seed for choice in choices.values() for seed in choice.runs})
    by_seed = {seed: {name: choice.runs[seed] for name, choice in choices.items() if seed in choice.runs} for seed in seeds}
    cells = {name: _cells([[run.tests[name]] for run in choice.runs.values()]) for name, choice in choices.items()}
    whole = [found for found in by_seed.values() if len(found) == len(sets)]
    if whole and len(sets) > 1:
        cells[AVERAGE] = _cells([[run.tests[name] for name, run in found.items()] for found in whole])
    title = method_title(first.method)
    accuracies = [_mean([run.accuracy for run in found.values()]) for found in by_seed.values()]
    return TableRow(
        block=block,
        pi=first.pi if first.uses_wild else None,
        method=first.method,
        title=f"{title} ({differs})" if differs else title,
        cells=cells,
        accuracy=Cell.over(accuracies) if accuracies else None,
        seeds=min((len(choice.runs) for choice in choices.values()), default=0),
        settings={name: choice.settings for name, choice in choices.items() if choice.settings},
        failed=len(runs) - len(results),
        runs=tuple(dict.fromkeys(run.experiment.name for found in by_seed.values() for run in found.values())),
        incomplete={name: choice.incomplete for name, choice in choices.items() if choice.incomplete},
    )


def with_best(rows: Sequence[TableRow]) -> list[TableRow]:
    """Rows that are compared with each other, with the best numbers marked; equal ones all are.

    >>> first, second = (TableRow("", None, "", "", {}, Cell(mean, None), 1, {}, 0, ()) for mean in (0.91231, 0.91232))
    >>> [row.accuracy.best for row in with_best([first, second])]
    [True, True]
    """
    columns: dict[tuple[str, Metric], list[Cell]] = {}
    for row in rows:
        for name, found in row.cells.items():
            for metric, cell in found.items():
                columns.setdefault((name, metric), []).append(cell)
    best = {(name, metric): _best(metric, cells) for (name, metric), cells in columns.items()}
    accuracy = _best("accuracy", [row.accuracy for row in rows if row.accuracy is not None])
    return [
        replace(
            row,
            cells={
                name: {metric: _marked(cell, best[name, metric]) for metric, cell in found.items()}
                for name, found in row.cells.items()
            },
            accuracy=None if row.accuracy is None else _marked(row.accuracy, accuracy),
        )
        for row in rows
    ]


def _best(metric: Metric, cells: Sequence[Cell]) -> float | None:
    """The best number as it is printed; None if there is nothing to compare it with."""
    return _BETTER[metric](float(cell.percent) for cell in cells) if len(cells) > 1 else None


def _marked(cell: Cell, best: float | None) -> Cell:
    return replace(cell, best=float(cell.percent) == best)


def _cells(seeds: Sequence[Sequence[OnOod]]) -> dict[Metric, Cell]:
    """Each metric over seeds, each of them the mean over some OOD sets."""
    return {metric: Cell.over([_mean([getattr(found, metric) for found in sets]) for sets in seeds]) for metric in ON_OOD}


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
