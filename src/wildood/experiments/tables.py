"""Results as tables: a row for each method, a column for each OOD set, mean and standard error over seeds in each cell."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from wildood.experiments.choosing_settings import can_choose, difference, settings_key
from wildood.experiments.experiment import Experiment
from wildood.experiments.origins import origins
from wildood.experiments.results import Failure, Result
from wildood.experiments.table_names import AVERAGE, method_order, set_order
from wildood.experiments.table_rows import Cell, Metric, TableRow, row_of, with_best

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
        others = [_told(other) for _, each, *other in groups if each == method]
        rows.append(row_of(found, sets, block, difference(_told(telling), others)))
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


def _told(telling: Sequence[str]) -> dict[str, Any]:
    """Schedule and settings of a row together."""
    return {name: value for text in telling for name, value in json.loads(text).items()}
