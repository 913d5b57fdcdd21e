"""Exact probabilities of counts, and the Clopper-Pearson limits of a counted share.

scipy.stats takes half a second to import: it is imported where it is called, and scipy.special, which it rests on, serves
the rest.
"""

import math

import numpy as np
import numpy.typing as npt
from scipy.special import betaincc, betainccinv, betaincinv, betaln

from wildood.errors import InputError


def binomial_cdf(count: int, trials: int, share: float) -> float:
    """P(X <= k) = 1 - I_p(k + 1, n - k) for X ~ Binomial(n, p): k = count, n = trials, p = share.

    >>> round(binomial_cdf(1, 3, 0.5), 12)
    0.5
    >>> binomial_cdf(0, 1_000_000, 1e-4)  # (1 - 1e-4) ** 1e6
    3.70...e-44
    """
    if not (trials >= 0 and 0 <= share <= 1):
        raise InputError(f"{trials} trials with a share of {share}: give a count and a share between 0 and 1")
    if count < 0:
        return 0.0
    return 1.0 if count >= trials else float(betaincc(count + 1, trials - count, share))


def binomial_pmf(low: int, high: int, trials: int, share: float) -> npt.NDArray[np.float64]:
    """P(X = k) for X ~ Binomial(trials, share), 0 < share < 1, and k = low, ..., high.

    Each is (n - k) / (k + 1) p / (1 - p) times the one before: this is several times faster than scipy's.

    >>> binomial_pmf(0, 2, trials=2, share=0.5).round(12)
    array([0.25, 0.5 , 0.25])
    """
    k, logs = np.arange(low, high, dtype=np.float64), np.empty(high - low + 1)
    log_ways = -math.log(trials + 1) - betaln(low + 1, trials - low + 1)
    logs[0] = log_ways + low * math.log(share) + (trials - low) * math.log1p(-share)
    logs[1:] = np.log((trials - k) / (k + 1) * (share / (1 - share)))
    return np.exp(np.cumsum(logs))


def hypergeometric_tail(count: int, marked: int, drawn: int, population: int) -> float:
    """P(X >= count) for X the number of marked ones among `drawn`, taken without replacement from a population.

    >>> hypergeometric_tail(2, marked=2, drawn=2, population=4)  # 1 of 6 pairs
    0.1666...
    """
    from scipy.stats import hypergeom  # noqa: PLC0415 - slow to import

    if not 0 <= max(marked, drawn) <= population:
        raise InputError(f"{marked} marked and {drawn} drawn of {population}: neither can exceed the population")
    if not max(0, marked + drawn - population) < count <= min(marked, drawn):
        return float(count <= min(marked, drawn))
    return float(hypergeom.sf(count - 1, population, marked, drawn))


def upper_limit(count: int, trials: int, level: float) -> float:
    """The upper Clopper-Pearson limit, the (1 - level)-quantile of Beta(count + 1, trials - count).

    Whatever the share is that was counted, it exceeds the limit with probability at most `level`.

    >>> upper_limit(0, 10, 0.05)  # 1 - 0.05 ** (1 / 10)
    0.2588...
    """
    _check_count(count, trials, level)
    return 1.0 if count == trials else float(betainccinv(count + 1, trials - count, level))


def lower_limit(count: int, trials: int, level: float) -> float:
    """The lower Clopper-Pearson limit, the level-quantile of Beta(count, trials - count + 1).

    That is also the distribution of P(s <= S_(count)) for the count-th smallest of `trials` independent continuous scores,
    so the limit holds for the share below such an order statistic, too.

    >>> lower_limit(10, 10, 0.05)  # 0.05 ** (1 / 10)
    0.7411...
    """
    _check_count(count, trials, level)
    return 0.0 if count == 0 else float(betaincinv(count, trials - count + 1, level))


def _check_count(count: int, trials: int, level: float) -> None:
    if not (0 <= count <= trials and trials > 0):
        raise InputError(f"{count} of {trials}: give a count between 0 and the number of examples, at least one")
    if not 0 < level < 1:
        raise InputError(f"level is {level}: give an error probability strictly between 0 and 1")
