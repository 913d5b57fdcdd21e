"""The data of an experiment: its sets opened and divided, by its seed, into what is trained on, chosen by and tested on."""

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from wildood.data.catalog import open_set
from wildood.data.given import unlabelled_source
from wildood.data.images import Images
from wildood.data.inputs import InputSpec
from wildood.data.opening import open_images
from wildood.data.published_sets import SETS, find_set
from wildood.data.root import data_root
from wildood.data.sources import Part, Source
from wildood.data.splits import OOD_TRAINING, Numbers, Split, paper_split
from wildood.data.wild import WildMixture
from wildood.errors import InputError
from wildood.experiments import digits
from wildood.experiments.experiment import Experiment

ID_ARRAYS = {"train": "train_images,train_labels", "test": "test_images,test_labels"}
RANDOM_IMAGES_SHARE = 0.99  # of 300K Random Images for training


@dataclass(frozen=True, eq=False)
class Division:
    """No example is in two of them, except that `everything` is the whole ID training set.

    Attributes:
        everything: what a starting classifier trained on "all" has seen.
        labelled: ID examples with their classes.
        wild: the mixture; None for a run with ID data only.
        holdout: ID examples with their classes that the starting classifier has not seen.
        test_id: ID test examples with their classes.
        tests: the test examples of each OOD set.
        validation_ood: OOD examples for the released protocol's choice; None where there is none.
        classes: how many the ID set has.
        spec: how images become the network's input; None for features.
        record: for each OOD set, how many examples each part has, and a hash of which.
    """

    everything: Any
    labelled: Any
    wild: WildMixture | None
    holdout: Any
    test_id: Any
    tests: Mapping[str, Any]
    validation_ood: Any
    classes: int
    spec: InputSpec | None
    record: Mapping[str, Any]


@dataclass(frozen=True)
class Counts:
    """How many examples an experiment's sets have, as far as is known without opening them."""

    id_train: int
    id_test: int
    ood: Mapping[str, int | tuple[int, int]]


def divide(experiment: Experiment, root: str | Path | None = None) -> Division:
    """Open an experiment's sets and divide them.

    >>> parts = divide(Experiment("digits", ("digits",), "digits", 0.2))
    >>> len(parts.labelled[0]), parts.wild.pi, {name: len(test) for name, test in parts.tests.items()}
    (450, 0.2, {'digits': 160})
    """
    if experiment.id == "digits":
        return _digits(experiment)
    published = experiment.protocol == "as_published"
    train, test = (_open(f"{experiment.id}:{part}", root, as_published=published) for part in ("train", "test"))
    _refuse_unlabelled(train, test)
    sets = {name: _open_ood(name, root, as_published=published) for name in _ood_names(experiment)}
    counts = Counts(len(train), len(test), {name: _lengths(images) for name, images in sets.items()})
    splits = {name: split_of(experiment, counts, name) for name in sets}
    split = splits[experiment.wild or experiment.test[0]]  # of the ID sets: that of the OOD set in the wild
    classes = len(train.classes) or int(np.max(np.asarray(train.labels))) + 1
    wild = validation = None
    if experiment.wild is not None:
        images = sets[experiment.wild][0]
        wild = WildMixture(_part(train, split.wild_id), _part(images, split.wild_ood), experiment.pi)
        validation = _part(images, split.validation_ood)
    return Division(
        everything=train,
        labelled=_part(train, split.labelled),
        wild=wild,
        holdout=_part(test if takes_test_holdout(experiment) else train, split.holdout),
        test_id=test if _tests_on_all(experiment) else _part(test, split.test_id),
        tests={name: _test_part(experiment, name, sets[name], splits[name]) for name in experiment.test},
        validation_ood=validation,
        classes=classes,
        spec=InputSpec(mean=experiment.mean, std=experiment.std),
        record={name: each.record() for name, each in splits.items()},
    )


def takes_test_holdout(experiment: Experiment) -> bool:
    """Whether the holdout must come from the ID test set: where the starting classifier has seen the ID training set."""
    return experiment.start != "labelled" or experiment.protocol == "as_published"


def split_of(experiment: Experiment, counts: Counts, ood: str) -> Split:
    """Which examples of the ID sets and of one OOD set are for what."""
    return paper_split(
        counts.id_train,
        counts.id_test,
        counts.ood[ood],
        experiment.seed,
        ood_share=RANDOM_IMAGES_SHARE if ood == "300k" else OOD_TRAINING,
        holdout_from_test=takes_test_holdout(experiment),
    )


class Sizes(NamedTuple):
    """How many examples each part of an experiment's data has."""

    labelled: int
    wild_id: int
    wild_ood: int
    holdout: int
    test: int


def sizes_of(experiment: Experiment, root: str | Path | None = None) -> Sizes:
    """The sizes of the parts, without opening the sets that have a name.

    >>> sizes_of(Experiment("cifar100", ("textures",), "textures", 0.1))
    Sizes(labelled=25000, wild_id=17500, wild_ood=2763, holdout=7500, test=11693)
    """
    if experiment.id == "digits":
        parts = digits.digits(experiment.seed)
        tests = len(parts.test_id[0]) + len(parts.test_ood)
        return Sizes(len(parts.labelled[0]), len(parts.wild.id), len(parts.wild.ood), len(parts.holdout[0]), tests)
    counts = known_counts(experiment, root)
    splits = {name: split_of(experiment, counts, name) for name in counts.ood}
    split = splits[experiment.wild or experiment.test[0]]
    tests = sum(
        len(splits[name].test_ood) if _only_test_part(experiment, name, counts.ood[name]) else int(np.sum(counts.ood[name]))
        for name in experiment.test
    )
    known = counts.id_test if _tests_on_all(experiment) else len(split.test_id)
    return Sizes(len(split.labelled), len(split.wild_id), len(split.wild_ood), len(split.holdout), known + tests)


def check_sets(experiments: Sequence[Experiment], root: str | Path | None = None) -> None:
    """Open every set that some experiments need, once: one that is missing is told before anything is run."""
    for name in dict.fromkeys(each.id for each in experiments if each.id != "digits"):
        for part in ("train", "test"):
            _open(f"{name}:{part}", root)
    for name in dict.fromkeys(name for each in experiments if each.id != "digits" for name in _ood_names(each)):
        _open_ood(name, root)


def known_counts(experiment: Experiment, root: str | Path | None = None) -> Counts:
    """How many examples the sets have: officially if they have a name, else as the files say.

    >>> known_counts(Experiment("cifar10", ("svhn",), "svhn", 0.1)).ood
    {'svhn': (73257, 26032)}
    """
    if experiment.id in SETS:
        id_train, id_test = (find_set(experiment.id)[0].part(part).count for part in ("train", "test"))
    else:
        id_train, id_test = (_count(experiment.id, f"{part}_images", root) for part in ("train", "test"))
    ood: dict[str, int | tuple[int, int]] = {}
    for name in _ood_names(experiment):
        parts = [part.count for part in SETS[name].parts if not part.on_request] if name in SETS else []
        ood[name] = _count(name, "images", root) if not parts else parts[0] if len(parts) == 1 else (parts[0], parts[1])
    return Counts(id_train, id_test, ood)


def _digits(experiment: Experiment) -> Division:
    if experiment.test != ("digits",) or experiment.wild not in {None, "digits"} or experiment.protocol != "honest":
        raise InputError("the digits are their own OOD set: give wild and test as digits, and the honest protocol")
    if experiment.start != "labelled":
        raise InputError(f"an experiment on digits starts from {experiment.start!r}: give start = 'labelled'")
    parts = digits.digits(experiment.seed)
    wild = None if experiment.wild is None else WildMixture(parts.wild.id, parts.wild.ood, experiment.pi)
    sources = {
        **{name: unlabelled_source(getattr(parts, name)[0], name) for name in ("labelled", "holdout", "test_id")},
        "wild_id": parts.wild.id,
        "wild_ood": parts.wild.ood,
        "test_ood": unlabelled_source(parts.test_ood, "test_ood"),
    }
    record = {name: {"count": len(source), "hash": source.fingerprint()} for name, source in sources.items()}
    return Division(
        everything=parts.labelled,
        labelled=parts.labelled,
        wild=wild,
        holdout=parts.holdout,
        test_id=parts.test_id,
        tests={"digits": parts.test_ood},
        validation_ood=None,
        classes=digits.KNOWN,
        spec=digits.SPEC,
        record={"digits": record},
    )


def _ood_names(experiment: Experiment) -> list[str]:
    return list(dict.fromkeys([*([] if experiment.wild is None else [experiment.wild]), *experiment.test]))


def _open(text: str, root: str | Path | None, *, as_published: bool = False) -> Images:
    """`name:part` of a named set, or of a file below the data root."""
    name, _, part = text.partition(":")
    if not name.endswith(".npz"):
        return open_set(text, root, as_published=as_published)
    return open_images(f"{_file(name, root)}:{ID_ARRAYS.get(part, part)}")


def _file(name: str, root: str | Path | None) -> Path:
    path = data_root(root) / name
    if not path.exists():
        raise InputError(f"{path} is not there: give the directory that holds it with --data-root")
    return path


def _count(name: str, array: str, root: str | Path | None) -> int:
    """How many examples an array of a file has: from its header, without reading it."""
    path = _file(name, root)
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{array}.npy") as file:
            np.lib.format.read_magic(file)
            return int(np.lib.format.read_array_header_1_0(file)[0][0])
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} holds no array {array!r}: an experiment's file needs it") from error


def _open_ood(name: str, root: str | Path | None, *, as_published: bool = False) -> tuple[Images, ...]:
    """All of an OOD set, or its official training and test parts."""
    if name.endswith(".npz"):
        return (_open(f"{name}:images", root),)
    parts = [part.name for part in find_set(name)[0].parts if not part.on_request]
    return tuple(_open(f"{name}:{part}", root, as_published=as_published) for part in parts)


def _lengths(images: tuple[Images, ...]) -> int | tuple[int, int]:
    return len(images[0]) if len(images) == 1 else (len(images[0]), len(images[1]))


def _tests_on_all(experiment: Experiment) -> bool:
    """The released code tests runs with another OOD set in the wild on all of the ID test set, the holdout included."""
    return experiment.protocol == "as_published" and not experiment.stationary


def _only_test_part(experiment: Experiment, name: str, count: int | tuple[int, int]) -> bool:
    """Whether only a part of an OOD set is tested on: of the set in the wild, in a run without, or an official part."""
    return experiment.stationary or name == experiment.wild or isinstance(count, tuple)


def _test_part(experiment: Experiment, name: str, images: tuple[Images, ...], split: Split) -> Source:
    if _only_test_part(experiment, name, _lengths(images)):
        return _part(images[-1], split.test_ood)
    return images[0]


def _part(images: Images, numbers: Numbers) -> Source:
    return Part(images, torch.from_numpy(numbers))


def _refuse_unlabelled(*sets: Images) -> None:
    for images in sets:
        if images.labels is None:
            raise InputError(f"{images.where} has no classes: an experiment's ID set needs them")
