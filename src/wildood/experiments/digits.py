"""scikit-learn's digits, real scans of 8 x 8 pixels: 0 to 6 are known, 7 to 9 unknown, pi = 0.1."""

import numpy as np
import torch

from wildood.data.inputs import InputSpec
from wildood.data.validation import labelled_source
from wildood.data.wild import WildMixture
from wildood.errors import InputError
from wildood.experiments.parts import Images, Labels, PartName, Parts
from wildood.methods.cross_entropy import CrossEntropyObjective
from wildood.methods.schedule import Schedule
from wildood.models.classifier import Classifier
from wildood.models.small import SmallCNN
from wildood.train.loop import Training
from wildood.train.progress import verbose_logging

SPEC = InputSpec(mean=(0.5,), std=(0.5,))
KNOWN, PI = 7, 0.1
LABELLED, WILD, HOLDOUT = 450, 400, 200  # ID examples; the other 214 are the test's


def digits(seed: int, part: PartName = "test") -> Parts:
    """The data of one seed; OOD is 70 % wild and 30 % test.

    The test examples are the same for every seed. With `part="validation"`, for development, they are not touched: a third
    of the wild ID and 30 % of the wild OOD examples take their place.

    >>> parts = digits(seed=0)
    >>> [len(part) for part in (parts.labelled[0], parts.wild.id, parts.holdout[0], parts.test_id[0], parts.test_ood)]
    [450, 400, 200, 214, 160]
    """
    images, labels = _scans()
    fixed, rng = np.random.default_rng(0), np.random.default_rng(seed)
    known, unknown = fixed.permutation(np.flatnonzero(labels < KNOWN)), fixed.permutation(np.flatnonzero(labels >= KNOWN))
    given, train = LABELLED + WILD + HOLDOUT, int(0.7 * len(unknown))
    test_id, test_ood = known[given:], unknown[train:]
    known, wild_ood = rng.permutation(known[:given]), rng.permutation(unknown[:train])
    labelled, wild_id, holdout = np.split(known, [LABELLED, LABELLED + WILD])
    if part == "validation":
        test_id, wild_id = np.split(wild_id, [130])
        test_ood, wild_ood = np.split(wild_ood, [int(0.3 * train)])
    return Parts(
        (images[labelled], labels[labelled]),
        WildMixture(id=images[wild_id], ood=images[wild_ood], pi=PI),
        (images[holdout], labels[holdout]),
        (images[test_id], labels[test_id]),
        images[test_ood],
    )


def starting_classifier(labelled: tuple[Images, Labels], seed: int) -> SmallCNN:
    """A small network trained with cross-entropy on the labelled part only."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = SmallCNN(classes=KNOWN, width=32, hidden=128)
    schedule = Schedule(epochs=40, batch=64, lr=0.05, decay="milestones", factor=0.2, clip=0.0)
    objective = CrossEntropyObjective(Classifier(model, SPEC))
    with verbose_logging(verbose=False):
        Training(objective, labelled_source(labelled, "labelled"), None, schedule, seed).train()
    return model


def _scans() -> tuple[Images, Labels]:
    try:
        from sklearn.datasets import load_digits  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise InputError("the digits are inside scikit-learn: pip install scikit-learn") from error
    scans, labels = load_digits(return_X_y=True)
    return (scans.reshape(-1, 8, 8, 1) * (255 / 16)).round().astype(np.uint8), labels.astype(np.int64)
