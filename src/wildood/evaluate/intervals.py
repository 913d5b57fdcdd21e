"""Numbers with their intervals: exact ones for counted shares, the bootstrap's for FPR95 and AUROC."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wildood.errors import InputError
from wildood.evaluate.binomial import lower_limit, upper_limit
from wildood.evaluate.metrics import Floats, Scores, accepting_threshold, flat_scores
from wildood.evaluate.thresholds import check_confidence

Counts = npt.NDArray[np.int64]
FEWEST_UNKNOWN = 10  # with fewer, the bound on what is caught says little: if 9 of 9 are caught, it is 72 %


@dataclass(frozen=True)
class Estimate:
    """A number from 0 to 1 with the limits of its interval.

    >>> Estimate(0.155, 0.108, 0.213).limits
    '10.8 to 21.3 %'
    """

    value: float
    low: float
    high: float

    @property
    def limits(self) -> str:
        """The interval in percent."""
        return f"{percent_digits(self.low)} to {in_percent(self.high)}"


@dataclass(frozen=True)
class Share(Estimate):
    """A share of counted examples, with its Clopper-Pearson interval.

    Attributes:
        value: count / examples.
        low: the lower limit of the share that the examples were drawn from.
        high: its upper limit.
        count: how many examples are counted.
        examples: how many examples there are.

    >>> Share.of((31, 200), confidence=0.95).text(confidence=0.95)
    '31 of 200 (15.5 %; 10.8 to 21.3 % at 95 % confidence)'
    """

    count: int
    examples: int

    @classmethod
    def of(cls, counted: npt.NDArray[np.bool_] | tuple[int, int], confidence: float) -> "Share":
        """The share of a mask that is true, or of (count, examples); each limit fails with probability (1 - confidence) / 2.

        >>> share = Share.of(np.array([True, False, False, False]), confidence=0.95)
        >>> share.value, round(share.low, 3), round(share.high, 3)
        (0.25, 0.006, 0.806)
        """
        count, examples = counted if isinstance(counted, tuple) else (int(np.sum(counted)), len(counted))
        level = (1 - confidence) / 2
        limits = lower_limit(count, examples, level), upper_limit(count, examples, level)
        return cls(count / examples, *limits, count, examples)

    def text(self, confidence: float) -> str:
        """Count, share and interval, with the confidence of the interval."""
        return (
            f"{self.count} of {self.examples} ({in_percent(self.value)}; {self.limits} at {100 * confidence:g} % confidence)"
        )


@dataclass(frozen=True)
class CaughtBound:
    """A lower bound on the share of unknowns that a detector rejects, by unknown examples that made and chose nothing of it.

    If these are independent draws of the unknowns to come, k of n of them are rejected with k ~ Binomial(n, p), where p is
    the share asked for. The lower Clopper-Pearson limit of k of n exceeds p with probability at most 1 - confidence,
    whatever p is, and whatever the unknowns are.

    Attributes:
        count: how many of the examples are rejected.
        examples: how many there are.
        confidence: of the bound, each time that it is read by itself.
        least: at least this share of unknowns like these is rejected; None if there are fewer than `FEWEST_UNKNOWN`.

    >>> print(CaughtBound.of((18, 20)))
    at least 71.7 % of unknowns like the judged ones are caught, at 95 % confidence (18 of 20 judged unknowns)
    >>> print(CaughtBound.of((2, 2)))
    no bound yet on what is caught: 10 judged unknowns are needed, there are 2
    """

    count: int
    examples: int
    confidence: float
    least: float | None

    @classmethod
    def of(cls, caught: npt.NDArray[np.bool_] | tuple[int, int], confidence: float = 0.95) -> "CaughtBound":
        """That of a mask over unknown examples, or of (count, examples)."""
        check_confidence(confidence)
        count, examples = caught if isinstance(caught, tuple) else (int(np.sum(caught)), len(caught))
        least = lower_limit(count, examples, 1 - confidence) if examples >= FEWEST_UNKNOWN else None
        return cls(count, examples, confidence, least)

    def __str__(self) -> str:
        if self.least is None:
            there = f"there {'is' if self.examples == 1 else 'are'} {self.examples}"
            return f"no bound yet on what is caught: {FEWEST_UNKNOWN} judged unknowns are needed, {there}"
        return (
            f"at least {in_percent(self.least)} of unknowns like the judged ones are caught, at {100 * self.confidence:g} % "
            f"confidence ({self.count} of {self.examples} judged unknowns)"
        )


def in_percent(share: float) -> str:
    """A share in percent.

    >>> in_percent(0.08512), in_percent(0.99999)
    ('8.5 %', '100.0 %')
    """
    return f"{percent_digits(share)} %"


def percent_digits(share: float) -> str:
    """The digits of a share in percent: one after the point; two significant ones below 1 %.

    >>> percent_digits(0.08512), percent_digits(0.00428), percent_digits(0.0)
    ('8.5', '0.43', '0.0')
    """
    percent = 100 * share
    return f"{percent:.2g}" if 0 < percent < 0.995 else f"{percent:.1f}"


@dataclass(frozen=True)
class Resampled:
    """FPR95 (ID is the positive class) and AUROC of each resample against each OOD set: arrays (resamples, sets)."""

    fpr95: Floats
    auroc: Floats


def resample(
    id_scores: Scores, ood_scores: Sequence[Scores], tpr: float = 0.95, resamples: int = 1000, seed: int = 0
) -> Resampled:
    """The bootstrap: draw as many ID and OOD scores with replacement as there are, and measure each time.

    All OOD sets meet the same draw of ID scores, so that the mean over the sets varies as in the data. Each set has its own
    random stream: its intervals do not depend on the sets that follow it.

    >>> drawn = resample([0.0, 1.0, 2.0], [[3.0, 4.0], [0.5, 5.0]], resamples=100)
    >>> drawn.auroc.shape, drawn.auroc.mean(0).round(1).tolist()
    ((100, 2), [1.0, 0.7])
    """
    if resamples < 1:
        raise InputError(f"resamples is {resamples}: give at least 1")
    known = np.sort(flat_scores(id_scores, "ID"))
    sets = [_OodSet.of(known, scores) for scores in ood_scores]
    place = int(accepting_threshold(np.arange(len(known)), tpr))  # of the threshold among the sorted scores of a draw
    first, *others = (np.random.default_rng(seeds) for seeds in np.random.SeedSequence(seed).spawn(1 + len(sets)))
    fpr95, auroc = np.empty((2, resamples, len(sets)))
    for draw in range(resamples):
        drawn_known = _cumulative_copies(len(known), first)
        # The scores keep their order and only the number of their copies changes, so nothing is sorted again.
        threshold = int(np.searchsorted(drawn_known, place, side="right")) - 1
        for number, (ood, rng) in enumerate(zip(sets, others, strict=True)):
            drawn = _cumulative_copies(ood.size, rng)
            fpr95[draw, number] = drawn[ood.accepted_at[threshold]] / ood.size
            ordered = drawn_known[ood.below] + drawn_known[ood.not_above]
            auroc[draw, number] = np.diff(drawn) @ ordered / (2 * ood.size * len(known))
    return Resampled(fpr95, auroc)


def percentile_interval(values: npt.ArrayLike, confidence: float = 0.95) -> tuple[float, float]:
    """The central part of resampled values, with equally many below and above it.

    >>> percentile_interval(range(101), confidence=0.5)
    (25.0, 75.0)
    """
    outside = (1 - check_confidence(confidence)) / 2
    low, high = np.quantile(flat_scores(values, "resampled"), [outside, 1 - outside])
    return float(low), float(high)


def fpr_interval(resampled: Floats, accepted: Sequence[Share], confidence: float = 0.95) -> tuple[float, float]:
    """The percentile interval of an FPR, or of its mean over sets, widened to the exact interval of its count.

    Where no OOD is accepted, hardly any resample accepts some: the bootstrap interval is too narrow at the edges. The
    interval is therefore never narrower than Clopper-Pearson's at a fixed threshold. For the mean of k sets, the distances d
    of the limits from the values add up as independent errors do: sqrt(Σ d²) / k (Zou and Donner, 2008).

    Args:
        resampled: FPR95 of `resample`, (resamples, sets).
        accepted: the accepted share of each set, with its limits at the same confidence.
        confidence: of the interval.

    >>> drawn = resample([0.0, 1.0, 2.0], [np.arange(100) + 3])
    >>> fpr_interval(drawn.fpr95, [Share.of((0, 100), confidence=0.95)])  # 1 - 0.025 ** (1 / 100)
    (0.0, 0.0362...)
    """
    low, high = percentile_interval(resampled.mean(1), confidence)
    value = sum(share.value for share in accepted) / len(accepted)
    below = math.hypot(*(share.value - share.low for share in accepted)) / len(accepted)
    above = math.hypot(*(share.high - share.value for share in accepted)) / len(accepted)
    return min(low, value - below), max(high, value + above)


class _OodSet(NamedTuple):
    """Where sorted OOD scores lie among sorted ID scores, which is the same in every resample."""

    size: int
    below: Counts  # for each OOD score, the number of ID scores below it
    not_above: Counts  # for each OOD score, the number of ID scores at or below it
    accepted_at: Counts  # for each ID score, the number of OOD scores at or below it

    @classmethod
    def of(cls, known: Floats, scores: Scores) -> "_OodSet":
        unknown = np.sort(flat_scores(scores, "OOD"))
        return cls(
            len(unknown),
            np.searchsorted(known, unknown, side="left"),
            np.searchsorted(known, unknown, side="right"),
            np.searchsorted(unknown, known, side="right"),
        )


def _cumulative_copies(count: int, rng: np.random.Generator) -> Counts:
    """Draw `count` of `count` sorted scores with replacement: how many draws fell on the first 0, 1, 2, ... of them."""
    copies = np.bincount(rng.integers(0, count, count), minlength=count)
    return np.concatenate([[0], np.cumsum(copies)])
