"""The share of unknowns: exact against enumeration and scipy, bound and test in agreement, FPR solved for pi."""

from itertools import combinations
from math import comb, log, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from wildood.errors import InputError
from wildood.evaluate.mixture import _Evidence, fpr_by_share, share_p_value, unknown_share
from wildood.evaluate.thresholds import conformal_threshold

TIED = st.lists(st.sampled_from([-1.0, 0.0, 0.1, 0.2, 7.0]), min_size=1, max_size=60)
FROM_AUROC_99 = stats.norm.isf(0.01) * sqrt(2)  # how far normal scores of OOD lie above those of ID


def drawn(rng, n, m, pi, shift=FROM_AUROC_99):
    """Normal scores of n ID examples, and of m wild ones of which each is OOD with probability pi."""
    return rng.normal(size=n), rng.normal(size=m) + shift * (rng.random(m) < pi)


def dkw_bound(id_scores, wild_scores, confidence=0.95):
    """The bound from two uniform bands around the empirical distributions (Dvoretzky, Kiefer, Wolfowitz, Massart)."""
    n, m = len(id_scores), len(wild_scores)
    known, levels = np.sort(id_scores), np.arange(1, n + 1) / n - sqrt(log(2 / (1 - confidence)) / (2 * n))
    accepted = np.searchsorted(np.sort(wild_scores), known, side="right") / m
    accepted += sqrt(log(2 / (1 - confidence)) / (2 * m))
    return max(0.0, np.max(1 - accepted[levels > 0] / levels[levels > 0]))


@pytest.mark.parametrize(("n", "m", "rank"), [(1, 3, 1), (20, 30, 20), (20, 30, 15), (200, 90, 190), (4000, 700, 3900)])
def test_the_p_value_is_the_mixture_of_beta_binomials_that_scipy_gives(n, m, rank):
    for accepted in sorted({0, m // 2, int(0.9 * m), m - 1, m}):
        evidence = _Evidence(rank, accepted, n, m)
        by_count = stats.betabinom.cdf(accepted, np.arange(m + 1), rank, n - rank + 1)
        np.testing.assert_allclose(evidence.by_count, by_count, rtol=1e-8, atol=1e-12)
        for share in (1e-4, 0.03, 0.5, 0.99):
            expected = stats.binom.pmf(np.arange(m + 1), m, 1 - share) @ by_count
            assert evidence.p_value(share) == pytest.approx(expected, rel=1e-8, abs=1e-14)
        assert evidence.p_value(0.0) == pytest.approx(by_count[m], rel=1e-9)
        assert evidence.p_value(1.0) == 1.0


@pytest.mark.parametrize(("n", "m"), [(3, 3), (4, 2), (2, 5)])
def test_without_ood_every_order_is_equally_likely(n, m):
    for rank in range(1, n + 1):
        accepted = []
        for places in combinations(range(n + m), n):  # of the ID scores among all
            wild = [place for place in range(n + m) if place not in places]
            accepted.append(sum(place <= places[rank - 1] for place in wild))
        for count in range(m + 1):
            expected = sum(other <= count for other in accepted) / comb(n + m, n)
            assert _Evidence(rank, count, n, m).at_zero == pytest.approx(expected)


def test_p_values_rise_with_the_share():
    evidence = _Evidence(rank=95, accepted=80, n=100, m=100)
    values = [evidence.p_value(share) for share in np.linspace(0, 1, 101)]
    assert np.all(np.diff(values) >= -1e-12)
    assert values[0] < 0.01
    assert values[-1] == 1


@given(TIED, TIED, st.sampled_from([0.2, 0.5, 0.9, 0.99]))
@settings(deadline=None, derandomize=True)
def test_bound_test_and_estimate_never_contradict_each_other(id_scores, wild_scores, confidence):
    found = unknown_share(id_scores, wild_scores, confidence)
    assert 0 <= found.bound <= found.estimate <= 1
    assert 0 <= found.p_value <= 1
    assert (found.bound > 0) == (found.p_value < 1 - confidence)
    assert found.p_value == share_p_value(id_scores, wild_scores)
    for share in (0.01, 0.1, 0.5, 0.9):
        assert (found.bound > share) == (share_p_value(id_scores, wild_scores, share) < 1 - confidence)


@given(TIED, TIED)
@settings(deadline=None, derandomize=True)
def test_only_the_order_of_the_scores_matters(id_scores, wild_scores):
    stretched = [np.sinh(np.asarray(scores)) for scores in (id_scores, wild_scores)]
    assert unknown_share(*stretched) == unknown_share(id_scores, wild_scores)


def test_bound_by_hand_for_one_id_example():
    # n = 1 has one rank. All 3 wild scores lie above the only ID score with probability 1/4.
    found = unknown_share([0.0], [1.0, 2.0, 3.0], confidence=0.7)
    assert found.p_value == pytest.approx(1 / 4)
    # P(none of V is below) = E(1 - (1 - pi) u)^3, u uniform: (1 - pi^4) / (4 (1 - pi)) = 0.3 at the bound.
    assert (1 - found.bound**4) / (4 * (1 - found.bound)) == pytest.approx(0.3)


@pytest.mark.slow
def test_median_bound_is_far_above_that_of_uniform_bands():
    rng = np.random.default_rng(0)
    for pi, least, uniform in ((0.1, 0.075, 0.065), (0.03, 0.014, 0.001)):
        draws = [drawn(rng, 4000, 4000, pi) for _ in range(25)]
        assert np.median([unknown_share(*draw).bound for draw in draws]) > least
        assert np.median([dkw_bound(*draw) for draw in draws]) < uniform


def test_bound_is_above_that_of_uniform_bands_where_scores_hardly_separate():
    rng = np.random.default_rng(1)
    draws = [drawn(rng, 2000, 3000, 0.4, shift=1.5) for _ in range(20)]
    assert np.median([unknown_share(*draw).bound for draw in draws]) > np.median([dkw_bound(*draw) for draw in draws])


@pytest.mark.parametrize("pi", [0.0, 0.02, 0.1])
def test_estimate_is_near_the_share_where_scores_separate(pi):
    rng = np.random.default_rng(2)
    estimates = [unknown_share(*drawn(rng, 4000, 4000, pi)).estimate for _ in range(30)]
    assert abs(np.median(estimates) - pi) < 0.012


def test_estimate_is_too_low_where_scores_do_not_separate():
    rng = np.random.default_rng(3)
    estimates = [unknown_share(*drawn(rng, 4000, 4000, 0.4, shift=1.0)).estimate for _ in range(10)]
    assert 0.15 < np.median(estimates) < 0.35


def test_more_examples_raise_the_bound():
    known, wild = np.linspace(0, 1, 100_001), np.append(np.linspace(0, 1, 95_000), np.full(5000, 2.0))
    bounds = [unknown_share(known[::step], wild[::step]).bound for step in (1000, 100, 10, 1)]
    assert bounds == sorted(bounds)
    assert bounds[0] == 0
    assert 0.047 < bounds[-1] < 0.05


def test_several_scores_pay_for_being_several_and_the_best_one_counts():
    rng = np.random.default_rng(4)
    known, wild = drawn(rng, 500, 500, 0.2)
    noise = rng.normal(size=500), rng.normal(size=500)
    alone, useless = unknown_share(known, wild), unknown_share(*noise)
    both = unknown_share([noise[0], known], np.stack([noise[1], wild]))
    assert useless.bound == 0
    assert 0.7 * alone.bound < both.bound < alone.bound
    assert both.p_value == pytest.approx(2 * alone.p_value)
    # Twice the same score is a matter of confidence only.
    assert unknown_share([known] * 2, [wild] * 2, 0.9).bound == alone.bound


def test_ties_only_lower_the_bound():
    rng = np.random.default_rng(5)
    known, wild = drawn(rng, 1000, 1000, 0.2)
    bounds = [unknown_share(np.floor(known * k) / k, np.floor(wild * k) / k).bound for k in (1, 2, 16, 1 << 30)]
    assert bounds == sorted(bounds)
    assert bounds[-1] == unknown_share(known, wild).bound
    assert unknown_share([1.0] * 50, [1.0] * 50).p_value == 1


def test_infinite_scores_are_ranked():
    assert unknown_share(np.arange(200), [np.inf] * 200).bound > 0.9
    assert unknown_share([np.inf] * 200, np.arange(200)).bound == 0


def test_what_it_says_depends_on_what_is_found():
    assert str(unknown_share(np.arange(200), np.arange(200) + 100)).startswith(
        "at least 94.9 % of the wild data is OOD at 95 %"
    )
    assert str(unknown_share(np.arange(9), np.arange(9))).startswith(
        "no OOD is found at 95 % confidence (estimate 0.0 %, p = 1"
    )


@pytest.mark.parametrize(
    ("known", "wild", "message"),
    [
        ([], [1.0], "ID scores have shape"),
        ([1.0], [], "wild scores have shape"),
        ([1.0], 2.0, "wild scores have shape"),
        ([1.0, np.nan], [1.0], "ID scores contain NaN"),
        ([[1.0], [2.0]], [1.0], "2 scores for ID and 1 for wild"),
        ([[1.0], [2.0, 3.0]], [1.0], "ID scores do not make rows"),
        ([[[1.0]]], [[[1.0]]], "ID scores have shape"),
    ],
)
def test_unusable_scores_are_refused(known, wild, message):
    with pytest.raises(InputError, match=message):
        unknown_share(known, wild)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_hypothesis_outside_its_range_is_refused(share):
    with pytest.raises(InputError, match=f"share is {share}"):
        share_p_value([1.0], [1.0], share)


def test_a_confidence_outside_its_range_is_refused():
    for ask in (lambda: unknown_share([1.0], [1.0], 1.0), lambda: fpr_by_share([1.0], [1.0], 0.0, 0.1, confidence=1.0)):
        with pytest.raises(InputError, match=r"confidence is 1\.0"):
            ask()


def test_fpr_is_solved_for_each_share_by_hand():
    # 8 of 10 ID and 6 of 10 wild accepted: R1 = (0.6 - (1 - pi) 0.8) / pi
    found = fpr_by_share(range(10), [0] * 6 + [9] * 4, threshold=7, share=[0.25, 0.5, 1.0])
    np.testing.assert_allclose(found.fpr, [0.0, 0.4, 0.6])
    limits = [
        (count, stats.beta.ppf(0.0125, count, 11 - count), stats.beta.isf(0.0125, count + 1, 10 - count)) for count in (6, 8)
    ]
    (_, wild_low, wild_high), (_, id_low, id_high) = limits
    np.testing.assert_allclose(found.lower, np.clip([4 * wild_low - 3 * id_high, 2 * wild_low - id_high, wild_low], 0, 1))
    np.testing.assert_allclose(found.upper, np.clip([4 * wild_high - 3 * id_low, 2 * wild_high - id_low, wild_high], 0, 1))
    assert found.possible.all()


def test_shares_that_the_data_refutes_are_marked():
    known = np.arange(5000)
    found = fpr_by_share(
        known, np.append(known[:4000], np.full(1000, 9999)), threshold=4750, share=[0.01, 0.1, 0.15, 0.2, 0.9]
    )
    assert found.possible.tolist() == [False, False, True, True, True]
    assert found.upper[0] == found.lower[0] == 0
    assert "pi = 0.1 is refuted; 0 % (0 to" in str(found)


def test_tied_id_scores_at_the_threshold_widen_the_band_downwards():
    known, wild = np.arange(100.0), np.arange(0.0, 200.0, 2.0)
    tied = np.where((known > 80) & (known <= 95), 95.0, known)
    plain, wider = (fpr_by_share(scores, wild, 95.0, 0.8) for scores in (known, tied))
    assert wider.fpr == plain.fpr
    assert wider.lower == plain.lower
    assert wider.upper > plain.upper


def test_the_shape_of_the_shares_is_kept():
    assert fpr_by_share([1.0, 2.0], [1.0, 2.0], 1.0, 0.5).fpr.shape == ()
    assert fpr_by_share([1.0, 2.0], [1.0, 2.0], 1.0, [[0.5, 0.6]]).upper.shape == (1, 2)


@pytest.mark.parametrize("share", [0, [0.1, 0.0], 1.1, float("nan"), -0.1])
def test_a_share_that_cannot_be_is_refused(share):
    with pytest.raises(InputError, match="share is"):
        fpr_by_share([1.0], [1.0], 1.0, share)


def test_a_threshold_that_is_no_number_is_refused():
    with pytest.raises(InputError, match="the threshold is NaN"):
        fpr_by_share([1.0], [1.0], float("nan"), 0.1)


def test_the_band_narrows_with_more_examples_and_holds_the_truth():
    rng = np.random.default_rng(6)
    widths = []
    for n in (300, 3000, 30_000):
        known, wild = drawn(rng, n, n, 0.2, shift=2.0)
        threshold = conformal_threshold(known, 0.05)
        found = fpr_by_share(known, wild, threshold, 0.2, confidence=0.999)
        assert found.lower < stats.norm.cdf(threshold - 2) < found.upper
        widths.append(float(found.upper - found.lower))
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 0.12
