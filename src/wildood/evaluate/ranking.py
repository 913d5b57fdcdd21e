"""Rank trained candidates by the wild data they accept, without a single OOD label (the paper's Appendix C)."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from wildood.errors import InputError
from wildood.evaluate.binomial import binomial_cdf, lower_limit, upper_limit
from wildood.evaluate.intervals import in_percent
from wildood.evaluate.metrics import Floats, as_array, flat_scores
from wildood.evaluate.mixture import check_share
from wildood.evaluate.thresholds import check_alpha, check_confidence, conformal_threshold, threshold_rank
from wildood.settings import check_number

Mask = npt.NDArray[np.bool_]
LEVELS = tuple(0.5**halvings for halvings in range(1, 40))  # error probabilities of the limits on the thresholds


@dataclass(frozen=True)
class Candidate:
    """The scores of one candidate on examples that it was not trained on, the same for all candidates.

    Attributes:
        name: in the ranking.
        id_scores: of the ID holdout.
        wild_scores: of the wild holdout.
        correct: which of the ID holdout it classifies correctly.

    >>> Candidate("lr 0.1", id_scores=[0.1, 0.3], wild_scores=[0.2, 0.9, 0.8], correct=[True, False]).name
    'lr 0.1'
    """

    name: str
    id_scores: npt.ArrayLike
    wild_scores: npt.ArrayLike
    correct: npt.ArrayLike


@dataclass(frozen=True)
class Place:
    """One candidate in the ranking.

    Attributes:
        name: of the candidate.
        index: of the candidate in the list that was ranked.
        threshold: of the candidate, for the common false-alarm rate.
        wild_accepted: the share of the wild holdout accepted there: (1 - pi) TPR + pi FPR, so less is better.
        accuracy: on the ID holdout.
        eligible: whether the accuracy is high enough; candidates that are not eligible come last.
        p_value: of "at a false-alarm rate of alpha, the first candidate accepts no less wild data than this one"; 1 for the
            first. It accounts for the choice of the first, the number of candidates and the randomness of the thresholds:
            the probability that any p-value of a true statement is at most p is at most p.

    >>> Place("lr 0.1", 0, threshold=2.5, wild_accepted=0.88, accuracy=0.95, eligible=True, p_value=1.0).wild_accepted
    0.88
    """

    name: str
    index: int
    threshold: float
    wild_accepted: float
    accuracy: float
    eligible: bool
    p_value: float


@dataclass(frozen=True)
class Ranking:
    """Candidates, best first, with bounds on how much worse the first may be than the best.

    Attributes:
        places: one for each candidate.
        separated: whether the first has the lowest FPR of the eligible candidates at this confidence, whatever pi is
            (`paired_excess_fpr` is 0 for all pi).
        confidence: of `separated` and of the bounds on the excess FPR.
        holdout: the number of ID examples.
        wild: the number of wild examples.
        excess_accepted: upper limits on the wild acceptance of the first less that of each other eligible candidate.
        excess_tpr: upper limits on the TPR of each other eligible candidate less that of the first.
        uneven: how much more of the ID holdout an eligible candidate accepts than the first, because of ties; at most.

    >>> one = Candidate("one", np.arange(4000), np.arange(4000), np.ones(4000, dtype=bool))
    >>> two = Candidate("two", np.arange(4000), np.arange(4000) * 1.01, np.ones(4000, dtype=bool))
    >>> ranking = rank_candidates([one, two])
    >>> ranking.places[0].name, ranking.separated
    ('two', False)
    >>> ranking.excess_fpr([0.1, 0.5]).round(2), ranking.paired_excess_fpr([0.1, 0.5]).round(2)
    (array([0.96, 0.15]), array([0.1 , 0.01]))
    """

    places: tuple[Place, ...]
    separated: bool
    confidence: float
    holdout: int
    wild: int
    excess_accepted: tuple[float, ...]
    excess_tpr: tuple[float, ...]
    uneven: float

    def excess_fpr(self, share: npt.ArrayLike) -> Floats:
        """R1(first) - R1(best) <= 2 (ε_m + (1 - pi) ε_n) / pi: the Corollary of Appendix C, with its constants.

        R1 is the FPR of a candidate at its own threshold, pi R1 = W - (1 - pi) TPR, and best is the best of the eligible.
        With probability `confidence`, the empirical distributions of G candidates on k scores are within
        ε_k = sqrt(log(4 G / (1 - confidence)) / (2 k)) of the true ones (Dvoretzky, Kiefer, Wolfowitz, Massart).
        """
        shares = check_share(share)
        spread = math.log(4 * len(self.places) / (1 - self.confidence)) / 2
        wild_error, id_error = math.sqrt(spread / self.wild), math.sqrt(spread / self.holdout)
        return np.minimum((2 * wild_error + (1 - shares) * (2 * id_error + self.uneven)) / shares, 1.0)

    def paired_excess_fpr(self, share: npt.ArrayLike) -> Floats:
        """A much tighter bound on the same, from the exact limits of the examples on which two candidates differ.

        With d = 1 - confidence, G candidates and k eligible ones: the shares of wild data that only the first or only the
        other accepts have limits at level d / (4 (k - 1)); the TPR at a threshold of fixed rank has limits at level
        d / (4 G).
        """
        shares = check_share(share)
        pairs = zip(self.excess_accepted, self.excess_tpr, strict=True)
        bounds = [np.zeros_like(shares), *((accepted + (1 - shares) * tpr) / shares for accepted, tpr in pairs)]
        return np.asarray(np.clip(np.max(bounds, axis=0), 0.0, 1.0), dtype=np.float64)

    def __str__(self) -> str:
        first, *others = [place for place in self.places if place.eligible]
        if not others:
            only = "the only candidate" + (" that is accurate enough" if len(self.places) > 1 else "")
            return f"{first.name} is {only}: it accepts {in_percent(first.wild_accepted)} of the wild data"
        verdict = "its FPR is surely the lowest" if self.separated else "luck may explain it"
        return (
            f"{first.name} accepts the least of the wild data, {in_percent(first.wild_accepted)}; next is {others[0].name} "
            f"with {in_percent(others[0].wild_accepted)}: {verdict} ({100 * self.confidence:g} % confidence)"
        )


def rank_candidates(
    candidates: Sequence[Candidate],
    alpha: float = 0.05,
    *,
    accuracy_loss: float = 0.01,
    reference: float | None = None,
    confidence: float = 0.95,
) -> Ranking:
    """Rank candidates by the wild data they accept, each at its own threshold for a false-alarm rate of alpha.

    The ID examples that rank here cannot calibrate: set the deployed threshold on others.

    Args:
        candidates: the scores of each.
        alpha: the false-alarm rate at which they are compared.
        accuracy_loss: how far below the reference the accuracy may be.
        reference: an accuracy, such as the starting classifier's; None for the best candidate's.
        confidence: of the p-values' verdict and of all bounds.

    >>> wild, right = np.arange(1000), np.ones(100, dtype=bool)
    >>> known = np.arange(100)
    >>> good, poor = Candidate("good", known, wild, right), Candidate("poor", known, wild / 2, right)
    >>> ranking = rank_candidates([poor, good])
    >>> print(ranking)
    good accepts the least of the wild data, 9.6 %; next is poor with 19.1 %: luck may explain it (95 % confidence)
    >>> ranking.paired_excess_fpr([0.1, 0.5]).round(2)
    array([0.29, 0.  ])
    """
    accuracy_loss = check_number(accuracy_loss, "accuracy_loss", "a share of accuracy from 0 to 1", least=0, most=1)
    alpha = check_alpha(alpha)
    verdicts = [_Verdicts.of(candidate, alpha) for candidate in candidates]
    _check_same_examples(verdicts)
    best = max(one.accuracy for one in verdicts)
    floor = (best if reference is None else reference) - accuracy_loss
    eligible = [one.accuracy >= floor - 1e-12 for one in verdicts]
    if not any(eligible):
        raise InputError(
            f"no candidate reaches an accuracy of {floor:.4g}, the best has {best:.4g}: give other candidates, or a "
            "larger accuracy_loss"
        )
    order = sorted(range(len(verdicts)), key=lambda i: (not eligible[i], verdicts[i].wild_share, -verdicts[i].accuracy))
    first, *others = (verdicts[i] for i in order)
    rivals = others[: sum(eligible) - 1]
    confidence = check_confidence(confidence)
    error = 1 - confidence
    n, m = len(first.accepted_id), len(first.accepted_wild)
    least_tpr = lower_limit(threshold_rank(n, alpha), n, error / (4 * len(verdicts)))
    excess_tpr = [upper_limit(int(one.accepted_id.sum()), n, error / (4 * len(verdicts))) - least_tpr for one in rivals]
    excess_accepted = [_excess_limit(first.accepted_wild, one.accepted_wild, error / (4 * len(rivals))) for one in rivals]
    p_values = [1.0, *(_p_value(first, one, alpha, len(verdicts), sum(eligible)) for one in others)]
    return Ranking(
        places=tuple(
            Place(one.name, i, one.threshold, one.wild_share, one.accuracy, eligible[i], p_value)
            for i, one, p_value in zip(order, [first, *others], p_values, strict=True)
        ),
        separated=bool(rivals) and all(more + tpr < 0 for more, tpr in zip(excess_accepted, excess_tpr, strict=True)),
        confidence=confidence,
        holdout=n,
        wild=m,
        excess_accepted=tuple(excess_accepted),
        excess_tpr=tuple(excess_tpr),
        uneven=max(0.0, *(float(one.accepted_id.mean() - first.accepted_id.mean()) for one in [first, *rivals])),
    )


@dataclass(frozen=True)
class _Verdicts:
    """What a candidate accepts at its own threshold."""

    name: str
    id_scores: Floats  # sorted
    wild_scores: Floats
    threshold: float
    accepted_id: Mask
    accepted_wild: Mask
    correct: Mask

    @classmethod
    def of(cls, candidate: Candidate, alpha: float) -> "_Verdicts":
        known = flat_scores(candidate.id_scores, f"{candidate.name}: ID")
        wild = flat_scores(candidate.wild_scores, f"{candidate.name}: wild")
        correct = as_array(candidate.correct, f"{candidate.name}: `correct`")
        if correct.dtype != np.bool_ or correct.shape != known.shape:
            raise InputError(
                f"{candidate.name}: `correct` is no mask: give True or False for each of {len(known)} ID scores"
            )
        threshold = conformal_threshold(known, alpha)
        return cls(candidate.name, np.sort(known), wild, threshold, known <= threshold, wild <= threshold, correct)

    @property
    def wild_share(self) -> float:
        return float(self.accepted_wild.mean())

    @property
    def accuracy(self) -> float:
        return float(self.correct.mean())


def _p_value(first: _Verdicts, other: _Verdicts, alpha: float, candidates: int, eligible: int) -> float:
    """The p-value of "where each accepts 1 - alpha of all ID data, the first accepts no less wild data than the other".

    Let G candidates be ranked, k of them eligible, and let q be the (1 - alpha)-quantile of a candidate's ID scores. Half of
    the error 2 a is spent on the ID data: an order statistic of the first's ID scores is at least its q, and one of the
    other's is at most its q; each of G + k such limits fails with probability at most a / (G + k). The other half is spent
    on the wild data: an exact one-sided McNemar test at these thresholds. Of the wild examples that exactly one of the two
    accepts, the number accepted by the first is Binomial(., 1/2) if both accept equally many. Any of the k eligible
    candidates might have come first, so each of k (G - 1) tests has level a / (k (G - 1)). The p-value is the smallest 2 a
    that rejects, among `LEVELS` and the tests' p-values.
    """

    def wild_error(place: int) -> float:
        low, high = _ranks_around(len(first.id_scores), alpha, LEVELS[place] / (candidates + eligible))
        if low < 1 or high > len(first.id_scores):
            return 1.0
        ours, theirs = first.wild_scores <= first.id_scores[high - 1], other.wild_scores <= other.id_scores[low - 1]
        only_first, differ = int(np.sum(ours & ~theirs)), int(np.sum(ours != theirs))
        return eligible * (candidates - 1) * binomial_cdf(only_first, differ, 0.5)

    # The stricter the limits on the thresholds, the larger the p-value of the test: find where they meet.
    meet = bisect_left(range(len(LEVELS)), True, key=lambda place: wild_error(place) > LEVELS[place])
    around = range(max(0, meet - 1), min(meet + 1, len(LEVELS)))
    return min(1.0, *(2 * max(LEVELS[place], wild_error(place)) for place in around))


@lru_cache(maxsize=1 << 12)
def _ranks_around(examples: int, alpha: float, level: float) -> tuple[int, int]:
    """Ranks of ID scores at most and at least the (1 - alpha)-quantile; each fails with probability at most `level`.

    With too few scores, the first rank is 0 and the second is examples + 1.

    >>> _ranks_around(1000, 0.05, 0.01), _ranks_around(20, 0.05, 0.01)
    ((933, 966), (16, 21))
    """
    below = bisect_right(range(examples), level, key=lambda count: binomial_cdf(count, examples, 1 - alpha))
    above = bisect_right(range(examples), level, key=lambda count: binomial_cdf(count, examples, alpha))
    return below, examples + 1 - above


def _excess_limit(first: Mask, other: Mask, level: float) -> float:
    """The upper limit on the share that only the first accepts, less the lower limit on what only the other accepts."""
    only_first, only_other = int(np.sum(first & ~other)), int(np.sum(other & ~first))
    return upper_limit(only_first, len(first), level) - lower_limit(only_other, len(first), level)


def _check_same_examples(verdicts: list[_Verdicts]) -> None:
    if not verdicts:
        raise InputError("there is no candidate: give at least one")
    for one in verdicts:
        counts = [(len(each.accepted_id), len(each.accepted_wild)) for each in (verdicts[0], one)]
        if counts[0] != counts[1]:
            raise InputError(
                f"{one.name} has (ID, wild) scores of {counts[1]} examples, {verdicts[0].name} of {counts[0]}: score the "
                "same examples with every candidate"
            )
