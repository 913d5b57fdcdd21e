"""Which epoch to keep, without a single OOD label (the paper's Appendix C)."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wildood.evaluate.metrics import flat_scores


class Candidate(NamedTuple):
    """What is known of an epoch from data set aside: no OOD labels among it.

    Attributes:
        accuracy: share of the ID holdout classified correctly.
        acceptance: share of the wild holdout accepted at the epoch's own ID threshold.
    """

    accuracy: float
    acceptance: float


def wild_acceptance(wild_scores: npt.ArrayLike, threshold: float) -> float:
    """Share of wild examples called ID: (1 - pi) TPR + pi FPR, so that at equal TPR less is better, whatever pi is.

    >>> wild_acceptance([0.0, 1.0, 2.0, 3.0], threshold=1.0)
    0.5
    """
    return float(np.mean(flat_scores(wild_scores, "wild") <= threshold))


def best_candidate(
    candidates: Sequence[Candidate], id_examples: int, wild_examples: int, accuracy_loss: float = 0.01
) -> int:
    """The last epoch that cannot be told from the one with the smallest wild acceptance.

    Only epochs whose accuracy is within `accuracy_loss`, and one standard error, of the first candidate's (the start's) are
    considered. Acceptance is an average over few examples, and the smallest of many noisy averages is mostly luck: so of the
    epochs within two standard errors of it, the longest trained one is kept.

    >>> start, good, worse = Candidate(0.9, 0.95), Candidate(0.895, 0.86), Candidate(0.8, 0.80)
    >>> best_candidate([start, good, worse], id_examples=1000, wild_examples=1000)
    1
    """
    admissible = [
        number
        for number, candidate in enumerate(candidates)
        if number == 0
        or candidates[0].accuracy - candidate.accuracy <= accuracy_loss + _standard_error(candidate.accuracy, id_examples)
    ]
    smallest = min(candidates[number].acceptance for number in admissible)
    within = smallest + 2 * _standard_error(smallest, wild_examples)
    return max(number for number in admissible if candidates[number].acceptance <= within)


def _standard_error(share: float, examples: int) -> float:
    return math.sqrt(share * (1 - share) / examples)
