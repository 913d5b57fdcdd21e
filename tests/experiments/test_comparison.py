"""The comparison: the same start and data for every method, and metrics that mean what they say."""

import math
from contextlib import contextmanager
from dataclasses import astuple

import numpy as np
import pytest
import torch

from wildood.detect.promise import Promise
from wildood.experiments import comparison
from wildood.experiments.comparison import METHODS, Metrics, outcomes, summary
from wildood.experiments.digits import digits
from wildood.methods.schedule import Schedule
from wildood.methods.woods import Woods

NAMES = ["max-softmax", "energy", "WOODS", "WOODS-alt"]


class ByHand:
    """A detector whose scores are its examples, and which calls every example class 1."""

    threshold = 2.0

    def score(self, x):
        return np.asarray(x, dtype="float32")

    def score_and_classify(self, x):
        return self.score(x), np.ones(len(x), dtype="int64")

    def accepts(self, scores, classes):
        return scores <= self.threshold


def test_metrics_are_those_of_the_scores():
    known = [*range(19), 30]  # 19 of 20 lie at or below 18: the threshold of FPR95
    unknown = [1, 18, 19, 31, 32]
    metrics = Metrics.of(ByHand(), (known, [1] * 15 + [0] * 5), unknown)
    assert metrics.fpr95 == 2 / 5
    # Known scores below each unknown one: 1.5, 18.5, 19, 20 and 20 of 20, ties counted as one half.
    assert metrics.auroc == pytest.approx((1.5 + 18.5 + 19 + 20 + 20) / 100)
    assert metrics.accuracy == 0.75  # rejected or not
    assert metrics.false_alarms == 17 / 20  # 0, 1 and 2 are accepted
    assert metrics.caught == 4 / 5


def test_metrics_of_a_perfect_detector():
    perfect = Metrics.of(ByHand(), ([0, 1, 2], [1, 1, 1]), [2.5, 3])
    assert perfect == Metrics(fpr95=0, auroc=1, accuracy=1, false_alarms=0, caught=1)


def test_summary_is_mean_and_standard_error_of_each_method():
    first, second, third = (Metrics(value, 0.9, 1.0, 0.05, value / 2) for value in (0.1, 0.2, 0.6))
    found = summary([("energy", first), ("WOODS", third), ("energy", second), ("WOODS", third), ("energy", third)])
    assert list(found) == ["energy", "WOODS"]
    assert list(found["energy"]) == ["fpr95", "auroc", "accuracy", "false_alarms", "caught"]
    # Deviations from the mean of 0.3: -0.2, -0.1, 0.3; variance 0.14 / 2; standard error sqrt(0.07 / 3).
    assert found["energy"]["fpr95"] == pytest.approx((0.3, math.sqrt(0.07 / 3)))
    assert found["energy"]["caught"] == pytest.approx((0.15, math.sqrt(0.07 / 3) / 2))
    assert found["energy"]["auroc"] == pytest.approx((0.9, 0))
    assert found["WOODS"]["fpr95"] == pytest.approx((0.6, 0))


def test_summary_of_one_seed_has_no_error():
    mean, error = summary([("energy", Metrics(0.1, 0.9, 1.0, 0.05, 0.7))])["energy"]["caught"]
    assert mean == 0.7
    assert math.isnan(error)


@contextmanager
def in_a_hurry():
    """Two scores and two methods that train, for a few steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "METHODS", {name: METHODS[name] for name in NAMES})
        patch.setattr(Woods, "schedule", lambda self: Schedule(steps=4, batch=64))
        yield


@pytest.fixture(scope="module")
def few():
    """Two seeds of the comparison on fewer labelled scans; with what was given to it."""
    given = {}

    def data(seed):
        parts = digits(seed)
        given[seed] = parts._replace(labelled=tuple(part[:130] for part in parts.labelled))
        return given[seed]

    with in_a_hurry():
        return list(outcomes([5, 2], data)), given


def test_every_method_runs_on_every_seed_in_order(few):
    results, given = few
    assert [(result.seed, result.method) for result in results] == [(seed, name) for seed in (5, 2) for name in NAMES]
    assert list(given) == [5, 2]


def test_methods_start_from_the_same_classifier_and_seeds_from_another(few):
    starts = [{result.detector.record["model"] for result in few[0] if result.seed == seed} for seed in (5, 2)]
    assert [len(start) for start in starts] == [1, 1]
    assert starts[0] != starts[1]


def test_post_hoc_scores_leave_the_classifier_as_it_was_and_the_others_train_it(few):
    results = {result.method: result for result in few[0] if result.seed == 5}
    model = comparison.starting_classifier(few[1][5].labelled, 5)
    for name, result in results.items():
        same = [
            torch.equal(before, after)
            for before, after in zip(model.parameters(), result.detector.classifier.model.parameters(), strict=True)
        ]
        assert all(same) == (name in {"max-softmax", "energy"})


def test_each_seed_trains_with_its_own_seed(few):
    seeds = [(result.seed, result.detector.record["seed"]) for result in few[0] if result.method.startswith("WOODS")]
    assert seeds == [(5, 5), (5, 5), (2, 2), (2, 2)]


def test_every_threshold_rests_on_the_holdout(few):
    promises = [result.detector.promise for result in few[0][:4]]
    assert promises == [Promise(0.05, 200, unseen=True)] * 4  # all of it: the last epoch is deployed, nothing is chosen


def test_metrics_are_measured_on_the_test_part_of_the_same_seed(few):
    results, given = few
    for result in results:
        parts, detector = given[result.seed], result.detector
        known, unknown = (detector.predict(x) == -1 for x in (parts.test_id[0], parts.test_ood))
        assert result.metrics.false_alarms == pytest.approx(known.mean())
        assert result.metrics.caught == pytest.approx(unknown.mean())
        assert result.metrics.accuracy == pytest.approx((detector.classify(parts.test_id[0]) == parts.test_id[1]).mean())
        assert all(0 <= share <= 1 for share in astuple(result.metrics))


def test_a_seed_gives_the_same_numbers_whatever_ran_before_it(few):
    results, given = few
    with in_a_hurry():
        alone = list(outcomes([2], lambda seed: given[seed]))
    assert [result.metrics for result in alone] == [result.metrics for result in results[4:]]
