"""`fit` with all defaults beside everything else, on many real problems: images, texts and tables, with and without drift.

Run: python benchmarks/habitats.py --data-root ../shared/data --runs runs/habitats [--part test] [--workers 2]
     [--problems NSL digits] [--rows start "Woods()"] [--pi 0.1] [--seeds 0 1]

A cell of the table is a problem at a share of unknowns; its numbers are means over seeds. By default, the quick problems
have three shares and five seeds, those on CIFAR-10 one share and three seeds. Develop on the validation part; look at the
test part once. Each run is kept below --runs, so that a benchmark that was cut off goes on; another version of the code
needs another directory. The rows:

  start           the energy of the classifier as it is
  post-hoc, wild  the post-hoc score of the start that accepts the least wild data, at equal false alarms on the holdout
  post-hoc, best  the one with the lowest FPR95 on the data it is measured on: hindsight, no method
  ensemble        the `Ensemble` score of the start, which nothing chooses
  OE, logistic    100 steps with the learning rate of `Woods()`; the last epoch is kept
  algorithm1, as_published
                  1,000 steps (on CIFAR-10 100) with the published rate and batches; the last epoch is kept
  WOODS-alt       `fit` with all defaults but the method
  Woods()         `fit` with all defaults
  ceiling         the same, with the unknown examples of the wild data alone as wild data: it has OOD labels

and, if they are asked for, "400 fresh" and "2400 fresh": `Woods()` with so many known examples of today as `fresh` (of the
problems with drift, whose name has "next day").
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of each worker

import numpy as np
import torch
from habitat_problems import Habitat, Part, Problem, problems

import wildood
from wildood import EnergyLogistic, OutlierExposure, Schedule, Woods, WoodsAlt
from wildood.data.files import write_atomically
from wildood.errors import InputError
from wildood.evaluate.metrics import accuracy, fpr_at_tpr, mean_and_error
from wildood.evaluate.selection import compare_acceptance
from wildood.methods.objective import Method
from wildood.scores.score import Score

QUICK_PI, QUICK_SEEDS = (0.02, 0.1, 0.3), (0, 1, 2, 3, 4)
SLOW_PI, SLOW_SEEDS = (0.1,), (0, 1, 2)
LEAST = 0.005  # the FPR95 that a smaller one counts as in a geometric mean
SCORES: tuple[Callable[[], Score], ...] = (
    wildood.EnergyScore,
    wildood.MaxSoftmax,
    wildood.MaxLogit,
    wildood.Knn,
    lambda: wildood.Mahalanobis(epsilon=0.0),
    wildood.RelativeMahalanobis,
    wildood.ReAct,
    wildood.Vim,
)
POSTHOC = ("start", "post-hoc, wild", "post-hoc, best", "ensemble")
FRESH = {"400 fresh": 400, "2400 fresh": 2400}
ROWS = (*POSTHOC, "OE", "logistic energy", "algorithm1", "as_published", "WOODS-alt", "Woods()", "ceiling")


@dataclass(frozen=True)
class Result:
    """A detector of one row, on one draw of one problem: shares from 0 to 1."""

    fpr95: float
    accuracy: float
    false_alarms: float
    seconds: float
    what: str = ""  # the score or the step that was deployed
    warnings: tuple[str, ...] = ()


def measure(detector: wildood.Detector, habitat: Habitat, seconds: float, what: str) -> Result:
    """The detector on the data that nothing else has seen."""
    x, y = habitat.test_id
    known, unknown = detector.score(x), detector.score(habitat.test_ood)
    rejected = float(np.mean(detector.predict(x) == wildood.UNKNOWN))
    right = accuracy(detector.classify(x), y)
    return Result(fpr_at_tpr(known, unknown), right, rejected, seconds, what, tuple(detector.warnings))


def posthoc_rows(habitat: Habitat) -> dict[str, Result]:
    """The start with each post-hoc score, of which one is chosen by wild data and one by hindsight."""
    wild = habitat.wild.whole(seed=0) if isinstance(habitat.wild, wildood.WildMixture) else habitat.wild
    found: list[tuple[float, Result]] = []
    ensemble: Result | None = None
    for make in (*SCORES, wildood.Ensemble):
        began = time.perf_counter()
        try:
            given: dict[str, Any] = {"labelled": habitat.labelled, "holdout": habitat.holdout, "input": habitat.spec}
            detector = wildood.posthoc(habitat.model, make(), **given, allow_duplicates=True)
        except InputError:  # a model without features, or too few examples
            continue
        result = measure(detector, habitat, time.perf_counter() - began, type(detector.scorer).__name__)
        if isinstance(detector.scorer, wildood.Ensemble):
            ensemble = result
            continue
        scores = detector.score(habitat.holdout[0]), detector.score(wild)
        found.append((compare_acceptance(scores, scores, 0.05).start, result))
    results = [result for _, result in found]
    return {
        "start": results[0],
        "post-hoc, wild": min(found, key=lambda each: each[0])[1],
        "post-hoc, best": min(results, key=lambda result: result.fpr95),
        "ensemble": ensemble or results[0],
    }


def trained_row(row: str, habitat: Habitat, seed: int, *, quick: bool) -> Result:
    """The detector of a method."""
    shortest = Schedule().fixed()
    published = replace(Schedule.as_published(), epochs=None, steps=1000 if quick else 100)
    methods: dict[str, tuple[Method, dict[str, Any]]] = {
        "OE": (OutlierExposure(), {"schedule": shortest, "keep": "last"}),
        "logistic energy": (EnergyLogistic(), {"schedule": shortest, "keep": "last"}),
        "algorithm1": (Woods.algorithm1(), {"schedule": published, "keep": "last"}),
        "as_published": (Woods.as_published(), {"schedule": published, "keep": "last"}),
        "WOODS-alt": (WoodsAlt(), {}),
        "Woods()": (Woods(), {}),
        "ceiling": (Woods(), {}),
        **{name: (Woods(), {"fresh": habitat.fresh[0][:count]}) for name, count in FRESH.items()},
    }
    method, settings = methods[row]
    wild = habitat.wild_ood if row == "ceiling" else habitat.wild
    began = time.perf_counter()
    data = habitat.labelled, wild, habitat.holdout
    detector = wildood.fit(
        habitat.model, *data, method=method, input=habitat.spec, seed=seed, allow_duplicates=True, verbose=False, **settings
    )
    seconds = time.perf_counter() - began
    kept, last = detector.history[detector.record["kept_epoch"]]["step"], detector.history[-1]["step"]
    what = f"{type(detector.scorer).__name__} at step {kept:.0f} of {last:.0f}"
    return measure(detector, habitat, seconds, what)


def run(root: Path, runs: Path, part: Part, rows: list[str], problem: str, pi: float, seed: int) -> None:
    """Draw a problem and run the rows that are not kept yet."""
    torch.set_num_threads(1)
    chosen = next(each for each in problems() if each.name == problem)
    paths = {row: run_path(runs, part, problem, pi, seed, row) for row in rows}
    missing = [row for row in rows if not paths[row].exists()]
    if not missing:
        return
    habitat = chosen.draw(root, seed, part, pi)
    kept = posthoc_rows(habitat) if set(missing) & set(POSTHOC) else {}
    for row in missing:
        result = kept[row] if row in kept else trained_row(row, habitat, seed, quick=chosen.quick)
        paths[row].parent.mkdir(parents=True, exist_ok=True)
        write_atomically(paths[row], json.dumps(asdict(result)).encode())
        print(f"{problem}, pi {pi}, seed {seed}, {row}: {100 * result.fpr95:.1f} % ({result.what}, {result.seconds:.0f} s)")


def run_path(runs: Path, part: Part, problem: str, pi: float, seed: int, row: str) -> Path:
    """Where a result is kept."""
    return runs / part / problem / f"{row} pi {pi:g} seed {seed}.json"


def table(runs: Path, part: Part, rows: list[str], cells: Iterable[tuple[str, float, list[int]]]) -> str:
    """FPR95 in %, mean ± standard error over seeds; below, ranks and the geometric mean of FPR95 over the start's."""
    lines = [["problem", "pi", "seeds", *rows, "Woods() worse than"]]
    ratios: dict[str, list[float]] = {row: [] for row in rows}
    ranks: dict[str, list[int]] = {row: [] for row in rows}
    for problem, pi, seeds in cells:
        found: dict[str, list[Result]] = {row: [] for row in rows}
        common = [seed for seed in seeds if all(run_path(runs, part, problem, pi, seed, row).exists() for row in rows)]
        for row in rows:
            for seed in common:
                content = json.loads(run_path(runs, part, problem, pi, seed, row).read_text(encoding="utf-8"))
                found[row].append(Result(**content))
        if not common:
            continue
        means = {row: mean_and_error([result.fpr95 for result in results]) for row, results in found.items()}
        order = sorted(rows, key=lambda row: means[row][0])
        for row in rows:
            ranks[row].append(1 + order.index(row))
            if "start" in rows:
                ratios[row].append(max(LEAST, means[row][0]) / max(LEAST, means["start"][0]))
        texts = [
            f"{100 * mean:.1f}" + ("" if len(common) == 1 else f" ± {100 * error:.1f}") for mean, error in means.values()
        ]
        lines.append([problem, f"{pi:g}", str(len(common)), *texts, worse_than(found)])
    lines.append(["geometric mean over the start", "", "", *(f"{_geometric(ratios[row]):.3f}" for row in rows), ""])
    lines.append(["mean rank", "", "", *(f"{np.mean(ranks[row]):.1f}" if ranks[row] else "" for row in rows), ""])
    head, *body = ("| " + " | ".join(line) + " |" for line in lines)
    return "\n".join([head, "|" + "---|" * len(lines[0]), *body])


def worse_than(found: dict[str, list[Result]]) -> str:
    """What `Woods()` is worse than by more than the standard error of the difference, and in how many of these it warned."""
    if "Woods()" not in found:
        return ""
    ours, named = found["Woods()"], []
    for row in ("start", "post-hoc, wild"):
        if row not in found:
            continue
        differences = [one.fpr95 - other.fpr95 for one, other in zip(ours, found[row], strict=True)]
        mean, error = mean_and_error(differences)
        if mean > np.nan_to_num(error):  # of one seed, it is not known
            worse = [result for result, difference in zip(ours, differences, strict=True) if difference > 0]
            warned = sum(bool(result.warnings) for result in worse)
            named.append(f"{row} by {100 * mean:.1f} (warned in {warned} of {len(worse)})")
    return "; ".join(named)


def _geometric(values: list[float]) -> float:
    return float(np.exp(np.mean(np.log(values)))) if values else float("nan")


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--part", choices=["validation", "test"], default="validation")
    parser.add_argument("--problems", nargs="+", default=[""], help="parts of names, such as NSL or 'CIFAR-10 half'")
    parser.add_argument("--rows", nargs="+", choices=[*ROWS, *FRESH], default=list(ROWS))
    parser.add_argument("--pi", type=float, nargs="+")
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only-table", action="store_true", help="print the table of the runs that are kept")
    arguments = parser.parse_args()

    def of(problem: Problem) -> tuple[list[float], list[int]]:
        pi, seeds = (QUICK_PI, QUICK_SEEDS) if problem.quick else (SLOW_PI, SLOW_SEEDS)
        return arguments.pi or list(pi), arguments.seeds or list(seeds)

    chosen = [each for each in problems() if any(part in each.name for part in arguments.problems)]
    cells = [(problem.name, pi, of(problem)[1]) for problem in chosen for pi in of(problem)[0]]
    if not arguments.only_table:
        common = arguments.data_root, arguments.runs, arguments.part, arguments.rows
        # One seed of every problem first: a table that is cut off has all cells.
        tasks = sorted(((seed, problem, pi) for problem, pi, seeds in cells for seed in seeds), key=lambda task: task[0])
        with ProcessPoolExecutor(arguments.workers, mp_context=get_context("spawn")) as pool:
            for future in [pool.submit(run, *common, problem, pi, seed) for seed, problem, pi in tasks]:
                future.result()
    print(table(arguments.runs, arguments.part, arguments.rows, cells))


if __name__ == "__main__":
    main()
