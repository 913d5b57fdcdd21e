"""An inspection cries wolf no more often than it says: over many draws, with ties and few examples."""

from functools import cache

import numpy as np
import pytest
import torch

import wildood
from wildood.evaluate import mixture
from wildood.evaluate.intervals import Share
from wildood.evaluate.thresholds import conformal_threshold, thresholds_by_class
from wildood.experiments.evaluation import Decisions, check_on_known, check_on_traffic
from wildood.report.inspection_page import inspect_traffic

pytestmark = pytest.mark.slow  # thousands of draws

ALPHA = 0.1


@pytest.fixture(autouse=True)
def remembered(monkeypatch):
    """Over thousands of draws the same counts come up again and again: what was computed for them is kept."""
    monkeypatch.setattr(mixture, "_Evidence", cache(mixture._Evidence))


@pytest.fixture(scope="module")
def detector():
    """Its scores are drawn by the tests; nothing is computed by its network."""
    return wildood.posthoc(torch.nn.Linear(1, 2), wildood.EnergyScore(), holdout=np.zeros((20, 1), "f"), alpha=ALPHA)


def normal(rng, count, levels):
    drawn = rng.normal(size=count)
    return drawn if levels is None else np.round(drawn * levels / 6)


def calibrated(detector, scores, classes=None):
    """The detector with a holdout of these scores, and a threshold for each class if there are classes."""
    detector.threshold, detector.class_thresholds = conformal_threshold(scores, ALPHA), None
    detector.holdout_scores, detector.holdout_classes = scores, np.zeros(len(scores), int) if classes is None else classes
    if classes is not None:
        detector.class_thresholds = thresholds_by_class(scores, classes, 2, ALPHA)
    return detector


def decided(detector, scores, classes=None):
    return Decisions.of(detector, scores, np.zeros(len(scores), int) if classes is None else classes)


@pytest.mark.parametrize("levels", [None, 4])
@pytest.mark.parametrize(("n", "m"), [(9, 40), (30, 12), (60, 60)])
def test_where_nothing_is_unknown_something_is_found_in_at_most_5_percent_of_draws(assert_at_most, detector, n, m, levels):
    rng, found, called = np.random.default_rng(n), [], []
    for _ in range(1000):
        calibrated(detector, normal(rng, n, levels))
        seen = inspect_traffic(detector, decided(detector, normal(rng, m, levels)))
        found.append(seen.found)
        called.append(seen.unknown.p_value <= 0.05)
    assert_at_most(found, 0.05)
    assert found == called


def test_where_fresh_id_examples_are_given_they_are_what_counts(assert_at_most, detector):
    """The threshold's own holdout may be useless (here all of it is low): the level holds nevertheless."""
    rng, found = np.random.default_rng(5), []
    calibrated(detector, np.linspace(-3, -2, 40))
    for _ in range(1000):
        traffic, known = normal(rng, 30, None), normal(rng, 25, None)
        found.append(inspect_traffic(detector, decided(detector, traffic), decided(detector, known)).found)
    assert_at_most(found, 0.05)


def test_a_tenth_of_clear_unknowns_is_found(detector):
    rng, found = np.random.default_rng(6), []
    for _ in range(200):
        calibrated(detector, normal(rng, 200, None))
        traffic = np.append(normal(rng, 180, None), normal(rng, 20, None) + 6)
        found.append(inspect_traffic(detector, decided(detector, traffic)).found)
    assert np.mean(found) > 0.95


def test_the_share_is_possible_and_the_fpr_in_its_band_jointly_as_often_as_stated(assert_at_most, detector):
    """Bound and band fail independently here, each almost as often as it may; with the whole error each, in 56 %."""
    rng, pi, failed = np.random.default_rng(11), 0.6, []
    calibrated(detector, np.linspace(14, 15, 40))
    detector.threshold = 15.0  # which half of the unknowns exceed, and nothing that is known
    for _ in range(2000):
        known, traffic = normal(rng, 1, None), normal(rng, 400, None)
        traffic += np.where(rng.random(400) < pi, rng.choice([10.0, 30.0], 400), 0.0)
        found = inspect_traffic(detector, decided(detector, traffic), decided(detector, known), confidence=0.5)
        told = found.fpr([pi])
        failed.append(not (told.possible.item() and told.lower.item() <= 0.5 <= told.upper.item()))
    assert_at_most(failed, 0.5)
    assert np.mean(failed) > 0.2  # it is no empty statement


@pytest.mark.parametrize("by_class", [False, True])
def test_a_promise_that_is_kept_looks_broken_in_at_most_5_percent_of_draws(assert_at_most, detector, by_class):
    """A threshold from 40 examples is off by luck: to compare the rate with alpha alone would cry wolf much more often."""
    rng, verdicts = np.random.default_rng(7), []
    for _ in range(1000):
        held, fresh = (rng.integers(0, 2, count) if by_class else None for count in (40, 2000))
        if by_class and min(np.bincount(held, minlength=2)) < 9:
            continue
        calibrated(detector, normal(rng, 40, None), held)
        verdicts.append(check_on_known(detector, decided(detector, normal(rng, 2000, None), fresh), 0.95).verdict)
    broken = np.array(verdicts) == "broken"
    assert_at_most(broken, 0.05)
    assert np.mean(broken | (np.array(verdicts) == "above")) > 0.15


def test_a_promise_that_no_longer_holds_looks_broken(detector):
    rng, verdicts = np.random.default_rng(8), []
    for _ in range(200):
        calibrated(detector, normal(rng, 200, None))
        verdicts.append(check_on_known(detector, decided(detector, normal(rng, 300, None) + 1), 0.95).verdict)
    assert np.mean(np.array(verdicts) == "broken") > 0.95


@pytest.mark.parametrize("pi", [0.0, 0.3])
def test_what_traffic_alone_says_of_the_promise_is_seldom_wrong(assert_at_most, detector, pi):
    """The worst case: false alarms are a little above alpha, and no unknown is caught, so that few are rejected."""
    rng, wrong, spoken = np.random.default_rng(9), [], []
    for _ in range(1000):
        rejected = rng.random(400) < (1 - pi) * 1.001 * ALPHA
        check = check_on_traffic(detector.promise, Share.of(rejected, 0.8), 0.8)
        wrong.append(check.verdict == "holds unless" and pi <= check.unless_above)
        spoken.append(check.verdict == "holds unless")
    assert_at_most(wrong, 0.1)
    assert np.mean(spoken) > (0.5 if pi else 0.05)  # it is no empty statement
