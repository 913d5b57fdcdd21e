"""WOODS beside the released code and Algorithm 1, step by step, on CIFAR-10 with a ResNet-20.

Run: python benchmarks/woods_cifar10.py --data-root ../shared/data [--part test]
"""

import argparse
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

import wildood
from wildood.data.given import labelled_source, unlabelled_source
from wildood.data.sampling import generator
from wildood.evaluate.metrics import accuracy, fpr_at_tpr
from wildood.experiments.cifar10 import SPEC, cifar10, resnet20
from wildood.experiments.parts import Parts
from wildood.methods.objective import Objective, Start
from wildood.methods.woods import SigmoidLevel, WoodsObjective
from wildood.models.outputs import Classifier, each_output
from wildood.train.loop import Training
from wildood.train.monitor import start_of

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


def run(root: Path, parts: Parts, method: wildood.Woods, schedule: wildood.Schedule, seed: int) -> list[tuple[float, float]]:
    """FPR95 and accuracy in percent, at the start and every 25 steps."""
    classifier = Classifier(resnet20(root).to(memory_format=torch.channels_last), SPEC)  # type: ignore[call-overload]
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
    root = arguments.data_root
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
                run(root, cifar10(root, ood, seed, arguments.part, holdout=0), method, schedule, seed) for seed in seeds
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
