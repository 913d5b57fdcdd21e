"""Which epoch to keep, and whether training helped, without a single OOD label (the paper's Appendix C)."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from wildood.evaluate.metrics import flat_scores

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass
class Selection:
    """The epoch to keep so far: the last one that cannot be told from the one that accepts the least wild data.

    Wild acceptance at an epoch's own ID threshold is (1 - pi) TPR + pi FPR: at equal TPR less is better, whatever pi is.
    Only epochs whose accuracy is within `accuracy_loss` of the first one's (the start's) are considered. All epochs are
    judged on the same examples, so a difference of two shares has the paired standard error sqrt(verdicts that changed) / n.
    Accuracy is given that much grace. The least of many acceptances is least partly by luck: an epoch is separated from it
    by two standard errors only, and of those that are not separated the longest trained one is kept. (`as_published` keeps
    the first one with the least, whatever its accuracy, and never the start, as the released code does.)

    >>> wild, right = np.arange(100), np.ones(100, dtype=bool)
    >>> selection = Selection()
    >>> selection.see(accepted=wild < 95, correct=right)    # the start
    >>> selection.see(accepted=wild < 86, correct=right)    # accepts less
    >>> selection.see(accepted=wild < 50, correct=wild < 90)    # but is wrong on 10 %
    >>> selection.kept
    1

    After each look, `fell` says whether it accepts less than any before by more than the standard error.
    """

    accuracy_loss: float = 0.01
    as_published: bool = False
    seen: int = 0
    kept: int = 0
    start_correct: Mask | None = None
    least_accepted: Mask | None = None
    fell: bool = False

    def see(self, accepted: Mask, correct: Mask) -> None:
        """One more epoch: which of the wild examples it accepts, and which of the ID examples it classifies correctly."""
        number, self.seen, self.fell = self.seen, self.seen + 1, False
        if self.start_correct is None or self.least_accepted is None:
            self.start_correct, self.least_accepted = correct, accepted
            return
        if self.as_published:
            if number == 1 or np.mean(accepted) < np.mean(self.least_accepted):
                self.least_accepted, self.kept = accepted, number
            return
        lost, error = _paired_difference(self.start_correct, correct)
        if lost > self.accuracy_loss + error + 1e-12:
            return
        more, error = _paired_difference(accepted, self.least_accepted)
        self.fell = more + error < -1e-12
        if more <= 0:
            self.least_accepted = accepted
        if more <= 2 * error:
            self.kept = number


def _paired_difference(first: Mask, second: Mask) -> tuple[float, float]:
    """By how much the first share exceeds the second, and the standard error of that, on the same examples.

    >>> _paired_difference(np.array([True, True, True, False]), np.array([True, False, True, False]))
    (0.25, 0.25)
    """
    difference = float(np.mean(first)) - float(np.mean(second))
    return difference, math.sqrt(int(np.sum(first != second))) / len(first)


@dataclass(frozen=True)
class Comparison:
    """How much wild data a trained detector accepts, beside the start, on the same examples that trained neither.

    Acceptance is a mean over all false-alarm rates up to alpha: the partial area under the curve of wild acceptance over the
    false-alarm rate. One threshold alone rests on the few ID examples around it.

    Attributes:
        start: the share of wild data that the start accepts.
        trained: the share that the trained detector accepts.
        error: the standard error of their difference.
        wild: how many wild examples were compared.
        tail: how many ID examples may be rejected at these false-alarm rates: as many degrees of freedom has the error.
    """

    start: float
    trained: float
    error: float
    wild: int
    tail: float

    @property
    def helped(self) -> bool:
        """Whether the trained detector accepts less, at 95 % confidence (one-sided, Student's t)."""
        return self.start - self.trained > float(stdtrit(max(1.0, self.tail), 0.95)) * self.error


def compare_acceptance(
    start: tuple[npt.ArrayLike, npt.ArrayLike], trained: tuple[npt.ArrayLike, npt.ArrayLike], alpha: float
) -> Comparison:
    """Whether a trained detector accepts less wild data than the start at equal false-alarm rates, up to alpha.

    The standard error is DeLong's for paired curves: it knows the luck of the wild examples and that of the ID examples.

    Args:
        start: the start's scores of ID examples and of wild examples.
        trained: the trained detector's, of the same examples.
        alpha: the largest false-alarm rate.

    >>> rng = np.random.default_rng(0)
    >>> known, wild, unknown = rng.normal(size=500), rng.normal(size=450), rng.normal(size=50)
    >>> before = known, np.concatenate([wild, unknown + 1])
    >>> compare_acceptance(before, (known, np.concatenate([wild, unknown + 4])), alpha=0.05).helped
    True
    >>> compare_acceptance(before, before, alpha=0.05).helped
    False
    """
    before, after = (
        _placements(flat_scores(known, "ID"), flat_scores(wild, "wild"), alpha) for known, wild in (start, trained)
    )
    by_wild, by_id = (first - second for first, second in zip(before, after, strict=True))
    error = math.sqrt(np.var(by_wild) / len(by_wild) + np.var(by_id) / len(by_id))
    return Comparison(float(before[0].mean()), float(after[0].mean()), error, len(by_wild), alpha * len(by_id))


def _placements(known: Floats, wild: Floats, alpha: float) -> tuple[Floats, Floats]:
    """The share of false-alarm rates up to alpha at which each wild example is accepted; what each ID example adds to it."""
    above = 1 - np.searchsorted(np.sort(known), wild, side="left") / len(known)  # of the ID examples, at or above it
    inside = np.sort(wild[above < alpha])
    return np.minimum(above, alpha) / alpha, np.searchsorted(inside, known, side="right") / (len(wild) * alpha)
