"""WOODS on scikit-learn's digits: 0-6 are known, 7-9 unknown, pi = 0.1. Run: python benchmarks/digits.py [--part test]."""

import argparse
import time
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from sklearn.datasets import load_digits

import wildood
from wildood.data.given import labelled_source
from wildood.evaluate.metrics import accuracy, auroc, false_alarm_rate, fpr_at_tpr
from wildood.methods.cross_entropy import CrossEntropyObjective
from wildood.models.outputs import Classifier
from wildood.models.small import SmallCNN
from wildood.train.loop import Training

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
SPEC = wildood.InputSpec(mean=(0.5,), std=(0.5,))


class Parts(NamedTuple):
    """450 labelled, 400 wild-ID, 200 holdout, the rest for the test; OOD 70 % wild, 30 % test.

    For development, 30 % of the wild OOD images are the test's, and a third of the wild ID images are its ID part.
    """

    labelled: tuple[Images, Labels]
    wild: wildood.WildMixture
    holdout: tuple[Images, Labels]
    test_id: tuple[Images, Labels]
    test_ood: Images


def digits(seed: int, part: str) -> Parts:
    """The data of one seed."""
    scans, labels = load_digits(return_X_y=True)
    images = (scans.reshape(-1, 8, 8, 1) * (255 / 16)).round().astype(np.uint8)
    fixed, rng = np.random.default_rng(0), np.random.default_rng(seed)
    known, unknown = fixed.permutation(np.flatnonzero(labels < 7)), fixed.permutation(np.flatnonzero(labels >= 7))
    train = int(0.7 * len(unknown))
    test_id, test_ood = known[1050:], unknown[train:]  # the same for every seed: no seed is developed on them
    known, wild_ood = rng.permutation(known[:1050]), rng.permutation(unknown[:train])
    wild_id = known[450:850]
    if part == "validation":
        test_id, wild_id = wild_id[:130], wild_id[130:]
        test_ood, wild_ood = np.split(wild_ood, [int(0.3 * train)])
    return Parts(
        (images[known[:450]], labels[known[:450]]),
        wildood.WildMixture(id=images[wild_id], ood=images[wild_ood], pi=0.1),
        (images[known[850:1050]], labels[known[850:1050]]),
        (images[test_id], labels[test_id]),
        images[test_ood],
    )


def starting_classifier(labelled: tuple[Images, Labels], seed: int) -> SmallCNN:
    """A small network trained on the labelled part only."""
    torch.manual_seed(seed)
    model = SmallCNN(classes=7, width=32, hidden=128)
    schedule = wildood.Schedule(epochs=40, batch=64, lr=0.05, factor=0.2)
    source = labelled_source(labelled, "labelled")
    Training(CrossEntropyObjective(Classifier(model, SPEC)), source, None, schedule, seed, keep="last").train()
    return model


def measure(detector: wildood.Detector, parts: Parts) -> dict[str, float]:
    """What the detector does on data that nobody has trained on, in percent."""
    id_scores, ood_scores = detector.score(parts.test_id[0]), detector.score(parts.test_ood)
    return {
        "FPR95": 100 * fpr_at_tpr(id_scores, ood_scores),
        "AUROC": 100 * auroc(id_scores, ood_scores),
        "accuracy": 100 * accuracy(detector.classify(parts.test_id[0]), parts.test_id[1]),
        "false alarms": 100 * false_alarm_rate(id_scores, detector.threshold),
    }


def main() -> None:
    """Mean and standard error over seeds, one line for each method."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=["validation", "test"], default="validation")
    parser.add_argument("--seeds", type=int, nargs="+", default=None)
    arguments = parser.parse_args()
    seeds = arguments.seeds or (range(5) if arguments.part == "test" else range(100, 108))
    results: dict[str, list[dict[str, float]]] = {}
    began = time.perf_counter()
    for seed in seeds:
        parts = digits(seed, arguments.part)
        model = starting_classifier(parts.labelled, seed)
        for name, score in (("max-softmax", wildood.MaxSoftmax()), ("energy", wildood.EnergyScore())):
            detector = wildood.posthoc(model, score, holdout=parts.holdout, input=SPEC)
            results.setdefault(name, []).append(measure(detector, parts))
        for method in (wildood.Woods(), wildood.WoodsAlt()):
            detector = wildood.fit(
                model, parts.labelled, parts.wild, parts.holdout, method=method, input=SPEC, seed=seed, verbose=False
            )
            results.setdefault(type(method).__name__, []).append(measure(detector, parts))
            print(seed, type(method).__name__, "kept", detector.record["kept_epoch"], "of", len(detector.history) - 1)
    print(
        f"digits, {arguments.part} part, seeds {list(seeds)}, {time.perf_counter() - began:.0f} s; mean ± standard error, %"
    )
    for name, rows in results.items():
        columns = [
            f"{column} {np.mean(values):6.2f} ± {np.std(values, ddof=1) / np.sqrt(len(values)):.2f}"
            for column in rows[0]
            if (values := [row[column] for row in rows])
        ]
        print(f"{name:12s}", "   ".join(columns))


if __name__ == "__main__":
    main()
