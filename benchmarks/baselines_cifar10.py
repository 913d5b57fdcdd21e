"""Every score and method on CIFAR-10 with a ResNet-20, pi = 0.1: one table. What is done is kept in a file.

Run: python benchmarks/baselines_cifar10.py --data-root ../shared/data --runs runs/baselines.jsonl --part test
"""

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import wildood
from wildood.evaluate.metrics import fpr_standard_error
from wildood.experiments.cifar10 import SPEC, cifar10, resnet20
from wildood.experiments.comparison import Metrics
from wildood.experiments.parts import Parts

# The settings to choose among, by how much wild data that was set aside is accepted: no label of an OOD image is used.
TRAINED: dict[str, list[Any]] = {
    "OE": [wildood.OutlierExposure(weight) for weight in (0.1, 0.5, 1.0)],
    "energy, margins": [wildood.EnergyMargin(), wildood.EnergyMargin(margin_in=-23.0, margin_out=-5.0)],
    "energy, logistic": [wildood.EnergyLogistic(weight) for weight in (0.1, 1.0, 5.0)],
    "WOODS": [wildood.Woods()],
    "WOODS-alt": [wildood.WoodsAlt()],
}


def run(parts: Parts, root: Path, method: Any, seed: int) -> dict[str, Any]:
    """Train with one setting; what it does on test, and what may choose it."""
    began = time.perf_counter()
    detector = wildood.fit(
        resnet20(root), parts.labelled, parts.wild, parts.holdout, method=method, input=SPEC, seed=seed, verbose=False
    )
    metrics = Metrics.of(detector, parts.test_id, parts.test_ood)
    error = fpr_standard_error(detector.score(parts.test_id[0]), detector.score(parts.test_ood))
    kept = detector.record["kept_epoch"]
    return {
        "settings": asdict(method),
        "acceptance": detector.history[kept]["acceptance"],
        "kept": f"{kept} of {len(detector.history) - 1}",
        "fpr95_error": error,
        **asdict(metrics),
        "seconds": round(time.perf_counter() - began),
    }


def main() -> None:
    """Do what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--part", choices=["validation", "test"], default="validation")
    parser.add_argument("--ood", nargs="+", default=["svhn", "textures", "places"])
    parser.add_argument("--only", nargs="+", default=None)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.runs.parent.mkdir(parents=True, exist_ok=True)
    done = [json.loads(line) for line in arguments.runs.read_text().splitlines()] if arguments.runs.exists() else []
    for ood in arguments.ood:
        parts = cifar10(arguments.data_root, ood, arguments.seed, arguments.part)
        for name, methods in TRAINED.items():
            if arguments.only and name not in arguments.only:
                continue
            for method in methods:
                key = {"part": arguments.part, "seed": arguments.seed, "ood": ood, "method": name}
                if any(row | key == row and row["settings"] == asdict(method) for row in done):
                    continue
                row = key | run(parts, arguments.data_root, method, arguments.seed)
                done.append(row)
                with arguments.runs.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
