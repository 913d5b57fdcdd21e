"""Training in bfloat16 beside float32: the time of a step, and what the detector catches.

Run: python benchmarks/precision.py [--only ResNet20 WRN-40-2] [--batch 64] [--rounds 10]
     python benchmarks/precision.py --data-root ../shared/data [--ood svhn] [--seeds 0 1 2] [--steps 100] [--batch 64]
         [--part test]

Steps in the two precisions alternate, so that whatever else the machine does slows both. A step is all of `Woods()`:
forward and backward passes, starting classifier, preconditioner, optimiser.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from cifar10 import SPEC, cifar10, resnet20
from loop_overhead import Bare
from torch import nn

import wildood
from wildood.data.validation import labelled_source
from wildood.evaluate.metrics import accuracy, fpr_at_tpr
from wildood.methods.objective import Batch
from wildood.models.classifier import Precision, copy_classifier
from wildood.models.resnet import ResNet20
from wildood.models.wide_resnet import WideResNet
from wildood.train.monitor import measure_start

PRECISIONS: tuple[Precision, ...] = get_args(Precision)
NETWORKS: dict[str, Callable[[], nn.Module]] = {"ResNet20": ResNet20, "WRN-40-2": lambda: WideResNet(classes=10)}
WARM_UP = 2


def speed(name: str, batch: int, rounds: int) -> None:
    """One line: images per second in both precisions, and their ratio."""
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (2 * batch, 32, 32, 3), dtype=np.uint8), rng.integers(0, 10, 2 * batch)
    source, method = labelled_source((images, labels), "labelled"), wildood.Woods()
    raw, classes = source.gather(torch.arange(batch))
    steps: dict[Precision, Callable[[], None]] = {}
    for precision in PRECISIONS:
        torch.manual_seed(0)
        classifier, _ = copy_classifier(NETWORKS[name](), source, SPEC, None, uses_features=False)
        classifier.train_in(precision)
        objective = method.objective(classifier, measure_start(classifier, source, 0))
        assert classes is not None  # noqa: S101 - the source is labelled
        steps[precision] = Bare(objective, Batch(raw, classes, torch.from_numpy(images[batch:])), method.schedule()).step
    seconds: dict[Precision, list[float]] = {precision: [] for precision in PRECISIONS}
    for _ in range(WARM_UP + rounds):
        for precision, step in steps.items():
            began = time.process_time()
            step()
            seconds[precision].append(time.process_time() - began)
    plain, short = (seconds[precision][WARM_UP:] for precision in PRECISIONS)
    ratios = [before / after for before, after in zip(plain, short, strict=True)]
    rates = ", ".join(f"{p} {2 * batch / statistics.median(seconds[p][WARM_UP:]):.0f}" for p in PRECISIONS)
    print(
        f"{name:10s} images per CPU-second: {rates}; bf16 is {statistics.median(ratios):.2f} times as fast"
        f" (quartiles {np.quantile(ratios, 0.25):.2f} to {np.quantile(ratios, 0.75):.2f}, {rounds} pairs of steps)",
        flush=True,
    )


def quality(root: Path, ood: str, part: str, seed: int, schedule: wildood.Schedule) -> None:
    """One line for each precision: FPR95 and accuracy of a ResNet-20 after the last step of `fit`, and its CPU-seconds."""
    parts = cifar10(root, ood, seed, "test" if part == "test" else "validation")
    data = parts.labelled, parts.wild, parts.holdout
    for precision in PRECISIONS:
        began = time.process_time()
        detector = wildood.fit(
            resnet20(root), *data, input=SPEC, schedule=schedule, precision=precision, keep="last", seed=seed, verbose=False
        )
        seconds = time.process_time() - began
        scores, classes = detector.score_and_classify(parts.test_id[0])
        fpr95 = 100 * fpr_at_tpr(scores, detector.score(parts.test_ood))
        right = 100 * accuracy(classes, parts.test_id[1])
        print(
            f"seed {seed}  {precision:8s} FPR95 {fpr95:.2f} %, accuracy {right:.2f} %, {seconds:.0f} CPU-seconds",
            flush=True,
        )


def main() -> None:
    """Quality where there is data, else speed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--ood", default="svhn")
    parser.add_argument("--part", choices=["validation", "test"], default="validation")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    if arguments.data_root is None:
        for name in arguments.only:
            speed(name, arguments.batch, arguments.rounds)
        return
    schedule = wildood.Schedule(steps=arguments.steps, batch=arguments.batch)
    print(f"{arguments.ood}, {arguments.part} part, {schedule.steps} steps of 2 x {schedule.batch}", flush=True)
    for seed in arguments.seeds:
        quality(arguments.data_root, arguments.ood, arguments.part, seed, schedule)


if __name__ == "__main__":
    main()
