"""Thresholds with a confidence, thresholds for each class and p-values keep their promises over many draws."""

import numpy as np
import pytest
from scipy import stats

from wildood.evaluate.thresholds import conformal_threshold, p_values, threshold_rank, thresholds_by_class

DRAWS = 2000
TIED = [(0.5, 0.3, 0.2), (0.9, 0.06, 0.04), (0.6, 0.3, 0.05, 0.03, 0.02), (0.02,) * 50]


@pytest.mark.parametrize(
    ("n", "alpha", "confidence"), [(59, 0.05, 0.95), (100, 0.1, 0.9), (400, 0.05, 0.95), (12, 0.3, 0.8)]
)
def test_false_alarm_rate_is_kept_with_exactly_the_probability_on_paper(assert_at_most, assert_rate, n, alpha, confidence):
    holdouts = np.random.default_rng(n).random((DRAWS, n))  # uniform: the false-alarm rate of a threshold t is 1 - t
    broken = [1 - conformal_threshold(holdout, alpha, confidence) > alpha for holdout in holdouts]
    assert_at_most(broken, 1 - confidence)
    assert_rate(broken, stats.binom.cdf(n - threshold_rank(n, alpha, confidence), n, alpha))


@pytest.mark.parametrize("shares", TIED)
@pytest.mark.parametrize(("n", "alpha", "confidence"), [(59, 0.05, 0.95), (100, 0.1, 0.9), (12, 0.3, 0.8)])
def test_false_alarm_rate_is_kept_for_tied_scores(assert_at_most, shares, n, alpha, confidence):
    holdouts = np.random.default_rng(n).choice(len(shares), size=(DRAWS // 2, n), p=shares)
    above = 1 - np.cumsum(shares)
    broken = [above[int(conformal_threshold(one, alpha, confidence))] > alpha + 1e-12 for one in holdouts]
    assert_at_most(broken, 1 - confidence)


def test_marginal_threshold_breaks_its_rate_about_half_of_the_time(assert_rate):
    """What the confidence is for: on average over holdouts is not for this holdout."""
    holdouts = np.random.default_rng(0).random((DRAWS, 200))
    broken = [1 - conformal_threshold(holdout, 0.05) > 0.05 for holdout in holdouts]
    assert_rate(broken, stats.binom.cdf(200 - threshold_rank(200, 0.05), 200, 0.05))
    assert np.mean(broken) > 0.35


def three_classes(rng, n, tied):
    """Predicted classes, and scores whose spread depends on them; a score is `spread` times a uniform number."""
    predicted = rng.choice(3, size=n, p=(0.5, 0.3, 0.2))
    uniform = rng.random(n)
    if tied:
        uniform = np.ceil(uniform * 8) / 8
    return predicted, uniform * SPREADS[predicted]


SPREADS = np.array([1.0, 2.0, 5.0])


def rates_within(found, tied):
    """The false-alarm rate among fresh examples of each predicted class."""
    quantile = np.asarray(found) / SPREADS
    return 1 - (np.floor(quantile * 8 + 1e-9) / 8 if tied else quantile).clip(0, 1)


@pytest.mark.parametrize("tied", [False, True])
def test_false_alarms_are_kept_within_each_predicted_class(tied):
    rng, alpha, n = np.random.default_rng(1), 0.1, 150
    draws = [three_classes(rng, n, tied) for _ in range(DRAWS)]
    rates = np.array([rates_within(thresholds_by_class(scores, predicted, 3, alpha), tied) for predicted, scores in draws])
    error = rates.std(axis=0, ddof=1) / np.sqrt(DRAWS)
    assert np.all(rates.mean(axis=0) <= alpha + 5 * error)
    if not tied:
        assert np.all(rates.mean(axis=0) >= alpha - 1 / 10 * 3 / 10)  # a class has about 30 examples or more
    # One threshold for all leaves nearly all false alarms to the class that scores highest.
    one = np.array([rates_within([conformal_threshold(scores, alpha)] * 3, tied) for _, scores in draws[:200]])
    assert one.mean(axis=0)[2] > 3 * alpha


@pytest.mark.parametrize("tied", [False, True])
def test_false_alarms_are_kept_within_each_predicted_class_with_confidence(assert_at_most, tied):
    rng, alpha, confidence, n = np.random.default_rng(2), 0.1, 0.9, 400
    broken = []
    for _ in range(DRAWS // 2):
        predicted, scores = three_classes(rng, n, tied)
        broken.append(rates_within(thresholds_by_class(scores, predicted, 3, alpha, confidence), tied) > alpha + 1e-12)
    assert_at_most(np.any(broken, axis=1), 1 - confidence)  # in all classes at once


@pytest.mark.parametrize("n", [1, 9, 60])
@pytest.mark.parametrize("tied", [False, True])
def test_p_values_of_fresh_examples_are_no_smaller_than_uniform_ones(assert_at_most, assert_rate, n, tied):
    rng = np.random.default_rng(n)
    scores = rng.normal(size=(DRAWS, n + 1))
    if tied:
        scores = np.round(scores)
    values = np.array([p_values(one[:1], one[1:])[0] for one in scores])
    for alpha in (0.02, 0.1, 0.5, 0.9):
        assert_at_most(values <= alpha, alpha)
        if not tied:
            assert_rate(values <= alpha, np.floor(alpha * (n + 1) + 1e-9) / (n + 1))
