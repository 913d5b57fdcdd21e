"""Every number of an evaluation, against scikit-learn, scipy and counting."""

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

import wildood
from wildood.data.images import Images
from wildood.evaluate.intervals import Share, fpr_interval, percentile_interval, resample
from wildood.evaluate.metrics import fpr_at_tpr
from wildood.experiments.decisions import SetDecisions
from wildood.experiments.evaluation import class_names, evaluate, measure
from wildood.experiments.promise_check import check_on_known

RNG = np.random.default_rng(0)
CLASSES = 3


def points(count, shift=0.0):
    """Three corners of a triangle, and something else where they are shifted."""
    y = RNG.integers(0, CLASSES, count)
    corners = np.array([[4, 0], [0, 4], [-4, -4]])[y]
    return (RNG.normal(size=(count, 2)) * 1.5 + corners * (1 - shift)).astype("float32"), y


def corner_classifier():
    model = torch.nn.Linear(2, CLASSES)
    model.weight.data = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
    model.bias.data.zero_()
    return model


@pytest.fixture(scope="module")
def detector():
    return wildood.posthoc(corner_classifier(), wildood.EnergyScore(), holdout=points(200), alpha=0.1)


@pytest.fixture(scope="module")
def known(detector):
    x, y = points(150)
    return SetDecisions.asked(detector, "test", Images(x, y))


@pytest.fixture(scope="module")
def unknown(detector):
    return [
        SetDecisions.asked(detector, name, Images(points(count, shift)[0]))
        for name, count, shift in (("a", 70, 1), ("b", 40, 0.6))
    ]


@pytest.fixture(scope="module")
def evaluation(known, unknown):
    return evaluate(known, unknown, resamples=50, seed=4)


def counted(share):
    return share.count, share.examples


def test_the_metrics_of_each_set_are_those_of_scikit_learn(known, unknown, evaluation):
    for answers, result in zip(unknown, evaluation.ood, strict=True):
        scores = np.concatenate([known.scores, answers.scores])
        is_ood = np.repeat([0, 1], [len(known.scores), len(answers.scores)])
        assert result.auroc.value == pytest.approx(roc_auc_score(is_ood, scores))
        assert result.aupr_out == pytest.approx(average_precision_score(is_ood, scores))
        assert result.aupr_in == pytest.approx(average_precision_score(1 - is_ood, -scores))
        assert result.fpr95.value == fpr_at_tpr(known.scores, answers.scores)
        assert (result.name, result.examples) == (answers.name, len(answers.scores))


def test_what_is_caught_is_what_predict_calls_unknown(detector, unknown, evaluation):
    for answers, result in zip(unknown, evaluation.ood, strict=True):
        rejected = detector.predict(answers.images) == wildood.UNKNOWN
        assert counted(result.caught) == (rejected.sum(), len(rejected))
        assert 0 < result.caught.value < 1


def test_id_data_says_what_is_right_and_what_is_rejected(detector, known, evaluation):
    x, y = known.images.examples, known.images.labels
    said, classes = detector.predict(x), detector.classify(x)
    found = evaluation.id
    assert counted(found.accuracy) == ((classes == y).sum(), 150)
    assert counted(found.accuracy_of_accepted) == ((said == y).sum(), (said != wildood.UNKNOWN).sum())
    assert counted(found.false_alarms) == ((said == wildood.UNKNOWN).sum(), 150)
    assert found.classes_are == "true"
    for number, share in found.false_alarms_by_class.items():
        assert counted(share) == ((said[y == number] == wildood.UNKNOWN).sum(), (y == number).sum())
    assert list(found.false_alarms_by_class) == [0, 1, 2]
    assert found.accuracy.value > 0.8


def test_intervals_of_each_set_and_of_the_mean_come_from_the_same_resamples(known, unknown, evaluation):
    drawn = resample(known.scores, [answers.scores for answers in unknown], resamples=50, seed=4)
    threshold = np.sort(known.scores)[int(np.ceil(0.95 * len(known.scores))) - 1]
    accepted = [Share.of(answers.scores <= threshold, 0.95) for answers in unknown]
    for number, result in enumerate(evaluation.ood):
        assert (result.fpr95.low, result.fpr95.high) == fpr_interval(drawn.fpr95[:, [number]], accepted[number : number + 1])
        assert (result.auroc.low, result.auroc.high) == percentile_interval(drawn.auroc[:, number])
    average = evaluation.average
    assert (average.fpr95.low, average.fpr95.high) == fpr_interval(drawn.fpr95, accepted)
    assert (average.auroc.low, average.auroc.high) == percentile_interval(drawn.auroc.mean(1))
    for name in ("fpr95", "auroc", "caught"):
        mean = np.mean([getattr(result, name).value for result in evaluation.ood])
        found = getattr(average, name)
        assert getattr(found, "value", found) == pytest.approx(mean)
    assert average.aupr_in == pytest.approx(np.mean([result.aupr_in for result in evaluation.ood]))
    assert average.aupr_out == pytest.approx(np.mean([result.aupr_out for result in evaluation.ood]))


def test_without_labels_there_is_no_accuracy_and_classes_are_the_predicted_ones(detector, known, unknown):
    answers = SetDecisions.asked(detector, "test", Images(known.images.examples))
    found = evaluate(answers, unknown, resamples=2).id
    assert (found.accuracy, found.accuracy_of_accepted, found.classes_are) == (None, None, "predicted")
    said, classes = detector.predict(known.images), detector.classify(known.images)
    for number, share in found.false_alarms_by_class.items():
        assert counted(share) == ((said[classes == number] == wildood.UNKNOWN).sum(), (classes == number).sum())


def test_a_threshold_for_each_class_decides_where_there_is_one(known, unknown):
    detector = wildood.posthoc(corner_classifier(), wildood.EnergyScore(), holdout=points(300), alpha=0.1)
    detector.calibrate(alpha=0.1, by_class=True)
    detector.class_thresholds = detector.class_thresholds + np.array([9.0, 0.0, -9.0])
    answers = SetDecisions.asked(detector, "test", known.images)
    rejected = detector.predict(known.images) == wildood.UNKNOWN
    found = evaluate(answers, unknown, resamples=2).id
    assert not np.array_equal(rejected, answers.scores > detector.threshold)
    assert found.false_alarms.count == rejected.sum()


def test_where_a_rate_is_promised_by_predicted_class_it_is_measured_by_it(known, unknown):
    detector = wildood.posthoc(corner_classifier(), wildood.EnergyScore(), holdout=points(300), alpha=0.1, by_class=True)
    answers = SetDecisions.asked(detector, "test", known.images)
    found = measure(detector, answers, unknown, resamples=2).evaluation.id
    assert found.classes_are == "predicted"
    assert counted(found.accuracy)[1] == 150  # which needs the labels
    assert not np.array_equal(answers.classes, known.images.labels)
    for number, share in found.false_alarms_by_class.items():
        of_class = answers.classes == number
        assert counted(share) == (answers.rejected[of_class].sum(), of_class.sum())


def test_a_set_that_set_the_threshold_gets_no_verdict(unknown):
    x, y = points(60)
    detector = wildood.posthoc(corner_classifier(), wildood.EnergyScore(), holdout=(x, y), alpha=0.1)
    found = measure(detector, SetDecisions.asked(detector, "test", Images(x, y)), unknown, resamples=2)
    assert found.promise.verdict == "cannot be told"
    assert found.promise.rate == found.evaluation.id.false_alarms


def test_names_of_classes_that_the_detector_does_not_know_are_noted(detector, known, unknown):
    x, y = known.images.examples, known.images.labels
    named = SetDecisions.asked(detector, "test", Images(x, y, classes=("cat", "dog", "eel")))
    assert measure(detector, named, unknown, resamples=2).evaluation.id.unmatched_names is True
    assert measure(detector, known, unknown, resamples=2).evaluation.id.unmatched_names is False
    other = wildood.posthoc(corner_classifier(), wildood.EnergyScore(), holdout=points(50), alpha=0.1)
    other.record["classes"] = ["cat", "dog", "eel"]
    assert measure(other, named, unknown, resamples=2).evaluation.id.unmatched_names is False


def test_nothing_accepted_has_no_accuracy(known, unknown):
    detector = wildood.posthoc(corner_classifier(), wildood.EnergyScore(), holdout=points(200), alpha=0.1)
    detector.threshold = -1e9
    found = evaluate(SetDecisions.asked(detector, "test", known.images), unknown, resamples=2).id
    assert (found.accuracy_of_accepted, found.false_alarms.value) == (None, 1)
    assert found.accuracy is not None


def test_examples_in_both_sets_are_counted(detector, known):
    mixed = np.concatenate([points(9, 1)[0], known.images.examples[:4], known.images.examples[:1]])
    found = evaluate(known, [SetDecisions.asked(detector, "mixed", Images(mixed))], resamples=2)
    assert found.ood[0].also_in_id == 5


def test_classes_are_named_by_the_detector_then_by_the_data_then_by_their_numbers(detector, known):
    x, y = known.images.examples, known.images.labels
    named = SetDecisions.asked(detector, "test", Images(x, y, classes=("cat", "dog")))
    assert class_names(detector, known) == ["0", "1", "2"]
    assert class_names(detector, named) == ["cat", "dog", "2"]
    other = wildood.posthoc(corner_classifier(), wildood.EnergyScore(), holdout=points(50), alpha=0.1)
    other.record["classes"] = ["ant", "bee", "cow"]
    assert class_names(other, named) == ["ant", "bee", "cow"]


def test_a_set_of_which_nothing_is_accepted_has_an_fpr_that_may_be_more(detector, known):
    far = [SetDecisions.asked(detector, name, Images(np.zeros((count, 2), "f"))) for name, count in (("a", 30), ("b", 300))]
    found = evaluate(known, far, resamples=20)
    assert [(one.fpr95.value, one.fpr95.low) for one in found.ood] == [(0, 0), (0, 0)]
    assert [one.fpr95.high for one in found.ood] == pytest.approx([1 - 0.025 ** (1 / count) for count in (30, 300)])
    assert found.average.fpr95.low == 0
    assert found.ood[1].fpr95.high < found.average.fpr95.high < found.ood[0].fpr95.high


def test_the_promise_is_judged_as_an_inspection_judges_it(detector, known, unknown):
    found = measure(detector, known, unknown, resamples=2, seed=5)
    assert found.promise == check_on_known(detector, known, 0.95)
    assert found.promise.rate == found.evaluation.id.false_alarms
    assert found.classes == ["0", "1", "2"]
    assert found.evaluation == evaluate(known, unknown, resamples=2, seed=5)


def test_sets_that_the_detector_has_met_are_said_to_be_so(unknown):
    x, y = points(60)
    detector = wildood.posthoc(corner_classifier(), wildood.EnergyScore(), holdout=(x, y), alpha=0.1)
    met, new = (SetDecisions.asked(detector, "test", Images(some, labels)) for some, labels in ((x, y), (x[1:], y[1:])))
    assert evaluate(met, unknown, resamples=2).id.role_of == "threshold"
    assert evaluate(new, [met], resamples=2).ood[0].role_of == "threshold"
    assert evaluate(new, unknown, resamples=2).id.role_of == ""
