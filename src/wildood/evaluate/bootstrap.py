"""How much FPR95 and AUROC owe to the test examples that happened to be drawn: percentile intervals of the bootstrap."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wildood.errors import InputError
from wildood.evaluate.binomial import Share
from wildood.evaluate.metrics import Scores, accepting_threshold, flat_scores
from wildood.evaluate.thresholds import check_confidence

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


class Interval(NamedTuple):
    """A range that holds the true value in about the stated share of samples."""

    low: float
    high: float


@dataclass(frozen=True)
class Resampled:
    """FPR95 (ID is the positive class) and AUROC of each resample against each OOD set, as arrays (resamples, sets)."""

    fpr95: Floats
    auroc: Floats


def resample(
    id_scores: Scores, ood_scores: Sequence[Scores], tpr: float = 0.95, resamples: int = 1000, seed: int = 0
) -> Resampled:
    """Draw ID and OOD scores again with replacement, as many as there are, and measure each time.

    A draw of ID scores is met by all OOD sets, as in the data: the mean over the sets varies with it. Each set has random
    numbers of its own, so that its intervals stay the same whatever other sets are given behind it.

    >>> drawn = resample([0.0, 1.0, 2.0], [[3.0, 4.0], [0.5, 5.0]], resamples=100)
    >>> drawn.auroc.shape, drawn.auroc.mean(0).round(1).tolist()
    ((100, 2), [1.0, 0.7])
    """
    if resamples < 1:
        raise InputError(f"resamples is {resamples}: give at least 1")
    known = np.sort(flat_scores(id_scores, "ID"))
    sets = [_OodSet.of(known, scores) for scores in ood_scores]
    # By definition of the metric: the place, in the order of the drawn scores, of the one that accepts enough of them.
    place = int(accepting_threshold(np.arange(len(known)), tpr))
    first, *others = (np.random.default_rng(seeds) for seeds in np.random.SeedSequence(seed).spawn(1 + len(sets)))
    fpr95, auroc = np.empty((2, resamples, len(sets)))
    for draw in range(resamples):
        drawn_known = _up_to(len(known), first)
        # The scores keep their order and only their copies change, so nothing is sorted again.
        threshold = int(np.searchsorted(drawn_known, place, side="right")) - 1
        for number, (ood, rng) in enumerate(zip(sets, others, strict=True)):
            drawn = _up_to(ood.size, rng)
            fpr95[draw, number] = drawn[ood.accepted_at[threshold]] / ood.size
            ordered = drawn_known[ood.below] + drawn_known[ood.not_above]
            auroc[draw, number] = np.diff(drawn) @ ordered / (2 * ood.size * len(known))
    return Resampled(fpr95, auroc)


def percentile_interval(values: npt.ArrayLike, confidence: float = 0.95) -> Interval:
    """The middle part of the resampled values, with as many below as above it.

    >>> percentile_interval(range(101), confidence=0.5)
    Interval(low=25.0, high=75.0)
    """
    outside = (1 - check_confidence(confidence)) / 2
    low, high = np.quantile(flat_scores(values, "resampled"), [outside, 1 - outside])
    return Interval(float(low), float(high))


def fpr_interval(resampled: Floats, accepted: Sequence[Share], confidence: float = 0.95) -> Interval:
    """The percentile interval of an FPR, or of its mean over sets, but never narrower than the exact one of its count.

    At an edge the bootstrap has nothing to draw: where no OOD is accepted, hardly any resample accepts some. Even at a
    fixed threshold, though, the share is known to its Clopper-Pearson limits only. For the mean of k sets their
    distances d from the value add up as those of independent errors do, sqrt(sum d²) / k (Zou and Donner, 2008).

    Args:
        resampled: of `resample`, (resamples, sets).
        accepted: of each set, the share that is accepted, with its limits at the same confidence.
        confidence: of the interval.

    >>> drawn = resample([0.0, 1.0, 2.0], [np.arange(100) + 3])
    >>> fpr_interval(drawn.fpr95, [Share.of((0, 100), confidence=0.95)])  # 1 - 0.025 ** (1 / 100)
    Interval(low=0.0, high=0.0362...)
    """
    low, high = percentile_interval(resampled.mean(1), confidence)
    value = sum(share.value for share in accepted) / len(accepted)
    below = math.hypot(*(share.value - share.low for share in accepted)) / len(accepted)
    above = math.hypot(*(share.high - share.value for share in accepted)) / len(accepted)
    return Interval(min(low, value - below), max(high, value + above))


class _OodSet(NamedTuple):
    """Where sorted OOD scores lie among sorted ID scores, which no resample changes."""

    size: int
    below: Counts  # for each OOD score, the ID scores below it
    not_above: Counts  # and those at or below it
    accepted_at: Counts  # for each ID score, the OOD scores at or below it

    @classmethod
    def of(cls, known: Floats, scores: Scores) -> "_OodSet":
        unknown = np.sort(flat_scores(scores, "OOD"))
        return cls(
            len(unknown),
            np.searchsorted(known, unknown, side="left"),
            np.searchsorted(known, unknown, side="right"),
            np.searchsorted(unknown, known, side="right"),
        )


def _up_to(count: int, rng: np.random.Generator) -> Counts:
    """Of as many draws with replacement: how many fell on the first 0, 1, 2, ... of the sorted scores."""
    copies = np.bincount(rng.integers(0, count, count), minlength=count)
    return np.concatenate([[0], np.cumsum(copies)])
