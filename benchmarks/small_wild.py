"""What the second training is worth where little wild data is there: `fit` with 200 to 1,000 wild examples.

Run: python benchmarks/small_wild.py --data-root ../shared/data [--seeds 0 1] [--wild 200 500 1000] [--pi 0.3]

The quick problems of `benchmarks/habitats.py`, validation part. FPR95 of the start's energy, of the training on half of the
wild data (the trial), and of what is deployed: the detector that was trained again on all of it, or the start.
"""

import argparse
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from habitat_problems import problems
from habitats import measure

import wildood


def main() -> None:
    """Print a line for each fit, then the geometric mean of what the second training changed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--wild", type=int, nargs="+", default=[200, 500, 1000])
    parser.add_argument("--pi", type=float, default=0.3)
    parser.add_argument("--problems", nargs="+", default=["NSL", "CLINC", "digits"], help="parts of names")
    arguments = parser.parse_args()
    chosen = [each for each in problems() if each.quick and any(part in each.name for part in arguments.problems)]
    ratios, kept = [], 0
    print("| problem | wild | seed | start | trial | deployed |\n|---|---|---|---|---|---|")
    for problem, count, seed in ((p, n, s) for p in chosen for n in arguments.wild for s in arguments.seeds):
        habitat = problem.draw(arguments.data_root, seed, "validation", arguments.pi)
        wild = np.asarray(habitat.wild)[:count]
        given: dict[str, Any] = {"input": habitat.spec, "allow_duplicates": True}
        start = wildood.posthoc(habitat.model, wildood.EnergyScore(), holdout=habitat.holdout, **given)
        data = habitat.labelled, wild, habitat.holdout
        detector = wildood.fit(habitat.model, *data, seed=seed, verbose=False, **given)
        every = (start, detector.trial, detector)
        found = [None if each is None else measure(each, habitat, 0.0, "").fpr95 for each in every]
        kept += bool(detector.record["assessment"]["start_kept"])
        if found[1] is not None and found[2] is not None:
            ratios.append(max(found[2], 0.005) / max(found[1], 0.005))
        texts = ["" if each is None else f"{100 * each:.1f}" for each in found]
        print(f"| {problem.name} | {len(wild)} | {seed} | {' | '.join(texts)} |", flush=True)
    better = sum(ratio < 1 for ratio in ratios)
    print(f"start kept: {kept}; trained again: {len(ratios)}, of which {better} became better")
    if ratios:
        print(f"geometric mean of FPR95 after over before the second training: {np.exp(np.mean(np.log(ratios))):.2f}")


if __name__ == "__main__":
    main()
