"""What a ranking says about luck is wrong no more often than stated, over many draws of both holdouts."""

import numpy as np
from scipy import stats

from wildood.evaluate.ranking import Candidate, rank_candidates

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


def accepts_least(ranking):
    """Whether the first accepts less wild data than every other one at the thresholds as they are, by their p-values."""
    return all(place.p_value <= (1 - ranking.confidence) / (len(ranking.places) - 1) for place in ranking.places[1:])


def test_less_acceptance_is_claimed_wrongly_no_more_often_than_stated(assert_at_most):
    for shifts in ([1.5, 1.5], [1.5] * 4):
        found = list(rankings(1000, shifts, 0.8, n=2000, m=60))
        wrong = [accepts_least(ranking) and accepted[0] > accepted.min() for ranking, _, accepted in found]
        assert_at_most(wrong, 0.2)
        # Whoever took the first for the best without asking would be wrong far more often.
        assert np.mean([accepted[0] > accepted.min() for _, _, accepted in found]) > 0.35


def test_a_threshold_that_came_out_low_by_luck_separates_nothing(assert_at_most):
    """Few ID examples and little OOD: the lucky threshold accepts less wild data, and surely so, but not less OOD."""
    found = list(rankings(300, [3.5, 2.0], 0.9, n=100, m=5000, pi=0.02))
    wrong = np.array([fpr[0] > fpr[1] for _, fpr, _ in found])
    assert np.mean([accepts_least(ranking) for ranking, _, _ in found] & wrong) > 0.25
    assert_at_most([ranking.separated for ranking, _, _ in found] & wrong, 0.1)


def test_a_clear_winner_is_found_and_said_to_be_one():
    found = list(rankings(60, [0.0, 3.5, 0.5], 0.95))
    assert all(ranking.places[0].index == 1 for ranking, _, _ in found)
    assert all(accepts_least(ranking) and ranking.separated for ranking, _, _ in found)


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
