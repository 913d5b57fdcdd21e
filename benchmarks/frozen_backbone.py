"""Training only the last layer on features computed once, beside training the whole network; and a million wild features.

Run: python benchmarks/frozen_backbone.py --data-root ../shared/data [--part test] [--ood svhn places] [--seeds 0 1 2]
     python benchmarks/frozen_backbone.py --wild 1000000
"""

import argparse
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
from cifar10 import SPEC, cifar10, resnet20
from torch import nn

import wildood
from wildood.evaluate.metrics import accuracy, fpr_at_tpr
from wildood.methods.objective import Method

Features = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
WIDTH, CLASSES, PI = 512, 10, 0.1  # of the wild features that are made
METHODS: dict[str, Method] = {"WOODS": wildood.Woods(), "WOODS-alt": wildood.WoodsAlt()}


def beside(root: Path, ood: str, part: str, seeds: list[int], methods: list[str], how: list[str]) -> None:
    """FPR95 and accuracy of each method, frozen and whole, and the seconds of each fit."""
    print(f"{ood}, {part} part, seeds {seeds}: FPR95 %, accuracy %, seconds; mean ± standard error", flush=True)
    for name in methods:
        for frozen in (each == "last" for each in how):
            rows = []
            for seed in seeds:
                parts = cifar10(root, ood, seed, "test" if part == "test" else "validation", holdout=1000)
                began = time.perf_counter()
                data = parts.labelled, parts.wild, parts.holdout
                detector = wildood.fit(
                    resnet20(root), *data, method=METHODS[name], input=SPEC, frozen=frozen, seed=seed, verbose=False
                )
                seconds = time.perf_counter() - began
                scores, classes = detector.score_and_classify(parts.test_id[0])
                fpr = fpr_at_tpr(scores, detector.score(parts.test_ood))
                rows.append((100 * fpr, 100 * accuracy(classes, parts.test_id[1]), seconds))
            mean = np.mean(rows, axis=0)
            error = np.std(rows, axis=0, ddof=1) / np.sqrt(len(rows)) if len(rows) > 1 else np.zeros(3)
            told = "last layer" if frozen else "whole network"
            print(f"  {name:10s} {told:14s} {mean[0]:6.2f} ± {error[0]:.2f}  {mean[1]:6.2f}  {mean[2]:6.1f} s", flush=True)


def many(count: int) -> None:
    """A linear classifier on Gaussian classes, and wild features with one class more."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(CLASSES + 1, WIDTH)).astype(np.float32)

    def features(labels: Labels) -> Features:
        return centres[labels] + 8 * rng.standard_normal((len(labels), WIDTH), dtype=np.float32)

    def known(number: int) -> tuple[Features, Labels]:
        labels = rng.integers(0, CLASSES, number)
        return features(labels), labels

    labelled, holdout, test = known(50_000), known(5_000), known(5_000)
    # The features are 8 times as long as white ones: a plain layer stands a 64th part of the usual learning rate.
    recipe = wildood.Schedule.pretraining(epochs=2, lr=0.1 / 64, augment=False)
    model = wildood.pretrain(nn.Linear(WIDTH, CLASSES), labelled, schedule=recipe, verbose=False)
    is_unknown = rng.random(count) < PI
    wild = features(np.where(is_unknown, CLASSES, rng.integers(0, CLASSES, count)))
    unknown = features(np.full(5_000, CLASSES))
    before = wildood.posthoc(model, wildood.EnergyScore(), holdout=holdout)
    began = time.perf_counter()
    detector = wildood.fit(model, labelled, wild, holdout, frozen=True, verbose=False)
    seconds = time.perf_counter() - began
    for name, each in (("energy", before), ("WOODS", detector)):
        fpr = fpr_at_tpr(each.score(test[0]), each.score(unknown))
        print(f"{name}: FPR95 {100 * fpr:.2f} %, accuracy {100 * accuracy(each.classify(test[0]), test[1]):.2f} %")
    print(f"{count} wild features of {WIDTH} numbers: {seconds:.1f} s, {detector.history[-1]['step']:.0f} steps")


def main() -> None:
    """What the options say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--part", choices=["validation", "test"], default="validation")
    parser.add_argument("--ood", nargs="+", default=["svhn", "textures", "places"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--how", nargs="+", choices=["whole", "last"], default=["whole", "last"], help="what is trained")
    parser.add_argument("--wild", type=int, metavar="N", help="instead: so many wild features, such as 1000000")
    arguments = parser.parse_args()
    if arguments.wild is not None:
        many(arguments.wild)
        return
    for ood in arguments.ood:
        beside(arguments.data_root, ood, arguments.part, arguments.seeds, arguments.methods, arguments.how)


if __name__ == "__main__":
    main()
