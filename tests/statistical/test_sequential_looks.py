"""A habitat's daily test: over a year of looks at one holdout, known traffic alarms no more often than promised."""

import runpy
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from wildood.habitat.sequential import SequentialTest, log_evidence

simulate = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "habitat_looks.py"))["simulate"]
pytestmark = pytest.mark.slow
YEAR = np.zeros(365)


@pytest.mark.parametrize(("n", "rows"), [(60, 40), (200, 500)])
def test_a_year_of_looks_at_known_traffic_seldom_alarms(assert_at_most, n, rows):
    assert_at_most(simulate(n, rows, YEAR, years=300, error=0.2, seed=n) >= 0, 0.2)


@pytest.mark.campaign
@pytest.mark.parametrize("error", [0.05, 0.5])
@pytest.mark.parametrize(("n", "rows"), [(20, 1000), (200, 500), (1000, 50), (4000, 500)])
def test_many_years_of_looks_at_known_traffic_seldom_alarm(assert_at_most, n, rows, error):
    assert_at_most(simulate(n, rows, YEAR, years=2000, error=error, seed=n) >= 0, error)


def test_looks_find_five_percent_of_unknowns_within_days():
    """They begin on day 100; a holdout of 1000, 500 rows a day."""
    looks = simulate(1000, 500, np.where(np.arange(130) < 100, 0.0, 0.05), years=100)
    assert np.mean(looks >= 100) == 1.0
    assert np.median(looks) - 99 <= 3


def test_looks_find_one_percent_of_unknowns_with_a_large_holdout():
    looks = simulate(4000, 500, np.where(np.arange(160) < 20, 0.0, 0.01), years=100)
    assert np.mean(looks >= 20) > 0.9
    assert np.median(looks) - 19 <= 40


def test_traffic_at_the_limit_itself_is_paid_for_by_half_of_the_error(assert_at_most):
    """The worst case of the e-process: every rate is its limit, which the holdout's half of the error excludes."""
    rng, limit, error = np.random.default_rng(4), 0.03, 0.2
    above = rng.binomial(100, limit, size=(365, 1000, 1)).astype(float)
    evidence = log_evidence(above, np.full(365, 100.0), [limit])
    assert_at_most((evidence >= np.log(2 / error)).any(0), error / 2)


def test_rates_that_vary_below_the_limit_alarm_no_more_often(assert_at_most):
    rng, limit, error = np.random.default_rng(5), 0.1, 0.4
    rates = np.where(np.arange(365) // 30 % 2, limit, limit / 5)[:, None, None]
    above = rng.binomial(50, np.broadcast_to(rates, (365, 1000, 1))).astype(float)
    evidence = log_evidence(above, np.full(365, 50.0), [limit])
    assert_at_most((evidence >= np.log(2 / error)).any(0), error / 2)


def test_all_limits_hold_together_except_with_half_of_the_error(assert_at_most):
    rng, error = np.random.default_rng(6), 0.2
    exceeded = []
    for _ in range(1000):
        test = SequentialTest.of(rng.normal(size=150), error)
        exceeded.append(np.any(stats.norm.sf(test.thresholds) > np.array(test.limits)))
    assert_at_most(exceeded, error / 2)
