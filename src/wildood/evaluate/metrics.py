"""Metrics of OOD scores, exact with ties. Higher scores mean more OOD everywhere."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from wildood.errors import InputError

Scores = npt.ArrayLike
Floats = npt.NDArray[np.float64]
Sorted = npt.NDArray[np.float32] | Floats
PART = 1 << 14  # scores processed together: few enough for the processor's cache


@dataclass(frozen=True)
class Metrics:
    """Every metric of two sets of scores.

    Attributes:
        fpr_at_tpr: the share of OOD accepted when at least `tpr` of ID is accepted: the paper's FPR95 (ID is the positive
            class).
        fpr_at_tpr_ood_positive: the share of ID rejected when at least `tpr` of OOD is rejected (OOD is the positive class).
            Its values differ from the paper's: never compare one with the other.
        auroc: P(s_out > s_in) + P(s_out = s_in) / 2.
        aupr_in: average precision with ID as the positive class, Σ (recall_k - recall_{k-1}) precision_k, not interpolated.
        aupr_out: the same with OOD as the positive class.
        tpr: the rate at which the FPRs are measured.

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
        return (
            f"FPR{100 * self.tpr:g} {100 * self.fpr_at_tpr:.2f} % "
            f"(OOD as positive: {100 * self.fpr_at_tpr_ood_positive:.2f} %), AUROC {100 * self.auroc:.2f} %, "
            f"AUPR-in {100 * self.aupr_in:.2f} %, AUPR-out {100 * self.aupr_out:.2f} %"
        )


def all_metrics(id_scores: Scores, ood_scores: Scores, tpr: float = 0.95) -> Metrics:
    """All metrics at once, for many millions of scores: each set is sorted once, and float32 stays float32.

    >>> all_metrics([0.0, 1.0], [1.0, 2.0]).auroc
    0.875
    """
    known, unknown = _sorted(id_scores, "ID"), _sorted(ood_scores, "OOD")
    if known.dtype != unknown.dtype:
        known, unknown = known.astype(np.float64), unknown.astype(np.float64)
    n, m = len(known), len(unknown)
    threshold, ood_threshold = known[_rank(tpr, n) - 1], unknown[m - _rank(tpr, m)]
    pairs = 0  # twice the number of pairs (ID, OOD) in the right order, ties counted once
    out_area = in_area = 0.0
    accepted = np.zeros(n + 1, dtype=np.int64)  # OOD scores between one ID score and the next; then all up to it
    start = 0
    for last, size in _tie_groups(unknown):
        values = unknown[last]
        near = known[start : np.searchsorted(known, values[-1], side="right")]
        below = start + np.searchsorted(near, values)
        tied = known[np.minimum(below, n - 1)] == values
        not_above = start + np.searchsorted(near, values[tied], side="right")
        pairs += 2 * int(size @ below) + int(size[tied] @ (not_above - below[tied]))
        above = m + size - 1 - last  # OOD at or above this value
        out_area += float(size @ (above / (above + n - below)))
        np.add.at(accepted, below, size)
        start = int(below[-1])
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
    """The paper's FPR95, with ID as the positive class: the share of OOD accepted when at least `tpr` of ID is accepted.

    FPR = P_out(s <= t), where t is the smallest ID score with P_in(s <= t) >= tpr. Nothing is interpolated.

    >>> fpr_at_tpr([0.0, 0.1, 0.2, 0.3], [0.25, 0.3, 0.9, 1.0], tpr=0.75)
    0.0
    >>> fpr_at_tpr([0.0, 0.1, 0.2, 0.3], [0.25, 0.3, 0.9, 1.0], tpr=0.95)
    0.5
    """
    return float(np.mean(flat_scores(ood_scores, "OOD") <= accepting_threshold(id_scores, tpr)))


def fpr_standard_error(id_scores: Scores, ood_scores: Scores, tpr: float = 0.95, draws: int = 200, seed: int = 0) -> float:
    """The standard error of FPR95 over test sets of this size, by the bootstrap: both sets are drawn with replacement.

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
    """P(s_out > s_in) + P(s_out = s_in) / 2: the probability that an OOD example scores higher than an ID example.

    >>> auroc([0.0, 1.0], [1.0, 2.0])
    0.875
    """
    ordered = np.sort(flat_scores(id_scores, "ID"))
    ood = flat_scores(ood_scores, "OOD")
    below = np.searchsorted(ordered, ood, side="left")
    not_above = np.searchsorted(ordered, ood, side="right")
    return float(np.mean(below + not_above) / (2 * len(ordered)))


def rejection_rate(scores: Scores, threshold: float) -> float:
    """The share of examples rejected, P(s > threshold): false alarms if they are ID, the detection rate if they are OOD.

    >>> rejection_rate([0.0, 1.0, 2.0, 3.0], threshold=0.5)
    0.75
    """
    return float(np.mean(flat_scores(scores, "the") > check_threshold(threshold)))


def accuracy(predicted: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """The share of examples whose predicted class is the label; a rejected example (UNKNOWN) counts as wrong.

    >>> accuracy([0, 1, -1, 1], [0, 1, 2, 2])
    0.5
    """
    classes, expected = as_array(predicted, "the predictions"), as_array(labels, "the labels")
    if classes.shape != expected.shape or classes.size == 0:
        raise InputError(f"{classes.shape} predictions for {expected.shape} labels: give as many of one as of the other")
    return float(np.mean(classes == expected))


def roc_curve(id_scores: Scores, ood_scores: Scores) -> tuple[Floats, Floats]:
    """The shares of ID and of OOD rejected, at every threshold from rejecting nothing to rejecting all.

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


def _rank(tpr: float, count: int) -> int:
    """ceil(tpr * count): the rank of the first score that accepts at least this share of them."""
    if not 0 < tpr <= 1:
        raise InputError(f"tpr is {tpr}: give a rate in (0, 1]")
    # 0.07 * 100 is 7.000000000000001 in floating point: round before ceil.
    return max(1, math.ceil(round(tpr * count, 9)))


def _sorted(scores: Scores, what: str) -> Sorted:
    """The scores in ascending order, checked by `flat_scores`; float32 stays float32."""
    array = as_array(scores, f"{what} scores")
    if array.dtype == np.float32 and array.ndim == 1 and array.size:
        ordered: Sorted = np.sort(array)
        if not np.isnan(ordered[-1]):  # NaN is sorted to the end
            return ordered
    return np.sort(flat_scores(array, what))


def _tie_groups(ordered: Sorted) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """For each distinct value, in order: the index of its last copy and the number of copies; in parts of `PART` scores."""
    before = -1
    for start in range(0, len(ordered), PART):
        here, following = ordered[start : start + PART], ordered[start + 1 : start + PART + 1]
        ends = np.ones(len(here), dtype=bool)
        np.not_equal(here[: len(following)], following, out=ends[: len(following)])
        last = start + np.flatnonzero(ends)
        if len(last):
            yield last, np.diff(last, prepend=before)
            before = int(last[-1])


def flat_scores(scores: Scores, what: str) -> Floats:
    """The scores as one flat array. Empty, nested and NaN ones are refused; infinite ones can be ranked.

    >>> flat_scores([1, 2], "ID")
    array([1., 2.])
    """
    flat = as_numbers(scores, f"{what} scores")
    if flat.ndim != 1 or flat.size == 0:
        raise InputError(f"{what} scores have shape {flat.shape}: give one number per example, at least one example")
    if np.isnan(flat).any():
        raise InputError(f"{what} scores contain NaN: look at the model's outputs before measuring")
    return flat


def finite_scores(scores: npt.ArrayLike) -> Floats:
    """Scores that are not finite as the largest number, as a detector counts them: it rejects such examples.

    >>> finite_scores([1.0, np.nan, -np.inf])
    array([1.00000000e+000, 1.79769313e+308, 1.79769313e+308])
    """
    values = np.asarray(scores, dtype=np.float64)
    return np.where(np.isfinite(values), values, np.finfo(np.float64).max)


def as_numbers(values: Any, what: str) -> Floats:
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
    """Values as a numpy array; a torch tensor is detached and copied to the CPU, bfloat16 and float16 become float32.

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
    """The threshold as a float; NaN and what is no number are refused.

    >>> check_threshold(np.float32(0.5))
    0.5
    """
    number = as_array(threshold, "the threshold")
    if number.ndim or number.dtype.kind not in "fiu":
        raise InputError(f"the threshold is a {type(threshold).__name__}: give a number")
    if np.isnan(number):
        raise InputError("the threshold is NaN: give a number")
    return float(number)
