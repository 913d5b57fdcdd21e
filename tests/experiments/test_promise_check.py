"""What is said of a promised false-alarm rate, from ID examples and from traffic alone."""

from itertools import combinations

import numpy as np
import pytest
import torch

import wildood
from wildood.detect.promise import Promise
from wildood.evaluate.intervals import Share
from wildood.experiments.decisions import Decisions
from wildood.experiments.promise_check import by_luck, check_on_known, check_on_traffic

HOLDOUT = np.random.default_rng(0).normal(size=400).astype("f")
CLASSES = np.random.default_rng(1).integers(0, 2, 500)


@pytest.fixture
def detector():
    found = wildood.posthoc(torch.nn.Linear(1, 2), wildood.EnergyScore(), holdout=np.zeros((400, 1), "f"))
    found.holdout_scores, found.holdout_classes = HOLDOUT, np.arange(400) % 2
    return found.calibrate(alpha=0.05)


def decided(detector, scores, classes=None):
    return Decisions.of(detector, scores, CLASSES[: len(scores)] if classes is None else classes)


def test_luck_is_the_share_of_all_orders_with_as_many_false_alarms(detector):
    """Seven scores: in which of the 35 ways to draw a holdout of four is the threshold exceeded by so many of the rest?"""
    ranks, held, fresh = range(7), np.array([0.0, 1.0, 2.0, 4.0]), np.array([3.0, 5.0, 6.0])
    detector.holdout_scores, detector.threshold = held, 2.0  # the third of four
    as_many = [sum(rank > sorted(chosen)[2] for rank in set(ranks) - set(chosen)) >= 3 for chosen in combinations(ranks, 4)]
    assert by_luck(detector, decided(detector, fresh)) == pytest.approx(np.mean(as_many))


def test_luck_by_class_is_paid_for_in_each_class(detector):
    detector.calibrate(alpha=0.05, by_class=True)
    fresh, classes = np.array([3.0] * 40), np.zeros(40, int)
    both, held = by_luck(detector, decided(detector, fresh, classes)), HOLDOUT[::2]
    detector.class_thresholds, detector.threshold, detector.holdout_scores = None, detector.class_thresholds[0], held
    assert both == pytest.approx(2 * by_luck(detector, decided(detector, fresh, classes)))
    assert 0 < both < 1e-9


def alarms(detector, count, examples, confidence=0.95):
    """What is said of so many false alarms among so many ID examples."""
    return check_on_known(detector, decided(detector, np.where(np.arange(examples) < count, 9.0, -9.0)), confidence)


def test_the_promise_is_compared_with_the_rate_on_id_examples(detector):
    said = [alarms(detector, count, 500) for count in (5, 25, 37, 100)]
    assert [check.verdict for check in said] == ["holds", "not contradicted", "above", "broken"]
    assert [check.rate.low > 0.05 for check in said] == [False, False, True, True]
    assert said[0].rate.high <= 0.05
    assert said[2].by_luck > 0.05 >= said[3].by_luck
    assert said[0].says.startswith("5 of 500 (1.0 %; 0.33 to 2.3 % at 95 % confidence) of the ID examples are rejected")
    assert said[1].says.endswith(": nothing speaks against the promise of at most 5 %")  # it is 5 % exactly
    more = alarms(detector, 30, 500)
    assert (more.verdict, more.rate.low < 0.05 < more.rate.value) == ("not contradicted", True)
    assert more.says.endswith("above the promise of at most 5 %, but not by more than so few examples may show by chance")
    assert "the luck of drawing 400 holdout examples may explain it" in said[2].says
    assert "the promise of at most 5 % looks broken" in said[3].says


@pytest.mark.parametrize("by_class", [False, True])
def test_the_luck_of_a_small_holdout_excuses_a_rate_above_a_promise_on_average(detector, by_class):
    """From 40 examples a threshold of 5 % may well have a rate of 9 %, but not one of 60 %."""
    detector.holdout_scores, detector.holdout_classes = HOLDOUT[:40], np.arange(40) % 2
    detector.calibrate(alpha=0.05, by_class=by_class)
    said = [alarms(detector, count, 500) for count in (45, 300)]
    assert [check.verdict for check in said] == ["above", "broken"]
    assert min(check.rate.low for check in said) > 0.05


def test_an_aim_without_a_promise_can_be_missed_but_not_broken(detector):
    detector.promise = Promise(alpha=0.05, examples=400, unseen=False)
    said = [alarms(detector, count, 500) for count in (5, 100)]
    assert [(check.verdict, check.by_luck) for check in said] == [("holds", None), ("above", None)]
    assert "(no promise) is missed" in said[1].says
    detector.promise = None
    assert alarms(detector, 5, 500).verdict == "no promise"


def test_a_promise_for_each_class_is_judged_in_each_predicted_class(detector):
    detector.calibrate(alpha=0.05, by_class=True)
    assert alarms(detector, 0, 500).says.endswith(": the promise of at most 5 % in each predicted class holds")
    classes = np.repeat([1, 0], [100, 400])
    fresh = decided(detector, np.where(np.arange(500) < 25, 9.0, -9.0), classes)  # 25 of 100 of class 1, none of class 0
    said = check_on_known(detector, fresh, 0.95)
    assert said.rate.value == 0.05  # over all classes all is well
    assert (said.verdict, said.worst_class) == ("broken", 1)
    share = Share.of((25, 100), 0.975)  # each of two classes has half of what may be wrong
    assert f"of those predicted as class 1, {share.text(0.95)}: the promise of at most 5 % in each predicted" in said.says
    detector.record["classes"] = ["cat", "dog"]
    assert "of those predicted as dog, 25 of 100" in check_on_known(detector, fresh, 0.95).says
    detector.calibrate(by_class=False)
    assert check_on_known(detector, decided(detector, fresh.scores, classes), 0.95).verdict == "not contradicted"


def test_examples_that_the_detector_was_made_from_say_nothing_of_the_promise(detector):
    fresh = decided(detector, np.full(200, 9.0))
    said = check_on_known(detector, fresh, 0.95, role_of="threshold")
    assert (said.verdict, said.rate.value, said.by_luck) == ("cannot be told", 1, None)
    assert said.says.endswith("these examples set the detector's threshold, so they say nothing of the promise: give others")


def test_traffic_speaks_of_a_promise_by_class_over_all_classes():
    promise = Promise(0.05, 400, unseen=True, by_class=True)
    assert (
        "the promise of at most 5 % over all classes holds" in check_on_traffic(promise, Share.of((9, 900), 0.95), 0.95).says
    )


def test_traffic_alone_says_up_to_which_share_of_unknowns_the_promise_holds():
    promise, few, many = (
        Promise(0.05, 400, unseen=True),
        Share.of((9, 900), 0.95),
        Share.of((45, 900), 0.95),
    )
    check = check_on_traffic(promise, few, 0.95)
    assert check.verdict == "holds unless"
    assert "holds on this traffic at 95 % confidence, unless more than" in check.says
    assert few.high / (1 - check.unless_above) == pytest.approx(0.05)  # U / (1 - pi) = alpha
    assert check_on_traffic(promise, many, 0.95).verdict == check_on_traffic(promise, None, 0.95).verdict == "cannot be told"
    assert check_on_traffic(Promise(0.05, 400, unseen=False), few, 0.95).verdict == "no promise"
