"""CIFAR-10 against other small images, from a directory of `.npz` files, with a ResNet-20 trained on CIFAR-10."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.torch import load_file

from wildood.data.inputs import InputSpec
from wildood.data.wild import WildMixture
from wildood.experiments.split import Split, TestPart
from wildood.models.resnet import ResNet20

SPEC = InputSpec(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
PI = 0.1
Images, Labels = npt.NDArray[np.uint8], npt.NDArray[np.int64]


def cifar10(root: Path, ood: str, seed: int, part: TestPart = "test", holdout: int = 1000) -> Split:
    """The data of one seed: 10,000 labelled, the other training images in the wild, OOD 70 % wild and 30 % test.

    The classifier has been trained on all of the training images, so that the holdout is taken from the test images; it
    and the test shares are the same for every seed. With `part="validation"`, 2,000 of the wild ID images take the place of
    the test images, the holdout's included, and 30 % of the wild OOD images that of the OOD test share.
    """
    with np.load(root / "cifar10.npz") as file:
        images, labels = file["train_images"], file["train_labels"].astype(np.int64)
        fresh = file["test_images"], file["test_labels"].astype(np.int64)
    with np.load(root / f"{ood}.npz") as file:
        unknown = np.random.default_rng(0).permutation(file["images"])
    train = int(0.7 * len(unknown))
    test_ood, rng = unknown[train:], np.random.default_rng(seed)
    order, wild_ood = rng.permutation(len(images)), rng.permutation(unknown[:train])
    labelled, wild_id = np.split(order, [10_000])
    if part == "validation":
        held, wild_id = np.split(wild_id, [2_000])
        fresh = images[held], labels[held]
        test_ood, wild_ood = np.split(wild_ood, [int(0.3 * train)])
    mixture = WildMixture(id=images[wild_id], ood=wild_ood, pi=PI)
    return Split(
        labelled=(images[labelled], labels[labelled]),
        wild=mixture,
        holdout=(fresh[0][:holdout], fresh[1][:holdout]),
        test_id=(fresh[0][holdout:], fresh[1][holdout:]),
        tests={ood: test_ood},
        classes=10,
        spec=SPEC,
    )


def resnet20(root: Path, weights: str = "resnet20-cifar10") -> ResNet20:
    """The starting classifier."""
    model = ResNet20()
    model.load_state_dict(load_file(root / "weights" / f"{weights}.safetensors"))
    return model
