"""The split of an experiment's sets into training, wild, holdout and test parts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from wildood.data.catalog import open_set
from wildood.data.files import data_root
from wildood.data.folders import open_images
from wildood.data.images import Images
from wildood.data.inputs import InputSpec
from wildood.data.named_sets import find_set
from wildood.data.sources import Part, Source
from wildood.data.splits import OOD_TRAINING, Numbers, Split, paper_split
from wildood.data.validation import unlabelled_source
from wildood.data.wild import WildMixture
from wildood.errors import InputError
from wildood.experiments import digits
from wildood.experiments.experiment import FINGERPRINT, Experiment

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
    sets = {name: _open_ood(name, root, as_published=published) for name in ood_names(experiment)}
    counts = Counts(len(train), len(test), {name: _lengths(images) for name, images in sets.items()})
    splits = {name: split_of(experiment, counts, name) for name in sets}
    split = splits[experiment.wild or experiment.test[0]]  # of the ID sets: that of the OOD set in the wild
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
        test_id=test if takes_whole_test_set(experiment) else _part(test, split.test_id),
        tests={name: _test_part(experiment, name, sets[name], splits[name]) for name in experiment.test},
        validation_ood=validation,
        classes=_classes(train),
        spec=InputSpec(mean=experiment.mean, std=experiment.std),
        record={name: each.record() for name, each in splits.items()},
    )


def classes_of(experiment: Experiment, root: str | Path | None = None) -> int:
    """How many classes the ID set has.

    >>> classes_of(Experiment("digits", ("digits",), method="energy"))
    7
    """
    return digits.KNOWN if experiment.id == "digits" else _classes(_open(f"{experiment.id}:train", root))


def _classes(train: Images) -> int:
    return len(train.classes) or int(np.max(np.asarray(train.labels))) + 1


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


def check_sets(experiments: Sequence[Experiment], root: str | Path | None = None) -> None:
    """Open every set that some experiments need, once: one that is missing, or weights, is told before anything is run."""
    for start in start_files(experiments):
        file_below(start, root)
    for name in dict.fromkeys(each.id for each in experiments if each.id != "digits"):
        for part in ("train", "test"):
            _open(f"{name}:{part}", root)
    for name in dict.fromkeys(name for each in experiments if each.id != "digits" for name in ood_names(each)):
        _open_ood(name, root)


def start_files(experiments: Sequence[Experiment]) -> list[str]:
    """The files of weights below the data root that some experiments start from, each once.

    >>> start_files([Experiment("cifar10", ("svhn",), method="energy", start=start) for start in ("all", "a.safetensors")])
    ['a.safetensors']
    """
    found = dict.fromkeys(each.start for each in experiments if each.pretraining is None)
    return [start for start in found if not start.startswith(FINGERPRINT)]


def check_digits(experiment: Experiment) -> None:
    """Refuse what cannot be asked of the digits."""
    if experiment.test != ("digits",) or experiment.wild not in {None, "digits"} or experiment.protocol != "honest":
        raise InputError("the digits are their own OOD set: give wild and test as digits, and the honest protocol")
    if experiment.start != "labelled":
        raise InputError(
            f"an experiment on digits starts from {experiment.start!r}: give start = 'labelled' (leave out --start)"
        )


def _digits(experiment: Experiment) -> Division:
    check_digits(experiment)
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


def ood_names(experiment: Experiment) -> list[str]:
    """The OOD sets of an experiment, each once.

    >>> ood_names(Experiment("cifar10", ("svhn", "textures"), "svhn", 0.1))
    ['svhn', 'textures']
    """
    return list(dict.fromkeys([*([] if experiment.wild is None else [experiment.wild]), *experiment.test]))


def _open(text: str, root: str | Path | None, *, as_published: bool = False) -> Images:
    """`name:part` of a named set, or of a file below the data root."""
    name, _, part = text.partition(":")
    if not name.endswith(".npz"):
        return open_set(text, root, as_published=as_published)
    return open_images(f"{file_below(name, root)}:{ID_ARRAYS.get(part, part)}")


def file_below(name: str, root: str | Path | None) -> Path:
    """A file of the data root, which must be there."""
    path = data_root(root) / name
    if not path.exists():
        raise InputError(f"{path} is not there: give the directory that holds it with --data-root")
    return path


def _open_ood(name: str, root: str | Path | None, *, as_published: bool = False) -> tuple[Images, ...]:
    """All of an OOD set, or its official training and test parts."""
    if name.endswith(".npz"):
        return (_open(f"{name}:images", root),)
    parts = [part.name for part in find_set(name)[0].parts if not part.on_request]
    return tuple(_open(f"{name}:{part}", root, as_published=as_published) for part in parts)


def _lengths(images: tuple[Images, ...]) -> int | tuple[int, int]:
    return len(images[0]) if len(images) == 1 else (len(images[0]), len(images[1]))


def takes_whole_test_set(experiment: Experiment) -> bool:
    """The released code tests runs with another OOD set in the wild on all of the ID test set, the holdout included."""
    return experiment.protocol == "as_published" and not experiment.stationary


def only_test_part(experiment: Experiment, name: str, count: int | tuple[int, int]) -> bool:
    """Whether only a part of an OOD set is tested on: of the set in the wild, in a run without, or an official part."""
    return experiment.stationary or name == experiment.wild or isinstance(count, tuple)


def _test_part(experiment: Experiment, name: str, images: tuple[Images, ...], split: Split) -> Source:
    if only_test_part(experiment, name, _lengths(images)):
        return _part(images[-1], split.test_ood)
    return images[0]


def _part(images: Images, numbers: Numbers) -> Source:
    return Part(images, torch.from_numpy(numbers))


def _refuse_unlabelled(*sets: Images) -> None:
    for images in sets:
        if images.labels is None:
            raise InputError(f"{images.where} has no classes: an experiment's ID set needs them")
