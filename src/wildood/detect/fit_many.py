"""`select` and `fit_many`: which of several detectors to deploy, without a single OOD label (the paper's Appendix C)."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

from torch import nn

from wildood.data.fingerprint import role_of
from wildood.data.inputs import Spec
from wildood.data.sampling import generator, split
from wildood.data.sources import Part, Source
from wildood.data.tables import TableSpec
from wildood.data.validation import all_labels, labelled_and_holdout, labelled_source, read_once, rows_of
from wildood.data.wild import Wild, as_wild
from wildood.detect.detector import Detector
from wildood.detect.fit import fit
from wildood.detect.pretrain import check_schedule
from wildood.detect.split import ASIDE, check_fresh, check_overlap, check_seed, fresh_source
from wildood.errors import CheckpointError, InputError
from wildood.evaluate.ranking import Candidate, Ranking, rank_candidates
from wildood.evaluate.thresholds import check_alpha, confidence_text, examples_needed
from wildood.methods.objective import Method
from wildood.settings import check_choice, check_flag, check_path, optional, quoted
from wildood.train.checkpoint import RunDirectory
from wildood.train.progress import logger, verbose_logging
from wildood.train.selection import Keep

RANKING = 1 / 3  # the share of the holdout that ranks
Detectors = Mapping[str, Detector] | Sequence[Detector]


def select(
    candidates: Detectors,
    holdout: Any,
    wild_holdout: Any,
    *,
    alpha: float = 0.05,
    accuracy_loss: float = 0.01,
    confidence: float = 0.95,
) -> Ranking:
    """Rank detectors by how much wild data they accept, each at its own threshold for a false-alarm rate of alpha.

    At equal TPR, the detector that accepts less wild data has the lower FPR, whatever the share of unknowns: no OOD label is
    needed. Give examples that trained none of the detectors. Their own thresholds and promises are not changed, and should
    not come from these examples: a holdout that chooses cannot promise.

    Args:
        candidates: detectors by name, or in a list: of different methods, settings, epochs or scores.
        holdout: `(x, y)`, ID examples with their classes.
        wild_holdout: wild examples.
        alpha: the false-alarm rate at which they are compared.
        accuracy_loss: how much accuracy a detector may lose against the most accurate one.
        confidence: of the bounds, and of the test that the first is separated from the others.

    Returns:
        The ranking: `ranking.places[0].name` is the first, `ranking.separated` tells whether its FPR is surely the lowest,
        and `ranking.paired_excess_fpr(pi)` bounds by how much it may exceed the lowest.

    >>> import numpy as np, torch, wildood
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 2, 300)
    >>> x = (rng.normal(size=(300, 2)) + 6 * y[:, None]).astype("float32")
    >>> wild = np.concatenate([x[200:], rng.normal(size=(50, 2)).astype("float32") + 3]).astype("float32")
    >>> model = torch.nn.Linear(2, 2)
    >>> with torch.no_grad():
    ...     _ = model.weight.copy_(torch.tensor([[-1.0, -1.0], [1.0, 1.0]])), model.bias.copy_(torch.tensor([6.0, -6.0]))
    >>> scores = {"energy": wildood.EnergyScore(), "max-softmax": wildood.MaxSoftmax()}
    >>> candidates = {name: wildood.posthoc(model, score, holdout=x[:100]) for name, score in scores.items()}
    >>> [place.name for place in select(candidates, (x[100:200], y[100:200]), wild).places]
    ['energy', 'max-softmax']
    """
    named = _by_name(candidates)
    spec = _shared_spec(named)
    known = labelled_source(rows_of(holdout, spec, "holdout"), "holdout")
    wild_holdout = rows_of(wild_holdout, spec, "wild_holdout", labels=False)
    for name, detector in named.items():
        if role_of(detector.record, known) in {"holdout", "threshold"}:
            logger.warning("%s: this holdout set its threshold, but what chooses cannot promise: give other examples", name)
    return _rank(named, known, as_wild(wild_holdout).whole(seed=0), alpha, accuracy_loss, confidence)


def _shared_spec(detectors: Mapping[str, Detector]) -> Spec | None:
    """The input spec by which tables are read: that of all detectors, if one is for tables."""
    specs = [detector.classifier.spec for detector in detectors.values()]
    if any(isinstance(spec, TableSpec) and spec != specs[0] for spec in specs):
        raise InputError("the detectors read tables by different input specs: give those that were fitted with one spec")
    return next(iter(specs), None)


@dataclass(frozen=True)
class Fits:
    """The result of `fit_many`: the detector to deploy, all of them by name, and their ranking."""

    best: Detector
    detectors: dict[str, Detector]
    ranking: Ranking


def fit_many(
    model: nn.Module,
    labelled: Any,
    wild: Any,
    holdout: Any,
    *,
    methods: Sequence[Method],
    run_dir: str | Path | None = None,
    seed: int = 0,
    verbose: bool = True,
    **settings: Any,
) -> Fits:
    """`fit` with each of several methods, or settings of one, and choose the best, without a single OOD label.

    A third of the holdout and a tenth of the wild data rank the detectors. `fit` gets the rest: one part of it chooses, and
    another sets the threshold, so that the promise of the best holds.

    `methods` is a list such as `[Woods(), OutlierExposure(0.5)]`; all other arguments are those of `fit`. `run_dir` gets a
    directory for each method.

    >>> import numpy as np, wildood
    >>> from wildood.models.small import MLP
    >>> rng = np.random.default_rng(0)
    >>> x, y = rng.normal(size=(300, 2)).astype("float32"), rng.integers(0, 2, 300)
    >>> fits = fit_many(
    ...     MLP(2, 2), (x, y), x[:200] + 1, (x[:100] + 0.5, y[:100]), methods=[wildood.Woods(), wildood.OutlierExposure()],
    ...     schedule=wildood.Schedule(steps=3), verbose=False,
    ... )
    >>> sorted(fits.detectors)
    ['OutlierExposure', 'Woods']
    """
    names = _names(methods)
    if check_choice(settings.get("keep", "best"), "keep", get_args(Keep)) != "best":
        raise InputError("fit_many (--grid) keeps the best epoch of each method: leave out keep= (--keep)")
    if holdout is None:
        raise InputError("fit_many (--grid) chooses by unseen ID examples: give holdout=(x, y) (--holdout)")
    if settings.get("judged") is not None:
        raise InputError("fit_many (--grid) ranks by wild data, which may hold judged examples: leave judged (--judged) out")
    seed, verbose = check_seed(seed), check_flag(verbose, "verbose")
    run = optional(check_path)(run_dir, "run_dir")
    alphas = {method.alpha for method in methods} if settings.get("alpha") is None else {check_alpha(settings["alpha"])}
    if len(alphas) > 1:
        raise InputError(f"the methods have different alphas, {min(alphas)} to {max(alphas)}: give one, as in alpha=0.05")
    settings = {**settings, "alpha": check_alpha(alphas.pop())}
    for method in methods:  # now, not after the methods before it have trained
        check_schedule(settings.get("schedule"), method.schedule(), has_wild_aside=method.uses_wild)
        check_fresh(settings.get("fresh"), method)
    spec = settings.get("input")
    labelled, holdout = rows_of(labelled, spec, "labelled"), rows_of(holdout, spec, "holdout")
    labelled, holdout = read_once(labelled, "labelled"), read_once(holdout, "holdout")
    wild = rows_of(wild, spec, "wild", labels=False)
    for name in settings.keys() & {"fresh", "ood"}:
        settings[name] = read_once(rows_of(settings[name], spec, name, labels=name == "fresh"), name)
    known, unseen = labelled_and_holdout(labelled, holdout)
    assert unseen is not None  # noqa: S101 - there is a holdout
    traffic: Wild = as_wild(wild)
    fresh = settings.get("fresh")
    today = [] if fresh is None else [fresh_source(labelled, fresh)]
    trained_on = {"labelled": [known], "wild": traffic.pools, "fresh": today}
    check_overlap(unseen, trained_on, allow_duplicates=settings.get("allow_duplicates", False))
    # The examples that rank choose no epoch and set no threshold: so the statistics of the ranking and the promises hold.
    kept, ranking_id = (Part(unseen, part) for part in split(len(unseen), RANKING, generator(seed, "candidates")))
    traffic, ranking_wild = split_for_ranking(traffic, seed)
    _check_thirds(len(unseen), settings["alpha"], settings.get("confidence"))
    identity = {"methods": ", ".join(sorted(names))}
    if run is not None:
        _check_owner(run, identity)
    detectors = {}
    for name, method in zip(names, methods, strict=True):
        with verbose_logging(verbose=verbose):
            logger.info("%s:", name)
        own = {"run_dir": None if run is None else run / name, **settings}
        detectors[name] = fit(model, labelled, traffic, kept, method=method, seed=seed, verbose=verbose, **own)
        if run is not None:  # not before: a first fit that is refused must leave no run behind
            RunDirectory(run, identity)
    ranking = _rank(detectors, ranking_id, ranking_wild, settings["alpha"], accuracy_loss=0.01, confidence=0.95)
    starts = [name for name, each in detectors.items() if each.record.get("assessment", {}).get("start_kept")]
    if starts:
        logger.warning(
            "training was not shown to help, so the detector is the start with its best score: %s", ", ".join(starts)
        )
    return Fits(detectors[ranking.places[0].name], detectors, ranking)


def split_for_ranking(traffic: Wild, seed: int) -> tuple[Wild, Source]:
    """The wild data for each fit of `fit_many`, and that which ranks them."""
    return traffic.set_aside(ASIDE, seed)


def _check_thirds(count: int, alpha: float, confidence: float | None) -> None:
    """Refuse a holdout of which a third is too small to rank, to choose, or to set a threshold."""
    needed = examples_needed(alpha, confidence)

    def smallest_part(total: int) -> int:
        ranking = round(RANKING * total)
        half = round(0.5 * (total - ranking))
        return min(ranking, total - ranking - half, half)

    in_all = next(total for total in itertools.count(3 * needed) if smallest_part(total) >= needed)
    if count < in_all:
        raise InputError(
            f"the holdout has {count} examples, of which a third ranks, and the rest chooses each method's epoch and "
            f"sets the thresholds; a false-alarm rate of {alpha}{confidence_text(confidence)} needs {needed} in each: give "
            f"{in_all} in all, or a larger alpha (--alpha)"
        )


def _check_owner(run: Path, identity: dict[str, str]) -> None:
    """Refuse a directory in which something else than these methods was trained: its detector would be replaced."""
    record = run / "run.json"
    if record.exists():
        if b'"methods"' not in record.read_bytes():
            raise CheckpointError(f"{run} belongs to another run, of a single method: give another directory")
        RunDirectory(run, identity)  # which refuses that of others


def _rank(
    named: dict[str, Detector], known: Source, wild: Source, alpha: float, accuracy_loss: float, confidence: float
) -> Ranking:
    labels = all_labels(known).numpy()
    candidates = []
    for name, detector in named.items():
        scores, classes = detector.score_and_classify(known)
        candidates.append(Candidate(name, scores, detector.score(wild), classes == labels))
    return rank_candidates(candidates, alpha, accuracy_loss=accuracy_loss, confidence=confidence)


def _by_name(candidates: Detectors) -> dict[str, Detector]:
    if not isinstance(candidates, Mapping | tuple | list):
        raise InputError(f"candidates is {quoted(candidates)}: give detectors by name in a dict, or in a list")
    named = dict(candidates) if isinstance(candidates, Mapping) else {str(i): each for i, each in enumerate(candidates)}
    for name, detector in named.items():
        if not isinstance(detector, Detector):
            raise InputError(f"candidate {name} is a {type(detector).__name__}: give detectors, such as fit returns")
    return named


def _names(methods: Sequence[Method]) -> list[str]:
    """The name of each method: its class, with the settings by which it differs from another of the same class."""
    if not isinstance(methods, list | tuple) or not methods:
        raise InputError("methods is no list of methods: give at least one, as in methods=[Woods()]")
    for method in methods:
        if isinstance(method, type) or not hasattr(method, "objective"):
            raise InputError(f"methods holds {method!r}: give methods such as Woods()")
    names = []
    for method in methods:
        alike = [other for other in methods if type(other) is type(method)]
        varying = [f.name for f in fields(method) if len({getattr(other, f.name) for other in alike}) > 1]
        names.append("-".join([type(method).__name__, *(f"{name}={getattr(method, name)}" for name in varying)]))
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"methods has {twice} twice: give each once")
    return names
