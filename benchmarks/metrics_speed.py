"""What all metrics of ten million scores cost beside one sort of them and beside scikit-learn, side by side in one run.

Run: python benchmarks/metrics_speed.py [--scores 10000000] [--rounds 3]
"""

import argparse
import time
import tracemalloc
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from wildood.evaluate.metrics import Metrics, all_metrics

Scores = npt.NDArray[np.float64]
Result = TypeVar("Result")
REPEATS = 3  # of what takes a tenth of a second, which other work on the machine may stretch many times


def timed(task: Callable[[], Result], repeats: int = 1) -> tuple[float, Result]:
    """How many seconds one call takes, at best of some, and what it returns."""
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        result = task()
        seconds.append(time.perf_counter() - began)
    return min(seconds), result


def by_scikit_learn(is_ood: npt.NDArray[np.bool_], scores: Scores) -> Metrics:
    """The same five numbers: FPR95 is read off the curve, once for each class as the positive one."""
    fpr = []
    for positive, ranked in ((~is_ood, -scores), (is_ood, scores)):
        false_positives, true_positives, _ = roc_curve(positive, ranked, drop_intermediate=False)
        fpr.append(float(false_positives[np.argmax(true_positives >= 0.95)]))
    return Metrics(
        fpr_at_tpr=fpr[0],
        fpr_at_tpr_ood_positive=fpr[1],
        auroc=float(roc_auc_score(is_ood, scores)),
        aupr_in=float(average_precision_score(~is_ood, -scores)),
        aupr_out=float(average_precision_score(is_ood, scores)),
    )


def measure(name: str, known: Scores, unknown: Scores, rounds: int) -> None:
    """Print the median ratios over rounds, what memory it took at most, and how far the values are from scikit-learn's."""
    scores, is_ood = np.concatenate([known, unknown]), np.arange(len(known) + len(unknown)) >= len(known)
    sorts, sklearns = [], []
    for _ in range(rounds):
        sort, _ = timed(lambda: np.sort(scores), REPEATS)
        ours, found = timed(lambda: all_metrics(known, unknown), REPEATS)
        theirs, expected = timed(lambda: by_scikit_learn(is_ood, scores))
        sorts.append(ours / sort)
        sklearns.append(ours / theirs)
    tracemalloc.start()
    all_metrics(known, unknown)
    copies = tracemalloc.get_traced_memory()[1] / scores.nbytes
    tracemalloc.stop()
    apart = max(abs(getattr(found, field) - getattr(expected, field)) for field in Metrics.__dataclass_fields__)
    print(
        f"{name:18} {ours:5.2f} s; over one sort {np.median(sorts):5.2f} (goal 10); over scikit-learn "
        f"{np.median(sklearns):.3f} (goal 0.25); memory {copies:.2f} copies besides the scores themselves (goal 4); "
        f"largest difference {apart:.0e}",
        flush=True,
    )


def main() -> None:
    """Half of the scores ID, half OOD: all different, or rounded so that most are tied."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scores", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    known, unknown = rng.normal(size=arguments.scores // 2), rng.normal(size=arguments.scores // 2) + 2
    print(f"all metrics of {arguments.scores} scores; median of {arguments.rounds} rounds; lower is better")
    for kind in ("float64", "float32"):
        measure(kind, known.astype(kind), unknown.astype(kind), arguments.rounds)
        measure(f"{kind}, tied", known.round(2).astype(kind), unknown.round(2).astype(kind), arguments.rounds)


if __name__ == "__main__":
    main()
