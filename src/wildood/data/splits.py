"""The paper's splits as numbers: which examples are labelled, which are in the wild, which validate and which test."""

import hashlib
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from wildood.errors import InputError

Numbers = npt.NDArray[np.int64]
LABELLED, OOD_TRAINING, VALIDATION = 0.5, 0.7, 0.3
MOST_VALIDATING = 10_000


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


def paper_split(
    id_train: int,
    id_test: int,
    ood: int | tuple[int, int],
    seed: int,
    *,
    ood_share: float = OOD_TRAINING,
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
    labelled, wild_id = _divided(np.arange(id_train), int(LABELLED * id_train), rng)
    if isinstance(ood, tuple):
        training, test_ood = np.arange(ood[0]), np.arange(ood[1])
    else:
        training, test_ood = _divided(np.arange(ood), int(ood_share * ood), rng)
    test_id = np.arange(id_test)
    published_holdout, rest = _divided(test_id, _validating(id_test), rng) if holdout_from_test else (None, test_id)
    validation_id, wild_id = _divided(wild_id, _validating(len(wild_id)), rng)
    validation_ood, wild_ood = _divided(training, _validating(len(training)), rng)
    holdout = validation_id if published_holdout is None else published_holdout
    found = SplitIndices(labelled, wild_id, validation_id, holdout, rest, wild_ood, validation_ood, test_ood)
    empty = [name for name, part in asdict(found).items() if len(part) == 0]
    if empty:
        raise InputError(f"{id_train} ID, {id_test} test and {ood} OOD examples leave none for {empty[0]}: give more")
    return found


def _validating(count: int) -> int:
    return min(int(VALIDATION * count), MOST_VALIDATING)


def _divided(numbers: Numbers, first: int, rng: np.random.Generator) -> tuple[Numbers, Numbers]:
    """Some of the numbers, and the others, both in the order of the draw."""
    order = np.arange(len(numbers))
    rng.shuffle(order)
    return numbers[order[:first]], numbers[order[first:]]
