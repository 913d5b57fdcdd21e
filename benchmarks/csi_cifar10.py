"""A ResNet-20 on a few thousand images of CIFAR-10: CSI, beside max-softmax of a classifier that saw as many images.

Run: python benchmarks/csi_cifar10.py --data-root ../shared/data --runs runs/csi [--epochs 30] [--seed 0] [--part test]
An epoch of CSI's first stage takes eight images of each example forwards and backwards, so the classifier is trained for
eight times as many epochs. Its second stage takes four images of each example forwards only.
A run that was cut off goes on.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from cifar10 import SPEC

import wildood
from wildood.evaluate.metrics import accuracy, auroc, fpr_at_tpr
from wildood.models.resnet import ResNet20

OOD = ("svhn", "rooms_crop")


def main() -> None:
    """Accuracy, and AUROC and FPR95 against each OOD set, of both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--part", choices=["validation", "test"], default="validation")
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=30, help="of CSI's first stage")
    parser.add_argument("--head-epochs", type=int, default=20, help="of its second")
    parser.add_argument("--batch", type=int, default=64, help="examples in a step of the first stage, so 8 times the images")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with np.load(arguments.data_root / "cifar10.npz") as file:
        images, labels = file["train_images"], file["train_labels"].astype(np.int64)
        fresh = file["test_images"], file["test_labels"].astype(np.int64)
    labelled = images[: arguments.images], labels[: arguments.images]
    holdout = images[10_000:11_000], labels[10_000:11_000]  # shows the accuracy and sets the thresholds
    test = fresh if arguments.part == "test" else (images[11_000:13_000], labels[11_000:13_000])
    torch.manual_seed(arguments.seed)
    start = ResNet20()
    plain = wildood.pretrain(
        start,
        labelled,
        holdout,
        schedule=wildood.Schedule.pretraining(epochs=8 * arguments.epochs, warmup=0.1),
        run_dir=arguments.runs / "plain",
        input=SPEC,
        seed=arguments.seed,
    )
    csi = wildood.fit(
        start,
        labelled,
        None,
        holdout,
        method=wildood.Csi(head_epochs=arguments.head_epochs),
        schedule=wildood.Schedule(
            epochs=arguments.epochs, batch=arguments.batch, lr=1.0, decay="cosine", clip=0.0, warmup=0.1, weight_decay=1e-6
        ),
        run_dir=arguments.runs / "csi",
        input=SPEC,
        seed=arguments.seed,
    )
    trained, looked_at = (times * arguments.images for times in (8 * arguments.epochs, 4 * arguments.head_epochs))
    print(f"{arguments.part} part, ResNet-20, {arguments.images} images, {arguments.epochs} epochs, seed {arguments.seed}:")
    print(f"{trained:,} image passes each; CSI's heads take {looked_at:,} more, forwards only")
    detectors = {"max-softmax": wildood.posthoc(plain, wildood.MaxSoftmax(), holdout=holdout, input=SPEC), "CSI": csi}
    for name, detector in detectors.items():
        known, classes = detector.score_and_classify(test[0])
        columns = []
        for ood in OOD:
            with np.load(arguments.data_root / f"{ood}.npz") as file:
                halves = np.array_split(file["images"][:4000], 2)
            scores = detector.score(halves[arguments.part == "test"])
            found = 100 * auroc(known, scores), 100 * fpr_at_tpr(known, scores, 0.95)
            columns.append(f"{ood} AUROC {found[0]:.1f} FPR95 {found[1]:.1f}")
        print(f"{name:12} accuracy {100 * accuracy(classes, test[1]):.2f}  {'  '.join(columns)}", flush=True)


if __name__ == "__main__":
    main()
