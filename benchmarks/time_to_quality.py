"""Time to a good detector: `Woods()`, Algorithm 1 and the released code, side by side, on CIFAR-10 with a ResNet-20.

Run: python benchmarks/time_to_quality.py --data-root ../shared/data --runs runs/quality [--part test] [--ood svhn places]
     [--seeds 0 1] [--lengths 50 100] [--pi 0.02] [--only Woods as_published]

With --part unseen, the classifier is one that was trained on half of the training images, and what it is measured on is some
of the other half: to develop on, without test images and without images that the classifier has learned by heart. Wild ID
images are of the other half, too, as where a classifier is deployed; with --part learned, it was trained on them, as in the
test part.

All start from the same weights; the seconds are those of start-up and steps, without the looks. The learning rate of
`Woods()` falls within a run, so that each length is a run of its own; the others train at one rate, and one run is looked at
every few steps. Each run is kept below --runs by its settings, so that a benchmark that was cut off goes on; another version
of the code needs another directory.
"""

import argparse
import json
import math
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from cifar10 import PI, SPEC, cifar10, resnet20
from torch import nn

import wildood
from wildood import Woods
from wildood.data.files import write_atomically
from wildood.data.validation import labelled_source, unlabelled_source
from wildood.data.wild import WildMixture
from wildood.evaluate.metrics import accuracy, fpr_at_tpr
from wildood.experiments.split import Split
from wildood.models.classifier import Outputs, copy_classifier, each_output
from wildood.train.callbacks import Callback
from wildood.train.loop import Training
from wildood.train.monitor import full_constraints, measure_start

LEVELS = (50, 30, 25, 20, 10, 5, 2)  # % FPR95
HALF = ("unseen", "learned")  # parts to develop on with the classifier that was trained on half of the images
LENGTHS = {"svhn": (50,), "textures": (100,), "places": (100, 200)}  # steps of runs of Woods()


@dataclass(frozen=True)
class Look:
    """A model after some steps: FPR95 and accuracy in %, the ID constraint on the holdout, and the seconds of training."""

    step: int
    seconds: float
    fpr95: float
    accuracy: float
    false_alarm: float


class LookAfterStep(Callback):
    """Call a function with the number of each step."""

    def __init__(self, look: Callable[[int], None]) -> None:
        self.look = look

    def on_step_end(self, training: Training) -> None:
        """Look."""
        self.look(training.steps)


def curve(
    model: nn.Module, parts: Split, method: wildood.Woods, schedule: wildood.Schedule, seed: int, every: int
) -> list[Look]:
    """A look at the start and after every few steps."""
    labelled, holdout = labelled_source(parts.labelled, "labelled"), labelled_source(parts.holdout, "holdout")
    test_id, test_ood = labelled_source(parts.test_id, "test"), unlabelled_source(parts.test_ood, "ood")
    classifier, _ = copy_classifier(model, labelled, SPEC, None, uses_features=method.uses_features)
    looks: list[Look] = []
    began = time.perf_counter()
    objective = method.objective(classifier, measure_start(classifier, labelled, seed))
    trained = time.perf_counter() - began  # what is computed before the first step is part of the method

    def scored(outputs: Outputs) -> torch.Tensor:
        return torch.stack([objective.score(outputs), outputs.logits.argmax(1)], dim=1)

    def look(step: int) -> None:
        nonlocal trained, began
        if step % every:
            return
        trained += time.perf_counter() - began
        known = each_output(classifier, test_id, scored)
        fpr = fpr_at_tpr(known[:, 0].numpy(), each_output(classifier, test_ood, scored)[:, 0].numpy())
        right = accuracy(known[:, 1].numpy(), parts.test_id[1])
        on_holdout = float(full_constraints(objective, holdout)["false_alarm"])
        looks.append(Look(step, trained, 100 * fpr, 100 * right, on_holdout))
        began = time.perf_counter()

    began = time.perf_counter()
    look(0)
    Training(objective, labelled, parts.wild, schedule, seed, [LookAfterStep(look)]).train()
    return looks


def parts_of(root: Path, ood: str, seed: int, part: str, pi: float = PI) -> Split:
    """The data of a seed; to develop on, the holdout and 30 % of the wild OOD images take the place of the test shares."""
    if part in HALF:
        return half(root, ood, seed, part, pi)
    parts = cifar10(root, ood, seed, "test", holdout=1000)
    if part == "validation":
        apart = cifar10(root, ood, seed, "validation", holdout=0)
        parts = replace(parts, wild=apart.wild, test_id=parts.holdout, tests=apart.tests)
    assert parts.wild is not None  # noqa: S101 - cifar10 mixes some
    return replace(parts, wild=WildMixture(parts.wild.id, parts.wild.ood, pi))


def half(root: Path, ood: str, seed: int, part: str, pi: float) -> Split:
    """For the classifier that has seen 10,000 of the images: the others for the holdout, to measure on, or wild."""
    with np.load(root / "cifar10.npz") as file:
        images, labels = file["train_images"], file["train_labels"].astype(np.int64)
    with np.load(root / f"{ood}.npz") as file:
        unknown = np.random.default_rng(0).permutation(file["images"])
    rng, train = np.random.default_rng(seed), int(0.7 * len(unknown))
    apart, wild = np.split(rng.permutation(unknown[:train]), [int(0.3 * train)])
    if part == "learned":
        labelled, wild_id = np.split(rng.permutation(10_000), [5_000])
        holdout, rest = np.split(10_000 + rng.permutation(10_000), [1_000])
    else:
        labelled = np.arange(10_000)
        wild_id, holdout, rest = np.split(10_000 + rng.permutation(10_000), [5_000, 6_000])
    known = [(images[chosen], labels[chosen]) for chosen in (labelled, holdout, rest)]
    mixture = WildMixture(id=images[wild_id], ood=wild, pi=pi)
    return Split(known[0], mixture, known[1], known[2], {ood: apart}, classes=10, spec=SPEC)


def kept(path: Path, make: Callable[[], list[Look]]) -> list[Look]:
    """The looks of a file, made if it is not there."""
    if not path.exists():
        write_atomically(path, json.dumps([asdict(look) for look in make()]).encode())
    return [Look(**look) for look in json.loads(path.read_text(encoding="utf-8"))]


def table(name: str, runs: list[list[Look]], batch: int) -> None:
    """Mean ± standard error at each look, the worst seed, and what it takes to come below each level."""
    fpr = np.array([[look.fpr95 for look in run] for run in runs])
    lost = np.array([[look.accuracy - run[0].accuracy for look in run] for run in runs])
    alarm = np.array([[look.false_alarm for look in run] for run in runs])
    error = fpr.std(axis=0, ddof=1) / math.sqrt(len(runs)) if len(runs) > 1 else np.zeros(fpr.shape[1])
    print(f"{name}: step, FPR95 % (worst seed), accuracy lost (worst), holdout constraint (worst)")
    for number, look in enumerate(runs[0]):
        print(
            f"  {look.step:4d}  {fpr[:, number].mean():6.2f} ± {error[number]:.2f} ({fpr[:, number].max():6.2f})"
            f"  {lost[:, number].mean():+.2f} ({lost[:, number].min():+.2f})"
            f"  {alarm[:, number].mean():+.3f} ({alarm[:, number].max():+.3f})"
        )
    for level in (level for level in LEVELS if level < fpr[0, 0]):
        first = [next((look for look in run if look.fpr95 <= level), None) for run in runs]
        there = [look for look in first if look is not None]
        if there:
            steps, seconds = (float(np.mean([getattr(look, what) for look in there])) for what in ("step", "seconds"))
            print(
                f"  below {level:2d} %: {len(there)} of {len(runs)} seeds, {steps:.0f} steps,"
                f" {2 * batch * steps:.0f} images, {seconds:.0f} s"
            )
    print(flush=True)


def picture(path: Path, curves: dict[str, dict[str, list[list[Look]]]]) -> None:
    """FPR95 by step, a panel for each OOD set, a line for each seed."""
    figure, panels = plt.subplots(1, len(curves), figsize=(4.2 * len(curves), 3.2), sharey=True, squeeze=False)
    for axes, (ood, recipes) in zip(panels[0], curves.items(), strict=True):
        for number, (name, runs) in enumerate(recipes.items()):
            for run in runs:
                label = name if run is runs[0] else None
                axes.plot(
                    [look.step for look in run],
                    [look.fpr95 for look in run],
                    color=f"C{number}",
                    lw=1,
                    marker="o",
                    ms=3,
                    label=label,
                )
        axes.set(title=ood, xlabel="steps", ylim=(0, 100))
    panels[0][0].set_ylabel("FPR95 %")
    panels[0][-1].legend(frameon=False)
    figure.savefig(path, dpi=150, bbox_inches="tight")


def main() -> None:
    """One table for each OOD set and method, and the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--part", choices=["validation", *HALF, "test"], default="validation")
    parser.add_argument("--ood", nargs="+", default=["svhn", "textures", "places"])
    parser.add_argument("--seeds", type=int, nargs="+", default=None)
    parser.add_argument("--lengths", type=int, nargs="+", help="of runs of Woods(); other ones for each set if not given")
    parser.add_argument("--steps", type=int, help="of runs of the others; 100, or as many as of Woods(), if not given")
    parser.add_argument("--every", type=int, default=50, help="steps between looks at the others")
    parser.add_argument("--pi", type=float, default=PI)
    parser.add_argument("--only", nargs="+", default=["Woods", "as_published", "Algorithm1"])
    arguments = parser.parse_args()
    root, part = arguments.data_root, arguments.part
    model = resnet20(root, "resnet20-cifar10-half" if part in HALF else "resnet20-cifar10")
    seeds = arguments.seeds or ([0, 1, 2, 3, 4] if part == "test" else [100])
    published = replace(wildood.Schedule.as_published("stationary"), epochs=None, milestones=())

    def lengths_of(ood: str) -> tuple[int, ...]:
        return tuple(arguments.lengths or LENGTHS.get(ood, (100,)))

    def ends(**settings: Any) -> Callable[[str], list[tuple[wildood.Schedule, int]]]:
        def of(ood: str) -> list[tuple[wildood.Schedule, int]]:
            return [(wildood.Schedule(steps=steps, **settings), steps) for steps in lengths_of(ood)]

        return of

    def one_run(ood: str) -> list[tuple[wildood.Schedule, int]]:
        return [(replace(published, steps=arguments.steps or max(100, *lengths_of(ood))), arguments.every)]

    recipes: dict[str, tuple[wildood.Woods, Callable[[str], list[tuple[wildood.Schedule, int]]]]] = {
        "Woods": (Woods(), ends()),
        "as_published": (Woods.as_published(), one_run),
        "Algorithm1": (Woods.algorithm1(), one_run),
        # The ablation: one thing otherwise, or several.
        "not-white": (Woods(precondition=None), ends()),  # what a model has that cannot be preconditioned
        "not-white-lambda2-0": (Woods(precondition=None, lambda2=0.0), ends()),
        "not-white-price-0.4": (Woods(precondition=None, distillation=0.4), ends()),
        "not-white-price-1": (Woods(precondition=None, distillation=1.0), ends()),
        "not-shared": (Woods(precondition="rows", distillation=1.0), ends()),
        "pace-2": (Woods(precondition_scale=2.0), ends()),
        "pace-4": (Woods(precondition_scale=4.0), ends()),
        # the recipe before the shared direction
        "before": (Woods(precondition="rows", precondition_scale=4.0, distillation=0.4), ends()),
        "no-price": (Woods(distillation=0.0, lambda2=0.0), ends()),
        "price-0.4": (Woods(distillation=0.4), ends()),
        "price-2": (Woods(distillation=2.0), ends()),
        "lambda2-1": (Woods(lambda2=1.0), ends()),
        "no-price-lambda2-1": (Woods(distillation=0.0), ends()),
        "lr-0.06": (Woods(), ends(lr=0.06)),
        "met-start": (Woods(logit_start="constraint"), ends()),
        "cosine": (Woods(), ends(decay="cosine")),
        "lr-0.01": (Woods(), ends(lr=0.01)),
        "batch-128": (Woods(), ends(batch=128, lr=0.015)),
        "no-clip": (Woods(), ends(clip=0.0)),
        "augmented": (Woods(), ends(augment=True)),
        "WoodsAlt": (wildood.WoodsAlt(), ends()),
    }
    if not set(arguments.only) <= recipes.keys():
        parser.error(f"--only takes some of {', '.join(recipes)}")
    curves: dict[str, dict[str, list[list[Look]]]] = {ood: {name: [] for name in arguments.only} for ood in arguments.ood}
    for ood in arguments.ood:
        for seed in seeds:  # side by side: whatever else the machine does, it does to all of them
            parts = parts_of(root, ood, seed, part, arguments.pi)
            for name in arguments.only:
                method, schedules = recipes[name]
                looks: list[Look] = []
                for schedule, every in schedules(ood):
                    settings = zlib.crc32(f"{method} {schedule} {every} {arguments.pi}".encode())  # other ones: another file
                    path = arguments.runs / f"{part}-{ood}-{name}-{seed}-{schedule.steps}-{settings:08x}.json"
                    make = partial(curve, model, parts, method, schedule, seed, every)
                    looks += kept(path, make)[1 if looks else 0 :]
                curves[ood][name].append(looks)
        print(f"\n{ood}, {part} part, seeds {seeds}, pi = {arguments.pi}")
        for name in arguments.only:
            table(name, curves[ood][name], recipes[name][1](ood)[0][0].batch)
    picture(arguments.runs / f"{part}-pi-{arguments.pi}.png", curves)


if __name__ == "__main__":
    main()
