"""How often fresh data is rejected when the threshold was set on data that the classifier was trained on.

Run: python benchmarks/seen_holdout.py --data-root ../shared/data
"""

import argparse
from pathlib import Path

import numpy as np
from cifar10 import SPEC, resnet20

import wildood
from wildood.evaluate.metrics import rejection_rate


def main() -> None:
    """CIFAR-10, an unchanged ResNet-20, alpha = 5 %: thresholds from 500 training images and from 2,500 test images."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    root = parser.parse_args().data_root
    with np.load(root / "cifar10.npz") as file:
        trained_on, holdout, fresh = file["train_images"][:5000], *np.split(file["test_images"], [2500])
    model = resnet20(root)
    for score in (wildood.EnergyScore(), wildood.MaxSoftmax()):
        for name, data in (("trained on", {"labelled": trained_on}), ("holdout", {"holdout": holdout})):
            detector = wildood.posthoc(model, score, input=SPEC, **data)
            rate = rejection_rate(detector.score(fresh), detector.threshold)
            print(f"{type(score).__name__:12} threshold from {name:10}: {100 * rate:5.2f} % of {len(fresh)} fresh rejected")


if __name__ == "__main__":
    main()
