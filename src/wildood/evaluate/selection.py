"""Choose the epoch to keep and test whether training helped, without a single OOD label (the paper's Appendix C)."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from wildood.evaluate.metrics import Floats, flat_scores

# That training helped. Of 54 fits (six problems, three shares of unknowns, three seeds), 95 % would have kept the start in
# six more than 90 %, all of which had improved; neither level deployed a fit that was clearly worse.
CONFIDENCE = 0.9
Mask = npt.NDArray[np.bool_]


@dataclass
class Selection:
    """The epoch to keep: the latest that is statistically indistinguishable from the one that accepts the least wild data.

    Wild acceptance at an epoch's own ID threshold is (1 - pi) TPR + pi FPR: at equal TPR less is better, whatever pi is. All
    epochs are measured on the same examples, so a difference of two shares has the paired standard error sqrt(verdicts that
    changed) / n. An epoch is considered if its accuracy is at most `accuracy_loss` and one standard error below the start's
    (the first one seen). It is indistinguishable from the least acceptance within two standard errors, because the least of
    many is low partly by chance. `as_published` does what the released code does: it keeps the first epoch with the least
    acceptance, whatever its accuracy, and never the start.

    >>> wild, right = np.arange(100), np.ones(100, dtype=bool)
    >>> selection = Selection()
    >>> selection.see(accepted=wild < 95, correct=right)    # the start
    >>> selection.see(accepted=wild < 86, correct=right)    # accepts less
    >>> selection.see(accepted=wild < 50, correct=wild < 90)    # but is wrong on 10 %
    >>> selection.kept
    1

    `fell` is whether the latest epoch accepts less than every earlier one, by more than the standard error.
    """

    accuracy_loss: float = 0.01
    as_published: bool = False
    seen: int = 0
    kept: int = 0
    start_correct: Mask | None = None
    least_accepted: Mask | None = None
    fell: bool = False

    def see(self, accepted: Mask, correct: Mask) -> None:
        """Take in one more epoch: the wild examples that it accepts, and the ID examples that it classifies correctly."""
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

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to go on; masks are numpy arrays, or None before the first epoch.

        >>> again = Selection()
        >>> again.load_state_dict(Selection(seen=3, kept=2).state_dict())
        >>> again.seen, again.kept
        (3, 2)
        """
        return {name: getattr(self, name) for name in ("seen", "kept", "start_correct", "least_accepted")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        for name in ("seen", "kept", "start_correct", "least_accepted"):
            setattr(self, name, state[name])


def _paired_difference(first: Mask, second: Mask) -> tuple[float, float]:
    """The difference of two shares of the same examples, and its standard error.

    >>> _paired_difference(np.array([True, True, True, False]), np.array([True, False, True, False]))
    (0.25, 0.25)
    """
    difference = float(np.mean(first)) - float(np.mean(second))
    return difference, math.sqrt(int(np.sum(first != second))) / len(first)


@dataclass(frozen=True)
class Comparison:
    """The wild acceptance of the start and of the trained detector, on the same examples, which trained neither.

    Acceptance is the mean over all false-alarm rates up to alpha: the partial area under the curve of wild acceptance over
    the false-alarm rate. (Acceptance at one threshold would depend on the few ID examples around it.)

    Attributes:
        start: the acceptance of the start.
        trained: the acceptance of the trained detector.
        error: the standard error of their difference.
        wild: the number of wild examples.
        tail: alpha times the number of ID examples, those that may be rejected: the degrees of freedom of the error.
    """

    start: float
    trained: float
    error: float
    wild: int
    tail: float

    @property
    def helped(self) -> bool:
        """Whether the trained detector accepts less: a one-sided t-test at 90 % confidence."""
        return self.start - self.trained > float(stdtrit(max(1.0, self.tail), CONFIDENCE)) * self.error


def compare_acceptance(
    start: tuple[npt.ArrayLike, npt.ArrayLike], trained: tuple[npt.ArrayLike, npt.ArrayLike], alpha: float
) -> Comparison:
    """Compare the wild data that the start and a trained detector accept at equal false-alarm rates, up to alpha.

    The standard error is DeLong's for paired curves, sqrt(var(by wild) / m + var(by ID) / n): both samples contribute to it.

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
    """DeLong's placement values: the share of false-alarm rates that accept each wild example; the same for ID examples."""
    above = 1 - np.searchsorted(np.sort(known), wild, side="left") / len(known)  # the share of ID examples at or above it
    inside = np.sort(wild[above < alpha])
    return np.minimum(above, alpha) / alpha, np.searchsorted(inside, known, side="right") / (len(wild) * alpha)
