"""The share pi of OOD in wild data, and the FPR that each pi implies: what can be said without a single OOD label."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.special import betaln

from wildood.errors import InputError
from wildood.evaluate.binomial import binomial_pmf, hypergeometric_tail, lower_limit, upper_limit
from wildood.evaluate.intervals import in_percent
from wildood.evaluate.metrics import Floats, as_numbers, check_threshold, flat_scores
from wildood.evaluate.thresholds import check_confidence

STEPS = 30  # bisections of [0, 1] in the search for a share: nine digits
ONE_ERROR = 0.16  # the probability to lie more than one standard error below the mean


@dataclass(frozen=True)
class UnknownShare:
    """What ID scores and wild scores say about pi, the share of OOD in the wild data.

    Attributes:
        bound: pi is at least this, with probability `confidence`.
        estimate: a point estimate without guarantee, never below the bound. It assumes that hardly any ID scores highest.
        p_value: of the hypothesis pi = 0; below 1 - confidence exactly where the bound is above 0.
        confidence: of the bound.
        holdout: the number of ID scores.
        wild: the number of wild scores.

    >>> print(UnknownShare(bound=0.079, estimate=0.094, p_value=1e-9, confidence=0.95, holdout=4000, wild=4000))
    at least 7.9 % of the wild data is OOD at 95 % confidence (estimate 9.4 %, p = 1e-09; 4000 ID and 4000 wild scores)
    """

    bound: float
    estimate: float
    p_value: float
    confidence: float
    holdout: int
    wild: int

    def __str__(self) -> str:
        result = f"at least {in_percent(self.bound)} of the wild data is OOD" if self.bound > 0 else "no OOD is found"
        return (
            f"{result} at {100 * self.confidence:g} % confidence (estimate {in_percent(self.estimate)}, "
            f"p = {self.p_value:.2g}; {self.holdout} ID and {self.wild} wild scores)"
        )


def unknown_share(id_scores: npt.ArrayLike, wild_scores: npt.ArrayLike, confidence: float = 0.95) -> UnknownShare:
    """A lower confidence bound on pi, an estimate of it, and a test of whether there is any OOD in the wild data.

    Give scores of ID examples and of wild examples; or several scores of the same examples, as rows of two 2-D arrays. The
    results hold for finite samples, with ties, if these examples have trained nothing and chosen nothing. Scores cannot show
    that, so it is not checked: `Detector.unknown_share` takes the examples themselves and refuses those that the detector
    was made from.

    Bound and test. Let t be the k-th smallest of n ID scores. For continuous scores, u = P_in(s <= t) ~ Beta(k, n - k + 1),
    and ties only increase u. Of m wild scores, W are at most t. As P_wild(s <= t) >= (1 - pi) u, W is stochastically larger
    than V ~ Binomial(m, (1 - pi) u). So p_k(pi) = P(V <= W), with u random, is a p-value of "the share is at most pi", and
    it rises with pi. The ranks are fixed in advance: those with n/2, n/4, n/8, ..., 1 and 0 ID scores above them. With K
    ranks and G scores, the bound is the largest pi with p_k(pi) <= (1 - confidence) / (K G) for some rank, and the p-value
    of the test is K G min p_k(0) (Bonferroni). At pi = 0 all n + m scores are exchangeable, and p_k(0) is a hypergeometric
    tail (Fisher's exact test).

    Estimate. The largest pi with p_k(pi) <= 0.16 for some rank: one standard error below the rank's value, because the
    largest of several values would be too high. It assumes irreducibility: above some rank there is OOD and hardly any ID.
    OOD below that rank is not counted, so the estimate is too low where scores separate badly or are tied. Without OOD it is
    slightly too high.

    >>> rng = np.random.default_rng(0)
    >>> wild = np.concatenate([rng.normal(size=3600), rng.normal(size=400) + 4])
    >>> print(unknown_share(rng.normal(size=4000), wild))
    at least 8.5 % of the wild data is OOD at 95 % confidence (estimate 9.2 %, p = 9.7e-100; ...)
    >>> print(unknown_share(rng.normal(size=4000), rng.normal(size=4000)))
    no OOD is found at 95 % confidence (estimate ... %, p = 1; 4000 ID and 4000 wild scores)
    """
    evidence = _all_evidence(id_scores, wild_scores)
    bound = _largest_share(evidence, (1 - check_confidence(confidence)) / len(evidence), 0.0)
    return UnknownShare(
        bound=bound,
        estimate=_largest_share(evidence, ONE_ERROR, bound),
        p_value=_smallest(evidence, 0.0),
        confidence=confidence,
        holdout=evidence[0].n,
        wild=evidence[0].m,
    )


def share_p_value(id_scores: npt.ArrayLike, wild_scores: npt.ArrayLike, share: float = 0.0) -> float:
    """The p-value of the hypothesis that pi is at most this share, by the ranks of `unknown_share`.

    It is below 1 - confidence exactly where the bound of that confidence is above the share.

    >>> known, wild = np.arange(200), np.append(np.arange(200), [1000] * 50)
    >>> [round(share_p_value(known, wild, share), 4) for share in (0.1, 0.15, 0.2)]
    [0.0001, 0.2668, 1.0]
    """
    if not 0 <= share <= 1:
        raise InputError(f"share is {share}: give a value of pi from 0 to 1")
    return _smallest(_all_evidence(id_scores, wild_scores), share)


@dataclass(frozen=True)
class FprByShare:
    """The FPR at one threshold for each value of pi, with a band that holds for all of them at once.

    Attributes:
        share: the values of pi.
        fpr: the share of OOD accepted if pi is that.
        lower: the lower edge of the band.
        upper: its upper edge. The FPR lies within the band with probability `confidence`.
        possible: where the band meets [0, 1]; a pi where it does not is refuted.
        confidence: of the band.

    >>> result = fpr_by_share(np.arange(1000), np.arange(1000) * 1.2, threshold=949, share=[0.1, 0.5, 1.0])
    >>> result.possible.tolist(), result.fpr.round(3).tolist()
    ([False, True, True], [0.0, 0.632, 0.791])
    """

    share: Floats
    fpr: Floats
    lower: Floats
    upper: Floats
    possible: npt.NDArray[np.bool_]
    confidence: float

    def __str__(self) -> str:
        rows = zip(self.share.flat, self.fpr.flat, self.lower.flat, self.upper.flat, self.possible.flat, strict=True)
        parts = [
            f"{100 * fpr:.3g} % ({100 * low:.3g} to {100 * high:.3g}) if pi = {pi:g}"
            if possible
            else f"pi = {pi:g} is refuted"
            for pi, fpr, low, high, possible in rows
        ]
        return f"FPR, with its {100 * self.confidence:g} % band: {'; '.join(parts)}"


def fpr_by_share(
    id_scores: npt.ArrayLike, wild_scores: npt.ArrayLike, threshold: float, share: npt.ArrayLike, confidence: float = 0.95
) -> FprByShare:
    """The FPR as a function of pi: R1 = (W - (1 - pi) TPR) / pi, where W is the accepted share of the wild data.

    The band comes from the exact limits of W and of TPR, each of the four at level (1 - confidence) / 4, whatever pi is. The
    threshold must not depend on the wild scores: it may be fixed in advance, or be an order statistic of these ID scores at
    a rank fixed in advance, as `conformal_threshold`'s is. As for `unknown_share`, no training may have seen these examples.

    >>> known, caught, missed = np.linspace(0, 1, 9000), np.full(700, 2.0), np.zeros(300)
    >>> print(fpr_by_share(known, np.concatenate([known, caught, missed]), threshold=0.95, share=[0.05, 0.1]))
    FPR, with its 95 % band: pi = 0.05 is refuted; 30 % (18.1 to 41.9) if pi = 0.1
    """
    known, wild, shares = flat_scores(id_scores, "ID"), flat_scores(wild_scores, "wild"), check_share(share)
    threshold = check_threshold(threshold)
    level = (1 - check_confidence(confidence)) / 4
    n, m = len(known), len(wild)
    in_id, in_wild = int(np.sum(known <= threshold)), int(np.sum(wild <= threshold))
    # The threshold may be the first of several tied ID scores: the lower limit must not count the others.
    surely_in_id = min(in_id, int(np.sum(known < threshold)) + 1)

    def r1(accepted: float, tpr: float) -> Floats:
        return np.asarray((accepted - (1 - shares) * tpr) / shares, dtype=np.float64)

    fpr = r1(in_wild / m, in_id / n)
    lower = r1(lower_limit(in_wild, m, level), upper_limit(in_id, n, level))
    upper = r1(upper_limit(in_wild, m, level), lower_limit(surely_in_id, n, level))
    possible = np.asarray((lower <= 1) & (upper >= 0))
    fpr, lower, upper = (np.clip(values, 0.0, 1.0) for values in (fpr, lower, upper))
    return FprByShare(shares, fpr, lower, upper, possible, confidence)


def check_share(share: npt.ArrayLike) -> Floats:
    """Values of pi that something is divided by: above 0 and at most 1.

    >>> check_share([0.1, 1])
    array([0.1, 1. ])
    """
    shares = as_numbers(share, "shares")
    outside = ~((shares > 0) & (shares <= 1))
    if np.any(outside):
        raise InputError(f"share is {shares[outside][0]:g}: give values of pi above 0 and at most 1")
    return shares


@dataclass(frozen=True)
class _Evidence:
    """`accepted` of m wild scores are at most the rank-th smallest of n ID scores: W, k, m and n of `unknown_share`."""

    rank: int
    accepted: int
    n: int
    m: int

    @cached_property
    def at_zero(self) -> float:
        """p_k(0): the probability that the k + W smallest of n + m exchangeable scores hold k or more of the n."""
        first = self.rank + self.accepted
        return hypergeometric_tail(self.rank, marked=self.n, drawn=first, population=self.n + self.m)

    @cached_property
    def by_count(self) -> Floats:
        """For N = 0, ..., m fresh ID scores: P(at most W of them are at or below the rank), a beta-binomial distribution.

        From N to N + 1 it falls by P(exactly W of N are) (k + W) / (n + 1 + N). Summed from N = m downwards, where it is
        small.
        """
        k, w, n = self.rank, self.accepted, self.n
        if w == self.m:
            return np.ones(self.m + 1)
        count = np.arange(w, self.m, dtype=np.float64)
        log_all = betaln(k + w, n - k + 1) - betaln(k, n - k + 1)  # that all of N = w are
        ratios = (count[:-1] + 1) / (count[:-1] + 1 - w) * (count[:-1] - w + n - k + 1) / (count[:-1] + n + 1)
        exactly = np.exp(log_all + np.append(0.0, np.cumsum(np.log(ratios))))
        falls = exactly * (k + w) / (n + 1 + count)
        falling = self.at_zero + np.append(np.cumsum(falls[::-1])[::-1], 0.0)
        return np.append(np.ones(w), np.minimum(falling, 1.0))

    def p_value(self, share: float) -> float:
        """p_k(share): the mean of `by_count` over the number of ID examples in the wild data, Binomial(m, 1 - share)."""
        if share <= 0:
            return self.at_zero
        if share >= 1:
            return 1.0
        mean, deviation = self.m * (1 - share), math.sqrt(self.m * share * (1 - share))
        # Bernstein's inequality: counts outside this range have a probability below 1e-16.
        low = max(0, math.floor(mean - 9 * deviation - 30))
        high = min(self.m, math.ceil(mean + 9 * deviation + 30))
        return min(1.0, float(binomial_pmf(low, high, self.m, 1 - share) @ self.by_count[low : high + 1]))


def _all_evidence(id_scores: npt.ArrayLike, wild_scores: npt.ArrayLike) -> list[_Evidence]:
    """One for each score and each rank."""
    known, wild = _rows(id_scores, "ID"), _rows(wild_scores, "wild")
    if len(known) != len(wild):
        raise InputError(f"{len(known)} scores for ID and {len(wild)} for wild examples: give the same scores for both")
    n, m = len(known[0]), len(wild[0])
    ranks = [n - (n >> halvings) for halvings in range(1, n.bit_length() + 1)]
    return [
        _Evidence(rank, int(np.searchsorted(wild_row, id_row[rank - 1], side="right")), n, m)
        for id_row, wild_row in zip(known, wild, strict=True)
        for rank in ranks
    ]


def _smallest(evidence: list[_Evidence], share: float) -> float:
    """The smallest p-value, times the number of p-values (Bonferroni)."""
    return min(1.0, len(evidence) * min(one.p_value(share) for one in evidence))


def _largest_share(evidence: list[_Evidence], level: float, low: float) -> float:
    """The largest share whose p-value is at most the level for some of the evidence; `low` if none above it is."""
    for one in sorted(evidence, key=lambda one: one.at_zero):  # the strongest first, so that few need a search
        if one.p_value(low) >= level:
            continue
        high = 1.0
        for _ in range(STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if one.p_value(middle) <= level else (low, middle)
    return low


def _rows(scores: npt.ArrayLike, what: str) -> list[Floats]:
    """The values of each score, sorted; a flat array is one score."""
    array = as_numbers(scores, f"{what} scores")
    rows = array if array.ndim > 1 and len(array) else [array]
    return [np.sort(flat_scores(row, what)) for row in rows]
