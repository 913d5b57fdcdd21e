"""How many examples an experiment's data has, and of which shape, without opening it."""

import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from wildood.data.formats import SIDE
from wildood.data.published_sets import SETS, find_set
from wildood.errors import InputError
from wildood.experiments import digits
from wildood.experiments.division import (
    Counts,
    check_digits,
    file_below,
    only_test_part,
    ood_names,
    split_of,
    takes_whole_test_set,
)
from wildood.experiments.experiment import Experiment


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
