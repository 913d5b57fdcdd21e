"""What a reproduction will take, before it starts: missing data, runs, steps and time."""

import heapq
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from wildood.data.catalog import SETS, SIDE, find_set
from wildood.data.files import data_root
from wildood.data.inputs import InputSpec
from wildood.detect.posthoc import CHOSEN_BY
from wildood.detect.split import ASIDE
from wildood.errors import InputError
from wildood.experiments.experiment import Experiment
from wildood.experiments.split import (
    Counts,
    check_digits,
    data_file,
    digits_split,
    ood_names,
    start_files,
    tests_part_only,
    tests_whole_id_set,
)
from wildood.experiments.starts import has_trained_start, start_name, untrained_model
from wildood.experiments.store import Failure, Result, RunStore
from wildood.methods.objective import stages_of
from wildood.scores.score import Score

TIMED_IMAGES = 64  # in each step that is timed
TIMED_STEPS = 3  # the fastest counts: disturbances only make a step slower
VIEWS_TRAINED, VIEWS_SCORED = {"csi": 8}, {"csi": 4}  # of each image, where a method takes more than one


def missing_data(experiments: Sequence[Experiment], root: str | Path | None = None) -> list[str]:
    """The sets, by name or file, and the weight files that are not there, each once.

    >>> missing_data([Experiment("cifar10", ("svhn", "mine.npz"), method="energy", start="a.safetensors")], "nowhere")
    ['cifar10', 'svhn', 'mine.npz', 'a.safetensors']
    """
    needed = dict.fromkeys(name for each in experiments for name in (each.id, *ood_names(each), *start_files([each])))
    return [name for name in needed if name != "digits" and not _is_there(name, data_root(root))]


def _is_there(name: str, root: Path) -> bool:
    if name not in SETS:
        return (root / name).exists()
    named = SETS[name]
    return all(named.place(part, root) is not None for part in named.parts if not part.on_request)


class Sizes(NamedTuple):
    """How many examples each part of a split has; `test` is all test examples."""

    labelled: int
    wild_id: int
    wild_ood: int
    holdout: int
    test: int
    validation_ood: int


def split_sizes(experiment: Experiment, root: str | Path | None = None) -> Sizes:
    """The sizes of the parts, without opening named sets.

    >>> split_sizes(Experiment("cifar100", ("textures",), "textures", 0.1))
    Sizes(labelled=25000, wild_id=17500, wild_ood=2763, holdout=7500, test=11693, validation_ood=1184)
    """
    if experiment.id == "digits":
        check_digits(experiment)
        sizes = {name: part["count"] for name, part in digits_split(experiment.seed).record["digits"].items()}
        test = sizes.pop("test_id") + sizes.pop("test_ood")
        return Sizes(**sizes, test=test, validation_ood=0)
    counts = known_counts(experiment, root)
    indices = {name: counts.indices(experiment, name) for name in counts.ood}
    chosen = indices[experiment.wild or experiment.test[0]]
    tested = counts.id_test if tests_whole_id_set(experiment) else len(chosen.test_id)
    for name in experiment.test:
        part_only = tests_part_only(experiment, name, counts)
        tested += len(indices[name].test_ood) if part_only else int(np.sum(counts.ood[name]))
    return Sizes(
        labelled=len(chosen.labelled),
        wild_id=len(chosen.wild_id),
        wild_ood=len(chosen.wild_ood),
        holdout=len(chosen.holdout),
        test=tested,
        validation_ood=len(chosen.validation_ood),
    )


def known_counts(experiment: Experiment, root: str | Path | None = None) -> Counts:
    """How many examples the sets have: the official numbers of named sets, else what the files say."""
    _check_set_names(experiment)
    if experiment.id in SETS:
        id_train, id_test = (find_set(experiment.id)[0].part(part).count for part in ("train", "test"))
    else:
        id_train, id_test = (_array_shape(experiment.id, f"{part}_images", root)[0] for part in ("train", "test"))
    ood: dict[str, int | tuple[int, int]] = {}
    for name in ood_names(experiment):
        parts = [part.count for part in SETS[name].parts if not part.on_request] if name in SETS else []
        parts = parts or [_array_shape(name, "images", root)[0]]
        ood[name] = parts[0] if len(parts) == 1 else (parts[0], parts[1])
    _check_shapes(experiment, root)
    return Counts(id_train, id_test, ood)


def image_shape(experiment: Experiment, root: str | Path | None = None) -> tuple[int, int, int]:
    """The height, width and channels of the ID set's images, without opening named sets."""
    _check_set_names(experiment)
    shape = _shape_of_one(experiment.id, "train_images", root)
    if len(shape) != 3:
        raise InputError(f"{experiment.id}: an image has the shape {shape}: give height x width x channels")
    return shape


def _shape_of_one(name: str, array: str, root: str | Path | None) -> tuple[int, ...]:
    if name == "digits":
        return 8, 8, 1
    return (SIDE, SIDE, 3) if name in SETS else _array_shape(name, array, root)[1:]


def _array_shape(name: str, array: str, root: str | Path | None) -> tuple[int, ...]:
    """The shape of an array in a file, from its header."""
    path = data_file(name, root)
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{array}.npy") as file:
            np.lib.format.read_magic(file)
            return np.lib.format.read_array_header_1_0(file)[0]
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} holds no array {array!r}: an experiment's file needs it") from error


def _check_shapes(experiment: Experiment, root: str | Path | None) -> None:
    """Raise an error if test images have another shape than the training images."""
    trained = image_shape(experiment, root)
    for name, array in ((experiment.id, "test_images"), *((name, "images") for name in ood_names(experiment))):
        shape = _shape_of_one(name, array, root)
        if shape != trained:
            first, second = (" x ".join(map(str, each)) for each in (shape, trained))
            raise InputError(
                f"an image of {name} ({array}) has the shape {first}, the training images of {experiment.id} have {second}: "
                "give sets of one shape"
            )


def _check_set_names(experiment: Experiment) -> None:
    """Raise an error for what is neither a file nor the name of a set."""
    id_sets = [name for name, named in SETS.items() if named.labelled and named.parts[0].name == "train"]
    for names, known in (([experiment.id], [*id_sets, "digits"]), (ood_names(experiment), list(SETS))):
        for name in names:
            if not name.endswith(".npz") and name not in known:
                raise InputError(
                    f"no set is named {name!r}: give one of {', '.join(known)}, or a .npz file below the data root"
                )


class Work(NamedTuple):
    """The steps of a run, and the images that its network is trained on and scores, each as often as it is seen."""

    steps: int
    trained: float
    scored: float


def estimate_work(experiment: Experiment, sizes: Sizes) -> Work:
    """How much a run computes: exact in steps (at most, where it ends by itself), roughly in images."""
    recipe = experiment.recipe()
    once = sizes.labelled + sizes.holdout + sizes.test
    if isinstance(recipe, Score):
        return Work(0, 0.0, once) if not recipe.needs.gradients else _gradient_score_work(experiment, recipe, sizes)
    pools = [sizes.wild_id, sizes.wild_ood] if experiment.uses_wild else []
    validation = sizes.holdout + ASIDE * sum(pools)
    total = Work(0, 0.0, once * VIEWS_SCORED.get(experiment.method, 1))
    for number, stage in enumerate(stages_of(recipe)):
        schedule = (experiment.schedule or stage.schedule()) if number == 0 else stage.schedule()
        per_epoch, steps = schedule.length(sizes.labelled, pools)
        images = schedule.batch * (2 if pools else 1)
        rows = schedule.looks(per_epoch, steps)  # each is measured
        measured = validation + (sizes.labelled if schedule.duals == "epoch" else 0)
        views = VIEWS_TRAINED.get(experiment.method, 1)
        total = Work(total.steps + steps, total.trained + steps * images * views, total.scored + rows * measured)
    return total


def _gradient_score_work(experiment: Experiment, score: Score, sizes: Sizes) -> Work:
    """A step on the input takes a backward pass, for each epsilon that is tried and then for all test examples."""
    candidates, wild = len(score.candidates()), sizes.wild_id + sizes.wild_ood
    choosing = 0.0
    if candidates > 1:
        other = sizes.validation_ood if experiment.protocol == "as_published" else min(CHOSEN_BY, wild)
        choosing = candidates * (sizes.holdout / 2 + (0 if experiment.wild is None else other))
    perturbed = choosing + sizes.holdout + sizes.test
    return Work(0, perturbed, sizes.labelled + perturbed)


class Rate(NamedTuple):
    """Images per second of a network on this machine, in training and when it only scores."""

    trained: float
    scored: float

    def seconds(self, work: Work) -> float:
        """The time of some work."""
        return work.trained / self.trained + work.scored / self.scored


def measured_rate(experiment: Experiment, shape: tuple[int, int, int]) -> Rate:
    """The speed of an experiment's network on images of this height, width and number of channels."""
    model = _matching_model(experiment, shape).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    device, (height, width, channels) = next(model.parameters()).device, shape
    images = torch.zeros(TIMED_IMAGES, channels, height, width, device=device).to(memory_format=torch.channels_last)
    labels = torch.zeros(TIMED_IMAGES, dtype=torch.long, device=device)

    def train() -> None:
        F.cross_entropy(model.train()(images), labels).backward()  # type: ignore[no-untyped-call]

    def score() -> None:
        with torch.no_grad():
            model.eval()(images)

    return Rate(*(TIMED_IMAGES / _fastest(step, device) for step in (train, score)))


def _matching_model(experiment: Experiment, shape: tuple[int, int, int]) -> nn.Module:
    """The network, or an error if it or the mean does not match such images."""
    height, width, channels = shape
    images = f"the images of {experiment.id}, {height} x {width} with {channels} channel{'' if channels == 1 else 's'}"
    InputSpec(mean=experiment.mean, std=experiment.std)
    if len(experiment.mean) not in {1, channels}:
        raise InputError(
            f"an experiment's mean has {len(experiment.mean)} numbers, which do not fit {images}: give mean and std, one "
            "number for each channel or for all"
        )
    settings = ", ".join(f"{name} = {value}" for name, value in experiment.model_settings.items())
    name = f"an experiment's model {experiment.model}" + (f" ({settings})" if settings else "")
    try:
        model = untrained_model(experiment, classes=10)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = (str(error).partition("__init__() ")[2] or str(error)).splitlines()[0]
        raise InputError(f"{name} cannot be built ({reason}): change [model_settings]") from error
    device = next(model.parameters()).device
    try:
        with torch.no_grad():
            model.eval()(torch.zeros(1, channels, height, width, device=device))
    except RuntimeError as error:
        raise InputError(f"{name} does not take {images}: give another model, or [model_settings]") from error
    return model


def _fastest(step: Callable[[], None], device: torch.device) -> float:
    """The seconds of the fastest of some steps, after one that is not timed."""
    synchronize: Callable[[], None] = partial(torch.cuda.synchronize, device) if device.type == "cuda" else (lambda: None)
    step()
    seconds = []
    for _ in range(TIMED_STEPS):
        synchronize()
        began = time.perf_counter()
        step()
        synchronize()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


@dataclass(frozen=True)
class PlanRow:
    """Runs that differ in settings and seed only, and one of their experiments.

    Attributes:
        failed: how many ended with an error and will be tried again.
        steps: of each; 0 for a score on an unchanged classifier, or where all are done.
        seconds: of each on one worker: the mean of those that are done, else estimated from timed steps.
    """

    experiment: Experiment
    runs: int
    done: int
    failed: int = 0
    steps: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Plan:
    """Rows, and the seconds of each starting classifier that is still to be trained."""

    rows: tuple[PlanRow, ...]
    starts: tuple[float, ...]

    @property
    def runs(self) -> int:
        """The number of all runs."""
        return sum(row.runs for row in self.rows)

    @property
    def done(self) -> int:
        """The number of finished runs."""
        return sum(row.done for row in self.rows)

    def seconds_left(self, workers: int) -> float:
        """The time of all that is not done, with so many runs at a time; the starting classifiers come first."""
        runs = [row.seconds for row in self.rows for _ in range(row.runs - row.done)]
        return _makespan(self.starts, workers) + _makespan(runs, workers)


def _makespan(seconds: Sequence[float], workers: int) -> float:
    """The time of all tasks if each free worker takes the longest that is left."""
    busy = [0.0] * workers
    for each in sorted(seconds, reverse=True):
        heapq.heapreplace(busy, busy[0] + each)
    return max(busy)


def plan(experiments: Sequence[Experiment], store: RunStore, root: str | Path | None = None) -> Plan:
    """What is to be done, and about how long it will take on this machine."""
    cells: dict[str, list[Experiment]] = {}
    for experiment in experiments:
        cells.setdefault(experiment.cell, []).append(experiment)
    rates: dict[str, Rate] = {}
    rows: list[PlanRow] = []
    starts: dict[str, float] = {}
    for cell in cells.values():
        first, outcomes = cell[0], [store.outcome(each) for each in cell]
        recorded = [each.seconds for each in outcomes if isinstance(each, Result)]
        if len(recorded) == len(cell):
            rows.append(PlanRow(first, len(cell), len(cell)))
            continue
        sizes, shape = split_sizes(first, root), image_shape(first, root)
        network = f"{first.model} {first.model_settings} {shape} {first.mean} {first.std}"
        if network not in rates:
            rates[network] = measured_rate(first, shape)
        work = estimate_work(first, sizes)
        seconds = mean(recorded) if recorded else rates[network].seconds(work)
        failed = sum(isinstance(each, Failure) for each in outcomes)
        rows.append(PlanRow(first, len(cell), len(recorded), failed, work.steps, seconds))
        for each, outcome in zip(cell, outcomes, strict=True):
            is_left = not isinstance(outcome, Result)
            if is_left and each.pretraining is not None and not has_trained_start(each, store.root):
                length = sizes.labelled if each.start == "labelled" else 2 * sizes.labelled
                _, steps = each.pretraining.length(length, [])
                starts[start_name(each)] = rates[network].seconds(Work(steps, steps * each.pretraining.batch, 0.0))
    return Plan(tuple(rows), tuple(starts.values()))
