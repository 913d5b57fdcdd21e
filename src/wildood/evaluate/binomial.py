"""Exact tails of counts, and a counted share with the exact limits that they give (Clopper-Pearson)."""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from wildood.errors import InputError

STEPS = 60  # halvings of [0, 1]: down to the spacing of the floats


@dataclass(frozen=True)
class Share:
    """A share of counted examples, with its exact interval (Clopper-Pearson).

    Attributes:
        value: count / examples.
        low: the lower limit,
        high: and the upper one, of the share that the examples were drawn from.
        count: how many of them are counted.
        examples: how many there are.

    >>> Share.of((31, 200), confidence=0.95).told(confidence=0.95)
    '31 of 200 (15.5 %; 10.8 to 21.3 % at 95 % confidence)'
    """

    value: float
    low: float
    high: float
    count: int
    examples: int

    @classmethod
    def of(cls, counted: npt.NDArray[np.bool_] | tuple[int, int], confidence: float) -> "Share":
        """How much of a mask is true, or a count of so many; either limit fails with at most half of 1 - confidence.

        >>> found = Share.of(np.array([True, False, False, False]), confidence=0.95)
        >>> found.value, round(found.low, 3), round(found.high, 3)
        (0.25, 0.006, 0.806)
        """
        count, examples = counted if isinstance(counted, tuple) else (int(np.sum(counted)), len(counted))
        outside = (1 - confidence) / 2
        limits = lower_limit(count, examples, outside), upper_limit(count, examples, outside)
        return cls(count / examples, *limits, count, examples)

    @property
    def limits(self) -> str:
        """The interval, to be read."""
        return f"{percent_digits(self.low)} to {in_percent(self.high)}"

    def told(self, confidence: float) -> str:
        """All of it, to be read, with the confidence that its limits have."""
        sure = f"at {100 * confidence:g} % confidence"
        return f"{self.count} of {self.examples} ({in_percent(self.value)}; {self.limits} {sure})"


def in_percent(share: float) -> str:
    """A share in percent, to be read.

    >>> in_percent(0.08512), in_percent(0.99999)
    ('8.5 %', '100.0 %')
    """
    return f"{percent_digits(share)} %"


def percent_digits(share: float) -> str:
    """The number of percent, as it is written everywhere: to one digit after the point, two digits of what is below 1.

    >>> percent_digits(0.08512), percent_digits(0.00428), percent_digits(0.0)
    ('8.5', '0.43', '0.0')
    """
    percent = 100 * share
    return f"{percent:.2g}" if 0 < percent < 0.995 else f"{percent:.1f}"


def binomial_cdf(count: int, trials: int, share: float) -> float:
    """P(X <= count) for X ~ Binomial(trials, share).

    Summed outwards from the term next to the limit, in the smaller tail, so that tiny probabilities keep their digits.

    >>> round(binomial_cdf(1, 3, 0.5), 12)
    0.5
    >>> binomial_cdf(0, 1_000_000, 1e-4)  # (1 - 1e-4) ** 1e6
    3.70...e-44
    """
    if not (trials >= 0 and 0 <= share <= 1):
        raise InputError(f"{trials} trials with a share of {share}: give a count and a share between 0 and 1")
    if count < 0:
        return 0.0
    if count >= trials:
        return 1.0
    if count <= trials * share:
        return _binomial_tail(count, trials, share)
    return 1 - _binomial_tail(trials - count - 1, trials, 1 - share)


@lru_cache(maxsize=1 << 14)
def upper_limit(count: int, trials: int, level: float) -> float:
    """The Clopper-Pearson upper limit: P(share > limit) <= level, whatever the share is.

    It is the (1 - level)-quantile of Beta(count + 1, trials - count).

    >>> upper_limit(0, 10, 0.05)  # 1 - 0.05 ** (1 / 10)
    0.2588...
    """
    _check_count(count, trials, level)
    if count == trials:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        if binomial_cdf(count, trials, middle) > level:
            low = middle
        else:
            high = middle
    return high  # the safe end of the last interval


def lower_limit(count: int, trials: int, level: float) -> float:
    """The Clopper-Pearson lower limit: P(share < limit) <= level, whatever the share is.

    It is the level-quantile of Beta(count, trials - count + 1), the law of P(s <= S_(count)) for the count-th smallest
    of `trials` independent continuous scores: the limit holds for the share below such an order statistic as well.

    >>> lower_limit(10, 10, 0.05)  # 0.05 ** (1 / 10)
    0.7411...
    """
    _check_count(count, trials, level)
    return 1 - upper_limit(trials - count, trials, level)


def hypergeometric_tail(count: int, marked: int, drawn: int, population: int) -> float:
    """P(X >= count) for the marked ones among `drawn`, taken without replacement from a population.

    >>> hypergeometric_tail(2, marked=2, drawn=2, population=4)  # 1 of 6 pairs
    0.1666...
    """
    if not 0 <= max(marked, drawn) <= population:
        raise InputError(f"{marked} marked and {drawn} drawn of {population}: neither can exceed the population")
    if count <= max(0, marked + drawn - population):
        return 1.0
    if count > min(marked, drawn):
        return 0.0
    if count * population >= marked * drawn:
        return _hypergeometric_tail(count, marked, drawn, population)
    # Fewer than `count` drawn are marked: the ones not drawn hold more than marked - count of them.
    return 1 - _hypergeometric_tail(marked - count + 1, marked, population - drawn, population)


def log_choose(total: int, part: int) -> float:
    """The logarithm of the number of ways to choose a part of the total.

    >>> round(math.exp(log_choose(5, 2)), 9)
    10.0
    """
    return math.lgamma(total + 1) - math.lgamma(part + 1) - math.lgamma(total - part + 1)


def _binomial_tail(count: int, trials: int, share: float) -> float:
    """P(X <= count) for count <= trials * share, where the terms fall from `count` downwards."""
    if share in {0, 1}:
        return float(share == 0)
    first = log_choose(trials, count) + count * math.log(share) + (trials - count) * math.log1p(-share)
    # d terms below, a term is at most exp(-d²/(2 count)) of the first: beyond ten roots nothing is left to add.
    down = count - np.arange(min(count, math.ceil(10 * math.sqrt(count))))
    return _falling_sum(first, down * (1 - share) / ((trials - down + 1) * share))


def _hypergeometric_tail(count: int, marked: int, drawn: int, population: int) -> float:
    """P(X >= count) for a count at or above the mean, where the terms fall from `count` upwards."""
    first = log_choose(marked, count) + log_choose(population - marked, drawn - count) - log_choose(population, drawn)
    left = min(marked, drawn) - count
    up = count + np.arange(min(left, math.ceil(10 * math.sqrt(left))), dtype=np.float64)
    return _falling_sum(first, (marked - up) * (drawn - up) / ((up + 1) * (population - marked - drawn + up + 1)))


def _falling_sum(log_first: float, ratios: npt.NDArray[np.float64]) -> float:
    """The first term and those after it, each given as its ratio to the one before."""
    return min(1.0, math.exp(log_first) * (1 + float(np.sum(np.cumprod(ratios)))))


def _check_count(count: int, trials: int, level: float) -> None:
    if not (0 <= count <= trials and trials > 0):
        raise InputError(f"{count} of {trials}: give a count between 0 and the number of examples, at least one")
    if not 0 < level < 1:
        raise InputError(f"level is {level}: give an error probability strictly between 0 and 1")
