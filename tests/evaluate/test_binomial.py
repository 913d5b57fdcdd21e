"""Tails and limits equal exact fractions and scipy.stats, from one trial to a million."""

from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from wildood.errors import InputError
from wildood.evaluate.binomial import binomial_cdf, hypergeometric_tail, lower_limit, upper_limit

SIZES = [1, 7, 60, 4000, 100_000, 1_000_000]
SHARES = [1e-6, 0.003, 0.05, 0.5, 0.9, 0.999]


def around_the_mean(trials, share):
    """Counts from far below the mean to far above it."""
    spread = np.sqrt(trials * share * (1 - share)) + 1
    counts = np.round(trials * share + spread * np.array([-20, -8, -3, -1, 0, 0.5, 2, 6, 15])).astype(int)
    return [int(count) for count in np.unique(counts) if 0 <= count <= trials]


@pytest.mark.parametrize("trials", SIZES)
@pytest.mark.parametrize("share", SHARES)
def test_binomial_cdf_equals_scipy(trials, share):
    for count in around_the_mean(trials, share):
        expected = stats.binom.cdf(count, trials, share)
        assert binomial_cdf(count, trials, share) == pytest.approx(expected, rel=1e-11, abs=1e-300), count


@given(st.integers(1, 30), st.integers(-2, 33), st.integers(0, 20))
@settings(deadline=None, derandomize=True)
def test_binomial_cdf_equals_the_sum_of_fractions(trials, count, twentieths):
    share = Fraction(twentieths, 20)
    terms = (comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(min(count, trials) + 1))
    assert binomial_cdf(count, trials, float(share)) == pytest.approx(float(sum(terms)), rel=1e-12, abs=1e-15)


def test_tiny_tails_keep_their_digits():
    assert binomial_cdf(0, 1000, 0.5) == pytest.approx(2.0**-1000, rel=1e-10)
    assert binomial_cdf(2, 100_000, 0.005) == pytest.approx(stats.binom.cdf(2, 100_000, 0.005), rel=1e-8)
    assert hypergeometric_tail(50, marked=50, drawn=50, population=1000) == pytest.approx(1 / comb(1000, 50), rel=1e-10)


@pytest.mark.parametrize("trials", SIZES)
@pytest.mark.parametrize("level", [1e-6, 0.01, 0.3, 0.7])
def test_limits_equal_the_quantiles_of_the_beta_law(trials, level):
    for count in sorted({0, 1, trials // 20, trials // 2, trials - trials // 50, trials - 1, trials}):
        upper = 1.0 if count == trials else stats.beta.isf(level, count + 1, trials - count)
        lower = 0.0 if count == 0 else stats.beta.ppf(level, count, trials - count + 1)
        assert upper_limit(count, trials, level) == pytest.approx(upper, rel=1e-7, abs=1e-15)
        assert lower_limit(count, trials, level) == pytest.approx(lower, rel=1e-7, abs=1e-15)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.5, 0.97])
@pytest.mark.parametrize("trials", [5, 40])
def test_limits_miss_the_share_with_at_most_their_level(trials, share):
    """The exact probability to miss, summed over all counts."""
    level = 0.1
    chances = stats.binom.pmf(np.arange(trials + 1), trials, share)
    above = [chance for count, chance in enumerate(chances) if upper_limit(count, trials, level) < share]
    below = [chance for count, chance in enumerate(chances) if lower_limit(count, trials, level) > share]
    assert sum(above) <= level
    assert sum(below) <= level
    assert sum(above) + sum(below) > 0


@pytest.mark.parametrize("population", [7, 60, 500, 2000])
def test_hypergeometric_tail_counts_the_ways(population):
    rng = np.random.default_rng(population)
    for _ in range(12):
        marked, drawn = (int(part) for part in rng.integers(0, population + 1, 2))
        mean = marked * drawn / population
        spread = np.sqrt(mean * (1 - marked / population) * (1 - drawn / population))
        count = round(mean + rng.normal() * 4 * (spread + 1))
        ways = sum(comb(marked, k) * comb(population - marked, drawn - k) for k in range(max(count, 0), drawn + 1))
        expected = float(Fraction(ways, comb(population, drawn)))
        assert hypergeometric_tail(count, marked, drawn, population) == pytest.approx(expected, rel=1e-9, abs=1e-300)


@given(st.integers(0, 20), st.data())
@settings(deadline=None, derandomize=True)
def test_hypergeometric_tail_equals_the_sum_of_fractions(population, data):
    marked, drawn = data.draw(st.integers(0, population)), data.draw(st.integers(0, population))
    count = data.draw(st.integers(-1, population + 1))
    ways = sum(comb(marked, k) * comb(population - marked, drawn - k) for k in range(max(count, 0), drawn + 1))
    expected = ways / comb(population, drawn)
    assert hypergeometric_tail(count, marked, drawn, population) == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_what_is_no_count_or_level_is_refused():
    for count, trials in ((-1, 5), (6, 5), (0, 0)):
        with pytest.raises(InputError, match=f"{count} of {trials}"):
            upper_limit(count, trials, 0.1)
        with pytest.raises(InputError, match="give a count"):
            lower_limit(count, trials, 0.1)
    for level in (0, 1, float("nan")):
        with pytest.raises(InputError, match=f"level is {level}"):
            upper_limit(1, 2, level)
    with pytest.raises(InputError, match=r"share of 1\.5"):
        binomial_cdf(1, 2, 1.5)
    with pytest.raises(InputError, match="neither can exceed"):
        hypergeometric_tail(1, marked=5, drawn=2, population=4)
