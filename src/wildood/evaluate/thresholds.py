"""Conformal thresholds and p-values: order statistics of ID scores that the model has not been trained on."""

import math
from bisect import bisect_right
from typing import Any

import numpy as np
import numpy.typing as npt

from wildood.errors import InputError
from wildood.evaluate.binomial import binomial_cdf
from wildood.evaluate.metrics import Floats, as_array, flat_scores
from wildood.settings import check_number

_SMALLEST = 1e-9  # a rate that a holdout of 10^9 examples can guarantee


def check_alpha(alpha: Any, name: str = "alpha") -> float:
    """A false-alarm rate: strictly between 0 and 1.

    >>> check_alpha(0.05)
    0.05
    """
    return round(_inside(alpha, name, "a false-alarm rate", "0.05"), 15)  # so that 1 - 0.9 is 0.1


def check_confidence(confidence: Any, name: str = "confidence") -> float:
    """The probability with which a statement holds: strictly between 0 and 1.

    >>> check_confidence(0.95)
    0.95
    """
    return _inside(confidence, name, "a probability", "0.95")


def confidence_text(confidence: float | None) -> str:
    """A confidence as the end of a sentence about a false-alarm rate; empty if there is none.

    >>> confidence_text(0.95), confidence_text(None)
    (' with confidence 0.95', '')
    """
    return "" if confidence is None else f" with confidence {confidence:g}"


def examples_needed(alpha: float, confidence: float | None = None) -> int:
    """The smallest holdout that can guarantee a false-alarm rate of at most alpha.

    That is the smallest n with (1 - alpha)(n + 1) <= n; with a confidence, the smallest n with
    1 - (1 - alpha)^n >= confidence.

    >>> examples_needed(0.05), examples_needed(0.05, confidence=0.95)
    (19, 59)
    """
    rate = check_alpha(alpha)
    if confidence is None:
        return max(1, math.ceil(round(1 / rate, 9)) - 1)
    return max(1, math.ceil(round(math.log1p(-check_confidence(confidence)) / math.log1p(-rate), 9)))


def conformal_threshold(scores: npt.ArrayLike, alpha: float, confidence: float | None = None) -> float:
    """The ceil((1 - alpha)(n + 1))-th smallest of n holdout scores; with a confidence, a slightly higher one.

    Reject where score > threshold. Then P(false alarm) <= alpha for a fresh ID example, on average over holdouts, if holdout
    and fresh examples are exchangeable and the scores were not fitted on them.

    With `confidence`, the false-alarm rate is at most alpha for this holdout, with that probability over its draw. The share
    of ID above the k-th smallest of n independent continuous scores is at most alpha with probability P(Binomial(n, 1 -
    alpha) <= k - 1), and with ties the probability is larger. k is the smallest rank for which it reaches the confidence.

    >>> conformal_threshold(range(1, 101), alpha=0.05), conformal_threshold(range(1, 101), alpha=0.05, confidence=0.95)
    (96.0, 99.0)
    >>> conformal_threshold(range(1, 19), alpha=0.05)
    Traceback (most recent call last):
    wildood.errors.InputError: 18 holdout examples cannot promise a false-alarm rate of 0.05: give at least 19
    """
    known = flat_scores(scores, "holdout")
    rank = threshold_rank(len(known), alpha, confidence)
    return float(np.partition(known, rank - 1)[rank - 1])


def check_finite(scores: npt.ArrayLike) -> None:
    """Refuse holdout scores that are not finite: a detector rejects such examples, whatever its threshold is.

    >>> check_finite([1.0, float("inf")])
    Traceback (most recent call last):
    wildood.errors.InputError: 1 of 2 holdout examples have no finite score: drop those with very large values...
    """
    bad = int(np.sum(~np.isfinite(scores)))
    if bad:
        raise InputError(
            f"{bad} of {np.size(scores)} holdout examples have no finite score: drop those with very large values, or look "
            "at what the model makes of them"
        )


def threshold_rank(examples: int, alpha: float, confidence: float | None = None) -> int:
    """The rank k of the threshold among the holdout scores, the smallest being 1.

    >>> threshold_rank(4000, 0.05), threshold_rank(4000, 0.05, confidence=0.95)
    (3801, 3823)
    """
    needed = examples_needed(alpha, confidence)
    if examples < needed:
        rate = f"{alpha}{confidence_text(confidence)}"
        raise InputError(f"{examples} holdout examples cannot promise a false-alarm rate of {rate}: give at least {needed}")
    if confidence is None:
        return max(1, math.ceil(round((1 - alpha) * (examples + 1), 9)))
    # The most scores a that may lie above the threshold have P(Binomial(n, alpha) <= a) <= 1 - confidence. The tolerance
    # counts equality, and a = 0 is always enough here.
    choices = bisect_right(range(examples), 1 - confidence + 1e-12, key=lambda above: binomial_cdf(above, examples, alpha))
    return examples + 1 - max(1, choices)


def tied_scores(scores: npt.ArrayLike, alpha: float, confidence: float | None = None) -> str:
    """A warning that ties keep the threshold from rejecting any holdout example; empty if it rejects one.

    >>> tied_scores(range(100), alpha=0.05)
    ''
    >>> tied_scores([0.0] * 90 + [1.0] * 10, alpha=0.05)
    '10 of the 100 holdout examples share the highest score, so the threshold rejects none of them: the score cannot separate
    unknown examples there; check whether the logits of the model are very small or very large'
    """
    known = flat_scores(scores, "holdout")
    tied = int(np.sum(known == known.max()))
    if not 0 < len(known) - threshold_rank(len(known), alpha, confidence) < tied:
        return ""
    return (
        f"{tied} of the {len(known)} holdout examples share the highest score, so the threshold rejects none of them: the "
        "score cannot separate unknown examples there; check whether the logits of the model are very small or very large"
    )


def thresholds_by_class(
    scores: npt.ArrayLike, predicted: npt.ArrayLike, classes: int, alpha: float, confidence: float | None = None
) -> Floats:
    """One threshold for each class, from the holdout examples for which the classifier predicts that class.

    An example is rejected where its score exceeds the threshold of its *predicted* class: the true class of a fresh example
    is unknown. The false-alarm rate is at most alpha among the ID examples predicted as each class, and so over all of them:
    on average over holdouts or, with `confidence`, with that probability for all classes at once (Bonferroni: 1 - (1 -
    confidence) / k for each of k). For each *true* class nothing is guaranteed.

    >>> thresholds_by_class([1, 2, 3, 10, 20, 30], predicted=[0, 0, 0, 1, 1, 1], classes=2, alpha=0.25)
    array([ 3., 30.])
    """
    known, groups = flat_scores(scores, "holdout"), as_array(predicted, "predicted classes")
    if groups.shape != known.shape:
        raise InputError(f"{groups.shape} predicted classes for {known.shape} holdout scores: give one for each")
    if not np.issubdtype(groups.dtype, np.integer) or groups.min() < 0 or groups.max() >= classes:
        raise InputError(
            f"predicted classes must be whole numbers from 0 to {classes - 1}: give them before any is rejected"
        )
    counts = np.bincount(groups, minlength=classes)
    divided = None if confidence is None else 1 - (1 - check_confidence(confidence)) / classes
    needed, fewest = examples_needed(alpha, divided), int(counts.argmin())
    if counts[fewest] < needed:
        surely = f"{confidence_text(confidence)}, divided over {classes} classes ({divided:.4g} in each)" if divided else ""
        raise InputError(
            f"class {fewest} is predicted for {counts[fewest]} of {len(known)} holdout examples, too few for a "
            f"false-alarm rate of {alpha} in each class{surely}: give at least {needed} for each, or one threshold for all"
        )
    return np.array([conformal_threshold(known[groups == number], alpha, divided) for number in range(classes)])


def p_values(scores: npt.ArrayLike, holdout_scores: npt.ArrayLike) -> Floats:
    """The conformal p-value of each example, (1 + #{holdout >= score}) / (n + 1): small means unknown.

    P(p <= alpha) <= alpha for a fresh ID example, on average over holdouts; and p <= alpha exactly where the score exceeds
    `conformal_threshold(holdout_scores, alpha)`.

    >>> p_values([0.0, 2.0, 9.0], holdout_scores=[1, 2, 3, 4])
    array([1. , 0.8, 0.2])
    """
    ordered = np.sort(flat_scores(holdout_scores, "holdout"))
    below = np.searchsorted(ordered, flat_scores(scores, "the"), side="left")
    return np.asarray((1 + len(ordered) - below) / (len(ordered) + 1), dtype=np.float64)


def _inside(value: Any, name: str, what: str, example: str) -> float:
    few = f" (at least {_SMALLEST})" if isinstance(value, float) and 0 < value < _SMALLEST else ""
    return check_number(value, name, f"{what} strictly between 0 and 1{few}, such as {example}", least=_SMALLEST, below=1)
