"""What a reproduction will take, before it starts: passes, memory and time."""

import heapq
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from wildood.data.catalog import SIDE
from wildood.data.files import data_root
from wildood.data.inputs import InputSpec
from wildood.data.named_sets import SETS, find_set
from wildood.detect.posthoc import CHOSEN_BY
from wildood.detect.split import ASIDE
from wildood.errors import InputError
from wildood.experiments import digits
from wildood.experiments.experiment import Experiment
from wildood.experiments.split import (
    Counts,
    check_digits,
    file_below,
    only_test_part,
    ood_names,
    split_of,
    start_files,
    takes_whole_test_set,
)
from wildood.experiments.starts import start_name, trained_start, untrained_model
from wildood.experiments.store import RunStore
from wildood.methods.csi import Csi, CsiHeads
from wildood.methods.objective import Method, Stage, stages_of
from wildood.methods.woods import Woods
from wildood.models.heads import JointHead
from wildood.scores.perturbation import PerturbedScore
from wildood.scores.score import Score


def missing_data(experiments: Sequence[Experiment], root: str | Path | None = None) -> list[str]:
    """The sets, by name or file, and the files of weights that are not there, each once.

    >>> missing_data([Experiment("cifar10", ("svhn", "mine.npz"), method="energy", start="a.safetensors")], "nowhere")
    ['cifar10', 'svhn', 'mine.npz', 'a.safetensors']
    """
    needed = dict.fromkeys(name for each in experiments for name in (each.id, *ood_names(each), *start_files([each])))
    return [name for name in needed if not _is_there(name, data_root(root))]


def _is_there(name: str, root: Path) -> bool:
    if name not in SETS:
        return (root / name).exists()
    named = SETS[name]
    return all(named.place(part, root) is not None for part in named.parts if not part.on_request)


class Sizes(NamedTuple):
    """How many examples each part of an experiment's data has."""

    labelled: int
    wild_id: int
    wild_ood: int
    holdout: int
    test: int
    validation_ood: int


def sizes_of(experiment: Experiment, root: str | Path | None = None) -> Sizes:
    """The sizes of the parts, without opening the sets that have a name.

    >>> sizes_of(Experiment("cifar100", ("textures",), "textures", 0.1))
    Sizes(labelled=25000, wild_id=17500, wild_ood=2763, holdout=7500, test=11693, validation_ood=1184)
    """
    if experiment.id == "digits":
        check_digits(experiment)
        parts = digits.digits(experiment.seed)
        tests = len(parts.test_id[0]) + len(parts.test_ood)
        return Sizes(len(parts.labelled[0]), len(parts.wild.id), len(parts.wild.ood), len(parts.holdout[0]), tests, 0)
    counts = known_counts(experiment, root)
    splits = {name: split_of(experiment, counts, name) for name in counts.ood}
    split = splits[experiment.wild or experiment.test[0]]
    tests = sum(
        len(splits[name].test_ood) if only_test_part(experiment, name, counts.ood[name]) else int(np.sum(counts.ood[name]))
        for name in experiment.test
    )
    known = counts.id_test if takes_whole_test_set(experiment) else len(split.test_id)
    return Sizes(
        labelled=len(split.labelled),
        wild_id=len(split.wild_id),
        wild_ood=len(split.wild_ood),
        holdout=len(split.holdout),
        test=known + tests,
        validation_ood=len(split.validation_ood),
    )


def known_counts(experiment: Experiment, root: str | Path | None = None) -> Counts:
    """How many examples the sets have: officially if they have a name, else as the files say.

    >>> known_counts(Experiment("cifar10", ("svhn",), "svhn", 0.1)).ood
    {'svhn': (73257, 26032)}
    """
    _refuse_unknown_sets(experiment)
    if experiment.id in SETS:
        id_train, id_test = (find_set(experiment.id)[0].part(part).count for part in ("train", "test"))
    else:
        id_train, id_test = (_count(experiment.id, f"{part}_images", root) for part in ("train", "test"))
    ood: dict[str, int | tuple[int, int]] = {}
    for name in ood_names(experiment):
        parts = [part.count for part in SETS[name].parts if not part.on_request] if name in SETS else []
        ood[name] = _count(name, "images", root) if not parts else parts[0] if len(parts) == 1 else (parts[0], parts[1])
    _refuse_other_shapes(experiment, root)
    return Counts(id_train, id_test, ood)


def image_shape(experiment: Experiment, root: str | Path | None = None) -> tuple[int, int, int]:
    """Of one image of the ID set: height, width and channels, without opening a set that has a name.

    >>> image_shape(Experiment("digits", ("digits",), method="energy"))
    (8, 8, 1)
    """
    _refuse_unknown_sets(experiment)
    shape = _of_one(experiment.id, "train_images", root)
    if len(shape) != 3:
        raise InputError(f"{experiment.id}: an image has the shape {shape}: give height x width x channels")
    return shape


def _of_one(name: str, array: str, root: str | Path | None) -> tuple[int, ...]:
    """The shape of one image of a set."""
    if name == "digits":
        return 8, 8, 1
    return (SIDE, SIDE, 3) if name in SETS else _shape(name, array, root)[1:]


def _refuse_other_shapes(experiment: Experiment, root: str | Path | None) -> None:
    """All images of an experiment are like those that it trains on."""
    known = image_shape(experiment, root)
    for name, array in ((experiment.id, "test_images"), *((name, "images") for name in ood_names(experiment))):
        shape = _of_one(name, array, root)
        if shape != known:
            first, second = (" x ".join(map(str, each)) for each in (shape, known))
            raise InputError(
                f"an image of {name} ({array}) has the shape {first}, the training images of {experiment.id} have {second}: "
                "give sets of one shape"
            )


def _refuse_unknown_sets(experiment: Experiment) -> None:
    """What is neither a file nor a name is a mistake in a name."""
    known_as_id = [name for name, named in SETS.items() if named.labelled and named.parts[0].name == "train"]
    for names, known in (([experiment.id], [*known_as_id, "digits"]), (ood_names(experiment), list(SETS))):
        for name in names:
            if not name.endswith(".npz") and name not in known:
                raise InputError(
                    f"no set is named {name!r}: give one of {', '.join(known)}, or a .npz file below the data root"
                )


def _count(name: str, array: str, root: str | Path | None) -> int:
    return _shape(name, array, root)[0]


def _shape(name: str, array: str, root: str | Path | None) -> tuple[int, ...]:
    """Of an array of a file: from its header, without reading it."""
    path = file_below(name, root)
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{array}.npy") as file:
            np.lib.format.read_magic(file)
            return np.lib.format.read_array_header_1_0(file)[0]
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} holds no array {array!r}: an experiment's file needs it") from error


TURNS = JointHead.turns


class Passes(NamedTuple):
    """Images through the network: with a backward pass, and without.

    >>> Passes(1, 2).plus(Passes(3, 4)).times(2)
    Passes(trained=8, looked_at=12)
    """

    trained: float
    looked_at: float

    def plus(self, other: Self) -> "Passes":
        """Both together."""
        return Passes(self.trained + other.trained, self.looked_at + other.looked_at)

    def times(self, count: float) -> "Passes":
        """Each so many times."""
        return Passes(self.trained * count, self.looked_at * count)


class Rate(NamedTuple):
    """Images per second of a network on this machine, with a backward pass and without."""

    trained: float
    looked_at: float

    def seconds(self, passes: Passes) -> float:
        """How long so many images take.

        >>> Rate(trained=10.0, looked_at=40.0).seconds(Passes(20, 40))
        3.0
        """
        return passes.trained / self.trained + passes.looked_at / self.looked_at


def work_of(experiment: Experiment, sizes: Sizes) -> tuple[int, Passes]:
    """Steps of a run, and the images that go through its network."""
    recipe = experiment.recipe()
    if isinstance(recipe, Score):
        return 0, _scoring(experiment, recipe, sizes)
    return _training(experiment, recipe, sizes)


def _scoring(experiment: Experiment, score: Score, sizes: Sizes) -> Passes:
    """A pass over everything; where settings are chosen, one for each candidate over what chooses."""
    traffic = sizes.wild_id + sizes.wild_ood
    if not score.needs.gradients:  # then a pass gives features of all there is, and the rest costs nothing
        more = 0 if experiment.wild is None else traffic + sizes.validation_ood
        return Passes(0, sizes.labelled + sizes.holdout + sizes.test + more)
    once, candidates, threshold = Passes(0, sizes.labelled), score.candidates(), sizes.holdout
    if len(candidates) > 1:
        threshold -= sizes.holdout // 2
        other = sizes.validation_ood if experiment.protocol == "as_published" else min(CHOSEN_BY, traffic)
        choosing = sizes.holdout - threshold + (0 if experiment.wild is None else other)
        for candidate in candidates:
            once = once.plus(_one(candidate).times(choosing))
    return once.plus(_one(candidates[-1]).times(threshold + sizes.test))


def _one(score: Score) -> Passes:
    """What a score needs of one image: a step on the input takes a backward pass, and a second look."""
    return Passes(1, 1) if isinstance(score, PerturbedScore) and score.epsilon != 0 else Passes(0, 1)


def _training(experiment: Experiment, method: Method, sizes: Sizes) -> tuple[int, Passes]:
    pools = [sizes.wild_id, sizes.wild_ood] if experiment.uses_wild else []
    views = TURNS if isinstance(method, Csi) else 1  # of each image when it is scored
    steps, passes = 0, Passes(0, sizes.labelled + views * (sizes.holdout + sizes.test))
    for number, stage in enumerate(stages_of(method)):
        schedule = (experiment.schedule or stage.schedule()) if number == 0 else stage.schedule()
        per_epoch, length = schedule.length(sizes.labelled, pools)
        look, images = sizes.holdout + sum(pools) * ASIDE, schedule.batch * (2 if pools else 1)
        rows = schedule.ends(schedule.row_every(per_epoch, images, int(look)), length)
        looked_at = look * (1 if isinstance(stage, Csi) else rows)  # what classifies not yet is looked at once
        looked_at += rows * sizes.labelled if schedule.duals == "epoch" else 0
        steps += length
        passes = passes.plus(_in_step(stage).times(length * images))
        passes = passes.plus(Passes(0, looked_at * (views if number else 1)))
    return steps, passes


def _in_step(stage: Stage) -> Passes:
    """Of one example in a step: CSI has eight views of it, then four on a network that stays as it is.

    Of WOODS, every second example is wild, and is seen by the starting classifier, too.
    """
    if isinstance(stage, Csi):
        return Passes(2 * TURNS, 0)
    if isinstance(stage, Woods) and stage.distillation != 0:
        return Passes(1, 0.5)
    return Passes(0, TURNS) if isinstance(stage, CsiHeads) else Passes(1, 0)


TRIED = 64  # images in a step that is measured
STEPS = 3  # that are measured; what disturbs one of them only makes it longer, so the fastest counts


def measured_rate(experiment: Experiment, shape: tuple[int, int, int]) -> Rate:
    """Images per second of an experiment's network, for images of this height, width and number of channels.

    >>> digits = Experiment("digits", ("digits",), method="energy", model="SmallCNN", mean=(0.5,), std=(0.5,))
    >>> measured_rate(digits, (8, 8, 1)).looked_at > 0
    True
    """
    model = _fitting_model(experiment, shape).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    device, (height, width, channels) = next(model.parameters()).device, shape
    images = torch.zeros(TRIED, channels, height, width, device=device).to(memory_format=torch.channels_last)
    labels = torch.zeros(TRIED, dtype=torch.long, device=device)

    def learn() -> None:
        F.cross_entropy(model.train()(images), labels).backward()  # type: ignore[no-untyped-call]

    def look() -> None:
        with torch.no_grad():
            model.eval()(images)

    return Rate(*(TRIED / _seconds(once, device) for once in (learn, look)))


def _fitting_model(experiment: Experiment, shape: tuple[int, int, int]) -> nn.Module:
    """The network, if it and the mean are for such images."""
    height, width, channels = shape
    images = f"the images of {experiment.id}, {height} x {width} with {channels} channel{'' if channels == 1 else 's'}"
    InputSpec(mean=experiment.mean, std=experiment.std)
    if len(experiment.mean) not in {1, channels}:
        said = f"an experiment's mean has {len(experiment.mean)} numbers, which do not fit {images}"
        raise InputError(f"{said}: give mean and std, one number for each channel or for all")
    settings = ", ".join(f"{name} = {value}" for name, value in experiment.model_settings.items())
    named = f"an experiment's model {experiment.model}" + (f" ({settings})" if settings else "")
    try:
        model = untrained_model(experiment, classes=10)
    except (TypeError, ValueError, RuntimeError) as error:
        told = str(error).partition("__init__() ")[2] or str(error)
        said = told.splitlines()[0]
        raise InputError(f"{named} cannot be built ({said}): change [model_settings]") from error
    device = next(model.parameters()).device
    try:
        with torch.no_grad():
            model.eval()(torch.zeros(1, channels, height, width, device=device))
    except RuntimeError as error:
        raise InputError(f"{named} does not take {images}: give another model, or [model_settings]") from error
    return model


def _seconds(once: Callable[[], None], device: torch.device) -> float:
    """Of the fastest of some steps; the first, which is not like the others, is not measured."""
    once()
    taken = []
    for _ in range(STEPS):
        _finish(device)
        began = time.perf_counter()
        once()
        _finish(device)
        taken.append(time.perf_counter() - began)
    return min(taken)


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


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
