"""What a list of experiments will take: steps, images through the network, and time from a measured step."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F

from wildood.detect.preparation import ASIDE
from wildood.experiments.division import Sizes, sizes_of
from wildood.experiments.experiment import Experiment
from wildood.experiments.starts import start_name, trained_start, untrained_model
from wildood.experiments.store import RunStore

TRIED = 64  # images in the step that is measured


class Images(NamedTuple):
    """Through the network: with a backward pass, and without."""

    trained: float
    looked_at: float


class Rate(NamedTuple):
    """Images per second of a network on this machine, with a backward pass and without."""

    trained: float
    looked_at: float

    def seconds(self, images: Images) -> float:
        """How long so many images take."""
        return images.trained / self.trained + images.looked_at / self.looked_at


@dataclass(frozen=True)
class PlanRow:
    """Runs that differ in settings and seed only.

    Attributes:
        experiment: one of them.
        runs: how many there are.
        done: how many of them have a result.
        failed: how many ended with an error and will be tried again.
        steps: of each, 0 for a score on an unchanged classifier.
        seconds: of each on one worker, by a measured step.
    """

    experiment: Experiment
    runs: int
    done: int
    failed: int
    steps: int
    seconds: float

    @property
    def seconds_left(self) -> float:
        """Of all that are not done."""
        return self.seconds * (self.runs - self.done)


@dataclass(frozen=True)
class Plan:
    """Rows, and the starting classifiers that are still to be trained: how many, and how long that takes."""

    rows: tuple[PlanRow, ...]
    starts: int
    start_seconds: float

    @property
    def runs(self) -> int:
        """In all."""
        return sum(row.runs for row in self.rows)

    @property
    def done(self) -> int:
        """In all."""
        return sum(row.done for row in self.rows)

    @property
    def seconds_left(self) -> float:
        """Of everything that is not done, on one worker."""
        return self.start_seconds + sum(row.seconds_left for row in self.rows)


def plan(experiments: Sequence[Experiment], store: RunStore, root: str | Path | None = None) -> Plan:
    """What is to be done, and how long it will take on this machine.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     found = plan([Experiment("cifar100", ("svhn",), "svhn", 0.1, model="MLP", model_settings={"inputs": 3072})],
    ...         RunStore(Path(place)))
    >>> [(row.runs, row.done, row.steps) for row in found.rows], found.starts
    ([(1, 0, 200)], 1)
    """
    by_cell: dict[str, list[Experiment]] = {}
    for experiment in experiments:
        by_cell.setdefault(experiment.cell, []).append(experiment)
    rates: dict[str, Rate] = {}
    rows: list[PlanRow] = []
    starts: dict[str, float] = {}
    for found in by_cell.values():
        first = found[0]
        network = f"{first.model} {first.model_settings}"
        if network not in rates:
            rates[network] = measured_rate(first)
        sizes = sizes_of(first, root)
        steps, images = work_of(first, sizes)
        done = sum(map(store.is_done, found))
        failed = sum(store.failure(each) is not None for each in found)
        rows.append(PlanRow(first, len(found), done, failed, steps, rates[network].seconds(images)))
        for each in found:
            if each.pretraining is not None and not store.is_done(each) and not trained_start(each, store.root):
                length = sizes.labelled if each.start == "labelled" else 2 * sizes.labelled
                _, total = each.pretraining.length(length, [])
                starts[start_name(each)] = rates[network].seconds(Images(total * each.pretraining.batch, 0.0))
    return Plan(tuple(rows), len(starts), sum(starts.values()))


def work_of(experiment: Experiment, sizes: Sizes) -> tuple[int, Images]:
    """Steps of a run, and the images that go through its network."""
    if experiment.schedule is None:
        return 0, Images(0.0, sizes.labelled + sizes.holdout + sizes.test)
    pools = [] if experiment.wild is None else [sizes.wild_id, sizes.wild_ood]
    per_epoch, steps = experiment.schedule.length(sizes.labelled, pools)
    each_epoch = sizes.holdout + sum(pools) * ASIDE + (sizes.labelled if experiment.schedule.duals == "epoch" else 0)
    trained = steps * experiment.schedule.batch * (2 if pools else 1)
    return steps, Images(trained, sizes.labelled + -(-steps // per_epoch) * each_epoch + sizes.holdout + sizes.test)


def measured_rate(experiment: Experiment) -> Rate:
    """Images per second of an experiment's network on this machine, from a few images.

    >>> measured_rate(Experiment("digits", ("digits",), method="energy", model="SmallCNN", mean=(0.5,))).looked_at > 0
    True
    """
    model = untrained_model(experiment, classes=10).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    device, side = next(model.parameters()).device, 8 if experiment.model == "SmallCNN" else 32
    images = torch.zeros(TRIED, len(experiment.mean), side, side, device=device).to(memory_format=torch.channels_last)
    labels = torch.zeros(TRIED, dtype=torch.long, device=device)

    def learn() -> None:
        F.cross_entropy(model.train()(images), labels).backward()  # type: ignore[no-untyped-call]

    def look() -> None:
        with torch.no_grad():
            model.eval()(images)

    return Rate(*(TRIED / _seconds(once, device) for once in (learn, look)))


def _seconds(once: Callable[[], None], device: torch.device) -> float:
    once()  # the first time is not like the others
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    once()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began
