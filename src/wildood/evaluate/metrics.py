"""How well scores tell ID from OOD: sample means, exact with ties. Scores are higher for OOD everywhere."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from wildood.errors import InputError

Scores = npt.ArrayLike
Ordered = npt.NDArray[np.float32] | npt.NDArray[np.float64]
PART = 1 << 14  # scores looked at together: few enough for the processor's cache


@dataclass(frozen=True)
class Metrics:
    """Every metric of two sets of scores, each with the value that the function of its name gives.

    >>> print(Metrics(0.05, 0.1, 0.98, 0.97, 0.96))
    FPR95 5.00 % (OOD as positive: 10.00 %), AUROC 98.00 %, AUPR-in 97.00 %, AUPR-out 96.00 %
    """

    fpr_at_tpr: float
    fpr_at_tpr_ood_positive: float
    auroc: float
    aupr_in: float
    aupr_out: float
    tpr: float = 0.95

    def __str__(self) -> str:
        percent = [f"{100 * value:.2f} %" for value in (self.fpr_at_tpr, self.fpr_at_tpr_ood_positive, self.auroc)]
        areas = f"AUPR-in {100 * self.aupr_in:.2f} %, AUPR-out {100 * self.aupr_out:.2f} %"
        return f"FPR{100 * self.tpr:g} {percent[0]} (OOD as positive: {percent[1]}), AUROC {percent[2]}, {areas}"


def all_metrics(id_scores: Scores, ood_scores: Scores, tpr: float = 0.95) -> Metrics:
    """All metrics together, for many millions of scores: each set is sorted once, float32 stays float32.

    >>> all_metrics([0.0, 1.0], [1.0, 2.0]).auroc
    0.875
    """
    known, unknown = _sorted(id_scores, "ID"), _sorted(ood_scores, "OOD")
    if known.dtype != unknown.dtype:
        known, unknown = known.astype(np.float64), unknown.astype(np.float64)
    n, m = len(known), len(unknown)
    threshold, ood_threshold = known[_rank(tpr, n) - 1], unknown[m - _rank(tpr, m)]
    pairs = 0  # twice the pairs (ID, OOD) in the right order, ties counted once
    out_area = in_area = 0.0
    accepted = np.zeros(n + 1, dtype=np.int64)  # OOD scores between one ID score and the next, then all up to it
    seen = 0
    for last, size in _tie_groups(unknown):
        values = unknown[last]
        near = known[seen : np.searchsorted(known, values[-1], side="right")]
        below = seen + np.searchsorted(near, values)
        tied = known[np.minimum(below, n - 1)] == values
        not_above = seen + np.searchsorted(near, values[tied], side="right")
        pairs += 2 * int(size @ below) + int(size[tied] @ (not_above - below[tied]))
        above = m + size - 1 - last  # OOD at or above this value
        out_area += float(size @ (above / (above + n - below)))
        np.add.at(accepted, below, size)
        seen = int(below[-1])
    np.cumsum(accepted, out=accepted)
    for last, size in _tie_groups(known):
        in_area += float(size @ ((last + 1) / (last + 1 + accepted[last])))
    return Metrics(
        fpr_at_tpr=float(np.searchsorted(unknown, threshold, side="right") / m),
        fpr_at_tpr_ood_positive=float((n - np.searchsorted(known, ood_threshold, side="left")) / n),
        auroc=pairs / m / (2 * n),
        aupr_in=in_area / n,
        aupr_out=out_area / m,
        tpr=tpr,
    )


def fpr_at_tpr(id_scores: Scores, ood_scores: Scores, tpr: float = 0.95) -> float:
    """Share of OOD accepted when at least `tpr` of ID is accepted: the paper's FPR95 (ID is the positive class).

    The threshold is the smallest score that accepts at least `tpr` of the ID scores; accept where score <= threshold.

    >>> fpr_at_tpr([0.0, 0.1, 0.2, 0.3], [0.25, 0.3, 0.9, 1.0], tpr=0.75)
    0.0
    >>> fpr_at_tpr([0.0, 0.1, 0.2, 0.3], [0.25, 0.3, 0.9, 1.0], tpr=0.95)
    0.5
    """
    return float(np.mean(flat_scores(ood_scores, "OOD") <= accepting_threshold(id_scores, tpr)))


def fpr_at_tpr_ood_positive(id_scores: Scores, ood_scores: Scores, tpr: float = 0.95) -> float:
    """Share of ID rejected when at least `tpr` of OOD is rejected: the other convention, with OOD as the positive class.

    It is the same question with the classes exchanged, and its values differ: never compare one with the other.

    >>> fpr_at_tpr_ood_positive([0.0, 0.1, 0.2, 0.3], [0.25, 0.3, 0.9, 1.0], tpr=0.95)
    0.25
    """
    return fpr_at_tpr(-flat_scores(ood_scores, "OOD"), -flat_scores(id_scores, "ID"), tpr)


def fpr_standard_error(id_scores: Scores, ood_scores: Scores, tpr: float = 0.95, draws: int = 200, seed: int = 0) -> float:
    """The standard error of FPR95 that comes from the number of test examples: both sets are drawn again with replacement.

    >>> rng = np.random.default_rng(0)
    >>> round(fpr_standard_error(rng.normal(size=1000), rng.normal(size=500) + 2), 2)
    0.03
    """
    known, unknown, rng = flat_scores(id_scores, "ID"), flat_scores(ood_scores, "OOD"), np.random.default_rng(seed)
    return float(
        np.std([fpr_at_tpr(rng.choice(known, len(known)), rng.choice(unknown, len(unknown)), tpr) for _ in range(draws)])
    )


def accepting_threshold(id_scores: Scores, tpr: float = 0.95) -> float:
    """The smallest score that accepts at least `tpr` of the ID scores.

    >>> accepting_threshold([3.0, 1.0, 2.0, 4.0], tpr=0.5)
    2.0
    """
    scores = flat_scores(id_scores, "ID")
    rank = _rank(tpr, len(scores))
    return float(np.partition(scores, rank - 1)[rank - 1])


def auroc(id_scores: Scores, ood_scores: Scores) -> float:
    """Probability that an OOD example scores higher than an ID example, ties counted as one half.

    >>> auroc([0.0, 1.0], [1.0, 2.0])
    0.875
    """
    ordered = np.sort(flat_scores(id_scores, "ID"))
    ood = flat_scores(ood_scores, "OOD")
    below = np.searchsorted(ordered, ood, side="left")
    not_above = np.searchsorted(ordered, ood, side="right")
    return float(np.mean(below + not_above) / (2 * len(ordered)))


def aupr_out(id_scores: Scores, ood_scores: Scores) -> float:
    """Average precision with OOD as the positive class (sum of precision times the gain in recall, no interpolation).

    >>> aupr_out([0.0, 1.0], [2.0, 3.0])
    1.0
    """
    return _average_precision(positive=flat_scores(ood_scores, "OOD"), negative=flat_scores(id_scores, "ID"))


def aupr_in(id_scores: Scores, ood_scores: Scores) -> float:
    """Average precision with ID as the positive class, on the negated scores.

    >>> round(aupr_in([0.0, 2.0], [1.0, 3.0]), 4)
    0.8333
    """
    return _average_precision(positive=-flat_scores(id_scores, "ID"), negative=-flat_scores(ood_scores, "OOD"))


def false_alarm_rate(id_scores: Scores, threshold: float) -> float:
    """Share of ID examples rejected at this threshold (reject where score > threshold).

    >>> false_alarm_rate([0.0, 1.0, 2.0, 3.0], threshold=2.0)
    0.25
    """
    return rejection_rate(id_scores, threshold)


def rejection_rate(scores: Scores, threshold: float) -> float:
    """Share of any examples rejected at this threshold: false alarms of ID, what is caught of OOD.

    >>> rejection_rate([0.0, 1.0, 2.0, 3.0], threshold=0.5)
    0.75
    """
    return float(np.mean(flat_scores(scores, "the") > check_threshold(threshold)))


def accuracy(predicted: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Share of examples whose predicted class is the label; a rejected example (UNKNOWN) counts as wrong.

    >>> accuracy([0, 1, -1, 1], [0, 1, 2, 2])
    0.5
    """
    given, expected = as_array(predicted, "the predictions"), as_array(labels, "the labels")
    if given.shape != expected.shape or given.size == 0:
        raise InputError(f"{given.shape} predictions for {expected.shape} labels: give as many of one as of the other")
    return float(np.mean(given == expected))


def roc_curve(id_scores: Scores, ood_scores: Scores) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """For every threshold, from rejecting nothing to rejecting all: the share of ID and the share of OOD rejected.

    >>> false_alarms, caught = roc_curve([0.0, 1.0], [1.0, 2.0])
    >>> false_alarms.tolist(), caught.tolist()
    ([0.0, 0.0, 0.5, 1.0], [0.0, 0.5, 1.0, 1.0])
    """
    known, unknown = np.sort(flat_scores(id_scores, "ID")), np.sort(flat_scores(ood_scores, "OOD"))
    levels = np.unique(np.concatenate([known, unknown]))[::-1]
    rejected = [1 - np.searchsorted(scores, levels, side="left") / len(scores) for scores in (known, unknown)]
    return np.append(0.0, rejected[0]), np.append(0.0, rejected[1])


def mean_and_error(values: Scores) -> tuple[float, float]:
    """The mean over seeds and its standard error, NaN for a single seed.

    >>> mean_and_error([1.0, 2.0, 3.0])
    (2.0, 0.5773502691896258)
    """
    numbers = flat_scores(values, "per-seed")
    error = float(np.std(numbers, ddof=1)) / math.sqrt(len(numbers)) if len(numbers) > 1 else math.nan
    return float(np.mean(numbers)), error


def _average_precision(positive: npt.NDArray[np.float64], negative: npt.NDArray[np.float64]) -> float:
    """Σ (recall_k - recall_{k-1}) precision_k over the distinct scores, highest first."""
    levels, counts = np.unique(positive, return_counts=True)
    above_positive = np.cumsum(counts[::-1])[::-1]
    above_negative = len(negative) - np.searchsorted(np.sort(negative), levels, side="left")
    precision = above_positive / (above_positive + above_negative)
    return float(np.sum(precision * counts) / len(positive))


def _rank(tpr: float, count: int) -> int:
    """Which of so many scores, counted from the accepted end, is the first that accepts at least this share of them."""
    if not 0 < tpr <= 1:
        raise InputError(f"tpr is {tpr}: give a rate in (0, 1]")
    # 0.07 * 100 is 7.000000000000001 in floating point; rounding keeps the count what it is on paper.
    return max(1, math.ceil(round(tpr * count, 9)))


def _sorted(scores: Scores, what: str) -> Ordered:
    """The scores in order, checked as `flat_scores` does, in their own precision if it is one of the usual two."""
    given = as_array(scores, f"{what} scores")
    if given.dtype != np.float32 or given.ndim != 1 or not given.size:
        return np.sort(flat_scores(given, what))
    ordered: Ordered = np.sort(given)
    return np.sort(flat_scores(given, what)) if np.isnan(ordered[-1]) else ordered


def _tie_groups(ordered: Ordered) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """For each distinct value, in order: the place of its last copy and how many copies it has; in parts."""
    before = -1
    for start in range(0, len(ordered), PART):
        here, following = ordered[start : start + PART], ordered[start + 1 : start + PART + 1]
        ends = np.ones(len(here), dtype=bool)
        np.not_equal(here[: len(following)], following, out=ends[: len(following)])
        last = start + np.flatnonzero(ends)
        if len(last):
            yield last, np.diff(last, prepend=before)
            before = int(last[-1])


def flat_scores(scores: Scores, what: str) -> npt.NDArray[np.float64]:
    """The scores as one flat array; empty, nested or NaN ones are refused (infinite ones can be ranked).

    >>> flat_scores([1, 2], "ID")
    array([1., 2.])
    """
    flat = as_numbers(scores, f"{what} scores")
    if flat.ndim != 1 or flat.size == 0:
        raise InputError(f"{what} scores have shape {flat.shape}: give one number per example, at least one example")
    if np.isnan(flat).any():
        raise InputError(f"{what} scores contain NaN: look at the model's outputs before measuring")
    return flat


def as_numbers(values: Any, what: str) -> npt.NDArray[np.float64]:
    """Real numbers as float64; text, dates, objects and complex numbers are refused.

    >>> as_numbers(["a"], "the scores")
    Traceback (most recent call last):
    wildood.errors.InputError: the scores have dtype <U1: give real numbers
    """
    array = as_array(values, what)
    if array.dtype.kind not in "fiub":
        raise InputError(f"{what} have dtype {array.dtype}: give real numbers")
    return array.astype(np.float64, copy=False)


def as_array(values: Any, what: str) -> npt.NDArray[Any]:
    """Values as numpy reads them; of a torch tensor without its gradient, on the CPU, bfloat16 and the like as float32.

    >>> import torch
    >>> as_array(torch.tensor([1.5], dtype=torch.bfloat16, requires_grad=True), "scores")
    array([1.5], dtype=float32)
    """
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.float() if values.is_floating_point() and values.dtype.itemsize < 4 else values
    try:
        return np.asarray(values)
    except ValueError as error:
        raise InputError(f"{what} do not make rows of equal length: give as many numbers in each") from error
    except (TypeError, RuntimeError) as error:  # a list of tensors with gradients, a sparse tensor
        raise InputError(f"{what} cannot be read as an array: give a numpy array, or one dense tensor") from error


def check_threshold(threshold: Any) -> float:
    """One number that scores can be compared with.

    >>> check_threshold(np.float32(0.5))
    0.5
    """
    number = as_array(threshold, "the threshold")
    if number.ndim or number.dtype.kind not in "fiu":
        raise InputError(f"the threshold is a {type(threshold).__name__}: give a number")
    if np.isnan(number):
        raise InputError("the threshold is NaN: give a number")
    return float(number)
