"""Every score and method on CIFAR-10 with a ResNet-20, pi = 0.1: one table. What is done is kept in a file.

Run: python benchmarks/baselines_cifar10.py --data-root ../shared/data --runs runs/baselines.jsonl --part test
"""

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cifar10 import SPEC, cifar10, resnet20

import wildood
from wildood.experiments.run import measure_detector
from wildood.experiments.split import Split
from wildood.scores.score import Score

# The settings to choose among: by how much wild data that was set aside is accepted, of those that keep the accuracy on the
# holdout within a point if there are any. No label of an OOD image is used. A score chooses by itself, inside `posthoc`.
GRIDS: dict[str, list[Any]] = {
    "max-softmax": [wildood.MaxSoftmax()],
    "max-logit": [wildood.MaxLogit()],
    "energy": [wildood.EnergyScore()],
    "ODIN": [wildood.Odin()],
    "Mahalanobis": [wildood.Mahalanobis()],
    "KNN": [wildood.Knn(k=None)],
    "ReAct": [wildood.ReAct()],
    "ViM": [wildood.Vim()],
    "OE": [wildood.OutlierExposure(weight) for weight in (0.1, 0.5, 1.0)],
    "energy, margins": [wildood.EnergyMargin(), wildood.EnergyMargin(margin_in=-23.0, margin_out=-5.0)],
    "energy, logistic": [wildood.EnergyLogistic(weight) for weight in (0.1, 1.0, 5.0)],
    "WOODS": [wildood.Woods()],
    "WOODS-alt": [wildood.WoodsAlt()],
}


def settings_of(method: Any) -> dict[str, Any]:
    """What tells one setting of a method from another."""
    return dict(method.settings) if isinstance(method, Score) else asdict(method)


def run(parts: Split, root: Path, method: Any, seed: int) -> dict[str, Any]:
    """One setting: what it does on test, and what may choose it."""
    began = time.perf_counter()
    data: dict[str, Any] = {"labelled": parts.labelled, "wild": parts.wild, "holdout": parts.holdout, "input": SPEC}
    if isinstance(method, Score):
        detector = wildood.posthoc(resnet20(root), method, **data, seed=seed)
        about: dict[str, Any] = {"chosen": detector.scorer.settings}
    else:
        detector = wildood.fit(resnet20(root), method=method, **data, seed=seed, keep="last", verbose=False)
        start, end = detector.history[0], detector.history[-1]
        about = {"acceptance": end["acceptance"], "accuracy_lost": start["accuracy"] - end["accuracy"]}
    tests, on_id, _ = measure_detector(detector, parts)
    (metrics,) = tests.values()
    return {
        "settings": settings_of(method),
        **about,
        # Not the rates at the threshold: with keep="last", what chooses a setting has also set it.
        "fpr95": metrics.fpr95,
        "auroc": metrics.auroc,
        "accuracy": on_id["accuracy"],
        "fpr95_error": metrics.fpr95_error,
        "seconds": round(time.perf_counter() - began),
    }


def table(rows: list[dict[str, Any]], oods: list[str]) -> str:
    """Of each method the setting with the least wild acceptance, as Markdown."""
    heads = [f"{ood} FPR95 ± SE | AUROC | accuracy" for ood in oods]
    lines = [f"| % | {' | '.join(heads)} | settings |", "|---" * (2 + 3 * len(oods)) + "|"]
    for name in GRIDS:
        cells, chosen = [], []
        for ood in oods:
            found = [row for row in rows if (row["method"], row["ood"]) == (name, ood)]
            if not found:
                break
            keeping = [row for row in found if row.get("accuracy_lost", 0.0) <= 0.01] or found
            best = min(keeping, key=lambda row: row.get("acceptance", 0.0))
            cells.append(
                f"{100 * best['fpr95']:.1f} ± {100 * best['fpr95_error']:.1f} | {100 * best['auroc']:.1f} | "
                f"{100 * best['accuracy']:.1f}"
            )
            varied = {k: v for k, v in best.get("chosen", best["settings"]).items() if v is not None and _is_chosen(name, k)}
            chosen.append(", ".join(f"{key} {value}" for key, value in varied.items()))
        else:
            lines.append(f"| {name} | {' | '.join(cells)} | {'; '.join(filter(None, chosen))} |")
    return "\n".join(lines)


def _is_chosen(name: str, key: str) -> bool:
    """Whether a setting of a method was chosen: it is None in the grid, or has several values there."""
    values = [settings_of(method).get(key) for method in GRIDS[name]]
    return len(set(values)) > 1 or (values == [None] and isinstance(GRIDS[name][0], Score))


def main() -> None:
    """Do what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--part", choices=["validation", "test"], default="validation")
    parser.add_argument("--ood", nargs="+", default=["svhn", "textures", "places"])
    parser.add_argument("--only", nargs="+", default=list(GRIDS))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.runs.parent.mkdir(parents=True, exist_ok=True)
    done = [json.loads(line) for line in arguments.runs.read_text().splitlines()] if arguments.runs.exists() else []
    common = {"part": arguments.part, "seed": arguments.seed}
    for ood in arguments.ood:
        parts = cifar10(arguments.data_root, ood, arguments.seed, arguments.part)
        for name, method in ((chosen, method) for chosen in arguments.only for method in GRIDS[chosen]):
            key = common | {"ood": ood, "method": name, "settings": json.loads(json.dumps(settings_of(method)))}
            if any(row | key == row for row in done):
                continue
            row = key | run(parts, arguments.data_root, method, arguments.seed)
            done.append(row)
            with arguments.runs.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)
    print(table([row for row in done if row | common == row], arguments.ood))


if __name__ == "__main__":
    main()
