"""The metrics equal scikit-learn's and their own definitions, whatever the ties."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import sem
from sklearn.metrics import auc, average_precision_score, roc_auc_score
from sklearn.metrics import roc_curve as sklearn_roc_curve

from wildood.errors import InputError
from wildood.evaluate import metrics
from wildood.evaluate.metrics import (
    accepting_threshold,
    accuracy,
    all_metrics,
    auroc,
    fpr_at_tpr,
    mean_and_error,
    rejection_rate,
    roc_curve,
)

# Few distinct values, so that nearly every example has ties; some differ by more than 300 orders of magnitude.
TIED = st.lists(st.sampled_from([-3.5, -1.0, 0.0, 0.1, 0.2, 7.0, 1e300]), min_size=1, max_size=40)
# k / n and p / 100 are each rounded correctly, so that comparing the two floats compares the two fractions.
RATES = st.integers(1, 100).map(lambda percent: percent / 100)
SCORE_METRICS = [fpr_at_tpr, auroc, roc_curve, all_metrics]


def aupr_in(id_scores, ood_scores):
    return all_metrics(id_scores, ood_scores).aupr_in


def aupr_out(id_scores, ood_scores):
    return all_metrics(id_scores, ood_scores).aupr_out


def fpr_at_tpr_ood_positive(id_scores, ood_scores, tpr=0.95):
    return all_metrics(id_scores, ood_scores, tpr).fpr_at_tpr_ood_positive


def average_precision(positive, negative):
    """Σ (recall_k - recall_{k-1}) precision_k over the distinct scores, highest first; infinite ones, too."""
    levels, counts = np.unique(positive, return_counts=True)
    above_positive = np.cumsum(counts[::-1])[::-1]
    above_negative = len(negative) - np.searchsorted(np.sort(negative), levels, side="left")
    return np.sum(above_positive / (above_positive + above_negative) * counts) / len(positive)


def labelled_scores(id_scores, ood_scores):
    """Scores and OOD = 1, as scikit-learn wants them."""
    return np.r_[np.zeros(len(id_scores)), np.ones(len(ood_scores))], np.r_[id_scores, ood_scores]


def fpr_by_definition(id_scores, ood_scores, tpr):
    """The smallest ID score that accepts enough ID, found by trying each; then the OOD it accepts."""
    for threshold in sorted(id_scores):
        if sum(score <= threshold for score in id_scores) / len(id_scores) >= tpr:
            return sum(score <= threshold for score in ood_scores) / len(ood_scores)
    raise AssertionError


def fpr_by_definition_ood_positive(id_scores, ood_scores, tpr):
    """The largest OOD score that rejects enough OOD where score >= threshold; then the ID it rejects."""
    for threshold in sorted(ood_scores, reverse=True):
        if sum(score >= threshold for score in ood_scores) / len(ood_scores) >= tpr:
            return sum(score >= threshold for score in id_scores) / len(id_scores)
    raise AssertionError


@given(TIED, TIED)
@settings(deadline=None, derandomize=True)
def test_ranking_metrics_equal_scikit_learn_on_tied_scores(id_scores, ood_scores):
    is_ood, scores = labelled_scores(id_scores, ood_scores)
    assert auroc(id_scores, ood_scores) == pytest.approx(roc_auc_score(is_ood, scores), abs=1e-12)
    assert aupr_out(id_scores, ood_scores) == pytest.approx(average_precision_score(is_ood, scores), abs=1e-12)
    assert aupr_in(id_scores, ood_scores) == pytest.approx(average_precision_score(1 - is_ood, -scores), abs=1e-12)


@pytest.mark.parametrize("levels", [3, 30, None])
@pytest.mark.parametrize("seed", range(5))
def test_all_metrics_equal_scikit_learn_on_large_samples(seed, levels):
    rng = np.random.default_rng(seed)
    id_scores, ood_scores = rng.normal(0, 1, 1000), rng.normal(1, 2, 700)
    if levels is not None:
        id_scores, ood_scores = np.round(id_scores * levels / 6), np.round(ood_scores * levels / 6)
    is_ood, scores = labelled_scores(id_scores, ood_scores)
    assert auroc(id_scores, ood_scores) == pytest.approx(roc_auc_score(is_ood, scores), abs=1e-12)
    assert aupr_out(id_scores, ood_scores) == pytest.approx(average_precision_score(is_ood, scores), abs=1e-12)
    assert aupr_in(id_scores, ood_scores) == pytest.approx(average_precision_score(1 - is_ood, -scores), abs=1e-12)
    fpr, tpr, _ = sklearn_roc_curve(1 - is_ood, -scores, drop_intermediate=False)
    assert fpr_at_tpr(id_scores, ood_scores) == pytest.approx(fpr[np.argmax(tpr >= 0.95)], abs=1e-12)
    fpr, tpr, _ = sklearn_roc_curve(is_ood, scores, drop_intermediate=False)
    assert fpr_at_tpr_ood_positive(id_scores, ood_scores) == pytest.approx(fpr[np.argmax(tpr >= 0.95)], abs=1e-12)


@given(TIED, TIED, RATES)
@settings(deadline=None, derandomize=True)
def test_fpr_is_its_definition_in_both_conventions(id_scores, ood_scores, tpr):
    assert fpr_at_tpr(id_scores, ood_scores, tpr) == fpr_by_definition(id_scores, ood_scores, tpr)
    ood_positive = fpr_at_tpr_ood_positive(id_scores, ood_scores, tpr)
    assert ood_positive == fpr_by_definition_ood_positive(id_scores, ood_scores, tpr)


def test_threshold_accepts_the_count_on_paper_where_floats_are_inexact():
    assert 0.07 * 100 > 7  # so that a bare ceil would accept 8
    inexact = 0
    for n in range(1, 151):
        ranks = np.arange(1.0, n + 1)
        for percent in range(1, 101):
            expected = -(-percent * n // 100)
            inexact += int(np.ceil(percent / 100 * n)) != expected
            assert accepting_threshold(ranks, percent / 100) == expected, (n, percent)
    assert inexact > 0  # a bare ceil of the float would fail here


def test_threshold_accepts_the_count_on_paper_for_large_samples():
    for n in (10_000, 26_032, 50_000, 1_000_000):
        assert accepting_threshold(np.arange(1, n + 1), 0.95) == -(-95 * n // 100)


def test_fpr_with_ties_by_hand():
    # 3 of 4 ID lie at or below 1; the three OOD at 1 are accepted with them.
    assert fpr_at_tpr([0, 1, 1, 2], [1, 1, 1, 5], tpr=0.5) == 0.75
    assert fpr_at_tpr([0, 1, 1, 2], [1, 1, 1, 5], tpr=0.75) == 0.75
    assert fpr_at_tpr([0, 1, 1, 2], [1, 1, 1, 5], tpr=0.25) == 0.0
    # A constant score tells nothing: all of OOD is accepted with all of ID.
    assert fpr_at_tpr([1] * 20, [1] * 5) == 1.0


def test_the_two_fpr_conventions_differ():
    id_scores, ood_scores = [0, 0, 0, 3], [2, 4, 4, 4]
    assert fpr_at_tpr(id_scores, ood_scores, tpr=0.75) == 0.0
    assert fpr_at_tpr_ood_positive(id_scores, ood_scores, tpr=1.0) == 0.25
    rng = np.random.default_rng(0)
    narrow, wide = rng.normal(0, 1, 2000), rng.normal(2, 3, 2000)
    assert abs(fpr_at_tpr(narrow, wide) - fpr_at_tpr_ood_positive(narrow, wide)) > 0.1


def test_ranking_metrics_with_ties_by_hand():
    # Pairs (ID, OOD): 0<1, 0<2, 1=1 (half), 1<2, of 4.
    assert auroc([0, 1], [1, 2]) == 3.5 / 4
    # OOD first: at 2 one of one; at 1 two OOD of three examples.
    assert aupr_out([0, 1], [1, 2]) == pytest.approx((1 + 2 / 3) / 2)
    assert aupr_in([0, 1], [1, 2]) == pytest.approx((1 + 2 / 3) / 2)
    # A constant score: half the pairs, and the share of positives.
    assert auroc([1, 1, 1], [1]) == 0.5
    assert aupr_out([1, 1, 1], [1]) == 0.25
    assert aupr_in([1, 1, 1], [1]) == 0.75


@given(TIED, TIED)
@settings(deadline=None, derandomize=True)
def test_auroc_of_exchanged_classes_is_the_complement(id_scores, ood_scores):
    assert auroc(id_scores, ood_scores) + auroc(ood_scores, id_scores) == pytest.approx(1, abs=1e-12)


@given(TIED, TIED)
@settings(deadline=None, derandomize=True)
def test_roc_curve_equals_scikit_learn_on_tied_scores(id_scores, ood_scores):
    false_alarms, caught, _ = sklearn_roc_curve(*labelled_scores(id_scores, ood_scores), drop_intermediate=False)
    ours = roc_curve(id_scores, ood_scores)
    np.testing.assert_allclose(ours[0], false_alarms, atol=1e-12)
    np.testing.assert_allclose(ours[1], caught, atol=1e-12)


@given(TIED, TIED)
@settings(deadline=None, derandomize=True)
def test_roc_curve_goes_from_rejecting_nothing_to_rejecting_all_with_auroc_below_it(id_scores, ood_scores):
    false_alarms, caught = roc_curve(id_scores, ood_scores)
    assert (false_alarms[0], caught[0], false_alarms[-1], caught[-1]) == (0, 0, 1, 1)
    assert auc(false_alarms, caught) == pytest.approx(auroc(id_scores, ood_scores), abs=1e-12)


def test_roc_curve_passes_through_what_a_threshold_rejects():
    id_scores, ood_scores = [0, 1, 1, 2], [1, 2, 2, 5, 7]
    points = list(zip(*roc_curve(id_scores, ood_scores), strict=True))
    for threshold in (-1, 0, 0.5, 1, 2, 5, 7):
        rejected = rejection_rate(id_scores, threshold), rejection_rate(ood_scores, threshold)
        assert any(point == pytest.approx(rejected, abs=1e-12) for point in points)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=20))
@settings(deadline=None, derandomize=True)
def test_mean_and_error_equal_scipy(values):
    mean, error = mean_and_error(values)
    assert mean == pytest.approx(math.fsum(values) / len(values), abs=1e-9)
    assert error == pytest.approx(sem(values), abs=1e-9)


def test_a_single_value_has_no_error():
    mean, error = mean_and_error([0.25])
    assert mean == 0.25
    assert math.isnan(error)


@pytest.mark.parametrize("bad", [[], [np.nan], [[1.0, 2.0]]])
def test_mean_and_error_refuses_what_is_no_number_for_each_seed(bad):
    with pytest.raises(InputError, match="per-seed scores"):
        mean_and_error(bad)


def test_rejection_rate_accepts_a_score_at_the_threshold():
    assert rejection_rate([1, 2, 2, 3], threshold=2) == 0.25
    assert rejection_rate([1, 2, 2, 3], threshold=1.99) == 0.75


def test_infinite_scores_are_ranked():
    assert auroc([-np.inf, 0], [0, np.inf]) == 3.5 / 4
    assert fpr_at_tpr([-np.inf, 0], [0, np.inf], tpr=1.0) == 0.5


def test_metrics_leave_their_inputs_alone():
    id_scores, ood_scores = np.array([3.0, 1.0, 2.0]), np.array([5.0, 0.0])
    for metric in SCORE_METRICS:
        metric(id_scores, ood_scores)
    assert id_scores.tolist() == [3.0, 1.0, 2.0]
    assert ood_scores.tolist() == [5.0, 0.0]


def test_accuracy_counts_rejections_as_wrong():
    assert accuracy([0, 1, -1, -1], [0, 2, 0, 1]) == 0.25


@pytest.mark.parametrize("metric", SCORE_METRICS)
@pytest.mark.parametrize(
    ("bad", "message"), [([], "shape"), ([[1.0, 2.0]], "shape"), (3.0, "shape"), ([1.0, np.nan], "NaN")]
)
def test_unusable_scores_are_refused_by_name(metric, bad, message):
    with pytest.raises(InputError, match=f"ID scores.*{message}"):
        metric(bad, [1.0, 2.0])
    with pytest.raises(InputError, match=f"OOD scores.*{message}"):
        metric([1.0, 2.0], bad)


@pytest.mark.parametrize("tpr", [0, -0.1, 1.01, 95, float("nan")])
def test_a_rate_outside_its_range_is_refused(tpr):
    for metric in (fpr_at_tpr, all_metrics):
        with pytest.raises(InputError, match=f"tpr is {tpr}"):
            metric([1.0], [2.0], tpr)


def test_rejection_rate_refuses_unusable_scores():
    for bad in ([], [np.nan], [[1.0]]):
        with pytest.raises(InputError, match="the scores"):
            rejection_rate(bad, threshold=0)


def test_accuracy_refuses_lengths_that_differ():
    for predicted, labels in (([0, 1], [0]), ([], []), ([0], [[0]])):
        with pytest.raises(InputError, match="predictions for"):
            accuracy(predicted, labels)


@pytest.fixture(params=[1, 3, metrics.PART], ids="parts of {}".format)
def part(request, monkeypatch):
    """Small parts let tied values lie across their borders."""
    monkeypatch.setattr(metrics, "PART", request.param)


def assert_all_equal_each(id_scores, ood_scores, tpr):
    """All metrics together are what each is alone: counts exactly, areas but for the order of a sum."""
    together = all_metrics(id_scores, ood_scores, tpr)
    assert together.fpr_at_tpr == fpr_at_tpr(id_scores, ood_scores, tpr)
    known, unknown = np.asarray(id_scores, np.float64), np.asarray(ood_scores, np.float64)
    assert together.fpr_at_tpr_ood_positive == fpr_at_tpr(-unknown, -known, tpr)  # the classes are exchanged
    assert together.auroc == auroc(id_scores, ood_scores)
    assert together.aupr_in == pytest.approx(average_precision(-known, -unknown), rel=1e-13)
    assert together.aupr_out == pytest.approx(average_precision(unknown, known), rel=1e-13)
    assert together.tpr == tpr


@given(id_scores=TIED, ood_scores=TIED, tpr=RATES)
@settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_all_metrics_together_are_each_alone_on_tied_scores(part, id_scores, ood_scores, tpr):
    assert_all_equal_each(id_scores, ood_scores, tpr)


@pytest.mark.parametrize("decimals", [0, 2, 12])
@pytest.mark.parametrize("kinds", [("float64", "float64"), ("float32", "float32"), ("float32", "float64")])
def test_all_metrics_together_are_each_alone_on_many_scores(kinds, decimals):
    rng = np.random.default_rng(decimals)
    id_scores = rng.normal(0, 1, 70_000).round(decimals).astype(kinds[0])
    ood_scores = rng.normal(1, 2, 50_000).round(decimals).astype(kinds[1])
    assert_all_equal_each(id_scores, ood_scores, 0.95)


def test_all_metrics_equal_scikit_learn_in_single_precision():
    rng = np.random.default_rng(0)
    id_scores, ood_scores = rng.normal(0, 1, 4000).astype("float32"), rng.normal(1, 1, 3000).astype("float32")
    is_ood, scores = labelled_scores(id_scores, ood_scores)
    together = all_metrics(id_scores, ood_scores)
    assert together.auroc == pytest.approx(roc_auc_score(is_ood, scores), abs=1e-12)
    assert together.aupr_out == pytest.approx(average_precision_score(is_ood, scores), abs=1e-12)
    assert together.aupr_in == pytest.approx(average_precision_score(1 - is_ood, -scores), abs=1e-12)


def test_all_metrics_rank_infinite_scores():
    assert_all_equal_each([-np.inf, 0.0, 0.0], [0.0, np.inf, np.inf], 0.95)
    assert_all_equal_each([np.inf, 0.0], [-np.inf, -np.inf], 0.5)


def test_all_metrics_take_little_more_memory_than_the_scores():
    """Sorted copies and one count for each ID score; not an index or a double for each score."""
    rng = np.random.default_rng(0)
    id_scores, ood_scores = (rng.normal(size=300_000).astype("float32") for _ in range(2))
    tracemalloc.start()
    all_metrics(id_scores, ood_scores)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * (id_scores.nbytes + ood_scores.nbytes)


def test_all_metrics_read_as_one_line():
    assert str(all_metrics(range(100), range(90, 190))) == (
        "FPR95 5.00 % (OOD as positive: 5.00 %), AUROC 99.50 %, AUPR-in 99.47 %, AUPR-out 99.47 %"
    )
