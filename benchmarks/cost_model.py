"""The cost model of docs/scale.md against the clock: `fit` and scoring at 1, 10 and 100 times the wild data.

What an example costs in a forward pass, in a step, and when it is hashed is measured before and after each size, on little
data; the model says from these what the size should take (their mean: a machine is not always as fast), and it is timed.

Run: python benchmarks/cost_model.py [--wild 10000]
"""

import argparse
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median

import numpy as np
import numpy.typing as npt
import torch

import wildood
from wildood.data.fingerprint import ARRAY_SAMPLE, ExampleHashes
from wildood.data.sources import ArraySource
from wildood.data.wild import MOST_ASIDE
from wildood.detect.split import ASIDE
from wildood.methods.objective import Batch
from wildood.models.classifier import Classifier, copy_classifier, each_output
from wildood.models.small import SmallCNN
from wildood.train.lagrangian import AugmentedLagrangian
from wildood.train.monitor import measure_start
from wildood.train.transforms import gradient_transforms

IMAGE = (16, 16, 3)
LABELLED, HOLDOUT, STEPS, BATCH = 10_000, 2_000, 100, 256
SPEC = wildood.InputSpec(mean=(0.5,) * 3, std=(0.25,) * 3)


@dataclass(frozen=True)
class Costs:
    """Seconds: of a forward pass of an example, of hashing it for the record and for the search of leaks, and of a step."""

    forward: float
    record: float
    leaks: float
    step: float

    def says(self, wild: int) -> tuple[float, float]:
        """Of a fit and of scoring."""
        return self.fit(wild), self.score(wild)

    def score(self, wild: int) -> float:
        """Of scoring so many examples."""
        return wild * self.forward

    def fit(self, wild: int) -> float:
        """Of a fit: what is hashed once, the starting pass, the steps, and what is looked at after each epoch."""
        hashed = min(wild, (1 << 30) // int(np.prod(IMAGE))) + LABELLED + HOLDOUT
        searched = min(wild, ARRAY_SAMPLE) + LABELLED + HOLDOUT
        looked_at = HOLDOUT / 2 + min(ASIDE * wild, MOST_ASIDE)
        per_epoch = LABELLED // BATCH
        between = per_epoch * math.ceil(20 * looked_at / (3 * 2 * BATCH * per_epoch))  # steps
        forwards = LABELLED + HOLDOUT / 2 + (1 + math.ceil(STEPS / between)) * looked_at
        return hashed * self.record + searched * self.leaks + forwards * self.forward + STEPS * self.step


def seconds_of(work: Callable[[], object]) -> float:
    """The median of three times."""

    def once() -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    return median(once() for _ in range(3))


def measured(classifier: Classifier, examples: ArraySource) -> Costs:
    """The four costs, on some labelled examples."""
    count = len(examples)
    forward = seconds_of(lambda: each_output(classifier, examples, lambda outputs: outputs.logits)) / count
    objective = wildood.Woods().objective(classifier, measure_start(classifier, examples, 0)).train()
    lagrangian, schedule = AugmentedLagrangian(objective.duals), wildood.Schedule()
    optimiser, transforms = objective.optimiser(schedule), gradient_transforms(objective, schedule)
    raw, labels = examples.gather(torch.arange(BATCH))
    assert labels is not None  # noqa: S101 - labelled

    def steps() -> None:
        for _ in range(20):
            loss = lagrangian(objective(Batch(raw, labels, raw)))
            optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            for transform in transforms:
                transform()
            optimiser.step()

    return Costs(
        forward=forward,
        record=seconds_of(lambda: replace(examples).fingerprint()) / count,
        leaks=seconds_of(lambda: ExampleHashes(replace(examples)).values()) / count,
        step=seconds_of(steps) / 20,
    )


def main() -> None:
    """One line for each size: seconds, and seconds over what the model says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wild", type=int, default=10_000, metavar="N", help="the smallest size")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    model = SmallCNN(channels=3, size=IMAGE[0], width=32)
    some = ArraySource(np.zeros((2, *IMAGE), np.uint8))
    classifier, _ = copy_classifier(model, some, SPEC, None, uses_features=False)  # with the layout that `fit` gives it

    def known(count: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        images = rng.integers(0, 256, (count, *IMAGE), dtype=np.uint8)
        return images, each_output(classifier, ArraySource(images), lambda outputs: outputs.logits.argmax(1)).numpy()

    labelled, holdout = known(LABELLED), known(HOLDOUT)

    def costs_now() -> Costs:
        costs = measured(classifier, ArraySource(*labelled))
        hashed = 1e6 * (costs.record + costs.leaks)
        print(f"an example: forward {1e6 * costs.forward:.1f} µs, hashed {hashed:.1f} µs; a step: {1e3 * costs.step:.1f} ms")
        return costs

    before = costs_now()
    with tempfile.TemporaryDirectory() as place:
        for times in (1, 10, 100):
            wild = np.lib.format.open_memmap(Path(place) / "wild.npy", "w+", np.uint8, (times * arguments.wild, *IMAGE))
            for start in range(0, len(wild), 10_000):
                wild[start : start + 10_000] = rng.integers(0, 256, wild[start : start + 10_000].shape, dtype=np.uint8)
            began = time.perf_counter()
            detector = wildood.fit(model, labelled, wild, holdout, input=SPEC, verbose=False)
            fitted = time.perf_counter()
            detector.score(wild)
            scored = time.perf_counter()
            fit, score, after = fitted - began, scored - fitted, costs_now()
            said_fit, said_score = (mean(said) for said in zip(before.says(len(wild)), after.says(len(wild)), strict=True))
            print(
                f"{len(wild):8d} wild: fit {fit:6.1f} s, {fit / said_fit:.2f} of the model's;"
                f" score {score:6.1f} s, {score / said_score:.2f} of the model's",
                flush=True,
            )
            before = after


if __name__ == "__main__":
    main()
