"""What a ranking says about luck is wrong no more often than stated, over many draws of both holdouts."""

import numpy as np
import pytest
from scipy import stats

from wildood.evaluate.ranking import Candidate, rank_candidates

pytestmark = pytest.mark.slow  # thousands of draws

ALPHA = 0.1


def rankings(draws, shifts, confidence, *, n=200, m=300, pi=0.5, levels=None):
    """Rankings of candidates whose scores share half of their noise, with the true FPR and wild acceptance of each place."""
    rng, shifts = np.random.default_rng(0), np.asarray(shifts)
    for _ in range(draws):
        noise = (rng.normal(size=n + m) + rng.normal(size=(len(shifts), n + m))) / np.sqrt(2)
        is_ood = np.append(np.zeros(n, dtype=bool), rng.random(m) < pi)
        scores = noise + shifts[:, None] * is_ood
        if levels is not None:
            scores = np.ceil(scores * levels) / levels
        candidates = [Candidate(str(i), one[:n], one[n:], np.ones(n, dtype=bool)) for i, one in enumerate(scores)]
        ranking = rank_candidates(candidates, ALPHA, confidence=confidence)
        thresholds = np.array([place.threshold for place in ranking.places])
        fpr = stats.norm.cdf(thresholds - shifts[[place.index for place in ranking.places]])
        yield ranking, fpr, pi * fpr + (1 - pi) * stats.norm.cdf(thresholds)


def sign_test(wild, places):
    """The smallest p-value of the first against another at the thresholds as they came out, as if nothing was chosen."""
    accepted = [wild[place.index] <= place.threshold for place in places]
    only_first = [np.sum(accepted[0] & ~other) for other in accepted[1:]]
    differ = [np.sum(accepted[0] != other) for other in accepted[1:]]
    return min(stats.binom.cdf(only_first, differ, 0.5))


@pytest.mark.parametrize(
    ("count", "shared", "naive"),
    [(2, True, 0.06), (3, True, 0.15), (5, True, 0.35), (10, True, 0.7), (2, False, 0.3), (10, False, 0.8)],
)
def test_of_equally_good_candidates_some_p_value_is_small_no_more_often_than_it_says(assert_at_most, count, shared, naive):
    """The first is chosen, each of the others is compared with it, and thresholds that are not shared differ by luck."""
    rng, n, m, right = np.random.default_rng(1), 200, 400, np.ones(200, dtype=bool)
    smallest, uncorrected = [], []
    for _ in range(400):
        known = np.broadcast_to(rng.normal(size=n), (count, n)) if shared else rng.normal(size=(count, n))
        wild = 1 + (rng.normal(size=m) + rng.normal(size=(count, m))) / np.sqrt(2)
        ranking = rank_candidates([Candidate(str(i), known[i], wild[i], right) for i in range(count)], ALPHA)
        smallest.append(min(place.p_value for place in ranking.places))
        uncorrected.append(sign_test(wild, ranking.places))
    for level in (0.05, 0.2, 0.5):
        assert_at_most(np.array(smallest) < level, level)
    assert np.mean(np.array(uncorrected) < 0.05) > naive


def test_where_thresholds_do_not_matter_the_p_values_are_hardly_larger_than_they_must_be(assert_at_most):
    rng, known, right = np.random.default_rng(2), np.arange(1000.0), np.ones(1000, dtype=bool)
    smallest = []
    for _ in range(400):
        wild = np.where(rng.random((3, 400)) < 0.5, 0.0, 2000.0)
        ranking = rank_candidates([Candidate(str(i), known, wild[i], right) for i in range(3)], ALPHA)
        smallest.append(min(place.p_value for place in ranking.places))
    for level in (0.05, 0.2, 0.5):
        assert_at_most(np.array(smallest) < level, level)
    assert np.mean(np.array(smallest) < 0.5) > 0.1


def test_a_threshold_that_came_out_low_by_luck_separates_nothing(assert_at_most):
    """Few ID examples and little OOD: the lucky threshold accepts less wild data, and surely so, but not less OOD."""
    found = list(rankings(300, [3.5, 2.0], 0.9, n=100, m=5000, pi=0.02))
    wrong = np.array([fpr[0] > fpr[1] for _, fpr, _ in found])
    assert np.mean([accepted[0] < accepted[1] - 0.015 for _, _, accepted in found] & wrong) > 0.25
    assert_at_most([ranking.separated for ranking, _, _ in found] & wrong, 0.1)
    assert_at_most([ranking.places[1].p_value <= 0.1 and ranking.places[0].index == 1 for ranking, _, _ in found], 0.1)


def test_a_clear_winner_is_found_and_said_to_be_one():
    found = list(rankings(60, [0.0, 3.5, 0.5], 0.95))
    assert all(ranking.places[0].index == 1 for ranking, _, _ in found)
    assert all(ranking.separated for ranking, _, _ in found)
    assert max(place.p_value for ranking, _, _ in found for place in ranking.places[1:]) < 0.01


def test_excess_fpr_stays_below_both_bounds(assert_at_most):
    for levels in (None, 4):
        broken, paired_broken, tighter = [], [], []
        for ranking, fpr, _ in rankings(300, [1.5, 1.5, 1.4, 1.0], 0.8, levels=levels):
            excess = fpr[0] - fpr.min()
            broken.append(excess > ranking.excess_fpr(0.5))
            paired_broken.append(excess > ranking.paired_excess_fpr(0.5))
            tighter.append(ranking.paired_excess_fpr(0.5) < ranking.excess_fpr(0.5))
        assert_at_most(broken, 0.2)
        assert_at_most(paired_broken, 0.2)
        assert np.mean(tighter) > 0.9
