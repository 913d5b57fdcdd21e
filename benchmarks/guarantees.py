"""Do the promises hold? Thresholds, the bound on pi, the test for OOD and the choice of a detector, on CIFAR-10 and SVHN.

A ResNet-20 that was trained on 10,000 CIFAR-10 images learns from 5,000 more and SVHN in the wild (pi = 0.1). 10,000 images
that it has never seen are then divided anew, 1,000 times: 4,000 for the holdout, about 3,600 for wild data, the others are
fresh. The same with a classifier that has seen its holdout, to show what the warning is for. Scores are kept in --runs.

Run: python benchmarks/guarantees.py --data-root ../shared/data --runs runs/guarantees
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from cifar10 import PI, SPEC, resnet20

import wildood
from wildood.evaluate.metrics import fpr_at_tpr, fpr_standard_error
from wildood.evaluate.mixture import unknown_share
from wildood.evaluate.ranking import Candidate, rank_candidates
from wildood.evaluate.thresholds import conformal_threshold

Array = npt.NDArray[Any]
SEEDS, DIVISIONS = (0, 1, 2), 1000
HOLDOUT, WILD, ALPHA, CONFIDENCE = 4000, 4000, 0.05, 0.95
SCORES: dict[str, Callable[[], Any]] = {
    "max-softmax": wildood.MaxSoftmax,
    "max-logit": wildood.MaxLogit,
    "energy": wildood.EnergyScore,
    "KNN": lambda: wildood.Knn(k=50),
    "ReAct": wildood.ReAct,
    "ViM": wildood.Vim,
}


class Data:
    """CIFAR-10 and SVHN, in the parts that a classifier has seen and has not seen."""

    def __init__(self, root: Path, seed: int) -> None:
        with np.load(root / "cifar10.npz") as file:
            images, labels = file["train_images"], file["train_labels"].astype(np.int64)
            test = file["test_images"], file["test_labels"].astype(np.int64)
        with np.load(root / "svhn.npz") as file:
            unknown = np.random.default_rng(seed).permutation(file["images"])
        self.labelled = images[:10_000], labels[:10_000]
        self.wild_id = images[10_000:15_000]
        self.pool = np.concatenate([images[15_000:], test[0]]), np.concatenate([labels[15_000:], test[1]])
        self.seen = images[:5_000]
        self.wild_ood, self.ood = np.split(unknown, [int(0.7 * len(unknown))])


def candidates(root: Path, data: Data, seed: int) -> dict[str, wildood.Detector]:
    """WOODS after training, and scores on the classifier that it started from."""
    model = resnet20(root, "resnet20-cifar10-half")
    given: dict[str, Any] = {"labelled": data.labelled, "input": SPEC, "seed": seed}
    wild = wildood.WildMixture(id=data.wild_id, ood=data.wild_ood, pi=PI)
    found = {"WOODS": wildood.fit(model, wild=wild, verbose=False, **given)}
    return found | {name: wildood.posthoc(model, score(), **given) for name, score in SCORES.items()}


def scored(root: Path, runs: Path, seed: int) -> dict[str, Array]:
    """What every candidate says of the pool and of the OOD images; and the energy of one that has seen its holdout."""
    path = runs / f"seed-{seed}.npz"
    if not path.exists():
        data = Data(root, seed)
        arrays: dict[str, Array] = {}
        for name, detector in candidates(root, data, seed).items():
            arrays[f"{name}/id"], classes = detector.score_and_classify(data.pool[0])
            arrays[f"{name}/ood"] = detector.score(data.ood)
            arrays[f"{name}/correct"] = classes == data.pool[1]
        full = wildood.posthoc(resnet20(root), wildood.EnergyScore(), holdout=data.seen, input=SPEC)
        arrays["seen/holdout"], arrays["seen/fresh"] = full.score(data.seen), full.score(data.pool[0][5_000:])
        runs.mkdir(parents=True, exist_ok=True)
        np.savez(path, **arrays)  # type: ignore[arg-type]
    with np.load(path) as file:
        return dict(file)


class Division:
    """One division of the pool: which images are the holdout, in the wild data, and fresh; and the wild data's OOD."""

    def __init__(self, rng: np.random.Generator, pool: int, ood: int, pi: float) -> None:
        unknown = int(rng.binomial(WILD, pi))
        order = rng.permutation(pool)
        self.holdout, self.known, self.fresh = np.split(order, [HOLDOUT, HOLDOUT + WILD - unknown])
        self.unknown = rng.choice(ood, unknown, replace=False)


def divide(scores: dict[str, Array], rng: np.random.Generator) -> dict[str, float]:
    """What one division shows for WOODS."""
    known, unknown = scores["WOODS/id"], scores["WOODS/ood"]
    part = Division(rng, len(known), len(unknown), PI)
    share = unknown_share(known[part.holdout], np.concatenate([known[part.known], unknown[part.unknown]]), CONFIDENCE)
    clean = Division(rng, len(known), len(unknown), 0.0)
    none = unknown_share(known[clean.holdout], known[clean.known], CONFIDENCE)
    marginal = conformal_threshold(known[part.holdout], ALPHA)
    # A rate that is surely kept is a rate of all images that might come: the pool stands for them, and the holdout is drawn
    # from it. A rate measured on few fresh images would be above alpha by their luck alone.
    sure = conformal_threshold(rng.choice(known, HOLDOUT), ALPHA, CONFIDENCE)
    seen = rng.permutation(scores["seen/holdout"])
    seen_none = unknown_share(seen[:HOLDOUT], rng.permutation(scores["seen/fresh"])[:WILD], CONFIDENCE)
    return {
        "false alarms": float(np.mean(known[part.fresh] > marginal)),
        "false alarms, confidence": float(np.mean(known > sure)),
        "bound": share.bound,
        "covers": float(share.bound <= PI),
        "rejects at pi = 0": float(none.p_value <= 1 - CONFIDENCE),
        "seen: false alarms": float(np.mean(scores["seen/fresh"] > conformal_threshold(seen[:HOLDOUT], ALPHA))),
        "seen: rejects at pi = 0": float(seen_none.p_value <= 1 - CONFIDENCE),
    }


def choose(scores: dict[str, Array], names: list[str], rng: np.random.Generator) -> tuple[str, bool]:
    """Which candidate one division chooses, and whether it is separated from the others."""
    part = Division(rng, len(scores[f"{names[0]}/id"]), len(scores[f"{names[0]}/ood"]), PI)
    seen = []
    for name in names:
        known, unknown = scores[f"{name}/id"], scores[f"{name}/ood"]
        wild = np.concatenate([known[part.known], unknown[part.unknown]])
        seen.append(Candidate(name, known[part.holdout], wild, scores[f"{name}/correct"][part.holdout]))
    ranking = rank_candidates(seen, ALPHA, confidence=CONFIDENCE)
    return ranking.places[0].name, ranking.separated


def main() -> None:
    """Score once for each training, divide many times, and print what happened."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    arguments = parser.parse_args()
    for seed in SEEDS:
        scores = scored(arguments.data_root, arguments.runs, seed)
        rng = np.random.default_rng(seed)
        rows = [divide(scores, rng) for _ in range(DIVISIONS)]
        column = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        print(f"training {seed}, {DIVISIONS} divisions")
        for name in ("false alarms", "false alarms, confidence", "seen: false alarms"):
            above = np.mean(column[name] > ALPHA)
            print(f"  {name}: {100 * column[name].mean():.2f} % on average, above alpha in {100 * above:.1f} % of divisions")
        print(
            f"  bound on pi = {PI}: median {np.median(column['bound']):.4f}, holds in {100 * column['covers'].mean():.1f} %"
        )
        for name in ("rejects at pi = 0", "seen: rejects at pi = 0"):
            print(f"  {name}: in {100 * column[name].mean():.1f} % of divisions")
        fpr = {name: fpr_at_tpr(scores[f"{name}/id"], scores[f"{name}/ood"]) for name in ("WOODS", *SCORES)}
        print("  FPR95 " + ", ".join(f"{name} {100 * value:.1f}" for name, value in fpr.items()))
        for names in (["WOODS", *SCORES], list(SCORES)):
            chosen = [choose(scores, names, rng) for _ in range(DIVISIONS)]
            best = min(names, key=fpr.__getitem__)
            error = fpr_standard_error(scores[f"{best}/id"], scores[f"{best}/ood"])
            near = np.mean([fpr[name] - fpr[best] <= max(0.02, 2 * error) for name, _ in chosen])
            counts = {name: sum(first == name for first, _ in chosen) for name in names}
            said = ", ".join(f"{name} {count}" for name, count in counts.items() if count)
            print(
                f"  choice among {len(names)} (best: {best}): within 2 points or 2 standard errors in {100 * near:.1f} %, "
                f"separated in {100 * np.mean([separated for _, separated in chosen]):.1f} %; chosen: {said}"
            )


if __name__ == "__main__":
    main()
