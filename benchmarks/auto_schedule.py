"""`schedule="auto"` beside runs of fixed length: how many steps it takes, and what it costs in quality.

Run: python benchmarks/auto_schedule.py                                                # digits
     python benchmarks/auto_schedule.py --data-root ../shared/data [--ood svhn places] # CIFAR-10, a ResNet-20
"""

import argparse
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Literal

from torch import nn

import wildood
from wildood.data.inputs import InputSpec
from wildood.evaluate.metrics import mean_and_error
from wildood.experiments import cifar10, digits
from wildood.experiments.comparison import Metrics
from wildood.experiments.parts import PartName, Parts
from wildood.experiments.pool import using_threads
from wildood.methods.objective import Method

METHODS: dict[str, Method] = {"WOODS": wildood.Woods(), "WOODS-alt": wildood.WoodsAlt()}
Start = tuple[Parts, nn.Module, InputSpec]


def starts(root: Path | None, ood: str, seeds: list[int], part: PartName) -> Iterator[tuple[int, Start]]:
    """For each seed: the data, the starting classifier, and what it takes."""
    for seed in seeds:
        if root is None:
            parts = digits.digits(seed, part)
            yield seed, (parts, digits.starting_classifier(parts.labelled, seed), digits.SPEC)
        else:
            yield seed, (cifar10.cifar10(root, ood, seed, part), cifar10.resnet20(root), cifar10.SPEC)


def compare(root: Path | None, ood: str, seeds: list[int], part: PartName, method: str, lengths: list[int]) -> None:
    """One line for each schedule."""
    schedules: list[wildood.Schedule | Literal["auto"]] = ["auto", *(wildood.Schedule(steps=steps) for steps in lengths)]
    given = list(starts(root, ood, seeds, part))
    for schedule in schedules:
        found: list[Metrics] = []
        ends: list[tuple[int, int]] = []
        for seed, (parts, model, spec) in given:
            data = parts.labelled, parts.wild, parts.holdout
            detector = wildood.fit(
                model, *data, method=METHODS[method], schedule=schedule, input=spec, seed=seed, verbose=False
            )
            found.append(Metrics.of(detector, parts.test_id, parts.test_ood))
            kept = detector.history[detector.record["kept_epoch"]]
            ends.append((int(detector.history[-1]["step"]), int(kept["step"])))
        fpr, error = mean_and_error([metrics.fpr95 for metrics in found])
        right, _ = mean_and_error([metrics.accuracy for metrics in found])
        name = "auto" if schedule == "auto" else f"{schedule.steps} steps"
        told = " ".join(f"{end} ({kept})" for end, kept in ends)
        spread = f" ± {100 * error:.2f}" if len(found) > 1 else ""
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
