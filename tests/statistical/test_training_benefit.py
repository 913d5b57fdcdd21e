"""Training is called a help by luck in at most 10 % of draws, and is seen to help where it does."""

import numpy as np
import pytest

from wildood.evaluate.selection import CONFIDENCE, compare_acceptance
from wildood.evaluate.thresholds import conformal_threshold

DRAWS = 1000


def pairs(rng, count, correlation, shift=0.0):
    """Scores of two detectors for the same examples, equally good unless the second is shifted."""
    shared = np.sqrt(correlation) * rng.normal(size=count)
    noise = np.sqrt(1 - correlation) * rng.normal(size=(2, count))
    return shared + noise[0], shared + noise[1] + shift


def helped(rng, holdout, wild, correlation, pi=0.0, shift=0.0):
    unknown = round(pi * wild)
    id_before, id_after = pairs(rng, holdout, correlation)
    known = pairs(rng, wild - unknown, correlation)
    ood = pairs(rng, unknown, correlation, shift)
    before, after = (np.concatenate([k, o + 2]) for k, o in zip(known, ood, strict=True))
    return compare_acceptance((id_before, before), (id_after, after), alpha=0.05).helped


@pytest.mark.parametrize("pi", [0.0, 0.2])
@pytest.mark.parametrize("correlation", [0.5, 0.95])
@pytest.mark.parametrize(
    ("holdout", "wild"), [(19, 50), (19, 1000), (25, 50), (40, 1000), (60, 100), (100, 250), (750, 500)]
)
def test_two_equally_good_detectors_are_seldom_told_apart(holdout, wild, correlation, pi, assert_at_most):
    rng = np.random.default_rng(0)
    assert_at_most([helped(rng, holdout, wild, correlation, pi) for _ in range(DRAWS)], 1 - CONFIDENCE)


def test_a_detector_that_catches_twice_as_many_is_seen_to():
    rng = np.random.default_rng(0)
    assert np.mean([helped(rng, 500, 500, 0.8, pi=0.2, shift=2.0) for _ in range(100)]) > 0.95


def test_the_error_is_that_of_the_draws_of_both_samples():
    rng = np.random.default_rng(0)
    found = []
    for _ in range(DRAWS):
        id_before, id_after = pairs(rng, 400, 0.8)
        before, after = pairs(rng, 300, 0.8)
        found.append(compare_acceptance((id_before, before), (id_after, after), alpha=0.1))
    differences = [each.start - each.trained for each in found]
    assert np.mean([each.error for each in found]) == pytest.approx(np.std(differences), rel=0.1)


def test_acceptance_is_the_mean_over_false_alarm_rates():
    rng = np.random.default_rng(0)
    known, wild = rng.normal(size=4000), rng.normal(size=1000) + 1
    rates = np.linspace(0.001, 0.05, 2000)
    mean = np.mean([np.mean(wild <= conformal_threshold(known, rate)) for rate in rates])
    assert compare_acceptance((known, wild), (known, wild), 0.05).start == pytest.approx(mean, abs=0.01)
