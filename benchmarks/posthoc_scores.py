"""Every post-hoc score with its default settings, with those that wild data chooses, and with those that OOD labels choose.

Run: python benchmarks/posthoc_scores.py --data-root ../shared/data --runs runs/posthoc_scores [--part test] [--seeds 0 1 2]

The networks stay as they are: ResNet-20 and DenseNet on CIFAR-10, DenseNet on CIFAR-100, small ones on NSL-KDD and CLINC150.
Their features are computed once and kept in .cache beside this file; each score then sees a last layer on features, so that
there is no step on the input: ODIN is a temperature, and Mahalanobis a distance. Holdout and wild examples are not among
those that a network was trained on. FPR95, of the part that nothing else has seen:

  default    the settings of the score's constructor
  wild       those that accept the least wild data at an equal false-alarm rate, as `posthoc(wild=...)` chooses them
  labels     those that accept the least of the unknown examples of the same wild data, as `posthoc(ood=...)` chooses them
  hindsight  those with the lowest FPR95 on what is measured: no method, but how much there was to choose

Below the scores, the rows that choose among all of them, with the settings of "wild": by wild acceptance, against the half
of the holdout that has chosen and fitted nothing, and by hindsight. Develop on the validation part; the test part is for one
look. Runs are kept below --runs.
"""

import argparse
import copy
import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from cifar10 import SPEC, resnet20
from habitat_problems import Array, Habitat, Part, clinc, dense_features, kept, mixture_of, nsl_next_day, nsl_same_day
from safetensors.torch import load_file
from torch import nn

import wildood
from wildood.data.files import write_atomically
from wildood.data.sources import Source
from wildood.data.validation import labelled_source, unlabelled_source
from wildood.detect.frozen import features_of, head_of
from wildood.detect.posthoc import CHOSEN_BY, choose_score
from wildood.detect.split import halve_holdout, subsample
from wildood.errors import InputError
from wildood.evaluate.metrics import fpr_at_tpr, mean_and_error
from wildood.evaluate.selection import compare_acceptance
from wildood.models.classifier import Classifier, copy_classifier
from wildood.scores.score import Score, score_all

ALPHA, PI = 0.05, 0.1
SCORES: dict[str, Score] = {
    "max-softmax": wildood.MaxSoftmax(),
    "temperature scaling": wildood.TemperatureScaling(),
    "ODIN, no step": wildood.Odin(epsilon=0.0),
    "max-logit": wildood.MaxLogit(),
    "energy": wildood.EnergyScore(),
    "GEN": wildood.Gen(),
    "KL matching": wildood.KlMatching(),
    "GradNorm": wildood.GradNorm(),
    "Mahalanobis, no step": wildood.Mahalanobis(epsilon=0.0),
    "relative Mahalanobis": wildood.RelativeMahalanobis(),
    "KNN": wildood.Knn(),
    "NNGuide": wildood.NnGuide(),
    "SHE": wildood.She(),
    "fDBD": wildood.Fdbd(),
    "NCI": wildood.Nci(),
    "ReAct": wildood.ReAct(),
    "SCALE": wildood.Scale(),
    "ASH": wildood.Ash(),
    "DICE": wildood.Dice(),
    "ViM": wildood.Vim(),
    "ensemble": wildood.Ensemble(),
}
WAYS = ("default", "wild", "labels", "hindsight")
CHOSEN = "chosen among all"


@dataclass(frozen=True)
class Problem:
    """A name, the heading of its table, its column there, and how to draw its data."""

    group: str
    column: str
    draw: Callable[[Path, int, Part, float], Habitat]

    @property
    def name(self) -> str:
        """Of the file that a run is kept in."""
        return f"{self.group}, {self.column}"


def problems() -> list[Problem]:
    """All of them."""
    sets = ("svhn", "textures", "places", "cifar100")
    images = (
        ("CIFAR-10, ResNet-20", "resnet20-cifar10", sets),
        ("CIFAR-10, DenseNet", "densenet-cifar10", sets),
        ("CIFAR-100, DenseNet", "densenet-cifar100", ("svhn", "places")),
    )
    found = [Problem(group, ood, partial(cifar, network=name, ood=ood)) for group, name, oods in images for ood in oods]
    rows = "tables and texts"
    found += [Problem(rows, "NSL-KDD same day, MLP", partial(nsl_same_day, norm=False))]
    found += [Problem(rows, "NSL-KDD next day, MLP", partial(nsl_next_day, norm=False))]
    found += [Problem(rows, "CLINC150 MiniLM, linear", partial(clinc, network="linear"))]
    return [*found, Problem(rows, "CLINC150 MiniLM, MLP", partial(clinc, network="mlp"))]


def cifar(root: Path, seed: int, part: Part, pi: float, *, network: str, ood: str) -> Habitat:
    """Features of training images as labelled data; holdout, wild and measured examples are of the test images.

    The last 40 % of these, and of an OOD set the last 30 %, are measured on in the test part alone.
    """
    data = image_features(root, network)
    rng, fixed = np.random.default_rng(seed), np.random.default_rng(0)
    tests, unknown = fixed.permutation(len(data["test_y"])), fixed.permutation(data[ood])
    tests, measured = np.split(tests, [int(0.6 * len(tests))])
    unknown, test_ood = np.split(unknown, [int(0.7 * len(unknown))])
    tests, unknown = rng.permutation(tests), rng.permutation(unknown)
    holdout, tests = np.split(tests, [min(1000, int(0.4 * len(tests)))])
    if part == "validation":
        measured, tests = np.split(tests, [len(tests) // 2])
        test_ood, unknown = np.split(unknown, [int(0.3 * len(unknown))])
    labelled = rng.permutation(len(data["train_y"]))[: len(data["train_y"]) // 2]
    wild, wild_ood = mixture_of(data["test"][tests], unknown, pi, seed)
    weights = load_file(root / "weights" / f"{network}.safetensors")
    prefix = "linear" if network.startswith("resnet") else "fc"
    model = nn.Linear(*weights[f"{prefix}.weight"].shape[::-1])
    model.load_state_dict({name: weights[f"{prefix}.{name}"] for name in ("weight", "bias")})

    def rows(of: str, chosen: Array) -> tuple[Array, Array]:
        return data[of][chosen], data[f"{of}_y"][chosen]

    known = rows("train", labelled), wild, rows("test", holdout), rows("test", holdout[:0]), rows("test", measured)
    return Habitat(model, *known, test_ood, wild_ood=wild_ood)


@cache
def image_features(root: Path, network: str) -> dict[str, Array]:
    """A network's features of the images of its ID set and of OOD sets, and the ID classes."""
    cifar100 = network.endswith("100")
    with np.load(root / ("cifar100_id.npz" if cifar100 else "cifar10.npz")) as file:
        images = {"train": file["train_images"], "test": file["test_images"]}
        labels = {"train_y": file["train_labels"].astype(np.int64), "test_y": file["test_labels"].astype(np.int64)}
    for name in ("svhn", "places") if cifar100 else ("svhn", "places", "textures", "cifar100"):
        with np.load(root / f"{name}.npz") as file:
            images[name] = file["images"][:3000]
    if network.startswith("resnet"):
        classifier, _ = copy_classifier(
            resnet20(root, network), unlabelled_source(images["test"], "x"), SPEC, None, uses_features=True
        )
        sources = {name: unlabelled_source(each, name) for name, each in images.items()}
        found = kept(network, lambda: {name: features_of(classifier, each) for name, each in sources.items()})
    else:
        images["train"] = images["train"][:8000]  # 60 images a second
        found = dense_features(root, network, images)
    return {**found, **labels, "train_y": labels["train_y"][: len(found["train"])]}


def on_features(habitat: Habitat) -> Habitat:
    """The last layer of the habitat's model, and all data as the features that it takes."""
    source = unlabelled_source(habitat.labelled[0], "labelled")
    classifier, _ = copy_classifier(habitat.model, source, habitat.spec, None, uses_features=True)
    head = head_of(classifier, source.gather(torch.arange(2))[0])

    def computed(x: Any) -> Array:
        return features_of(classifier, unlabelled_source(x, "x"))

    def labelled(data: tuple[Array, Array]) -> tuple[Array, Array]:
        return computed(data[0]), data[1]

    known = labelled(habitat.labelled), computed(habitat.wild), labelled(habitat.holdout), habitat.fresh
    return Habitat(
        head.model, *known, labelled(habitat.test_id), computed(habitat.test_ood), wild_ood=computed(habitat.wild_ood)
    )


@dataclass(frozen=True)
class Choice:
    """What settings are chosen and measured by."""

    selection: Source  # the half of the holdout that `posthoc` chooses by, and fits some scores on
    other: Source  # the other half
    wild: Source
    ood: Source  # the unknown examples of the wild data
    test_id: Source
    test_ood: Source

    def fpr95(self, classifier: Classifier, score: Score) -> float:
        """On what nothing has chosen by."""
        known, unknown = (score_all(classifier, each, score)[0] for each in (self.test_id, self.test_ood))
        return fpr_at_tpr(known, unknown)


def run_score(score: Score, habitat: Habitat, choice: Choice) -> dict[str, Any]:
    """FPR95 of a score in each way to choose its settings, those that wild data chose, and the wild share they accept."""
    given: dict[str, Any] = {"labelled": habitat.labelled, "holdout": habitat.holdout, "allow_duplicates": True}
    detector = wildood.posthoc(habitat.model, score, **given)
    free = [name for name in score.grid if name != "epsilon"]
    fitted = detector.scorer
    if free:
        fitted = copy.deepcopy(score).with_settings(**dict.fromkeys(free))
        fitted.fit(detector.classifier, labelled_source(habitat.labelled, "labelled"))
    candidates = fitted.candidates()
    by_wild, _ = choose_score(candidates, detector.classifier, choice.selection, ALPHA, choice.wild)
    by_labels, _ = choose_score(candidates, detector.classifier, choice.selection, ALPHA, None, choice.ood)
    measured = {str(each.settings): choice.fpr95(detector.classifier, each) for each in candidates}
    sources = choice.other, unlabelled_source(habitat.wild, "wild")
    known, traffic = (score_all(detector.classifier, each, by_wild)[0].astype(np.float64) for each in sources)
    return {
        "default": choice.fpr95(detector.classifier, detector.scorer),
        "wild": measured[str(by_wild.settings)],
        "labels": measured[str(by_labels.settings)],
        "hindsight": min(measured.values()),
        "settings": by_wild.settings if free else {},
        "acceptance": compare_acceptance((known, traffic), (known, traffic), ALPHA).start,
    }


def run(root: Path, problem: Problem, part: Part, seed: int, pi: float, names: list[str]) -> dict[str, Any]:
    """Some scores on one draw of a problem; a score that refuses its features has the refusal."""
    habitat = on_features(problem.draw(root, seed, part, pi))
    other, selection = halve_holdout(unlabelled_source(habitat.holdout[0], "holdout"), ALPHA, None, 0, instead="")
    wild = subsample(unlabelled_source(habitat.wild, "wild"), CHOSEN_BY, 0)
    others = (unlabelled_source(each, "x") for each in (habitat.wild_ood, habitat.test_id[0], habitat.test_ood))
    choice = Choice(selection, other, wild, *others)
    found: dict[str, Any] = {}
    for name in names:
        try:
            found[name] = run_score(SCORES[name], habitat, choice)
        except InputError as error:
            found[name] = {"refused": str(error)}
    return found


def table(group: str, columns: dict[str, list[dict[str, Any]]]) -> str:
    """FPR95 in %, means over seeds: default / wild ± standard error / labels / hindsight, or one number without settings."""
    lines = [f"| {group} | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    for name, score in SCORES.items():
        ways = WAYS if _is_free(score) else WAYS[:1]
        lines.append(f"| {name} | {' | '.join(_cell([each[name] for each in runs], ways) for runs in columns.values())} |")
    for row, pick in (("wild acceptance", _by_wild), ("hindsight", _by_hindsight)):
        cells = [_cell([pick(each) for each in runs], ("wild",)) for runs in columns.values()]
        lines.append(f"| {CHOSEN}: {row} | {' | '.join(cells)} |")
    named = ["; ".join(dict.fromkeys(_name(each, _by_wild(each)) for each in runs)) for runs in columns.values()]
    return "\n".join([*lines, f"| what wild acceptance chose | {' | '.join(named)} |"])


def _is_free(score: Score) -> bool:
    return any(name != "epsilon" for name in score.grid)


def _accepted(found: dict[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in found.items() if "refused" not in each}


def _by_wild(found: dict[str, Any]) -> Any:
    return min(_accepted(found).values(), key=lambda each: each["acceptance"])


def _by_hindsight(found: dict[str, Any]) -> Any:
    return min(_accepted(found).values(), key=lambda each: each["wild"])


def _name(found: dict[str, Any], chosen: Any) -> str:
    return next(name for name, each in found.items() if each is chosen)


def _cell(results: list[dict[str, Any]], ways: tuple[str, ...]) -> str:
    if any("refused" in each for each in results):
        return "refused"
    texts = []
    for way in ways:
        mean, error = mean_and_error([each[way] for each in results])
        shown = len(results) > 1 and (way == "wild" or len(ways) == 1)
        texts.append(f"{100 * mean:.1f}" + (f" ± {100 * error:.1f}" if shown else ""))
    return " / ".join(texts)


def summary(runs: dict[str, list[dict[str, Any]]]) -> str:
    """For each score with settings: means over the problems that it accepts, and where wild data chose better or worse."""
    head = "| FPR95 %, mean over problems | problems | default | wild | labels | hindsight | wild is better, worse by > 1 |"
    lines = [head, "|---" * 7 + "|"]
    for name in [name for name, score in SCORES.items() if _is_free(score)]:
        cells = [[each[name] for each in several] for several in runs.values()]
        cells = [several for several in cells if not any("refused" in each for each in several)]
        means = {way: np.array([np.mean([each[way] for each in several]) for several in cells]) for way in WAYS}
        gains = 100 * (means["default"] - means["wild"])
        texts = [f"{100 * means[way].mean():.1f}" for way in WAYS]
        better, worse = int((gains > 1).sum()), int((gains < -1).sum())
        lines.append(f"| {name} | {len(cells)} | {' | '.join(texts)} | {better}, {worse} |")
    return "\n".join(lines)


def ranking(runs: dict[str, list[dict[str, Any]]]) -> str:
    """For each score, with settings that wild data chose: its mean over problems, its mean rank, how often it is best."""
    whole = {
        problem: {name: np.mean([_or_worst(each[name]) for each in several]) for name in SCORES}
        for problem, several in runs.items()
    }
    ranks = {name: [1 + sum(other < each[name] for other in each.values()) for each in whole.values()] for name in SCORES}
    lines = [
        "| settings by wild data | mean FPR95 % | mean rank | best on | within 2 points of the best on |",
        "|---" * 5 + "|",
    ]
    for name in sorted(SCORES, key=lambda name: np.mean(ranks[name])):
        refused = any("refused" in each[name] for several in runs.values() for each in several)
        mean = "" if refused else f"{100 * np.mean([each[name] for each in whole.values()]):.1f}"
        near = sum(each[name] <= min(each.values()) + 0.02 for each in whole.values())
        lines.append(f"| {name} | {mean} | {np.mean(ranks[name]):.1f} | {ranks[name].count(1)} | {near} |")
    for row, pick in (("wild acceptance", _by_wild), ("hindsight", _by_hindsight)):
        mean = np.mean([np.mean([pick(each)["wild"] for each in several]) for several in runs.values()])
        lines.append(f"| {CHOSEN}: {row} | {100 * mean:.1f} | | | |")
    return "\n".join(lines)


def _or_worst(result: dict[str, Any]) -> float:
    return float(result.get("wild", 1.0))


def main() -> None:
    """Run what is missing, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--part", choices=["validation", "test"], default="validation")
    parser.add_argument("--problems", nargs="+", default=[""], help="parts of names, such as ResNet or CLINC")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--pi", type=float, default=PI)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("wildood").setLevel(logging.ERROR)  # each problem repeats examples, by nature
    chosen = [each for each in problems() if any(part in each.name for part in arguments.problems)]
    found: dict[str, list[dict[str, Any]]] = {each.name: [] for each in chosen}
    for seed in arguments.seeds:
        for problem in chosen:
            path = arguments.runs / arguments.part / problem.name / f"pi {arguments.pi:g} seed {seed}.json"
            result = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
            if missing := [name for name in SCORES if name not in result]:
                began = time.perf_counter()
                result |= run(arguments.data_root, problem, arguments.part, seed, arguments.pi, missing)
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, json.dumps(result, indent=1).encode())
                print(f"{problem.name}, seed {seed}: {time.perf_counter() - began:.0f} s", flush=True)
            found[problem.name].append(result)
    for group in dict.fromkeys(each.group for each in chosen):
        print(table(group, {each.column: found[each.name] for each in chosen if each.group == group}), end="\n\n")
    print(summary(found), end="\n\n")
    print(ranking(found))


if __name__ == "__main__":
    main()
