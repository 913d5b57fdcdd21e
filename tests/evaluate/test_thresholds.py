"""The deployed threshold is the order statistic on paper, and is refused exactly when the holdout is too small."""

import numpy as np
import pytest

from wildood.errors import InputError
from wildood.evaluate.metrics import false_alarm_rate
from wildood.evaluate.thresholds import check_alpha, conformal_threshold, examples_needed


@pytest.mark.parametrize(
    ("n", "alpha", "rank"),
    [
        (19, 0.05, 19),  # 0.95 * 20 = 19
        (20, 0.05, 20),  # 0.95 * 21 = 19.95
        (38, 0.05, 38),  # 0.95 * 39 = 37.05
        (39, 0.05, 38),  # 0.95 * 40 = 38
        (99, 0.05, 95),
        (100, 0.05, 96),  # 0.95 * 101 = 95.95
        (9, 0.1, 9),
        (1, 0.5, 1),
        (9, 0.9, 1),
    ],
)
def test_threshold_is_the_order_statistic_by_hand(n, alpha, rank):
    shuffled = np.random.default_rng(0).permutation(np.arange(1.0, n + 1))
    assert conformal_threshold(shuffled, alpha) == rank


def test_rank_is_the_one_on_paper_where_floats_are_inexact():
    inexact = 0
    for n in range(1, 151):
        ranks = np.arange(1, n + 1)
        for percent in range(1, 100):
            expected = -(-(100 - percent) * (n + 1) // 100)
            if expected > n:
                continue
            inexact += int(np.ceil((1 - percent / 100) * (n + 1))) != expected
            assert conformal_threshold(ranks, percent / 100) == expected, (n, percent)
    assert inexact > 0  # a bare ceil of the float would fail here


def test_ties_at_the_threshold_are_accepted():
    scores = [0.0] * 15 + [1.0] * 5
    threshold = conformal_threshold(scores, alpha=0.1)
    assert threshold == 1.0
    assert false_alarm_rate(scores, threshold) == 0.0


def test_threshold_falls_as_more_false_alarms_are_allowed():
    scores = np.random.default_rng(0).normal(size=500)
    thresholds = [conformal_threshold(scores, alpha) for alpha in (0.01, 0.05, 0.1, 0.3, 0.9)]
    assert thresholds == sorted(thresholds, reverse=True)
    assert len(set(thresholds)) == 5


def test_infinite_holdout_scores_are_ranked():
    # A threshold of infinity rejects nothing: the promise holds, and nothing else could hold it.
    assert conformal_threshold([0.0] * 18 + [np.inf], alpha=0.05) == np.inf


def test_threshold_leaves_the_scores_alone():
    scores = np.array([3.0, 1.0, 2.0])
    conformal_threshold(scores, alpha=0.5)
    assert scores.tolist() == [3.0, 1.0, 2.0]


def test_examples_needed_by_hand():
    assert [examples_needed(alpha) for alpha in (0.5, 0.2, 0.1, 0.05, 0.01, 0.001)] == [1, 4, 9, 19, 99, 999]
    assert examples_needed(0.3) == 3  # 1 / 0.3 = 3.33
    assert examples_needed(0.9) == 1


def test_examples_needed_is_exactly_where_a_threshold_begins_to_exist():
    for thousandth in range(1, 1000):
        alpha = thousandth / 1000
        needed = examples_needed(alpha)
        assert needed == -(-1000 // thousandth) - 1, alpha
        assert conformal_threshold(np.arange(1, needed + 1), alpha) <= needed
        refusal = f"{needed - 1} holdout examples .* give at least {needed}" if needed > 1 else "at least one example"
        with pytest.raises(InputError, match=refusal):
            conformal_threshold(np.arange(needed - 1), alpha)


def test_examples_needed_forgives_the_rounding_of_a_computed_rate():
    # 1 - 0.95 is 0.050000000000000044 and 1 - 0.9 is 0.09999999999999998: neither asks for another example.
    for k in range(2, 500):
        for alpha in (1 / k, 1 - (1 - 1 / k)):
            assert examples_needed(alpha) == k - 1, alpha
            assert conformal_threshold(np.arange(1, k), alpha) == k - 1, alpha


@pytest.mark.parametrize("alpha", [0, 1, -0.05, 5, float("nan")])
def test_a_rate_outside_its_range_is_refused(alpha):
    for refuse in (check_alpha, examples_needed, lambda a: conformal_threshold([1.0, 2.0], a)):
        with pytest.raises(InputError, match=f"alpha is {alpha}"):
            refuse(alpha)


def test_nan_is_refused():
    with pytest.raises(InputError, match="NaN"):
        conformal_threshold([0.0, np.nan] * 20, alpha=0.05)
