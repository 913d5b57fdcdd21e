"""WOODS beside the released code and Algorithm 1, step by step, on CIFAR-10 with a ResNet-20.

Run: python benchmarks/woods_cifar10.py --data-root ../shared/data [--part test]
"""

import argparse
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file

import wildood
from wildood.data.given import labelled_source, unlabelled_source
from wildood.data.sampling import generator
from wildood.evaluate.metrics import accuracy, fpr_at_tpr
from wildood.methods.objective import Objective, Start
from wildood.methods.woods import SigmoidLevel, WoodsObjective
from wildood.models.outputs import Classifier, each_output
from wildood.models.resnet import ResNet20
from wildood.train.loop import Training
from wildood.train.monitor import start_of

Images = npt.NDArray[np.uint8]
SPEC = wildood.InputSpec(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
EVERY = 25


@dataclass(frozen=True)
class Algorithm1(wildood.Woods):
    """The paper's Algorithm 1 from the released start and with its weight decay; only the sign of w is fixed.

    (At these settings, projecting λ is the same as the paper's step while β = μ₂, and the cap on β is never reached.)
    """

    gamma: float = 1.5
    mu2: float = 1.0
    lambda1: float = 0.0
    lambda2: float = 0.0

    def objective(self, classifier: Classifier, start: Start) -> Objective:
        """The drawn w, made negative."""
        w, b = (torch.rand(2, generator=generator(start.seed, "w, b")) * 2 - 1).tolist()
        objective = WoodsObjective(self, classifier, SigmoidLevel(-abs(w), b), self.tau_from(start))
        objective.decay_all = True
        return objective


class Parts(NamedTuple):
    """10,000 labelled, 10,000 wild-ID, OOD 70 / 30; for development, parts of the wild pools are held back instead."""

    labelled: tuple[Images, npt.NDArray[np.int64]]
    wild: wildood.WildMixture
    test_id: tuple[Images, npt.NDArray[np.int64]]
    test_ood: Images


def cifar10(root: Path, ood_name: str, seed: int, part: str) -> Parts:
    """The data of one seed."""
    with np.load(root / "cifar10.npz") as file:
        images, labels = file["train_images"], file["train_labels"].astype(np.int64)
        test_id = file["test_images"], file["test_labels"].astype(np.int64)
    with np.load(root / f"{ood_name}.npz") as file:
        unknown = file["images"]
    train = int(0.7 * len(unknown))
    unknown = np.random.default_rng(0).permutation(
        unknown
    )  # the test share is the same for every seed: none is developed on
    test_ood = unknown[train:]
    rng = np.random.default_rng(seed)
    order, wild_ood = rng.permutation(len(images)), rng.permutation(unknown[:train])
    wild_id = order[10_000:]
    if part == "validation":
        held, wild_id = np.split(wild_id, [2_000])
        test_id = images[held], labels[held]
        test_ood, wild_ood = np.split(wild_ood, [int(0.3 * train)])
    mixture = wildood.WildMixture(id=images[wild_id], ood=wild_ood, pi=0.1)
    return Parts((images[order[:10_000]], labels[order[:10_000]]), mixture, test_id, test_ood)


def run(root: Path, parts: Parts, method: wildood.Woods, schedule: wildood.Schedule, seed: int) -> list[tuple[float, float]]:
    """FPR95 and accuracy in percent, at the start and every 25 steps."""
    model = ResNet20()
    model.load_state_dict(load_file(root / "weights" / "resnet20-cifar10.safetensors"))
    classifier = Classifier(model.to(memory_format=torch.channels_last), SPEC)  # type: ignore[call-overload]
    labelled = labelled_source(parts.labelled, "labelled")
    test_id, test_ood = labelled_source(parts.test_id, "test"), unlabelled_source(parts.test_ood, "ood")
    curve: list[tuple[float, float]] = []

    def look(step: int, objective: Objective) -> None:
        if step % EVERY == 0:
            logits = each_output(classifier, test_id, lambda outputs: outputs.logits)
            id_scores = -logits.logsumexp(1)
            fpr = fpr_at_tpr(id_scores.numpy(), each_output(classifier, test_ood, objective.score).numpy())
            curve.append((100 * fpr, 100 * accuracy(logits.argmax(1).numpy(), parts.test_id[1])))

    objective = method.objective(classifier, start_of(classifier, labelled, seed))
    look(0, objective)
    Training(objective, labelled, parts.wild, schedule, seed, keep="last", on_step=look).train()
    return curve


def main() -> None:
    """One table for each OOD set: mean ± standard error over seeds, and the worst seed at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--part", choices=["validation", "test"], default="validation")
    parser.add_argument("--ood", nargs="+", default=["svhn", "places"])
    parser.add_argument("--seeds", type=int, nargs="+", default=None)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--only", nargs="+", default=["Woods", "as_published", "Algorithm1"])
    arguments = parser.parse_args()
    seeds = arguments.seeds or ([0, 1, 2] if arguments.part == "test" else [100])
    published = replace(wildood.Schedule.as_published("stationary"), epochs=None, steps=arguments.steps, milestones=())
    recipes = {
        "Woods": (wildood.Woods(), replace(wildood.Woods().schedule(), steps=arguments.steps)),
        "as_published": (wildood.Woods.as_published(), published),
        "Algorithm1": (Algorithm1(), published),
    }
    for ood in arguments.ood:
        print(
            f"\n{ood}, {arguments.part} part, seeds {seeds}, pi = 0.1, 128 + 128 per step: FPR95 / accuracy, %", flush=True
        )
        for name in arguments.only:
            method, schedule = recipes[name]
            began = time.perf_counter()
            curves = [
                run(arguments.data_root, cifar10(arguments.data_root, ood, seed, arguments.part), method, schedule, seed)
                for seed in seeds
            ]
            seconds = (time.perf_counter() - began) / len(seeds)
            columns = np.array(curves)  # seed, step, (FPR95, accuracy)
            error = columns.std(axis=0, ddof=1) / np.sqrt(len(seeds)) if len(seeds) > 1 else np.zeros(columns.shape[1:])
            print(f"{name} ({seconds:.0f} s a run)")
            for number, (fpr, correct) in enumerate(columns.mean(axis=0)):
                print(f"  step {EVERY * number:3d}  {fpr:6.2f} ± {error[number, 0]:.2f}   {correct:6.2f}")
            worst = columns[:, -1, 0].max(), (columns[:, -1, 1] - columns[:, 0, 1]).min()
            print(f"  worst seed at the end: FPR95 {worst[0]:.2f}, accuracy {worst[1]:+.2f}", flush=True)


if __name__ == "__main__":
    main()
