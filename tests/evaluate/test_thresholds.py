"""The deployed threshold is the order statistic on paper, and is refused exactly when the holdout is too small."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from wildood.errors import InputError
from wildood.evaluate.metrics import rejection_rate
from wildood.evaluate.thresholds import (
    check_alpha,
    check_confidence,
    conformal_threshold,
    examples_needed,
    p_values,
    threshold_rank,
    thresholds_by_class,
)

TIED = st.lists(st.sampled_from([-1.0, 0.0, 0.1, 0.2, 7.0]), min_size=1, max_size=40)


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
    assert rejection_rate(scores, threshold) == 0.0


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


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.999])
@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.3, 0.9])
@pytest.mark.parametrize("n", [1, 2, 10, 59, 700, 4000, 300_000])
def test_confident_rank_is_the_smallest_that_scipy_allows(n, alpha, confidence):
    ranks = np.arange(1, n + 1)
    enough = ranks[stats.binom.sf(ranks - 1, n, 1 - alpha) <= 1 - confidence + 1e-9]
    if len(enough):
        assert threshold_rank(n, alpha, confidence) == enough[0]
        assert conformal_threshold(ranks[::-1], alpha, confidence) == enough[0]
    else:
        with pytest.raises(InputError, match=f"{n} holdout examples .* with confidence {confidence}: give at least"):
            threshold_rank(n, alpha, confidence)


@pytest.mark.parametrize("confidence", [0.05, 0.19, 0.5, 0.75, 0.9, 0.95, 0.99])
def test_confident_threshold_begins_to_exist_at_the_smallest_n_that_can_hold_it(confidence):
    for hundredth in range(1, 100):
        alpha = hundredth / 100
        needed = examples_needed(alpha, confidence)
        assert 1 - (1 - alpha) ** needed >= confidence - 1e-12, alpha
        assert needed == 1 or 1 - (1 - alpha) ** (needed - 1) < confidence, alpha
        assert 1 <= threshold_rank(needed, alpha, confidence) <= needed
        if needed > 1:
            with pytest.raises(InputError, match=f"give at least {needed}"):
                conformal_threshold(np.arange(needed - 1), alpha, confidence)


def test_confident_examples_by_hand():
    assert examples_needed(0.5, 0.5) == 1  # one example is above the median half of the time
    assert examples_needed(0.5, 0.75) == 2
    assert examples_needed(0.1, 0.19) == 2  # 1 - 0.9² = 0.19
    assert [examples_needed(alpha, 0.95) for alpha in (0.1, 0.05, 0.01)] == [29, 59, 299]


def test_more_confidence_never_lowers_the_threshold():
    scores = np.random.default_rng(0).normal(size=1000)
    confident = [conformal_threshold(scores, 0.05, confidence) for confidence in (0.6, 0.9, 0.95, 0.999)]
    assert confident == sorted(confident)
    assert len(set(confident)) == 4
    assert confident[0] > conformal_threshold(scores, 0.05)


def test_each_class_has_the_threshold_of_its_own_examples():
    rng = np.random.default_rng(0)
    predicted = rng.integers(0, 3, 900)
    scores = rng.normal(size=900) * (1 + predicted)
    for confidence, divided in ((None, None), (0.9, 1 - 0.1 / 3)):
        found = thresholds_by_class(scores, predicted, 3, 0.1, confidence)
        expected = [conformal_threshold(scores[predicted == number], 0.1, divided) for number in range(3)]
        assert found.tolist() == expected
    assert found[0] < found[1] < found[2]


def test_a_class_with_too_few_examples_is_named_with_the_number_needed():
    predicted = np.array([0] * 30 + [1] * 5 + [2] * 30)
    with pytest.raises(InputError, match=r"class 1 is predicted for 5 of 65 .* at least 19 for each"):
        thresholds_by_class(np.arange(65.0), predicted, 3, 0.05)
    with pytest.raises(InputError, match=r"class 3 is predicted for 0 of 65 .* at least 9 for each"):
        thresholds_by_class(np.arange(65.0), predicted % 3, 4, 0.1)
    divided = r"of 0.05 in each class with confidence 0.95, divided over 3 classes \(0.9833 in each\): give at least 80 for"
    with pytest.raises(InputError, match=divided):
        thresholds_by_class(np.arange(65.0), predicted, 3, 0.05, confidence=0.95)


@pytest.mark.parametrize("bad", [[0, 1, -1], [0, 1, 2], [0.0, 1.0, 1.0]])
def test_classes_that_are_none_are_refused(bad):
    with pytest.raises(InputError, match="whole numbers from 0 to 1"):
        thresholds_by_class([1.0, 2.0, 3.0], bad, 2, 0.5)
    with pytest.raises(InputError, match="predicted classes for"):
        thresholds_by_class([1.0, 2.0], bad, 2, 0.5)


@given(TIED, TIED)
@settings(deadline=None, derandomize=True)
def test_p_values_are_their_definition(scores, holdout):
    expected = [(1 + sum(one >= score for one in holdout)) / (len(holdout) + 1) for score in scores]
    assert p_values(scores, holdout).tolist() == expected


@given(TIED, TIED, st.integers(1, 99))
@settings(deadline=None, derandomize=True)
def test_a_p_value_is_at_most_alpha_exactly_above_the_threshold(scores, holdout, percent):
    alpha = percent / 100
    if len(holdout) >= examples_needed(alpha):
        rejected = np.asarray(scores) > conformal_threshold(holdout, alpha)
        assert rejected.tolist() == (p_values(scores, holdout) <= alpha + 1e-12).tolist()


def test_p_values_of_single_precision_scores_see_their_ties():
    scores = np.array([0.1, 0.2], dtype=np.float32)
    assert p_values(scores, scores).tolist() == [1.0, 2 / 3]


@pytest.mark.parametrize("confidence", [0, 1, -0.5, 95, float("nan"), "0.95"])
def test_a_confidence_outside_its_range_is_refused(confidence):
    for refuse in (check_confidence, lambda c: examples_needed(0.1, c), lambda c: conformal_threshold([1.0], 0.1, c)):
        with pytest.raises(InputError, match=f"confidence is '?{confidence}"):
            refuse(confidence)


@pytest.mark.parametrize("examples", [19, 99, 399, 999])
def test_a_rate_that_is_rounded_is_the_rate_that_was_meant(examples):
    alpha = 1 - 0.9  # 0.09999999999999998
    scores = np.arange(examples)
    rejected = scores > conformal_threshold(scores, alpha)
    assert np.array_equal(rejected, conformal_threshold(scores, 0.1) < scores)
    assert np.array_equal(p_values(scores, scores) <= check_alpha(alpha), p_values(scores, scores) <= 0.1)
