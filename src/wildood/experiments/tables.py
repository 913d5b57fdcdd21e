"""Tables of results as data: rows of methods, cells with mean and standard error."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from wildood.evaluate.metrics import mean_and_error
from wildood.experiments.choosing_settings import can_choose, chosen_runs, difference, settings_key
from wildood.experiments.experiment import Experiment
from wildood.experiments.results import Failure, OnOod, Result
from wildood.experiments.table_names import AVERAGE, method_order, method_title, set_order

UNKNOWN_ORIGIN = "unknown"
_NO_VERSIONS = {"threads"}  # recorded among them


def origins(results: Sequence[Result]) -> tuple[str, ...]:
    """What differs in how results were made, a sentence for each; nothing where nothing is recorded.

    >>> from wildood.experiments.experiment import Experiment
    >>> energy = Experiment("digits", ("digits",), method="energy")
    >>> origins([Result(energy, {}, 0.9, 0.05, 100, about={"code": code}) for code in ("a1", "b2", "a1")])
    ('The runs come from different code: a1 (2 runs), b2 (1 run)',)
    """
    abouts = [result.about or {} for result in results]
    return tuple(
        f"The runs come from different {what}: {_told(counts)}" for what, counts in _recorded(abouts) if len(counts) > 1
    )


def _recorded(abouts: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Counter[str]]]:
    """How many runs have each code, and each version of each package."""
    if any("code" in about for about in abouts):
        yield "code", Counter(str(about.get("code", UNKNOWN_ORIGIN)) for about in abouts)
    versions = [each if isinstance(each := about.get("versions"), Mapping) else {} for about in abouts]
    for name in dict.fromkeys(name for each in versions for name in each if name not in _NO_VERSIONS):
        yield f"versions of {name}", Counter(str(each.get(name, UNKNOWN_ORIGIN)) for each in versions)


def _told(counts: Counter[str]) -> str:
    return ", ".join(f"{value} ({count} {'run' if count == 1 else 'runs'})" for value, count in sorted(counts.items()))


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


__all__ = ["AVERAGE", "Cell", "Metric", "ResultsTable", "TableRow", "result_tables"]

ID_ONLY, WITH_WILD = "with P_in only", "with P_in and P_wild"
_COMMON = ("id", "protocol", "start", "keep", "model", "model_settings", "pretraining", "mean", "std")
_Run = Result | Failure
_Row = tuple[float, tuple[int, str], str, str]  # pi, method, schedule, settings


@dataclass(frozen=True)
class ResultsTable:
    """A table of the paper's form.

    Attributes:
        id: the ID set.
        stationary: whether each OOD set is tested on the runs that had it in the wild (Tables 1 and A1), or the wild OOD
            was another one (Tables 2 and A2).
        wild: the OOD set in the wild data, where it is the same for all; None if stationary.
        protocol: of the runs.
        sets: the OOD sets, in the order of the columns.
        rows: in the order of the blocks.
        model: the network's class.
        start: the starting classifier.
        differs: what tells it from tables with the same ID set, wild data and protocol; empty if there are none.
        common: all that its runs have in common besides the wild data, by one name for each value.
        origins: that its runs come from different code or versions, a sentence for each; empty if they do not.
    """

    id: str
    stationary: bool
    wild: str | None
    protocol: str
    sets: tuple[str, ...]
    rows: tuple[TableRow, ...]
    model: str = ""
    start: str = ""
    differs: str = ""
    common: Mapping[str, Any] = field(default_factory=dict)
    origins: tuple[str, ...] = ()

    @property
    def metrics(self) -> tuple[Metric, Metric]:
        """What stands under each OOD set: as in the paper, acceptance and AUROC.

        The released protocol measures acceptance at the threshold of the validation examples where the OOD set was in
        the wild (Tables 1 and A1), and at that of the ID test examples where another one was (Tables 2 and A2).

        >>> ResultsTable("cifar10", True, None, "as_published", ("svhn",), ()).metrics
        ('accepted', 'auroc')
        """
        return ("accepted" if self.stationary and self.protocol == "as_published" else "fpr95"), "auroc"

    def shown(self, row: TableRow, name: str) -> tuple[Cell | None, Cell | None]:
        """The two numbers of a row under an OOD set, or under AVERAGE; None where there is none."""
        found, (first, second) = row.cells.get(name, {}), self.metrics
        return found.get(first), found.get(second)


def result_tables(results: Sequence[Result], failures: Sequence[Failure] = ()) -> list[ResultsTable]:
    """The tables that some runs make; for each ID set, those come first that were tested on what was in the wild.

    >>> from wildood.experiments.results import OnOod
    >>> energy, found = Experiment("digits", ("digits",), method="energy"), OnOod(0.2, 0.01, 0.9, 0.9, 0.9, 0.1, 100)
    >>> [table] = result_tables([Result(energy, {"digits": found}, 0.98, 0.05, 100)])
    >>> table.rows[0].block, table.rows[0].title, table.rows[0].cells["digits"]["fpr95"]
    ('with P_in only', 'energy', Cell(mean=0.2, error=None, best=False, seeds=1))
    """
    groups: dict[str, list[_Run]] = {}
    runs: list[_Run] = [*results, *failures]
    for run in runs:
        groups.setdefault(json.dumps(_conditions(run.experiment)), []).append(run)
    made = [(_table(found), json.loads(conditions)) for conditions, found in sorted(groups.items())]
    tables = []
    for table, conditions in made:
        alike = [other for each, other in made if _order(each) == _order(table)]
        named = _telling(alike)
        differs = ", ".join(f"{name} {'none' if conditions.get(name) is None else conditions[name]}" for name in named)
        tables.append(replace(table, differs=differs))
    return sorted(tables, key=_order)


def _telling(contents: Sequence[Mapping[str, Any]]) -> list[str]:
    """Few names, that of the model first, by whose values all contents are apart: a title that listed all would be long.

    >>> _telling([{"keep": "best", "lr": 0.1, "model": "A"}, {"keep": "last", "lr": 0.2, "model": "B"}])
    ['model']
    """
    chosen: list[str] = []
    for name in sorted(dict.fromkeys(name for each in contents for name in each), key=lambda name: name != "model"):
        before, after = (
            len({str([each.get(key) for key in keys]) for each in contents}) for keys in (chosen, [*chosen, name])
        )
        if after > before:
            chosen.append(name)
    return chosen


def _conditions(experiment: Experiment) -> dict[str, Any]:
    """What decides which table a run is in."""
    wild = None if experiment.stationary else experiment.wild
    return {"stationary": experiment.stationary, "wild": wild} | _common(experiment)


def _common(experiment: Experiment) -> dict[str, Any]:
    content = experiment.as_dict()
    common: dict[str, Any] = {}
    for name in _COMMON:
        value = content.get(name)
        if isinstance(value, Mapping):
            common |= {f"{name} {key}": each for key, each in sorted(value.items())}
        else:
            common[name] = value
    return common


def _order(table: ResultsTable) -> tuple[str, bool, str, bool]:
    return table.id, not table.stationary, table.wild or "", table.protocol != "honest"


def _table(runs: Sequence[_Run]) -> ResultsTable:
    first = runs[0].experiment
    # A set on which every run failed is a column, too: without it, an average would seem complete.
    sets = tuple(sorted({name for run in runs for name in run.experiment.test}, key=set_order))
    several = len({run.experiment.pi for run in runs if run.experiment.uses_wild}) > 1
    groups = _rows(runs)
    rows = []
    for (pi, method, *telling), found in sorted(groups.items()):
        block = ID_ONLY if pi == 0 else WITH_WILD if first.stationary and not several else f"π = {pi:g}"
        others = [_differing_settings(other) for _, each, *other in groups if each == method]
        rows.append(row_of(found, sets, block, difference(_differing_settings(telling), others)))
    blocks = [[row for row in rows if row.block == block] for block in dict.fromkeys(row.block for row in rows)]
    compared = blocks if several else [rows]
    return ResultsTable(
        id=first.id,
        stationary=first.stationary,
        wild=None if first.stationary else first.wild,
        protocol=first.protocol,
        sets=sets,
        rows=tuple(row for together in compared for row in with_best(together)),
        model=first.model,
        start=first.start,
        common=_common(first),
        origins=origins([run for run in runs if isinstance(run, Result)]),
    )


def _rows(runs: Sequence[_Run]) -> dict[_Row, list[_Run]]:
    """The runs of each row: by pi, method and schedule, and by settings where nothing can choose among them."""
    by_method: dict[str, list[_Run]] = {}
    for run in runs:
        by_method.setdefault(run.experiment.method, []).append(run)
    rows: dict[_Row, list[_Run]] = {}
    for method, found in by_method.items():
        chosen = can_choose(found)
        for run in found:
            each = run.experiment
            schedule, settings = json.dumps(each.as_dict().get("schedule", {})), "{}" if chosen else settings_key(run)
            key = each.pi if each.uses_wild else 0.0, method_order(method), schedule, settings
            rows.setdefault(key, []).append(run)
    return rows


def _differing_settings(telling: Sequence[str]) -> dict[str, Any]:
    """Schedule and settings of a row together."""
    return {name: value for text in telling for name, value in json.loads(text).items()}
