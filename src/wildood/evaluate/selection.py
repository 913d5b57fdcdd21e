"""Which epoch to keep, without a single OOD label (the paper's Appendix C)."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
