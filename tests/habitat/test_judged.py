"""The random sample of judged answers, and the drift of known scores that it shows."""

import numpy as np
import pytest
from scipy import stats

from wildood.habitat.answers import Judged
from wildood.habitat.judged import JudgedCounts, KnownDrift, is_evidence, is_random, known_drift


def test_a_tenth_of_answers_is_random_and_half_of_these_are_evidence():
    ids = np.arange(1, 200_001)
    assert is_random(ids).mean() == pytest.approx(0.1, abs=0.003)
    assert is_evidence(ids).mean() == pytest.approx(0.05, abs=0.002)
    assert not np.any(is_evidence(ids) & ~is_random(ids))


def test_the_random_sample_has_no_rhythm():
    """Answers of a batch, a client or an hour are in it as often as others."""
    chosen = is_random(np.arange(1, 100_001))
    for period in (2, 7, 16, 100):
        by_phase = [chosen[phase::period].mean() for phase in range(period)]
        assert stats.chisquare([len(chosen) / period * rate for rate in by_phase]).pvalue > 1e-3


def test_the_same_answers_are_in_it_for_ever():
    assert np.flatnonzero(is_random(np.arange(60))).tolist() == [2, 18, 29, 30, 31, 43]


def test_counts_say_what_judgements_serve():
    ids = np.arange(1, 400)
    evidence, fresh, chosen = (
        ids[is_evidence(ids)][:2],
        ids[is_random(ids) & ~is_evidence(ids)][:3],
        ids[~is_random(ids)][:4],
    )
    answer = np.concatenate([evidence, fresh, chosen])
    classes = np.array([1, -1, 0, 0, -1, 2, 2, 2, -1])
    columns = {"answered": np.arange(9.0), "time": np.zeros(9), "who": np.full(9, "ann")}
    counts = JudgedCounts.of(Judged(answer=answer, class_=classes, known=None, unknown=None, **columns))
    assert counts == JudgedCounts(evidence=1, fresh=2, chosen=3, unknown=3, random_unknown=2, newest=3.0)


def test_drift_looks_at_16_32_64_examples_and_spends_its_error_over_the_looks():
    rng = np.random.default_rng(0)
    holdout, known = rng.normal(size=400), rng.normal(size=70) + 0.5
    drift = known_drift(holdout, known)
    expected = [k * (k + 1) * stats.ks_2samp(holdout, known[: 8 * 2**k]).pvalue for k in (1, 2, 3)]
    assert drift == KnownDrift(pytest.approx(min(expected)), examples=70, looked_at=64)


def test_drift_is_not_tested_before_the_first_look():
    drift = known_drift(np.arange(100.0), [5.0] * 15)
    assert (drift.found, drift.looked_at, drift.p_value) == (False, 0, 1.0)
    assert str(drift) == "not tested: 15 of the 16 judged known examples that the first look needs"


def test_scores_that_are_not_finite_are_the_highest():
    drift = known_drift(np.arange(100.0), [np.nan] * 16)
    assert drift.p_value == pytest.approx(2 * stats.ks_2samp(np.arange(100.0), [1e9] * 16).pvalue)


@pytest.mark.slow
def test_known_scores_that_do_not_change_are_seldom_said_to(assert_at_most_5_percent):
    rng = np.random.default_rng(1)
    assert_at_most_5_percent([known_drift(rng.normal(size=200), rng.normal(size=300)).found for _ in range(300)])


@pytest.fixture
def assert_at_most_5_percent():
    def check(events):
        assert stats.binom.sf(sum(events) - 1, len(events), 0.05) > 1e-3

    return check
