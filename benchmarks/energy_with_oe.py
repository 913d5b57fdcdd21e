"""The paper's baseline "Energy (w/ OE)" with and without pieces of ours: 100 released steps of a ResNet-20 against SVHN.

Run: python benchmarks/energy_with_oe.py --data-root ../shared/data [--seeds 0 1] [--weight 5] [--ood svhn]
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from cifar10 import SPEC, cifar10, resnet20
from torch import nn

import wildood
from wildood.data.validation import labelled_source, unlabelled_source
from wildood.evaluate.metrics import accuracy, fpr_at_tpr
from wildood.experiments.split import Split
from wildood.models.classifier import Outputs, copy_classifier, each_output
from wildood.train.loop import Training
from wildood.train.monitor import measure_start

STEPS = 100


def measured(model: nn.Module, parts: Split, method: wildood.EnergyLogistic, seed: int) -> tuple[float, float]:
    """FPR95 and accuracy on the test part after the last step, at the released learning rate."""
    labelled, test = labelled_source(parts.labelled, "labelled"), labelled_source(parts.test_id, "test")
    classifier, _ = copy_classifier(model, labelled, SPEC, None, uses_features=False)
    objective = method.objective(classifier, measure_start(classifier, labelled, seed))
    schedule = replace(wildood.Schedule.as_published(), epochs=None, steps=STEPS, milestones=())
    Training(objective, labelled, parts.wild, schedule, seed).train()

    def scored(outputs: Outputs) -> torch.Tensor:
        return torch.stack([objective.score(outputs), outputs.logits.argmax(1)], dim=1)

    known = each_output(classifier, test, scored).numpy()
    unknown = each_output(classifier, unlabelled_source(parts.test_ood, "ood"), scored).numpy()
    return fpr_at_tpr(known[:, 0], unknown[:, 0]), accuracy(known[:, 1], parts.test_id[1])


def main() -> None:
    """One line for each seed and variant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--ood", default="svhn")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--weight", type=float, default=5.0)
    arguments = parser.parse_args()
    model = resnet20(arguments.data_root)
    methods = {
        "with our preconditioner": wildood.EnergyLogistic(arguments.weight, precondition="shared"),
        "EnergyLogistic()": wildood.EnergyLogistic(arguments.weight),
        "EnergyLogistic.as_published()": wildood.EnergyLogistic.as_published(arguments.weight),
    }
    for seed in arguments.seeds:
        parts = cifar10(arguments.data_root, arguments.ood, seed)
        for name, method in methods.items():
            fpr95, right = measured(model, parts, method, seed)
            print(f"seed {seed}  {name}: FPR95 {100 * fpr95:.2f} %, accuracy {100 * right:.2f} %", flush=True)


if __name__ == "__main__":
    main()
