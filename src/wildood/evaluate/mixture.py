"""How much of the wild data is OOD, and what that means for the FPR: what can be said without a single OOD label."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from wildood.errors import InputError
from wildood.evaluate.binomial import hypergeometric_tail, in_percent, log_choose, lower_limit, upper_limit
from wildood.evaluate.metrics import as_numbers, check_threshold, flat_scores
from wildood.evaluate.thresholds import check_confidence

Floats = npt.NDArray[np.float64]
STEPS = 30  # halvings of [0, 1] in the search for a share: to nine digits
ONE_ERROR = 0.16  # the chance to be more than one standard error below the mean


@dataclass(frozen=True)
class UnknownShare:
    """What ID scores and wild scores say about pi, the share of OOD in the wild data.

    Attributes:
        bound: pi is at least this, with probability `confidence`.
        estimate: a guess without guarantee, never below the bound; it assumes that hardly any ID scores highest.
        p_value: of the hypothesis that there is no OOD at all; below 1 - confidence exactly where the bound is above 0.
        confidence: of the bound.
        holdout: how many ID examples it rests on.
        wild: how many wild examples it rests on.

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
        found = f"at least {in_percent(self.bound)} of the wild data is OOD" if self.bound > 0 else "no OOD is found"
        return (
            f"{found} at {100 * self.confidence:g} % confidence (estimate {in_percent(self.estimate)}, "
            f"p = {self.p_value:.2g}; {self.holdout} ID and {self.wild} wild scores)"
        )


def unknown_share(id_scores: npt.ArrayLike, wild_scores: npt.ArrayLike, confidence: float = 0.95) -> UnknownShare:
    """A lower confidence bound on pi, an estimate of it, and a test of whether there is any OOD in the wild data.

    Give scores of ID examples and of wild examples; or several scores of the same examples, as rows of two 2-D arrays.
    What is said holds for finite samples, tied scores included, if no training has seen any of these examples and they have
    chosen nothing: neither the ID examples nor the wild ones. Scores do not show whether that is so, and it is not
    checked: of traffic that the detector was trained on, OOD is found where there is none. `Detector.unknown_share` takes
    the examples themselves and refuses what the detector was made from.

    Bound and test. Let t be the k-th smallest of n ID scores. For continuous scores u = P_in(s <= t) has the law
    Beta(k, n - k + 1), and ties only add to it. Of m wild scores W are at most t, and as P_wild(s <= t) >= (1 - pi) u,
    W is stochastically larger than V ~ Binomial(m, (1 - pi) u). So the probability p_k(pi) = P(V <= W), in which u is
    random, too, is a p-value for the hypothesis "the share is pi or less", and it rises with pi. The ranks are fixed in
    advance: those with n/2, n/4, n/8, ..., 1 and 0 of the ID scores above them. With K ranks and G scores the bound is
    the largest pi with p_k(pi) <= (1 - confidence) / (K G) for some rank, and the test's p-value is K G min p_k(0)
    (Bonferroni). At pi = 0 all n + m scores are exchangeable, and p_k(0) is Fisher's: a hypergeometric tail. The bound
    is above 0 exactly where the test rejects at 1 - confidence.

    Estimate. The largest pi with p_k(pi) <= 0.16 for some rank: what the rank says, less one standard error, for the
    largest of several would be too high. It assumes irreducibility: that above some rank there is OOD and hardly any
    ID. OOD that lies below is not counted, so that the estimate is too low where scores separate badly or are tied;
    where there is no OOD it is a little too high. It carries no guarantee.

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
    """The p-value of the hypothesis that pi is at most this share, from the same ranks as `unknown_share`.

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
    """The FPR at one threshold for each pi that might be the true one, with a band that holds for all of them at once.

    Attributes:
        share: the values of pi.
        fpr: the share of OOD accepted if pi is that.
        lower: below which it is not.
        upper: above which it is not, with probability `confidence` for both together.
        possible: where the band has any value of [0, 1] at all; a pi for which it has none is refuted.
        confidence: of the band.

    >>> found = fpr_by_share(np.arange(1000), np.arange(1000) * 1.2, threshold=949, share=[0.1, 0.5, 1.0])
    >>> found.possible.tolist(), found.fpr.round(3).tolist()
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
    """The FPR R1 as a function of pi: what is accepted of the wild data is W = (1 - pi) TPR + pi R1, so pi decides.

    The band comes from the exact limits of W and of TPR, each of the four at (1 - confidence) / 4, whatever pi is. The
    threshold may be any that does not depend on the wild scores: one fixed before, or an order statistic of these ID
    scores at a rank fixed before, such as `conformal_threshold`'s. No value of R1 can be had without a value of pi. As for
    `unknown_share`, no training may have seen any of these examples, which is not checked.

    >>> known, caught, missed = np.linspace(0, 1, 9000), np.full(700, 2.0), np.zeros(300)
    >>> print(fpr_by_share(known, np.concatenate([known, caught, missed]), threshold=0.95, share=[0.05, 0.1]))
    FPR, with its 95 % band: pi = 0.05 is refuted; 30 % (18.1 to 41.9) if pi = 0.1
    """
    known, wild, shares = flat_scores(id_scores, "ID"), flat_scores(wild_scores, "wild"), check_share(share)
    threshold = check_threshold(threshold)
    level = (1 - check_confidence(confidence)) / 4
    n, m = len(known), len(wild)
    in_id, in_wild = int(np.sum(known <= threshold)), int(np.sum(wild <= threshold))
    # A tied ID score may be the threshold because of its first copy: the lower limit must not count the others.
    surely_in_id = min(in_id, int(np.sum(known < threshold)) + 1)

    def solved(accepted: float, tpr: float) -> Floats:
        return np.asarray((accepted - (1 - shares) * tpr) / shares, dtype=np.float64)

    fpr = solved(in_wild / m, in_id / n)
    lower = solved(lower_limit(in_wild, m, level), upper_limit(in_id, n, level))
    upper = solved(upper_limit(in_wild, m, level), lower_limit(surely_in_id, n, level))
    possible = np.asarray((lower <= 1) & (upper >= 0))
    fpr, lower, upper = (np.clip(values, 0.0, 1.0) for values in (fpr, lower, upper))
    return FprByShare(shares, fpr, lower, upper, possible, confidence)


def check_share(share: npt.ArrayLike) -> Floats:
    """Values that pi may have where something is divided by it: above 0 and at most 1.

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
    """That only `accepted` of m wild scores are at or below the rank-th smallest of n ID scores."""

    rank: int
    accepted: int
    n: int
    m: int

    @cached_property
    def at_zero(self) -> float:
        """p_k(0): of the rank + accepted smallest of n + m exchangeable scores, so many are among the n or more."""
        first = self.rank + self.accepted
        return hypergeometric_tail(self.rank, marked=self.n, drawn=first, population=self.n + self.m)

    @cached_property
    def by_count(self) -> Floats:
        """For N = 0, ..., m fresh ID scores: the probability that at most `accepted` of them are at or below the rank.

        From N to N + 1 it falls by the probability that `accepted` of N are (beta-binomial) and the next one is, too,
        (rank + accepted) / (n + 1 + N). Summed from N = m downwards, where it is small.
        """
        k, w, n = self.rank, self.accepted, self.n
        if w == self.m:
            return np.ones(self.m + 1)
        count = np.arange(w, self.m, dtype=np.float64)
        # of w all are: B(k + w, n - k + 1) / B(k, n - k + 1)
        first = log_choose(n, k) - log_choose(n + w, k + w) + math.log(k / (k + w))
        ratios = (count[:-1] + 1) / (count[:-1] + 1 - w) * (count[:-1] - w + n - k + 1) / (count[:-1] + n + 1)
        exactly = np.exp(first + np.append(0.0, np.cumsum(np.log(ratios))))
        falls = exactly * (k + w) / (n + 1 + count)
        falling = self.at_zero + np.append(np.cumsum(falls[::-1])[::-1], 0.0)
        return np.append(np.ones(w), np.minimum(falling, 1.0))

    def p_value(self, share: float) -> float:
        """p_k(share): `by_count` averaged over the number of ID examples in the wild data, Binomial(m, 1 - share)."""
        if share <= 0:
            return self.at_zero
        if share >= 1:
            return 1.0
        mean, deviation = self.m * (1 - share), math.sqrt(self.m * share * (1 - share))
        # Bernstein: what lies farther out than this has a probability below 1e-16.
        low = max(0, math.floor(mean - 9 * deviation - 30))
        high = min(self.m, math.ceil(mean + 9 * deviation + 30))
        count = np.arange(low, high, dtype=np.float64)
        logs = np.empty(high - low + 1)
        logs[0] = log_choose(self.m, low) + low * math.log1p(-share) + (self.m - low) * math.log(share)
        logs[1:] = np.log((self.m - count) / (count + 1) * ((1 - share) / share))
        return min(1.0, float(np.exp(np.cumsum(logs)) @ self.by_count[low : high + 1]))


def _all_evidence(id_scores: npt.ArrayLike, wild_scores: npt.ArrayLike) -> list[_Evidence]:
    """One for each score and each rank."""
    known, wild = _rows(id_scores, "ID"), _rows(wild_scores, "wild")
    if len(known) != len(wild):
        raise InputError(f"{len(known)} scores for ID and {len(wild)} for wild examples: give the same scores for both")
    n, m = len(known[0]), len(wild[0])
    ranks = [n - (n >> halvings) for halvings in range(1, n.bit_length() + 1)]
    return [
        _Evidence(rank, int(np.searchsorted(theirs, ours[rank - 1], side="right")), n, m)
        for ours, theirs in zip(known, wild, strict=True)
        for rank in ranks
    ]


def _smallest(evidence: list[_Evidence], share: float) -> float:
    """The smallest p-value, times the number of those it is the smallest of."""
    return min(1.0, len(evidence) * min(one.p_value(share) for one in evidence))


def _largest_share(evidence: list[_Evidence], level: float, low: float) -> float:
    """The largest share whose p-value is at most the level for some of the evidence; `low` if none above it is."""
    for one in sorted(evidence, key=lambda one: one.at_zero):  # so that few of them need a search
        if one.p_value(low) >= level:
            continue  # it cannot do better than the best so far
        high = 1.0
        for _ in range(STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if one.p_value(middle) <= level else (low, middle)
    return low


def _rows(scores: npt.ArrayLike, what: str) -> list[Floats]:
    """Each score's values, sorted; a flat array is one score."""
    given = as_numbers(scores, f"{what} scores")
    rows = given if given.ndim > 1 and len(given) else [given]
    return [np.sort(flat_scores(row, what)) for row in rows]
