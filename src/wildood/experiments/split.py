"""The data of an experiment: its sets, split into labelled, wild, holdout and test examples."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from wildood.data.catalog import find_set, open_set
from wildood.data.files import data_root
from wildood.data.folders import open_images
from wildood.data.images import Images
from wildood.data.inputs import InputSpec
from wildood.data.sources import Part, Source
from wildood.data.validation import unlabelled_source
from wildood.data.wild import WildMixture
from wildood.errors import InputError
from wildood.experiments.experiment import FINGERPRINT, Experiment

ID_ARRAYS = {"train": "train_images,train_labels", "test": "test_images,test_labels"}
LABELLED_SHARE, OOD_SHARE, VALIDATION_SHARE = 0.5, 0.7, 0.3  # section 4.1
RANDOM_IMAGES_SHARE = 0.99  # of 300K Random Images for training
MAX_VALIDATION = 10_000  # examples
DIGITS_SPEC = InputSpec(mean=(0.5,), std=(0.5,))
DIGITS_CLASSES, DIGITS_PI = 7, 0.1
LABELLED, WILD, HOLDOUT = 450, 400, 200  # ID digits; the other 214 are test examples
Numbers = npt.NDArray[np.int64]
TestPart = Literal["test", "validation"]


@dataclass(frozen=True, eq=False)
class Split:
    """The data of one run. No example is in two parts, except that `id_train` is the whole ID training set.

    Attributes:
        wild: the mixture; None for a run with ID data only.
        holdout: ID examples with their classes that the starting classifier has not been trained on.
        tests: the test examples of each OOD set.
        spec: how images become the network's input; None for features.
        id_train: the training set of a starting classifier with start="all".
        validation_ood: OOD examples by which the released protocol chooses; None where there are none.
        record: for each OOD set, the size of each part and a hash of its examples.
    """

    labelled: Any
    wild: WildMixture | None
    holdout: Any
    test_id: Any
    tests: Mapping[str, Any]
    classes: int
    spec: InputSpec | None
    id_train: Any = None
    validation_ood: Any = None
    record: Mapping[str, Any] = field(default_factory=dict)

    @property
    def test_ood(self) -> Any:
        """The test examples of the OOD set, where there is one only."""
        (test,) = self.tests.values()
        return test


@dataclass(frozen=True, eq=False)
class SplitIndices:
    """Numbers of examples in the ID training set, the ID test set and the OOD sets.

    Attributes:
        labelled: of the ID training set.
        wild_id: of the ID training set, in the wild.
        validation_id: of the ID training set, neither labelled nor in the wild.
        holdout: labelled ID examples that nothing trains on: `validation_id`, or else some of the ID test set.
        test_id: of the ID test set.
        wild_ood: of the OOD set (of its training part, if it has official parts), in the wild.
        validation_ood: of the same set; looked at by the released protocol only, since it stands for OOD labels.
        test_ood: of the OOD set (of its test part).
    """

    labelled: Numbers
    wild_id: Numbers
    validation_id: Numbers
    holdout: Numbers
    test_id: Numbers
    wild_ood: Numbers
    validation_ood: Numbers
    test_ood: Numbers

    def record(self) -> dict[str, Any]:
        """How many each part has, and a hash of which: to be kept with a run."""
        return {
            name: {"count": len(part), "hash": hashlib.blake2b(part.tobytes(), digest_size=8).hexdigest()}
            for name, part in asdict(self).items()
        }


@dataclass(frozen=True)
class Counts:
    """How many examples the sets of an experiment have."""

    id_train: int
    id_test: int
    ood: Mapping[str, int | tuple[int, int]]

    def indices(self, experiment: Experiment, ood: str) -> SplitIndices:
        """Which examples of the ID sets and of one OOD set each part has."""
        return paper_split(
            self.id_train,
            self.id_test,
            self.ood[ood],
            experiment.seed,
            ood_share=RANDOM_IMAGES_SHARE if ood == "300k" else OOD_SHARE,
            holdout_from_test=_takes_test_holdout(experiment),
        )


def load_split(experiment: Experiment, root: str | Path | None = None) -> Split:
    """Open the sets of an experiment and split them.

    >>> split = load_split(Experiment("digits", ("digits",), "digits", 0.2))
    >>> len(split.labelled[0]), split.wild.pi, {name: len(test) for name, test in split.tests.items()}
    (450, 0.2, {'digits': 160})
    """
    if experiment.id == "digits":
        check_digits(experiment)
        return digits_split(experiment.seed, pi=experiment.pi)
    published = experiment.protocol == "as_published"
    train, test = (_open(f"{experiment.id}:{part}", root, as_published=published) for part in ("train", "test"))
    for images in (train, test):
        if images.labels is None:
            raise InputError(f"{images.where} has no classes: an experiment's ID set needs them")
    sets = {name: _open_ood(name, root, as_published=published) for name in ood_names(experiment)}
    counts = Counts(len(train), len(test), {name: _lengths(images) for name, images in sets.items()})
    indices = {name: counts.indices(experiment, name) for name in sets}
    chosen = indices[experiment.wild or experiment.test[0]]  # of the ID sets: that of the OOD set in the wild
    wild = validation = None
    if experiment.wild is not None:
        images = sets[experiment.wild][0]
        wild = WildMixture(_part(train, chosen.wild_id), _part(images, chosen.wild_ood), experiment.pi)
        validation = _part(images, chosen.validation_ood)

    def ood_test(name: str) -> Source:
        images = sets[name]
        return _part(images[-1], indices[name].test_ood) if tests_part_only(experiment, name, counts) else images[0]

    return Split(
        labelled=_part(train, chosen.labelled),
        wild=wild,
        holdout=_part(test if _takes_test_holdout(experiment) else train, chosen.holdout),
        test_id=test if tests_whole_id_set(experiment) else _part(test, chosen.test_id),
        tests={name: ood_test(name) for name in experiment.test},
        classes=_classes(train),
        spec=InputSpec(mean=experiment.mean, std=experiment.std),
        id_train=train,
        validation_ood=validation,
        record={name: each.record() for name, each in indices.items()},
    )


def paper_split(
    id_train: int,
    id_test: int,
    ood: int | tuple[int, int],
    seed: int,
    *,
    ood_share: float = OOD_SHARE,
    holdout_from_test: bool = False,
) -> SplitIndices:
    """Section 4.1: half of the ID training set is labelled, half is in the wild; 70 % of the OOD set is for training.

    Of what is for training, 30 % validates. An OOD set with official parts (SVHN) keeps them: (training, test) examples.

    The holdout is the validating part of the wild ID half. The released code takes it from the ID test set and tests on the
    others, which is right for a starting classifier that has seen all of the ID training set. The draws are the released
    code's, in its order: of the ID training set, of the OOD set (none if it has official parts), of the ID test set (if it
    gives the holdout), of the wild ID half, of the OOD set's training part.

    Args:
        id_train: how many examples the ID training set has.
        id_test: how many the ID test set has.
        ood: how many the OOD set has, or its official training and test parts.
        seed: decides the draws.
        ood_share: the share of the OOD set for training: 0.99 for 300K Random Images.
        holdout_from_test: whether the holdout is taken from the ID test set, as in the released code.

    >>> split = paper_split(50_000, 10_000, 5_640, seed=0)
    >>> [len(part) for part in (split.labelled, split.wild_id, split.holdout, split.test_id)]
    [25000, 17500, 7500, 10000]
    >>> len(split.wild_ood), len(split.validation_ood), len(split.test_ood)
    (2763, 1184, 1693)
    """
    rng = np.random.default_rng(seed)
    labelled, wild_id = _shuffled_split(np.arange(id_train), int(LABELLED_SHARE * id_train), rng)
    if isinstance(ood, tuple):
        training, test_ood = np.arange(ood[0]), np.arange(ood[1])
    else:
        training, test_ood = _shuffled_split(np.arange(ood), int(ood_share * ood), rng)
    test_id, holdout = np.arange(id_test), None
    if holdout_from_test:
        holdout, test_id = _shuffled_split(test_id, _validation_count(id_test), rng)
    validation_id, wild_id = _shuffled_split(wild_id, _validation_count(len(wild_id)), rng)
    validation_ood, wild_ood = _shuffled_split(training, _validation_count(len(training)), rng)
    if holdout is None:
        holdout = validation_id
    indices = SplitIndices(labelled, wild_id, validation_id, holdout, test_id, wild_ood, validation_ood, test_ood)
    empty = [name for name, part in asdict(indices).items() if len(part) == 0]
    if empty:
        raise InputError(f"{id_train} ID, {id_test} test and {ood} OOD examples leave none for {empty[0]}: give more")
    return indices


def _validation_count(count: int) -> int:
    return min(int(VALIDATION_SHARE * count), MAX_VALIDATION)


def _shuffled_split(numbers: Numbers, first: int, rng: np.random.Generator) -> tuple[Numbers, Numbers]:
    """Some of the numbers, and the others, both in the order of the draw."""
    order = np.arange(len(numbers))
    rng.shuffle(order)
    return numbers[order[:first]], numbers[order[first:]]


def digits_split(seed: int, part: TestPart = "test", pi: float = DIGITS_PI) -> Split:
    """scikit-learn's digits, real scans of 8 x 8 pixels: 0 to 6 are ID, 7 to 9 are OOD (70 % wild, 30 % test).

    The test examples are the same for every seed. With `part="validation"`, for development, they are not used: a third
    of the wild ID and 30 % of the wild OOD examples take their place. With pi = 0, there is no wild data.

    >>> split = digits_split(seed=0)
    >>> [len(part) for part in (split.labelled[0], split.wild.id, split.holdout[0], split.test_id[0], split.test_ood)]
    [450, 400, 200, 214, 160]
    """
    images, labels = _scans()
    fixed, rng = np.random.default_rng(0), np.random.default_rng(seed)
    known = fixed.permutation(np.flatnonzero(labels < DIGITS_CLASSES))
    unknown = fixed.permutation(np.flatnonzero(labels >= DIGITS_CLASSES))
    id_train, ood_train = LABELLED + WILD + HOLDOUT, int(0.7 * len(unknown))
    test_id, test_ood = known[id_train:], unknown[ood_train:]
    known, wild_ood = rng.permutation(known[:id_train]), rng.permutation(unknown[:ood_train])
    labelled, wild_id, holdout = np.split(known, [LABELLED, LABELLED + WILD])
    if part == "validation":
        test_id, wild_id = np.split(wild_id, [130])
        test_ood, wild_ood = np.split(wild_ood, [int(0.3 * ood_train)])
    indices = {"labelled": labelled, "holdout": holdout, "test_id": test_id}
    indices |= {"wild_id": wild_id, "wild_ood": wild_ood, "test_ood": test_ood}
    sources = {name: unlabelled_source(images[numbers], name) for name, numbers in indices.items()}
    record = {name: {"count": len(source), "hash": source.fingerprint()} for name, source in sources.items()}
    return Split(
        labelled=(images[labelled], labels[labelled]),
        wild=WildMixture(id=images[wild_id], ood=images[wild_ood], pi=pi) if pi > 0 else None,
        holdout=(images[holdout], labels[holdout]),
        test_id=(images[test_id], labels[test_id]),
        tests={"digits": images[test_ood]},
        classes=DIGITS_CLASSES,
        spec=DIGITS_SPEC,
        record={"digits": record},
    )


def _scans() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    try:
        from sklearn.datasets import load_digits  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise InputError("the digits are inside scikit-learn: pip install scikit-learn") from error
    scans, labels = load_digits(return_X_y=True)
    return (scans.reshape(-1, 8, 8, 1) * (255 / 16)).round().astype(np.uint8), labels.astype(np.int64)


def check_digits(experiment: Experiment) -> None:
    """Raise an error if an experiment on digits asks for another OOD set, protocol or starting classifier."""
    if experiment.test != ("digits",) or experiment.wild not in {None, "digits"} or experiment.protocol != "honest":
        raise InputError("the digits are their own OOD set: give wild and test as digits, and the honest protocol")
    if experiment.start != "labelled":
        raise InputError(
            f"an experiment on digits starts from {experiment.start!r}: give start = 'labelled' (leave out --start)"
        )


def class_count(experiment: Experiment, root: str | Path | None = None) -> int:
    """The number of classes of the ID set."""
    return DIGITS_CLASSES if experiment.id == "digits" else _classes(_open(f"{experiment.id}:train", root))


def ood_names(experiment: Experiment) -> list[str]:
    """The OOD sets of an experiment, each once."""
    return [name for name in dict.fromkeys([experiment.wild, *experiment.test]) if name is not None]


def start_files(experiments: Sequence[Experiment]) -> list[str]:
    """The weight files below the data root that some experiments start from, each once."""
    files = dict.fromkeys(each.start for each in experiments if each.pretraining is None)
    return [start for start in files if not start.startswith(FINGERPRINT)]


def check_sets(experiments: Sequence[Experiment], root: str | Path | None = None) -> None:
    """Open each set and find each weight file that some experiments need: what is missing is an error before any run."""
    for start in start_files(experiments):
        data_file(start, root)
    others = [each for each in experiments if each.id != "digits"]
    for name in dict.fromkeys(each.id for each in others):
        for part in ("train", "test"):
            _open(f"{name}:{part}", root)
    for name in dict.fromkeys(name for each in others for name in ood_names(each)):
        _open_ood(name, root)


def data_file(name: str, root: str | Path | None) -> Path:
    """The path of a file below the data root, which must exist."""
    path = data_root(root) / name
    if not path.exists():
        raise InputError(f"{path} is not there: give the directory that holds it with --data-root")
    return path


def tests_whole_id_set(experiment: Experiment) -> bool:
    """The released code tests runs with another OOD set in the wild on all of the ID test set, the holdout included."""
    return experiment.protocol == "as_published" and not experiment.stationary


def tests_part_only(experiment: Experiment, name: str, counts: Counts) -> bool:
    """Whether only the test part of an OOD set is used, because it is in the wild, stationary, or has official parts."""
    return experiment.stationary or name == experiment.wild or isinstance(counts.ood[name], tuple)


def _takes_test_holdout(experiment: Experiment) -> bool:
    """Whether the holdout comes from the ID test set, because the starting classifier has seen the ID training set."""
    return experiment.start != "labelled" or experiment.protocol == "as_published"


def _open(text: str, root: str | Path | None, *, as_published: bool = False) -> Images:
    """`name:part` of a named set, or of a file below the data root."""
    name, _, part = text.partition(":")
    if not name.endswith(".npz"):
        return open_set(text, root, as_published=as_published)
    return open_images(f"{data_file(name, root)}:{ID_ARRAYS.get(part, part)}")


def _open_ood(name: str, root: str | Path | None, *, as_published: bool = False) -> tuple[Images, ...]:
    """All of an OOD set, or its official training and test parts."""
    if name.endswith(".npz"):
        return (_open(f"{name}:images", root),)
    parts = [part.name for part in find_set(name)[0].parts if not part.on_request]
    return tuple(_open(f"{name}:{part}", root, as_published=as_published) for part in parts)


def _lengths(images: tuple[Images, ...]) -> int | tuple[int, int]:
    return len(images[0]) if len(images) == 1 else (len(images[0]), len(images[1]))


def _classes(train: Images) -> int:
    return len(train.classes) or int(np.max(np.asarray(train.labels))) + 1


def _part(images: Images, numbers: Numbers) -> Source:
    return Part(images, torch.from_numpy(numbers))
