"""What a list of experiments will take: steps, images through the network, and time from measured steps."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wildood.experiments.experiment import Experiment
from wildood.experiments.passes import Passes, Rate, work_of
from wildood.experiments.probing import measured_rate
from wildood.experiments.sizes import image_shape, sizes_of
from wildood.experiments.starts import start_name, trained_start
from wildood.experiments.store import RunStore


@dataclass(frozen=True)
class PlanRow:
    """Runs that differ in settings and seed only.

    Attributes:
        experiment: one of them.
        runs: how many there are.
        done: how many of them have a result.
        failed: how many ended with an error and will be tried again.
        steps: of each, 0 for a score on an unchanged classifier, or where all are done.
        seconds: of each on one worker, by measured steps; 0 where all are done: then nothing is measured, or needed of the
            data.
    """

    experiment: Experiment
    runs: int
    done: int
    failed: int
    steps: int
    seconds: float


@dataclass(frozen=True)
class Plan:
    """Rows, and how long each starting classifier takes that is still to be trained."""

    rows: tuple[PlanRow, ...]
    starts: tuple[float, ...]

    @property
    def runs(self) -> int:
        """In all."""
        return sum(row.runs for row in self.rows)

    @property
    def done(self) -> int:
        """In all."""
        return sum(row.done for row in self.rows)

    def seconds_left(self, workers: int) -> float:
        """Of everything that is not done, with so many runs at a time; the starting classifiers come first.

        >>> row = PlanRow(Experiment("digits", ("digits",), method="energy"), 3, 0, 0, 0, 60.0)
        >>> [Plan((row,), ()).seconds_left(workers) for workers in (1, 2, 3, 100)]
        [180.0, 120.0, 60.0, 60.0]
        """
        runs = [row.seconds for row in self.rows for _ in range(row.runs - row.done)]
        return _together(self.starts, workers) + _together(runs, workers)


def _together(seconds: Sequence[float], workers: int) -> float:
    """How long tasks take if each worker that is free takes the longest that is left."""
    busy = [0.0] * workers
    for each in sorted(seconds, reverse=True):
        heapq.heapreplace(busy, busy[0] + each)
    return max(busy)


def plan(experiments: Sequence[Experiment], store: RunStore, root: str | Path | None = None) -> Plan:
    """What is to be done, and how long it will take on this machine.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     found = plan([Experiment("cifar100", ("svhn",), "svhn", 0.1, model="MLP", model_settings={"inputs": 3072})],
    ...         RunStore(Path(place)))
    >>> [(row.runs, row.done, row.steps) for row in found.rows], len(found.starts)
    ([(1, 0, 100)], 1)
    """
    by_cell: dict[str, list[Experiment]] = {}
    for experiment in experiments:
        by_cell.setdefault(experiment.cell, []).append(experiment)
    rates: dict[str, Rate] = {}
    rows: list[PlanRow] = []
    starts: dict[str, float] = {}
    for found in by_cell.values():
        first = found[0]
        left = [each for each in found if not store.is_done(each)]
        if not left:
            rows.append(PlanRow(first, len(found), len(found), 0, 0, 0.0))
            continue
        sizes, shape = sizes_of(first, root), image_shape(first, root)
        network = f"{first.model} {first.model_settings} {shape} {first.mean} {first.std}"
        if network not in rates:
            rates[network] = measured_rate(first, shape)
        steps, passes = work_of(first, sizes)
        failed = sum(store.failure(each) is not None for each in left)
        rows.append(PlanRow(first, len(found), len(found) - len(left), failed, steps, rates[network].seconds(passes)))
        for each in left:
            if each.pretraining is not None and not trained_start(each, store.root):
                length = sizes.labelled if each.start == "labelled" else 2 * sizes.labelled
                _, total = each.pretraining.length(length, [])
                starts[start_name(each)] = rates[network].seconds(Passes(total * each.pretraining.batch, 0.0))
    return Plan(tuple(rows), tuple(starts.values()))
