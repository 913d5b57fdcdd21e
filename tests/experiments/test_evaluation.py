"""Every number of an evaluation, against scikit-learn, scipy and counting."""

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from sklearn.metrics import average_precision_score, roc_auc_score

import wildood
from wildood.data.images import Images
from wildood.errors import InputError
from wildood.evaluate.bootstrap import percentile_interval, resample
from wildood.evaluate.metrics import fpr_at_tpr
from wildood.experiments.evaluation import Answers, Share, class_names, evaluate

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
    return Answers.of(detector, "test", Images(x, y))


@pytest.fixture(scope="module")
def unknown(detector):
    return [
        Answers.of(detector, name, Images(points(count, shift)[0])) for name, count, shift in (("a", 70, 1), ("b", 40, 0.6))
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


@pytest.mark.parametrize(("count", "examples"), [(0, 20), (3, 20), (20, 20), (511, 10_000)])
def test_counted_shares_have_the_exact_interval(count, examples):
    found = Share.of(np.arange(examples) < count)
    low, high = binomtest(count, examples).proportion_ci(0.95, method="exact")
    assert (found.value, found.low, found.high) == pytest.approx((count / examples, low, high), abs=1e-9)
    assert counted(found) == (count, examples)


def test_intervals_of_each_set_and_of_the_mean_come_from_the_same_resamples(known, unknown, evaluation):
    drawn = resample(known.scores, [answers.scores for answers in unknown], resamples=50, seed=4)
    for number, result in enumerate(evaluation.ood):
        assert (result.fpr95.low, result.fpr95.high) == percentile_interval(drawn.fpr95[:, number])
        assert (result.auroc.low, result.auroc.high) == percentile_interval(drawn.auroc[:, number])
    average = evaluation.average
    assert (average.fpr95.low, average.fpr95.high) == percentile_interval(drawn.fpr95.mean(1))
    assert (average.auroc.low, average.auroc.high) == percentile_interval(drawn.auroc.mean(1))
    for name in ("fpr95", "auroc", "caught"):
        mean = np.mean([getattr(result, name).value for result in evaluation.ood])
        found = getattr(average, name)
        assert getattr(found, "value", found) == pytest.approx(mean)
    assert average.aupr_in == pytest.approx(np.mean([result.aupr_in for result in evaluation.ood]))
    assert average.aupr_out == pytest.approx(np.mean([result.aupr_out for result in evaluation.ood]))


def test_without_labels_there_is_no_accuracy_and_classes_are_the_predicted_ones(detector, known, unknown):
    answers = Answers.of(detector, "test", Images(known.images.examples))
    found = evaluate(answers, unknown, resamples=2).id
    assert (found.accuracy, found.accuracy_of_accepted, found.classes_are) == (None, None, "predicted")
    said, classes = detector.predict(known.images), detector.classify(known.images)
    for number, share in found.false_alarms_by_class.items():
        assert counted(share) == ((said[classes == number] == wildood.UNKNOWN).sum(), (classes == number).sum())


def test_a_threshold_for_each_class_decides_where_there_is_one(known, unknown):
    detector = wildood.posthoc(corner_classifier(), wildood.EnergyScore(), holdout=points(300), alpha=0.1)
    detector.calibrate(alpha=0.1, by_class=True)
    detector.class_thresholds = detector.class_thresholds + np.array([9.0, 0.0, -9.0])
    answers = Answers.of(detector, "test", known.images)
    rejected = detector.predict(known.images) == wildood.UNKNOWN
    found = evaluate(answers, unknown, resamples=2).id
    assert not np.array_equal(rejected, answers.scores > detector.threshold)
    assert found.false_alarms.count == rejected.sum()


def test_nothing_accepted_has_no_accuracy(known, unknown):
    detector = wildood.posthoc(corner_classifier(), wildood.EnergyScore(), holdout=points(200), alpha=0.1)
    detector.threshold = -1e9
    found = evaluate(Answers.of(detector, "test", known.images), unknown, resamples=2).id
    assert (found.accuracy_of_accepted, found.false_alarms.value) == (None, 1)
    assert found.accuracy is not None


def test_the_most_confident_mistakes_come_first(known, unknown):
    accepted, rejected = unknown[1].mistakes_if_ood, known.mistakes_if_id
    assert set(accepted) == set(np.flatnonzero(unknown[1].accepted))
    assert set(rejected) == set(np.flatnonzero(~known.accepted))
    assert len(accepted) > 1
    assert len(rejected) > 1
    assert np.all(np.diff(unknown[1].scores[accepted]) >= 0)
    assert np.all(np.diff(known.scores[rejected]) <= 0)


def test_examples_in_both_sets_are_counted(detector, known):
    mixed = np.concatenate([points(9, 1)[0], known.images.examples[:4], known.images.examples[:1]])
    found = evaluate(known, [Answers.of(detector, "mixed", Images(mixed))], resamples=2)
    assert found.ood[0].also_in_id == 5


def test_classes_are_named_by_the_detector_then_by_the_data_then_by_their_numbers(detector, known):
    x, y = known.images.examples, known.images.labels
    named = Answers.of(detector, "test", Images(x, y, classes=("cat", "dog")))
    assert class_names(detector, known) == ["0", "1", "2"]
    assert class_names(detector, named) == ["cat", "dog", "2"]
    other = wildood.posthoc(corner_classifier(), wildood.EnergyScore(), holdout=points(50), alpha=0.1)
    other.record["classes"] = ["ant", "bee", "cow"]
    assert class_names(other, named) == ["ant", "bee", "cow"]


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
        Answers.of(detector, "svhn", images)
