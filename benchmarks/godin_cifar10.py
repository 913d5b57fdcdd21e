"""A ResNet-20 from scratch on 10,000 images of CIFAR-10: plain cross-entropy with max-softmax, beside GODIN.

Run: python benchmarks/godin_cifar10.py --data-root ../shared/data --runs runs/godin [--part test]
Both are trained alike; a run that was cut off goes on.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from cifar10 import SPEC

import wildood
from wildood.evaluate.metrics import accuracy, auroc
from wildood.models.resnet import ResNet20

OOD = ("svhn", "textures", "places", "rooms_resize", "rooms_crop", "cifar100")


def main() -> None:
    """Accuracy, and AUROC against each OOD set, of both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--part", choices=["validation", "test"], default="validation")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with np.load(arguments.data_root / "cifar10.npz") as file:
        images, labels = file["train_images"], file["train_labels"].astype(np.int64)
        fresh = file["test_images"], file["test_labels"].astype(np.int64)
    labelled = images[:10_000], labels[:10_000]
    holdout = images[10_000:11_000], labels[10_000:11_000]  # shows the accuracy and chooses GODIN's epsilon
    test = fresh if arguments.part == "test" else (images[11_000:13_000], labels[11_000:13_000])
    schedule = wildood.Schedule.pretraining(epochs=arguments.epochs, warmup=0.1)
    torch.manual_seed(arguments.seed)
    start = ResNet20()
    given = {"schedule": schedule, "input": SPEC, "seed": arguments.seed}
    plain = wildood.pretrain(start, labelled, holdout, run_dir=arguments.runs / "plain", **given)
    godin = wildood.fit(start, labelled, None, holdout, method=wildood.Godin(), run_dir=arguments.runs / "godin", **given)
    detectors = {
        "max-softmax": wildood.posthoc(plain, wildood.MaxSoftmax(), holdout=holdout, input=SPEC),
        "energy": wildood.posthoc(plain, wildood.EnergyScore(), holdout=holdout, input=SPEC),
        "GODIN": godin,
    }
    print(f"{arguments.part} part, {arguments.epochs} epochs, seed {arguments.seed}; epsilon {godin.scorer.epsilon}")
    for name, detector in detectors.items():
        known, classes = detector.score_and_classify(test[0])
        row = {}
        for ood in OOD:
            with np.load(arguments.data_root / f"{ood}.npz") as file:
                halves = np.array_split(file["images"][:4000], 2)
            row[ood] = 100 * auroc(known, detector.score(halves[arguments.part == "test"]))
        columns = "  ".join(f"{ood} {value:.1f}" for ood, value in row.items())
        right = 100 * accuracy(classes, test[1])
        print(f"{name:12} accuracy {right:.2f}  AUROC {np.mean(list(row.values())):.2f}: {columns}", flush=True)


if __name__ == "__main__":
    main()
