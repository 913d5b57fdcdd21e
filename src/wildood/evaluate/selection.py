"""Choose the epoch to keep and test whether training helped, without a single OOD label (the paper's Appendix C)."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from wildood.evaluate.metrics import Floats, flat_scores
from wildood.evaluate.thresholds import conformal_threshold

# That training helped. Of 54 fits (six problems, three shares of unknowns, three seeds), 95 % would have kept the start in
# six more than 90 %, all of which had improved; neither level deployed a fit that was clearly worse.
CONFIDENCE = 0.9
Mask = npt.NDArray[np.bool_]
STATE = ("seen", "kept", "start_correct", "least", "by_wild", "by_id")  # of a selection


@dataclass
class Selection:
    """The epoch to keep: the one that accepts the least wild data without losing accuracy.

    At equal false-alarm rates, wild acceptance is (1 - pi) TPR + pi FPR: less is better, whatever pi is. It is the mean over
    all false-alarm rates up to alpha, as in `Comparison`. An epoch is considered if its accuracy is at most `accuracy_loss`
    and one standard error below the start's (the first one seen); the standard error of shares of the same examples is
    sqrt(verdicts that changed) / n. `as_published` does what the released code does: it keeps the first epoch with the least
    acceptance at the threshold, whatever its accuracy, and never the start.

    >>> known, right = np.arange(100) / 100, np.ones(100, dtype=bool)
    >>> selection = Selection(alpha=0.05)
    >>> selection.see((known, known), right)    # the start
    >>> selection.see((known, known + 0.1), right)    # accepts less
    >>> selection.see((known, known + 0.5), known < 0.9)    # but is wrong on 10 %
    >>> selection.kept
    1

    `improved` is whether the latest epoch accepts less than the last one that improved, by more than the standard error: so
    small steps add up, and chance does not.
    """

    alpha: float = 0.05
    accuracy_loss: float = 0.005
    as_published: bool = False
    seen: int = 0
    kept: int = 0
    start_correct: Mask | None = None
    least: float = math.inf  # acceptance
    by_wild: Floats | None = None  # what the last epoch that improved accepts: its placement values
    by_id: Floats | None = None
    improved: bool = False

    def see(self, scores: tuple[Floats, Floats], correct: Mask) -> None:
        """Take in one more epoch: its scores of ID and of wild examples, and which ID examples it classifies correctly.

        A score that is not finite counts as rejected, as the detector will reject it.
        """
        number, self.seen, self.improved = self.seen, self.seen + 1, False
        known, wild = (np.where(np.isfinite(each), each, np.inf).astype(np.float64) for each in scores)
        if self.as_published:
            accepted = float(np.mean(np.isfinite(wild) & (wild <= conformal_threshold(known, self.alpha))))
            if number == 1 or (number and accepted < self.least):
                self.least, self.kept = accepted, number
            return
        by_wild, by_id = _placements(known, wild, self.alpha)
        accepted = float(np.mean(by_wild))
        if self.start_correct is None or self.by_wild is None or self.by_id is None:
            self.start_correct, self.least, self.by_wild, self.by_id = correct, accepted, by_wild, by_id
            return
        lost, error = paired_difference(self.start_correct, correct)
        if lost > self.accuracy_loss + error + 1e-12:
            return
        if accepted < self.least:
            self.least, self.kept = accepted, number
        if _compare((self.by_wild, self.by_id), (by_wild, by_id), self.alpha).is_larger_than_its_error:
            self.by_wild, self.by_id, self.improved = by_wild, by_id, True

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to go on; arrays are numpy's, or None before the first epoch.

        >>> again = Selection()
        >>> again.load_state_dict(Selection(seen=3, kept=2).state_dict())
        >>> again.seen, again.kept
        (3, 2)
        """
        return {name: getattr(self, name) for name in STATE}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        for name in STATE:
            setattr(self, name, state[name])


def paired_difference(first: Mask, second: Mask) -> tuple[float, float]:
    """The difference of two shares of the same examples, and its standard error.

    >>> paired_difference(np.array([True, True, True, False]), np.array([True, False, True, False]))
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
        tail: alpha times the number of ID examples: those that may be rejected. The error has one degree of freedom less.
        nothing_unknown: the p-value of the hypothesis that no wild example is unknown, by the trained detector; 0 if it was
            not tested.
    """

    start: float
    trained: float
    error: float
    wild: int
    tail: float
    nothing_unknown: float = 0.0

    @property
    def helped(self) -> bool:
        """Whether the trained detector accepts less: a one-sided t-test at 90 % confidence."""
        return self.is_shown(CONFIDENCE)

    def is_shown(self, confidence: float, candidates: int = 1) -> bool:
        """The same at another confidence, and of several candidates, which share the error.

        Nothing is shown where at most one ID example may be rejected: the error is then not known.
        """
        level = 1 - (1 - confidence) / candidates
        freedom = self.tail - 1
        return freedom > 0 and self.start - self.trained > float(stdtrit(freedom, level)) * self.error

    @property
    def is_larger_than_its_error(self) -> bool:
        """Whether the trained detector accepts less by more than one standard error."""
        return self.start - self.trained > self.error + 1e-12


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
    return _compare(before, after, alpha)


def _compare(before: tuple[Floats, Floats], after: tuple[Floats, Floats], alpha: float) -> Comparison:
    """The comparison of two detectors by their placement values."""
    by_wild, by_id = (first - second for first, second in zip(before, after, strict=True))
    error = math.sqrt(np.var(by_wild) / len(by_wild) + np.var(by_id) / len(by_id))
    return Comparison(float(before[0].mean()), float(after[0].mean()), error, len(by_wild), alpha * len(by_id))


def _placements(known: Floats, wild: Floats, alpha: float) -> tuple[Floats, Floats]:
    """DeLong's placement values: the share of false-alarm rates that accept each wild example; the same for ID examples."""
    above = 1 - np.searchsorted(np.sort(known), wild, side="left") / len(known)  # the share of ID examples at or above it
    inside = np.sort(wild[above < alpha])
    return np.minimum(above, alpha) / alpha, np.searchsorted(inside, known, side="right") / (len(wild) * alpha)
