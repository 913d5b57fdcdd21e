"""`schedule="auto"` beside runs of fixed length: how many steps it takes, and what it costs in quality.

Run: python benchmarks/auto_schedule.py                                                # digits
     python benchmarks/auto_schedule.py --data-root ../shared/data [--ood svhn places] # CIFAR-10, a ResNet-20
"""

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Literal

from cifar10 import cifar10, resnet20
from torch import nn

import wildood
from wildood.evaluate.metrics import mean_and_error
from wildood.experiments.grids import demo_grid
from wildood.experiments.pool import using_threads
from wildood.experiments.run import measure_detector
from wildood.experiments.split import Split, TestPart, digits_split
from wildood.experiments.starts import starting_classifier
from wildood.methods.objective import Method

METHODS: dict[str, Method] = {"WOODS": wildood.Woods(), "WOODS-alt": wildood.WoodsAlt()}
Start = tuple[Split, nn.Module]


def starts(root: Path | None, ood: str, seeds: list[int], part: TestPart) -> Iterator[tuple[int, Start]]:
    """For each seed: the data and the starting classifier."""
    for seed in seeds:
        if root is None:
            split = digits_split(seed, part)
            with tempfile.TemporaryDirectory() as runs:
                yield seed, (split, starting_classifier(demo_grid(seed)[0], split, Path(runs)))
        else:
            yield seed, (cifar10(root, ood, seed, part), resnet20(root))


def compare(root: Path | None, ood: str, seeds: list[int], part: TestPart, method: str, lengths: list[int]) -> None:
    """One line for each schedule."""
    schedules: list[wildood.Schedule | Literal["auto"]] = ["auto", *(wildood.Schedule(steps=steps) for steps in lengths)]
    given = list(starts(root, ood, seeds, part))
    for schedule in schedules:
        fprs: list[float] = []
        accuracies: list[float] = []
        ends: list[tuple[int, int]] = []
        for seed, (split, model) in given:
            data = split.labelled, split.wild, split.holdout
            detector = wildood.fit(
                model, *data, method=METHODS[method], schedule=schedule, input=split.spec, seed=seed, verbose=False
            )
            tests, on_id, _ = measure_detector(detector, split)
            fprs += [each.fpr95 for each in tests.values()]
            accuracies.append(on_id["accuracy"])
            kept = detector.history[detector.record["kept_epoch"]]
            ends.append((int(detector.history[-1]["step"]), int(kept["step"])))
        fpr, error = mean_and_error(fprs)
        right, _ = mean_and_error(accuracies)
        name = "auto" if schedule == "auto" else f"{schedule.steps} steps"
        told = " ".join(f"{end} ({kept})" for end, kept in ends)
        spread = f" ± {100 * error:.2f}" if len(fprs) > 1 else ""
        print(f"{method:10s} {name:10s} FPR95 {100 * fpr:6.2f}{spread} %  accuracy {100 * right:.2f} %", end="")
        print(f"  ended after (kept) steps: {told}", flush=True)


def main() -> None:
    """Digits, or CIFAR-10 against each OOD set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--part", choices=["validation", "test"], default="validation")
    parser.add_argument("--ood", nargs="+", default=["svhn", "places"])
    parser.add_argument("--seeds", type=int, nargs="+", default=None)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--lengths", type=int, nargs="*", default=[50, 100, 200, 400])
    arguments = parser.parse_args()
    root, part = arguments.data_root, arguments.part
    seeds = arguments.seeds or list(range(5) if part == "test" else range(100, 108))
    with using_threads(1) if root is None else nullcontext():
        for ood in ["digits"] if root is None else arguments.ood:
            print(f"{ood}, {part} part, seeds {seeds}")
            for method in arguments.methods:
                compare(root, ood, seeds, part, method, arguments.lengths)


if __name__ == "__main__":
    main()
