"""What a detector says of examples, in its own words, and what it refuses to speak of."""

import numpy as np
import pytest
import torch

import wildood
from wildood.data.images import Images
from wildood.errors import InputError
from wildood.experiments.decisions import Decisions, SetDecisions

X = np.random.default_rng(0).normal(size=(90, 2)).astype("f")


@pytest.fixture
def detector():
    return wildood.posthoc(torch.nn.Linear(2, 3), wildood.EnergyScore(), holdout=X[:40], alpha=0.1)


def test_answers_are_the_detectors_own_by_class_and_at_infinity(detector):
    detector.class_thresholds = np.array([1.0, np.inf])
    scores, classes = np.array([1.0, 1.5, 3.0, np.inf, -np.inf]), np.array([0, 0, 1, 1, 0])
    found = Decisions.of(detector, scores, classes)
    assert found.rejected.tolist() == [False, True, False, True, True]  # a score that is not finite is never accepted
    assert found.margins.tolist() == [0.0, 0.5, -np.inf, np.inf, np.inf]


def test_a_detector_without_a_threshold_is_refused(detector):
    detector.threshold = float("nan")
    with pytest.raises(InputError, match="this detector has no threshold"):
        Decisions.of(detector, np.zeros(3), np.zeros(3, int))


def test_a_set_has_the_answers_to_its_examples(detector):
    found = SetDecisions.asked(detector, "test", Images(X[40:]))
    assert np.array_equal(found.scores, detector.score(X[40:]))
    assert np.array_equal(found.classes, detector.classify(X[40:]))
    assert np.array_equal(found.rejected, detector.predict(X[40:]) == wildood.UNKNOWN)
    assert np.array_equal(found.accepted, ~found.rejected)
    assert np.array_equal(found.margins > 0, found.rejected)
    assert (found.name, found.role_of) == ("test", "")
    assert SetDecisions.asked(detector, "test", Images(X[:40])).role_of == "threshold"


def test_the_most_confident_mistakes_come_first(detector):
    found = SetDecisions.asked(detector, "test", Images(1.5 * X))
    accepted, rejected = found.mistakes_if_ood, found.mistakes_if_id
    assert set(accepted) == set(np.flatnonzero(found.accepted))
    assert set(rejected) == set(np.flatnonzero(found.rejected))
    assert min(len(accepted), len(rejected)) > 1
    assert np.all(np.diff(found.scores[accepted]) >= 0)
    assert np.all(np.diff(found.scores[rejected]) <= 0)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (Images(np.zeros((4, 3), "float32")), r"^svhn: an example has shape \(3,\), expected \(2,\)"),
        (Images(np.zeros((4, 2), "uint8")), "^svhn: x holds uint8 values, expected float"),
        (Images(np.zeros((0, 2), "float32")), r"^svhn has shape \(0, 2\): give at least one example"),
        (Images(np.full((4, 2), np.nan, "float32")), "^svhn: example 0 holds NaN"),
        (Images(np.zeros((2, 2), "float32"), np.array([0, 3])), "^svhn: a label is 3, but the model has 3 classes"),
        (Images(np.zeros((2, 2), "float32"), np.array([0.0, 1.0])), "^svhn: labels have dtype float64"),
    ],
)
def test_what_the_detector_cannot_take_is_refused_with_the_name_of_the_set(detector, images, message):
    with pytest.raises(InputError, match=message):
        SetDecisions.asked(detector, "svhn", images)
