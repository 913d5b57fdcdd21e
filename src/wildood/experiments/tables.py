"""Results as tables: a row for each method, a column for each OOD set, mean and standard error over seeds in each cell."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wildood.experiments.choosing_settings import difference
from wildood.experiments.experiment import Experiment
from wildood.experiments.store import Failure, Result
from wildood.experiments.table_names import method_order, set_order
from wildood.experiments.table_rows import AVERAGE, Cell, Metric, TableRow, row_of, with_best

__all__ = ["AVERAGE", "Cell", "Metric", "ResultsTable", "TableRow", "result_tables"]

ID_ONLY, WITH_WILD = "with P_in only", "with P_in and P_wild"
_COMMON = ("id", "protocol", "start", "keep", "model", "model_settings", "pretraining", "mean", "std")
_Run = Result | Failure


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
        keep: which epoch an honest run keeps.
        differs: what tells it from tables with the same ID set, wild data and protocol; empty if there are none.
    """

    id: str
    stationary: bool
    wild: str | None
    protocol: str
    sets: tuple[str, ...]
    rows: tuple[TableRow, ...]
    model: str = ""
    start: str = ""
    keep: str = ""
    differs: str = ""


def result_tables(results: Sequence[Result], failures: Sequence[Failure] = ()) -> list[ResultsTable]:
    """The tables that some runs make; for each ID set, those come first that were tested on what was in the wild.

    >>> from wildood.experiments.store import OnOod
    >>> energy, found = Experiment("digits", ("digits",), method="energy"), OnOod(0.2, 0.01, 0.9, 0.9, 0.9, 0.1, 100)
    >>> [table] = result_tables([Result(energy, {"digits": found}, 0.98, 0.05, 100)])
    >>> table.rows[0].block, table.rows[0].title, table.rows[0].cells["digits"][0]
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
        tables.append(replace(table, differs=difference(conditions, alike)))
    return sorted(tables, key=_order)


def _conditions(experiment: Experiment) -> dict[str, Any]:
    """What all runs of a table have in common, by one name for each value."""
    wild = None if experiment.stationary else experiment.wild
    conditions: dict[str, Any] = {"stationary": experiment.stationary, "wild": wild}
    content = experiment.as_dict()
    for name in _COMMON:
        value = content.get(name)
        if isinstance(value, Mapping):
            conditions |= {f"{name} {key}": each for key, each in sorted(value.items())}
        else:
            conditions[name] = value
    return conditions


def _order(table: ResultsTable) -> tuple[str, bool, str, bool]:
    return table.id, not table.stationary, table.wild or "", table.protocol != "honest"


def _table(runs: Sequence[_Run]) -> ResultsTable:
    first = runs[0].experiment
    # A set on which every run failed is a column, too: without it, an average would seem complete.
    sets = tuple(sorted({name for run in runs for name in run.experiment.test}, key=set_order))
    several = len({run.experiment.pi for run in runs if run.experiment.uses_wild}) > 1
    groups: dict[tuple[float, int, str], list[_Run]] = {}
    for run in runs:
        each = run.experiment
        schedule = json.dumps(each.as_dict().get("schedule", {}))
        groups.setdefault((each.pi if each.uses_wild else 0.0, method_order(each.method), schedule), []).append(run)
    rows = []
    for (pi, method, schedule), found in sorted(groups.items()):
        block = ID_ONLY if pi == 0 else WITH_WILD if first.stationary and not several else f"π = {pi:g}"
        others = [json.loads(other) for _, each, other in groups if each == method]
        rows.append(row_of(found, sets, block, difference(json.loads(schedule), others)))
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
        keep=first.keep,
    )
