"""Is anything unknown in this traffic? Asked every day, for years, with one error rate for all the answers together."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wildood.evaluate.binomial import upper_limit
from wildood.evaluate.metrics import Floats, finite_scores, flat_scores
from wildood.settings import check_number

RATES = 32  # of each threshold's mixture
FIRST = 2  # halvings of the holdout above the lowest threshold: a quarter of it
ERROR = 0.05
MOST_SHOWN = 1_000_000  # of the evidence


class Block(NamedTuple):
    """Traffic between two looks: how many rows there were, and how many of them scored above each threshold."""

    rows: int
    above: tuple[int, ...]


@dataclass(frozen=True)
class Evidence:
    """What the looks of a sequential test have shown so far.

    Attributes:
        values: the e-value after each look: how much better unknowns explain the traffic than known data does.
        needed: an e-value that known traffic ever reaches with probability at most error / 2.
        error: the probability that traffic without unknowns is ever said to hold some.
        rows: the number of rows that were looked at.
    """

    values: tuple[float, ...]
    needed: float
    error: float
    rows: int

    @property
    def first(self) -> int | None:
        """The number of the first look, from 0, that found unknowns; the finding stands."""
        return next((number for number, value in enumerate(self.values) if value >= self.needed), None)

    @property
    def found(self) -> bool:
        """Whether a look has found unknowns."""
        return self.first is not None

    def __str__(self) -> str:
        looks = f"{len(self.values)} look{'' if len(self.values) == 1 else 's'} at {self.rows} rows"
        most = max(self.values, default=1.0)
        result = "unknowns are found" if self.found else "no unknowns are found"
        evidence = f"{most:.3g}" if most < MOST_SHOWN else f"above {MOST_SHOWN:,}"
        return (
            f"{result} in {looks} (evidence {evidence}, needed {self.needed:g}; error {100 * self.error:g} % over all looks)"
        )


@dataclass(frozen=True)
class SequentialTest:
    """The test of one detector: score thresholds and the limits of the shares of known data above them.

    One holdout is compared with new traffic at every look. The p-values of two looks are not independent, because a holdout
    that is low by chance makes all of them small; so their product is no martingale, and Bonferroni's correction would grow
    with the number of looks. Here the chance of the holdout is paid for once, and that of the traffic by an e-process.

    The holdout. Let t_1, ..., t_J be those of n holdout scores that have n/4, n/8, ..., 1 and 0 of them above, ranks fixed
    in advance, and u_j = P_in(s > t_j). For continuous scores u_j ~ Beta(a + 1, n - a) with a scores above, and ties only
    make it smaller. q_j is its (1 - error / 2J)-quantile, the upper Clopper-Pearson limit. With probability at least
    1 - error / 2, all u_j <= q_j.

    The traffic. Given that, let X_i be whether row i scores above t_j. In traffic without unknowns P(X_i = 1 | the past) <=
    q. For a rate r > q, the likelihood ratio of a row,

        f_r(X) = (r / q)^X ((1 - r) / (1 - q))^(1 - X),

    has mean 1 + (p - q)(r / q - (1 - r) / (1 - q)) <= 1 for every p <= q: products of it are supermartingales, whatever the
    rate was before and however it varies below q. So are mixtures of them: over J thresholds, over R rates that are evenly
    spaced on a logarithmic scale between q and 1, and over the look d from which on there are unknowns, with weights w_d =
    1 / (d (d + 1)), which sum to 1 over all d = 1, 2, .... With A_0 = 0, look t over the rows of block t gives

        A_t(j, r) = (A_{t-1}(j, r) + w_t) prod f_r,    E_t = mean over j and r of A_t(j, r) + 1 / (t + 1).

    E_0 = 1, so by Ville's inequality P(E_t >= 2 / error for any t) <= error / 2. Both parts together: known traffic is ever
    said to hold unknowns with probability at most `error`, over all looks, at whatever times they are made, without end.

    It rests on this: the holdout trained nothing and chose nothing of the detector, known traffic is distributed like it,
    and the rows are a sample that does not depend on scores. Rows need not be all of the traffic. A known scene that
    repeats for a while is no independent draw, and can be found as unknown. Another detector, or another holdout, is
    another test, with an error of its own.

    Attributes:
        thresholds: t_j.
        limits: q_j.
        error: of all looks together.

    >>> rng = np.random.default_rng(0)
    >>> test = SequentialTest.of(rng.normal(size=2000), error=0.05)
    >>> known = [test.count(rng.normal(size=500)) for day in range(30)]
    >>> print(test.run(known))
    no unknowns are found in 30 looks at 15000 rows (evidence 0.518, needed 40; error 5 % over all looks)
    >>> mixed = [test.count(np.append(rng.normal(size=490), rng.normal(size=10) + 4)) for day in range(10)]
    >>> test.run(known + mixed).first
    31
    """

    thresholds: tuple[float, ...]
    limits: tuple[float, ...]
    error: float

    @classmethod
    def of(cls, holdout_scores: npt.ArrayLike, error: float = ERROR) -> "SequentialTest":
        """The test against these scores of ID examples that trained and chose nothing."""
        known = np.sort(flat_scores(holdout_scores, "holdout"))
        check_number(error, "error", "a probability strictly between 0 and 1, such as 0.05", least=1e-9, below=1)
        n = len(known)
        counts = [n >> halvings for halvings in range(min(FIRST, n.bit_length()), n.bit_length() + 1)]
        limits = tuple(upper_limit(above, n, error / 2 / len(counts)) for above in counts)
        return cls(tuple(float(known[n - 1 - above]) for above in counts), limits, error)

    def count(self, scores: npt.ArrayLike) -> Block:
        """The block of these scores; one that is not finite counts as above, as a detector rejects it."""
        values = finite_scores(scores).reshape(-1)
        return Block(len(values), tuple(int(np.sum(values > each)) for each in self.thresholds))

    def run(self, blocks: Sequence[Block]) -> Evidence:
        """The evidence after each block, in their order."""
        rows = np.array([block.rows for block in blocks], dtype=np.float64)
        above = np.array([block.above for block in blocks], dtype=np.float64).reshape(len(rows), len(self.limits))
        values = np.exp(np.minimum(log_evidence(above, rows, self.limits), 700.0))
        return Evidence(tuple(values.tolist()), 2 / self.error, self.error, int(rows.sum()))


def log_evidence(above: Floats, rows: Floats, limits: Sequence[float]) -> Floats:
    """The logarithm of E_t of `SequentialTest` for each look.

    Args:
        above: the rows above each threshold, (looks, ..., thresholds).
        rows: of each look, (looks,).
        limits: q of each threshold.

    >>> log_evidence(np.array([[0.0], [60.0]]), np.array([100.0, 100.0]), limits=[0.05]).round(1)
    array([ -0.7, 110.1])
    """
    q = np.asarray(limits, dtype=np.float64)[:, None]
    rates = q ** (np.arange(RATES, 0, -1) / (RATES + 1))  # between q and 1; 1 where q is 1, which has no ratio
    with np.errstate(divide="ignore", invalid="ignore"):
        hit, miss = np.log(rates / q), np.where(q < 1, np.log1p(-rates) - np.log1p(-q), 0.0)
    log_weight = -math.log(len(q) * RATES)
    total = np.full((*above.shape[1:], RATES), -np.inf)
    values = np.empty(above.shape[:-1])
    for number, (hits, count) in enumerate(zip(above, rows, strict=True)):
        start = -math.log((number + 1) * (number + 2))
        total = np.logaddexp(total, start) + hits[..., None] * hit + (count - hits[..., None]) * miss
        mixed = np.logaddexp.reduce(total.reshape(*above.shape[1:-1], -1), axis=-1) + log_weight
        values[number] = np.logaddexp(mixed, -math.log(number + 2))
    return values
