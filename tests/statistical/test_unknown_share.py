"""The bound on pi covers, the test keeps its level and the FPR's band holds, over many draws, with ties and few examples."""

from functools import cache

import numpy as np
import pytest
from scipy import stats

from wildood.evaluate import mixture
from wildood.evaluate.mixture import _Evidence, fpr_by_share, share_p_value, unknown_share
from wildood.evaluate.thresholds import conformal_threshold

pytestmark = pytest.mark.slow  # thousands of draws


@pytest.fixture(autouse=True)
def remembered(monkeypatch):
    """Over thousands of draws the same counts come up again and again: what was computed for them is kept."""
    monkeypatch.setattr(mixture, "_Evidence", cache(mixture._Evidence))


def drawn(rng, n, m, pi, *, shift=4.0, levels=None):
    """Scores of n ID and m wild examples, each of these OOD with probability pi; tied if `levels` are few."""
    known, wild = rng.normal(size=n), rng.normal(size=m)
    wild[rng.random(m) < pi] += shift
    if levels is not None:
        known, wild = np.round(known * levels / 6), np.round(wild * levels / 6)
    return known, wild


@pytest.mark.parametrize("levels", [None, 3, 30])
@pytest.mark.parametrize(("n", "m"), [(1, 30), (2, 6), (5, 4), (30, 30), (40, 200), (300, 50)])
def test_without_ood_the_test_keeps_its_level(assert_at_most, n, m, levels):
    rng = np.random.default_rng(n + m)
    p_values = np.array([share_p_value(*drawn(rng, n, m, 0.0, levels=levels)) for _ in range(2000)])
    for level in (0.01, 0.05, 0.2, 0.5):
        assert_at_most(p_values <= level, level)


@pytest.mark.parametrize("levels", [None, 5])
def test_without_ood_bound_and_test_find_some_equally_seldom(assert_at_most, levels):
    rng = np.random.default_rng(3)
    found = [unknown_share(*drawn(rng, 50, 60, 0.0, levels=levels), confidence=0.8) for _ in range(500)]
    assert [one.bound > 0 for one in found] == [one.p_value < 0.2 for one in found]
    assert_at_most([one.bound > 0 for one in found], 0.2)


@pytest.mark.parametrize(("levels", "shift"), [(None, np.inf), (6, np.inf), (None, 1.5)])
@pytest.mark.parametrize(("n", "m", "pi"), [(25, 25, 0.3), (100, 60, 0.1), (60, 300, 0.05), (3, 100, 0.9)])
def test_bound_covers_the_share(assert_at_most, n, m, pi, levels, shift):
    """At an infinite shift all of OOD is seen, and the bound is as tight as it gets.

    The bound of any confidence is above pi exactly where the p-value of pi is below 1 - confidence.
    """
    rng = np.random.default_rng(n)
    p_values = np.array([share_p_value(*drawn(rng, n, m, pi, shift=shift, levels=levels), pi) for _ in range(1000)])
    for confidence in (0.5, 0.8, 0.95, 0.99):
        assert_at_most(p_values <= 1 - confidence, 1 - confidence)


def test_bound_itself_is_above_the_share_no_more_often_than_stated(assert_at_most):
    rng, pi = np.random.default_rng(4), 0.1
    bounds = np.array([unknown_share(*drawn(rng, 100, 150, pi, shift=np.inf), confidence=0.7).bound for _ in range(500)])
    assert_at_most(bounds > pi, 0.3)
    assert np.mean(bounds > 0.1 * pi) > 0.9  # and it is no empty promise


@pytest.mark.parametrize(("n", "m", "pi", "rank"), [(20, 40, 0.2, 18), (50, 20, 0.0, 50), (9, 9, 0.5, 5)])
def test_the_p_value_of_one_rank_has_exactly_its_law_where_all_of_ood_is_seen(assert_rate, n, m, pi, rank):
    rng = np.random.default_rng(rank)
    known, wild = np.sort(rng.random((20_000, n)), axis=1), rng.random((20_000, m))
    wild[rng.random(wild.shape) < pi] = np.inf
    accepted = np.sum(wild <= known[:, rank - 1 : rank], axis=1)
    p_values = np.array([_Evidence(rank, count, n, m).p_value(pi) for count in range(m + 1)])
    for level in (0.01, 0.1, 0.3, 0.7):
        exactly = p_values[p_values <= level].max(initial=0.0)
        assert_rate(p_values[accepted] <= level, exactly)


def test_bound_covers_the_share_for_several_scores_of_the_same_examples(assert_at_most):
    rng, pi, p_values = np.random.default_rng(7), 0.1, []
    for _ in range(1000):
        known, wild = rng.normal(size=(3, 60)), rng.normal(size=(3, 80))
        wild[:, rng.random(80) < pi] = np.inf
        p_values.append(share_p_value(known, wild, pi))
    for level in (0.05, 0.3):
        assert_at_most(np.array(p_values) <= level, level)


def test_without_paying_for_the_ranks_the_level_would_be_broken():
    rng = np.random.default_rng(8)
    p_values = np.array([share_p_value(*drawn(rng, 60, 60, 0.0)) for _ in range(1000)])
    assert np.mean(p_values / (60).bit_length() <= 0.05) > 0.1


@pytest.mark.parametrize("levels", [None, 8])
def test_band_of_the_fpr_holds_the_truth_at_a_threshold_set_on_the_same_holdout(assert_at_most, levels):
    rng, n, m, pi, shift, alpha = np.random.default_rng(9), 80, 120, 0.4, 1.5, 0.1
    missed = []
    for _ in range(600):
        known, wild = drawn(rng, n, m, pi, shift=shift, levels=levels)
        threshold = conformal_threshold(known, alpha)
        at = threshold if levels is None else (threshold + 0.5) * 6 / levels  # a rounded score is at most the threshold
        found = fpr_by_share(known, wild, threshold, pi, confidence=0.8)
        missed.append(not found.lower - 1e-9 <= stats.norm.cdf(at - shift) <= found.upper + 1e-9)
        assert found.possible or missed[-1]
    assert_at_most(missed, 0.2)
