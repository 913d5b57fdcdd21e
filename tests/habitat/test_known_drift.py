"""When known scores are said to have changed, how soon, and which examples are then of today."""

import numpy as np
import pytest
from scipy import stats

from wildood.habitat.drift import KnownDrift, count_alike, known_drift


def test_a_look_at_every_8th_example_tests_the_newest_16_32_64():
    rng = np.random.default_rng(0)
    holdout, known = rng.normal(size=400), rng.normal(size=38) + 0.5
    drift = known_drift(holdout, known)
    windows = {1: [16], 2: [16], 3: [16, 32]}
    expected = [
        look * (look + 1) * len(sizes) * stats.ks_2samp(holdout, known[: 8 + 8 * look][-size:]).pvalue
        for look, sizes in windows.items()
        for size in sizes
    ]
    assert drift == KnownDrift(pytest.approx(min(expected)), examples=38, looked_at=32)


def test_drift_is_not_tested_before_the_first_look():
    drift = known_drift(np.arange(100.0), [5.0] * 15)
    assert (drift.found, drift.looked_at, drift.p_value) == (False, 0, 1.0)
    assert str(drift) == "not tested: 15 of the 16 judged known examples that the first look needs"


def test_scores_that_are_not_finite_are_the_highest():
    drift = known_drift(np.arange(100.0), [np.nan] * 16)
    assert drift.p_value == pytest.approx(2 * stats.ks_2samp(np.arange(100.0), [1e9] * 16).pvalue)


def test_a_change_after_a_long_quiet_time_is_found_within_16_examples():
    rng = np.random.default_rng(1)
    holdout, quiet, changed = rng.normal(size=500), rng.normal(size=480), rng.normal(size=64) + 3
    assert not known_drift(holdout, quiet).found
    assert known_drift(holdout, np.append(quiet, changed[:16])).found


def test_the_newest_are_those_with_the_largest_ids_whenever_they_were_judged():
    rng = np.random.default_rng(2)
    holdout, quiet, changed = rng.normal(size=500), rng.normal(size=112), rng.normal(size=16) + 3
    order = rng.permutation(128)
    known = np.append(quiet, changed)
    assert known_drift(holdout, known[order], answers=order).p_value < known_drift(holdout, known[order]).p_value
    assert known_drift(holdout, known[order], answers=order).found


def test_looks_that_were_made_before_are_counted():
    rng = np.random.default_rng(3)
    holdout, known = rng.normal(size=500), rng.normal(size=32) + 1
    early, late = known_drift(holdout, known), known_drift(holdout, known, earlier=960)
    assert (late.examples, late.looked_at) == (992, 992)
    assert late.p_value > 100 * early.p_value


@pytest.mark.slow
def test_known_scores_that_do_not_change_are_seldom_said_to():
    """At most 5 % over all looks, at two sizes of the holdout."""
    rng = np.random.default_rng(4)
    found = [known_drift(rng.normal(size=size), rng.normal(size=120)).found for size in (19, 200) for _ in range(100)]
    assert stats.binom.sf(sum(found) - 1, len(found), 0.05) > 1e-3


@pytest.mark.parametrize("after", [16, 28, 50, 150])
def test_what_is_alike_begins_at_the_change(after):
    counts = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        counts.append(count_alike(np.append(rng.normal(size=300), rng.normal(size=after) + 3)))
    assert np.mean(np.abs(np.array(counts) - after) <= 3) >= 0.9
    assert min(counts) >= 16


def test_a_change_down_is_a_change_and_the_last_one_counts():
    rng = np.random.default_rng(5)
    scores = np.concatenate([rng.normal(size=100), rng.normal(size=100) + 4, rng.normal(size=60) - 4])
    assert count_alike(scores) == pytest.approx(60, abs=3)


def test_few_scores_are_alike_as_they_are():
    assert [count_alike(np.arange(count)) for count in (0, 1, 16)] == [0, 1, 16]


def test_scores_without_a_change_are_seldom_cut():
    rng = np.random.default_rng(6)
    cut = [count_alike(rng.normal(size=128)) < 128 for _ in range(100)]
    assert stats.binom.sf(sum(cut) - 1, len(cut), 0.03) > 1e-3  # three doublings at 1 %
