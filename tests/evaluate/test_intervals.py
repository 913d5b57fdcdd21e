"""Exact intervals of shares; the bootstrap, against a plain loop that draws the same examples and measures them anew."""

import numpy as np
import pytest
from scipy import stats

from wildood.errors import InputError
from wildood.evaluate.intervals import Share, fpr_interval, percentile_interval, resample
from wildood.evaluate.metrics import auroc, fpr_at_tpr, fpr_standard_error

RNG = np.random.default_rng(7)
CONTINUOUS = RNG.normal(size=83), RNG.normal(size=57) + 1.5, RNG.normal(size=120) + 0.5
TIED = RNG.integers(0, 4, 83), RNG.integers(1, 6, 57), RNG.integers(0, 3, 120)
INFINITE = np.array([0.0, 1.0, np.inf, -np.inf]), np.array([np.inf, 1.0]), np.array([0.5, 0.5, -np.inf])


def plain_loop(known, sets, tpr, resamples, seed):
    first, *others = (np.random.default_rng(seeds) for seeds in np.random.SeedSequence(seed).spawn(1 + len(sets)))
    known, sets = np.sort(known), [np.sort(scores) for scores in sets]
    found = []
    for _ in range(resamples):
        drawn = known[first.integers(0, len(known), len(known))]
        drawn_sets = [scores[rng.integers(0, len(scores), len(scores))] for scores, rng in zip(sets, others, strict=True)]
        found.append([(fpr_at_tpr(drawn, scores, tpr), auroc(drawn, scores)) for scores in drawn_sets])
    return np.array(found)


@pytest.mark.parametrize("scores", [CONTINUOUS, TIED, INFINITE], ids=["continuous", "tied", "infinite"])
@pytest.mark.parametrize("tpr", [0.5, 0.95, 1.0])
def test_every_resample_is_what_a_plain_loop_measures(scores, tpr):
    known, *sets = scores
    drawn = resample(known, sets, tpr, resamples=60, seed=3)
    expected = plain_loop(known, sets, tpr, 60, 3)
    assert drawn.fpr95 == pytest.approx(expected[:, :, 0], abs=1e-12)
    assert drawn.auroc == pytest.approx(expected[:, :, 1], abs=1e-12)
    assert len(np.unique(drawn.auroc)) > 1


def test_the_order_of_the_examples_does_not_matter():
    known, unknown, _ = CONTINUOUS
    first, second = resample(known, [unknown], resamples=20), resample(known[::-1], [unknown[::-1]], resamples=20)
    assert np.array_equal(first.fpr95, second.fpr95)
    assert np.array_equal(first.auroc, second.auroc)


def test_a_set_has_the_same_resamples_whatever_stands_behind_it():
    known, one, other = CONTINUOUS
    alone, both = resample(known, [one], resamples=20), resample(known, [one, other], resamples=20)
    assert np.array_equal(alone.fpr95[:, 0], both.fpr95[:, 0])
    assert np.array_equal(alone.auroc[:, 0], both.auroc[:, 0])


def test_the_same_seed_gives_the_same_resamples_and_another_seed_others():
    known, unknown, _ = CONTINUOUS
    first, again, other = (resample(known, [unknown], resamples=20, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first.auroc, again.auroc)
    assert not np.array_equal(first.auroc, other.auroc)


def test_two_sets_meet_the_same_draw_of_id_scores():
    """With OOD scores that are all alike, whatever varies is the draw of ID scores."""
    known = CONTINUOUS[0]
    drawn = resample(known, [[0.3], [0.3, 0.3]], resamples=50)
    assert np.array_equal(drawn.auroc[:, 0], drawn.auroc[:, 1])
    assert len(np.unique(drawn.auroc[:, 0])) > 10


def test_the_spread_agrees_with_that_of_another_implementation():
    rng = np.random.default_rng(0)
    known, unknown = rng.normal(size=1000), rng.normal(size=500) + 2
    drawn = resample(known, [unknown], resamples=400)
    assert drawn.fpr95.std() == pytest.approx(fpr_standard_error(known, unknown, draws=400), rel=0.2)


def test_about_95_percent_of_the_intervals_hold_the_true_auroc():
    """P(N(1, 1) > N(0, 1)) is Phi(1 / sqrt 2) = 0.7602; 100 intervals of 95 % hold it 95 ± 2.2 times."""
    rng = np.random.default_rng(0)
    held = 0
    for number in range(100):
        drawn = resample(rng.normal(size=80), [rng.normal(size=80) + 1], resamples=100, seed=number)
        low, high = percentile_interval(drawn.auroc[:, 0])
        held += low <= 0.76025 <= high
    assert 87 <= held <= 99


def test_sets_that_never_overlap_have_intervals_without_width():
    drawn = resample([0.0, 1.0, 2.0], [[3.0, 4.0]], resamples=50)
    assert percentile_interval(drawn.fpr95[:, 0]) == (0, 0)
    assert percentile_interval(drawn.auroc[:, 0]) == (1, 1)


def shares(*counts):
    return [Share.of(count, 0.95) for count in counts]


@pytest.mark.parametrize(("value", "exact"), [(0, (0, 1 - 0.025 ** (1 / 40))), (1, (0.025 ** (1 / 40), 1))])
def test_an_fpr_at_an_edge_has_the_exact_limits_of_its_count(value, exact):
    drawn = resample([0.0, 1.0, 2.0], [np.full(40, 3.0 if value == 0 else -3.0)], resamples=50)
    assert fpr_interval(drawn.fpr95, shares((40 * value, 40))) == pytest.approx(exact)


def test_an_fpr_keeps_the_wider_of_its_two_intervals_on_either_side():
    drawn = np.linspace(0.1, 0.4, 1001)[:, None]
    assert fpr_interval(drawn, shares((300, 1000))) == pytest.approx((0.1075, 0.3925))
    (wide,) = shares((5, 20))
    assert fpr_interval(drawn, [wide]) == pytest.approx((wide.low, wide.high))
    (few,) = shares((12, 40))
    assert fpr_interval(drawn, [few]) == pytest.approx((0.1075, few.high))


def test_the_limits_of_a_mean_of_fprs_add_up_like_independent_errors():
    both = fpr_interval(np.zeros((9, 2)), shares((0, 40), (0, 40)))
    assert both == pytest.approx((0, (1 - 0.025 ** (1 / 40)) / np.sqrt(2)))


@pytest.mark.slow
def test_intervals_of_a_small_fpr_miss_it_no_more_often_than_stated():
    """FPR95 is 1 % and 60 OOD examples are drawn: more than half of all draws accept none, where the bootstrap says 0."""
    rng, held, alone = np.random.default_rng(1), 0, 0
    at, draws = stats.norm.ppf(0.95), 200
    for number in range(draws):
        known, unknown = rng.normal(size=400), rng.normal(size=60) + at - stats.norm.ppf(0.01)
        drawn = resample(known, [unknown], resamples=100, seed=number)
        accepted = Share.of(unknown <= np.sort(known)[379], 0.95)
        low, high = fpr_interval(drawn.fpr95, [accepted])
        held += low <= 0.01 <= high
        alone += percentile_interval(drawn.fpr95[:, 0])[1] >= 0.01
    assert held >= 0.95 * draws
    assert alone < 0.8 * draws


def test_a_percentile_interval_leaves_as_much_below_as_above():
    values = np.random.default_rng(0).permutation(1001)
    assert percentile_interval(values, confidence=0.8) == pytest.approx((100, 900))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: resample([1.0], [[2.0]], resamples=0), "resamples is 0: give at least 1"),
        (lambda: resample([], [[2.0]]), "ID scores have shape"),
        (lambda: resample([1.0], [[2.0], [np.nan]]), "OOD scores contain NaN"),
        (lambda: resample([1.0], [[2.0]], tpr=1.5), "1.5"),
        (lambda: percentile_interval([1.0, 2.0], confidence=95), "confidence is 95"),
    ],
)
def test_what_cannot_be_resampled_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.parametrize(("count", "examples"), [(0, 20), (3, 20), (20, 20), (511, 10_000)])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_a_counted_share_has_the_exact_interval(count, examples, confidence):
    found = Share.of(np.arange(examples) < count, confidence)
    low, high = stats.binomtest(count, examples).proportion_ci(confidence, method="exact")
    assert (found.value, found.low, found.high) == pytest.approx((count / examples, low, high), abs=1e-9)
    assert (found.count, found.examples) == (count, examples)
    assert found == Share.of((count, examples), confidence)


def test_a_share_of_nothing_is_refused():
    with pytest.raises(InputError, match="0 of 0: give a count"):
        Share.of(np.zeros(0, dtype=bool), 0.95)


def test_shares_near_the_edges_are_told_in_plain_digits():
    assert Share.of((999, 1000), 0.95).text(0.95) == "999 of 1000 (99.9 %; 99.4 to 100.0 % at 95 % confidence)"
    assert Share.of((0, 1000), 0.99).text(0.99) == "0 of 1000 (0.0 %; 0.0 to 0.53 % at 99 % confidence)"
