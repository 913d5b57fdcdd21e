"""What the training loop costs beside the bare model: the same steps, with everything around them and without.

Run: python benchmarks/loop_overhead.py [--only MLP ResNet20 WRN-40-2] [--seconds 60]

Blocks of steps of a whole run (data, objective, duals, history, checkpoints) alternate with blocks of bare steps (forward,
the same objective, backward, step, on one resident batch), so that whatever else the machine does slows both.
"""

import argparse
import copy
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import nn

import wildood
from wildood.data.inputs import InputSpec
from wildood.data.validation import labelled_source
from wildood.data.wild import as_wild
from wildood.methods.objective import Batch, Objective
from wildood.models.classifier import Classifier
from wildood.models.resnet import ResNet20
from wildood.models.small import MLP
from wildood.models.wide_resnet import WideResNet
from wildood.train.callbacks import Callback
from wildood.train.checkpoint import Checkpoint, RunDirectory
from wildood.train.lagrangian import AugmentedLagrangian
from wildood.train.loop import Training
from wildood.train.monitor import Monitor, measure_start
from wildood.train.transforms import gradient_transforms

BLOCK_SECONDS, BLOCKS, WARM_UP = 0.5, 10, 2  # a block is as many steps as take so long; so many at least; not counted


@dataclass
class Bare:
    """The same objective on one resident batch, and nothing else."""

    objective: Objective
    batch: Batch
    schedule: wildood.Schedule
    lagrangian: AugmentedLagrangian = field(init=False)

    def __post_init__(self) -> None:
        self.objective = copy.deepcopy(self.objective).train()
        self.lagrangian = AugmentedLagrangian(self.objective.duals)
        self.optimiser = self.objective.optimiser(self.schedule)
        self.transforms = gradient_transforms(self.objective, self.schedule)

    def step(self) -> None:
        """Forward, objective, backward, gradient transforms, and the step."""
        loss = self.lagrangian(self.objective(self.batch))
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        for transform in self.transforms:
            transform()
        self.optimiser.step()


@dataclass
class Alternating(Callback):
    """Times blocks of steps of a run, and after each block as many bare steps."""

    bare: Bare
    block: int
    run_seconds: list[float] = field(default_factory=list)
    bare_seconds: list[float] = field(default_factory=list)
    began: float | None = None

    def on_step_end(self, training: Training) -> None:
        """Time the block that ends with this step."""
        if training.steps % self.block:
            return
        now = time.perf_counter()
        if self.began is not None:
            self.run_seconds.append(now - self.began)
            for _ in range(self.block):
                self.bare.step()
            self.bare_seconds.append(time.perf_counter() - now)
        self.began = time.perf_counter()

    def ratios(self) -> list[float]:
        """Of each block: images per second of the run over those of the bare steps."""
        pairs = zip(self.bare_seconds, self.run_seconds, strict=True)
        return [bare / whole for bare, whole in pairs][WARM_UP:]


def measure(name: str, model: nn.Module, spec: InputSpec | None, seconds: float) -> None:
    """One line: the steady-state ratio, and what comes before the first step and after each epoch."""
    rng = np.random.default_rng(0)
    labelled, wild, held = (_examples(rng, spec, count) for count in (10_000, 10_000, 1_000))
    method = wildood.Woods()
    classifier = Classifier(model.to(memory_format=torch.channels_last) if spec else model, spec)  # type: ignore[call-overload]
    source, pool = labelled_source(labelled, "labelled"), as_wild(wild[0])
    kept, aside = pool.set_aside(0.1, 0)
    monitor = Monitor(labelled_source(held, "holdout"), aside, 0.05)

    began = time.perf_counter()
    objective = method.objective(classifier, measure_start(classifier, source, 0))
    start_up = time.perf_counter() - began
    size = method.schedule().batch
    batch = Batch(*(torch.from_numpy(each[:size]) for each in (*labelled, wild[0])))
    bare = Bare(objective, batch, method.schedule())
    bare.step()
    began = time.perf_counter()
    for _ in range(2):
        bare.step()
    one_step = (time.perf_counter() - began) / 2
    block = max(1, round(BLOCK_SECONDS / one_step))
    began = time.perf_counter()
    monitor(objective)
    look = time.perf_counter() - began

    alternating = Alternating(bare, block)
    blocks = max(BLOCKS, int(seconds / 2 / one_step / block)) + WARM_UP + 1  # the first only starts the clock
    schedule = wildood.Schedule(steps=blocks * block)
    with tempfile.TemporaryDirectory() as place:
        run = RunDirectory(Path(place), {})
        training = Training(objective, source, kept, schedule, 0, [alternating, Checkpoint(run)])
        training.train()
    ratios = alternating.ratios()
    bare_step = statistics.median(alternating.bare_seconds) / block
    epoch = training.per_epoch * statistics.median(alternating.run_seconds) / block
    whole = start_up + 10 * (epoch + look)
    print(
        f"{name:10s} {statistics.median(ratios):5.3f} of the bare model's images/s"
        f" (quartiles {np.quantile(ratios, 0.25):.3f} to {np.quantile(ratios, 0.75):.3f}, {len(ratios)} blocks of {block};"
        f" {2 * size / bare_step:.0f} images/s bare);"
        f" of 10 epochs: start-up {start_up / whole:.1%}, looks {10 * look / whole:.1%}",
        flush=True,
    )


def _examples(rng: np.random.Generator, spec: InputSpec | None, count: int) -> tuple[np.ndarray, np.ndarray]:
    labels = rng.integers(0, 10, count)
    if spec is None:
        return rng.normal(size=(count, 128)).astype(np.float32), labels
    return rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8), labels


def main() -> None:
    """One line for each network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=["MLP", "ResNet20", "WRN-40-2"])
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    spec = InputSpec(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    networks: dict[str, tuple[Callable[[], nn.Module], InputSpec | None]] = {
        "MLP": (lambda: MLP(128, 10), None),
        "ResNet20": (ResNet20, spec),
        "WRN-40-2": (lambda: WideResNet(classes=10), spec),
    }
    for name in arguments.only:
        torch.manual_seed(0)
        make, how = networks[name]
        measure(name, make(), how, arguments.seconds)


if __name__ == "__main__":
    main()
