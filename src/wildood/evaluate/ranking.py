"""Which of several trained candidates to deploy, without a single OOD label (the paper's Appendix C)."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from wildood.errors import InputError
from wildood.evaluate.binomial import binomial_cdf, in_percent, lower_limit, upper_limit
from wildood.evaluate.metrics import as_array, flat_scores
from wildood.evaluate.mixture import Floats, check_share
from wildood.evaluate.thresholds import check_alpha, check_confidence, conformal_threshold, threshold_rank
from wildood.settings import check_number

Mask = npt.NDArray[np.bool_]
LEVELS = tuple(0.5**halvings for halvings in range(1, 40))  # how often the luck of the thresholds may be misjudged


@dataclass(frozen=True)
class Candidate:
    """What is seen of one candidate, on the same examples as of the others, none of which it was trained on.

    Attributes:
        name: what it is called in the ranking.
        id_scores: of the ID holdout, higher = more OOD.
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
        name: the candidate's.
        index: its position among those given.
        threshold: its own, for the common false-alarm rate.
        wild_accepted: the share of the wild holdout that it accepts there: (1 - pi) TPR + pi FPR, so less is better.
        accuracy: on the ID holdout.
        eligible: whether its accuracy is good enough; those for which it is not come last.
        p_value: of "at a false-alarm rate of alpha, the first accepts no less wild data than this one"; 1 for the first
            itself. It accounts for the choice of the first, for the number of candidates and for the luck of the thresholds:
            of all p-values of true statements, some one is at most p with probability at most p.

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
    """Candidates, best first, and how sure that is.

    Attributes:
        places: one for each candidate.
        separated: whether the FPR of the first is surely the lowest of the eligible ones', whatever pi is: neither the luck
            of the wild draw nor that of the thresholds explains its lead (`paired_excess_fpr` is 0 for all pi).
        confidence: of that, and of the bounds on the excess.
        holdout: how many ID examples it rests on.
        wild: how many wild examples it rests on.
        excess_accepted: the most by which the wild acceptance of the first may exceed each other eligible one's, and
        excess_tpr: the most by which the TPR of each of those may exceed the first's.
        uneven: the most by which ties let any of them accept more of the ID holdout than the first does.

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

        R1 is the FPR, of each candidate at its own threshold; the best is the best of the eligible. With probability
        `confidence` all empirical distributions (G candidates, k ID or wild scores) are within
        ε_k = sqrt(log(4 G / (1 - confidence)) / (2 k)) of the true ones (Dvoretzky, Kiefer, Wolfowitz, Massart), and
        pi R1 = W - (1 - pi) TPR.
        """
        shares = check_share(share)
        spread = math.log(4 * len(self.places) / (1 - self.confidence)) / 2
        wild_error, id_error = math.sqrt(spread / self.wild), math.sqrt(spread / self.holdout)
        return np.minimum((2 * wild_error + (1 - shares) * (2 * id_error + self.uneven)) / shares, 1.0)

    def paired_excess_fpr(self, share: npt.ArrayLike) -> Floats:
        """The same for the thresholds that were set, much tighter: from the exact limits of what differs between two.

        With d = 1 - confidence, G candidates and k eligible ones: the share of wild data that only the first accepts,
        or only the other, has limits at d / (4 (k - 1)); the TPR at a threshold of fixed rank has limits at d / (4 G).
        """
        shares = check_share(share)
        pairs = zip(self.excess_accepted, self.excess_tpr, strict=True)
        bounds = [np.zeros_like(shares), *((accepted + (1 - shares) * tpr) / shares for accepted, tpr in pairs)]
        return np.asarray(np.clip(np.max(bounds, axis=0), 0.0, 1.0), dtype=np.float64)

    def __str__(self) -> str:
        first, *others = [place for place in self.places if place.eligible]
        accepts = f"{first.name} accepts the least of the wild data, {in_percent(first.wild_accepted)}"
        if not others:
            only = "the only candidate" + (" that is accurate enough" if len(self.places) > 1 else "")
            return f"{first.name} is {only}: it accepts {in_percent(first.wild_accepted)} of the wild data"
        verdict = "its FPR is surely the lowest" if self.separated else "luck may explain it"
        return (
            f"{accepts}; next is {others[0].name} with {in_percent(others[0].wild_accepted)}: "
            f"{verdict} ({100 * self.confidence:g} % confidence)"
        )


def rank_candidates(
    candidates: Sequence[Candidate],
    alpha: float = 0.05,
    *,
    accuracy_loss: float = 0.01,
    reference: float | None = None,
    confidence: float = 0.95,
) -> Ranking:
    """Candidates in the order of the wild data they accept, each at its own threshold for a false-alarm rate of alpha.

    What chose here cannot promise: set the deployed threshold on other ID examples.

    Args:
        candidates: what is seen of each.
        alpha: the false-alarm rate at which they are compared.
        accuracy_loss: how far below the reference the accuracy may be.
        reference: an accuracy, such as the starting classifier's; None for the best candidate's.
        confidence: of all that is said about luck.

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
    seen = [_Seen.of(candidate, alpha) for candidate in candidates]
    _check_same_examples(seen)
    best = max(one.accuracy for one in seen)
    floor = (best if reference is None else reference) - accuracy_loss
    eligible = [one.accuracy >= floor - 1e-12 for one in seen]
    if not any(eligible):
        raise InputError(
            f"no candidate reaches an accuracy of {floor:.4g}, the best has {best:.4g}: give other candidates, or a "
            "larger accuracy_loss"
        )
    order = sorted(range(len(seen)), key=lambda i: (not eligible[i], seen[i].wild_share, -seen[i].accuracy))
    first = seen[order[0]]
    rivals = [seen[i] for i in order[1:] if eligible[i]]
    confidence = check_confidence(confidence)
    wrong = 1 - confidence
    n, m = len(first.accepted_id), len(first.accepted_wild)
    least_tpr = lower_limit(threshold_rank(n, alpha), n, wrong / (4 * len(seen)))
    excess_tpr = [upper_limit(int(one.accepted_id.sum()), n, wrong / (4 * len(seen))) - least_tpr for one in rivals]
    excess_accepted = [_most_more(first.accepted_wild, one.accepted_wild, wrong / (4 * len(rivals))) for one in rivals]
    p_values = [1.0, *(_p_value(first, seen[i], alpha, len(seen), sum(eligible)) for i in order[1:])]
    return Ranking(
        places=tuple(
            Place(candidates[i].name, i, seen[i].threshold, seen[i].wild_share, seen[i].accuracy, eligible[i], p_value)
            for i, p_value in zip(order, p_values, strict=True)
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
class _Seen:
    """A candidate's verdicts at its own threshold."""

    name: str
    id_scores: Floats  # sorted
    wild_scores: Floats
    threshold: float
    accepted_id: Mask
    accepted_wild: Mask
    correct: Mask

    @classmethod
    def of(cls, candidate: Candidate, alpha: float) -> "_Seen":
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


def _p_value(first: _Seen, other: _Seen, alpha: float, candidates: int, eligible: int) -> float:
    """Of "where each accepts 1 - alpha of all ID data, the first accepts no less wild data than the other".

    Let G candidates be ranked, k of them eligible, and q be the (1 - alpha)-quantile of a candidate's ID scores. An error of
    2 a is shared between ID and wild data. An order statistic of the first's ID scores is at least its q, and one of the
    other's at most its q: each of G + k such limits fails with probability at most a / (G + k). Between what the two
    accept at these thresholds there is McNemar's test, exact and one-sided: of the wild examples that one of them
    accepts, the first's are Binomial(all, 1/2) if both accept equally much. Any of the k eligible candidates might have
    come first, so each of k (G - 1) tests has a level of a / (k (G - 1)). The p-value is the smallest 2 a at which the
    other is rejected, among the values of `LEVELS` and the p-values of the tests.
    """

    def wild_error(place: int) -> float:
        low, high = _ranks_around(len(first.id_scores), alpha, LEVELS[place] / (candidates + eligible))
        if low < 1 or high > len(first.id_scores):
            return 1.0
        ours, theirs = first.wild_scores <= first.id_scores[high - 1], other.wild_scores <= other.id_scores[low - 1]
        only_first, differ = int(np.sum(ours & ~theirs)), int(np.sum(ours != theirs))
        return eligible * (candidates - 1) * binomial_cdf(only_first, differ, 0.5)

    # The stricter the limits on the thresholds, the larger the test's p-value: they meet in between.
    meet = bisect_left(range(len(LEVELS)), True, key=lambda place: wild_error(place) > LEVELS[place])
    around = range(max(0, meet - 1), min(meet + 1, len(LEVELS)))
    return min(1.0, *(2 * max(LEVELS[place], wild_error(place)) for place in around))


@lru_cache(maxsize=1 << 12)
def _ranks_around(examples: int, alpha: float, level: float) -> tuple[int, int]:
    """Ranks of ID scores, the first not above the (1 - alpha)-quantile and the second not below; each fails with `level`.

    Where there are too few scores for it, the first is 0 and the second is one more than there are.

    >>> _ranks_around(1000, 0.05, 0.01), _ranks_around(20, 0.05, 0.01)
    ((933, 966), (16, 21))
    """
    below = bisect_right(range(examples), level, key=lambda count: binomial_cdf(count, examples, 1 - alpha))
    above = bisect_right(range(examples), level, key=lambda count: binomial_cdf(count, examples, alpha))
    return below, examples + 1 - above


def _most_more(first: Mask, other: Mask, level: float) -> float:
    """The upper limit on the share of wild data that only the first accepts, less the lower limit of only the other."""
    only_first, only_other = int(np.sum(first & ~other)), int(np.sum(other & ~first))
    return upper_limit(only_first, len(first), level) - lower_limit(only_other, len(first), level)


def _check_same_examples(seen: list[_Seen]) -> None:
    if not seen:
        raise InputError("there is no candidate: give at least one")
    for one in seen:
        counts = [(len(each.accepted_id), len(each.accepted_wild)) for each in (seen[0], one)]
        if counts[0] != counts[1]:
            raise InputError(
                f"{one.name} has (ID, wild) scores of {counts[1]} examples, {seen[0].name} of {counts[0]}: score the "
                "same examples with every candidate"
            )
