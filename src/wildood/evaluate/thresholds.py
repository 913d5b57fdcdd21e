"""Which threshold to deploy: the conformal order statistic of ID scores the model has never seen."""

import math

import numpy as np
import numpy.typing as npt

from wildood.errors import InputError
from wildood.evaluate.metrics import flat_scores


def check_alpha(alpha: float) -> float:
    """A false-alarm rate: strictly between 0 and 1.

    >>> check_alpha(0.05)
    0.05
    """
    if isinstance(alpha, str) or not 0 < alpha < 1:
        raise InputError(f"alpha is {alpha!r}: give a false-alarm rate strictly between 0 and 1, such as 0.05")
    return float(alpha)


def examples_needed(alpha: float) -> int:
    """The smallest holdout from which a threshold can promise a false-alarm rate of at most alpha.

    >>> examples_needed(0.05)
    19
    """
    return max(1, math.ceil(round(1 / check_alpha(alpha), 9)) - 1)


def conformal_threshold(scores: npt.ArrayLike, alpha: float) -> float:
    """The ceil((1 - alpha)(n + 1))-th smallest of n holdout scores.

    Rejecting where score > threshold then gives P(false alarm) <= alpha for a fresh ID example, on average over the
    draw of the holdout, provided that holdout and fresh examples are exchangeable and the scores were not fitted on them.

    >>> conformal_threshold(range(1, 20), alpha=0.05)
    19.0
    >>> conformal_threshold(range(1, 19), alpha=0.05)
    Traceback (most recent call last):
    wildood.errors.InputError: 18 holdout examples cannot promise a false-alarm rate of 0.05: give at least 19
    """
    ordered = np.sort(flat_scores(scores, "holdout"))
    rank = max(1, math.ceil(round((1 - check_alpha(alpha)) * (len(ordered) + 1), 9)))
    if rank > len(ordered):
        raise InputError(
            f"{len(ordered)} holdout examples cannot promise a false-alarm rate of {alpha}: "
            f"give at least {examples_needed(alpha)}"
        )
    return float(ordered[rank - 1])
