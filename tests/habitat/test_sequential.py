"""The sequential test: its equations against an independent computation, and what it counts."""

import math

import numpy as np
import pytest
from scipy import stats

from wildood.errors import InputError
from wildood.habitat.sequential import RATES, Block, SequentialTest, log_evidence


def direct_evidence(above, rows, limits):
    """E_t by its definition: the sum over every start, not the recursion."""
    values = []
    for t in range(1, len(rows) + 1):
        total = 1 / (t + 1)
        for j, q in enumerate(limits):
            for r in (q ** (i / (RATES + 1)) for i in range(1, RATES + 1)):
                for start in range(1, t + 1):
                    hits, count = above[start - 1 : t, j].sum(), rows[start - 1 : t].sum()
                    ratio = (r / q) ** hits * ((1 - r) / (1 - q)) ** (count - hits)
                    total += ratio / (start * (start + 1)) / len(limits) / RATES
        values.append(total)
    return values


def test_evidence_is_the_mixture_over_thresholds_rates_and_starts():
    above = np.array([[3.0, 1.0], [0.0, 0.0], [9.0, 2.0], [5.0, 5.0]])
    rows, limits = np.array([20.0, 0.0, 30.0, 10.0]), [0.2, 0.05]
    assert np.exp(log_evidence(above, rows, limits)) == pytest.approx(direct_evidence(above, rows, limits))


def test_evidence_has_mean_one_at_the_limit():
    """Of all outcomes of two looks at three rows each."""
    q, mean = 0.3, 0.0
    for first in range(4):
        for second in range(4):
            chance = stats.binom.pmf(first, 3, q) * stats.binom.pmf(second, 3, q)
            values = np.exp(log_evidence(np.array([[first], [second]], dtype=float), np.array([3.0, 3.0]), [q]))
            mean += chance * values[-1]
    assert mean == pytest.approx(1.0)


def test_thresholds_have_their_ranks_and_clopper_pearson_limits():
    test = SequentialTest.of(np.arange(16), error=0.1)
    assert test.thresholds == (11, 13, 14, 15)  # 4, 2, 1 and 0 above
    expected = [stats.binomtest(above, 16).proportion_ci(1 - 2 * 0.05 / 4, "exact").high for above in (4, 2, 1, 0)]
    assert test.limits == pytest.approx(expected)


def test_ties_count_as_not_above_and_scores_that_are_not_finite_as_above():
    test = SequentialTest.of([0.0] * 15 + [5.0])
    assert test.thresholds == (0.0, 0.0, 0.0, 5.0)
    assert test.count([0.0, 5.0, 6.0, math.nan, math.inf]) == Block(5, (4, 4, 4, 3))


def test_a_holdout_of_one_limits_the_known_share_to_little_less_than_one():
    test = SequentialTest.of([0.0])
    assert test.limits == pytest.approx((0.975,))
    assert not test.run([test.count([1.0] * 97 + [-1.0] * 3)] * 50).found


def test_a_finding_stands_however_the_traffic_goes_on():
    rng = np.random.default_rng(0)
    test = SequentialTest.of(rng.normal(size=500))
    blocks = [test.count(rng.normal(size=200) + 2), *[test.count(rng.normal(size=2000)) for _ in range(20)]]
    evidence = test.run(blocks)
    assert evidence.values[-1] < 1
    assert (evidence.found, evidence.first) == (True, 0)
    assert evidence.rows == 40200


def test_no_look_is_no_evidence():
    evidence = SequentialTest.of(np.arange(100)).run([])
    assert (evidence.values, evidence.found) == ((), False)
    assert str(evidence) == "no unknowns are found in 0 looks at 0 rows (evidence 1, needed 40; error 5 % over all looks)"


def test_an_impossible_error_is_refused():
    with pytest.raises(InputError, match="error is 1"):
        SequentialTest.of([1.0], error=1)
