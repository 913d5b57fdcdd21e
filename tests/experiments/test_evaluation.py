"""Decisions, every number of an evaluation against scikit-learn, scipy and counting, and what is said of a promise."""

from itertools import combinations

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

import wildood
from wildood.data.images import Images
from wildood.detect.detector import Promise
from wildood.errors import InputError
from wildood.evaluate.intervals import Share, fpr_interval, percentile_interval, resample
from wildood.evaluate.metrics import fpr_at_tpr
from wildood.experiments.evaluation import (
    Decisions,
    SetDecisions,
    by_luck,
    check_on_known,
    check_on_traffic,
    class_names,
    evaluate_decisions,
)

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
    return evaluate_decisions(known, unknown, resamples=50, seed=4)


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
        rejected = detector.predict(answers.source) == wildood.UNKNOWN
        assert counted(result.caught) == (rejected.sum(), len(rejected))
        assert 0 < result.caught.value < 1


def test_id_data_says_what_is_right_and_what_is_rejected(detector, known, evaluation):
    x, y = known.source.examples, known.labels
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
    answers = SetDecisions.asked(detector, "test", Images(known.source.examples))
    found = evaluate_decisions(answers, unknown, resamples=2).id
    assert (found.accuracy, found.accuracy_of_accepted, found.classes_are) == (None, None, "predicted")
    said, classes = detector.predict(known.source), detector.classify(known.source)
    for number, share in found.false_alarms_by_class.items():
        assert counted(share) == ((said[classes == number] == wildood.UNKNOWN).sum(), (classes == number).sum())


def test_a_threshold_for_each_class_decides_where_there_is_one(known, unknown):
    detector = wildood.posthoc(corner_classifier(), wildood.EnergyScore(), holdout=points(300), alpha=0.1)
    detector.calibrate(alpha=0.1, by_class=True)
    detector.class_thresholds = detector.class_thresholds + np.array([9.0, 0.0, -9.0])
    answers = SetDecisions.asked(detector, "test", known.source)
    rejected = detector.predict(known.source) == wildood.UNKNOWN
    found = evaluate_decisions(answers, unknown, resamples=2).id
    assert not np.array_equal(rejected, answers.scores > detector.threshold)
    assert found.false_alarms.count == rejected.sum()


def test_nothing_accepted_has_no_accuracy(known, unknown):
    detector = wildood.posthoc(corner_classifier(), wildood.EnergyScore(), holdout=points(200), alpha=0.1)
    detector.threshold = -1e9
    found = evaluate_decisions(SetDecisions.asked(detector, "test", known.source), unknown, resamples=2).id
    assert (found.accuracy_of_accepted, found.false_alarms.value) == (None, 1)
    assert found.accuracy is not None


def test_examples_in_both_sets_are_counted(detector, known):
    mixed = np.concatenate([points(9, 1)[0], known.source.examples[:4], known.source.examples[:1]])
    found = evaluate_decisions(known, [SetDecisions.asked(detector, "mixed", Images(mixed))], resamples=2)
    assert found.ood[0].also_in_id == 5


def test_classes_are_named_by_the_detector_then_by_the_data_then_by_their_numbers(detector, known):
    x, y = known.source.examples, known.labels
    named = SetDecisions.asked(detector, "test", Images(x, y, classes=("cat", "dog")))
    assert class_names(detector, known) == ["0", "1", "2"]
    assert class_names(detector, named) == ["cat", "dog", "2"]
    other = wildood.posthoc(corner_classifier(), wildood.EnergyScore(), holdout=points(50), alpha=0.1)
    other.record["classes"] = ["ant", "bee", "cow"]
    assert class_names(other, named) == ["ant", "bee", "cow"]


def test_a_set_of_which_nothing_is_accepted_has_an_fpr_that_may_be_more(detector, known):
    far = [SetDecisions.asked(detector, name, Images(np.zeros((count, 2), "f"))) for name, count in (("a", 30), ("b", 300))]
    found = evaluate_decisions(known, far, resamples=20)
    assert [(one.fpr95.value, one.fpr95.low) for one in found.ood] == [(0, 0), (0, 0)]
    assert [one.fpr95.high for one in found.ood] == pytest.approx([1 - 0.025 ** (1 / count) for count in (30, 300)])
    assert found.average.fpr95.low == 0
    assert found.ood[1].fpr95.high < found.average.fpr95.high < found.ood[0].fpr95.high


def test_sets_that_the_detector_has_met_are_said_to_be_so(unknown):
    x, y = points(60)
    detector = wildood.posthoc(corner_classifier(), wildood.EnergyScore(), holdout=(x, y), alpha=0.1)
    met, new = (SetDecisions.asked(detector, "test", Images(some, labels)) for some, labels in ((x, y), (x[1:], y[1:])))
    assert evaluate_decisions(met, unknown, resamples=2).id.role_of == "threshold"
    assert evaluate_decisions(new, [met], resamples=2).ood[0].role_of == "threshold"
    assert evaluate_decisions(new, unknown, resamples=2).id.role_of == ""


X = np.random.default_rng(0).normal(size=(90, 2)).astype("f")


@pytest.fixture
def linear():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 3)
    return wildood.posthoc(model, wildood.EnergyScore(), holdout=X[:40], alpha=0.1)


def test_answers_are_the_detectors_own_by_class_and_at_infinity(linear):
    linear.class_thresholds = np.array([1.0, np.inf])
    scores, classes = np.array([1.0, 1.5, 3.0, np.inf, -np.inf]), np.array([0, 0, 1, 1, 0])
    found = Decisions.of(linear, scores, classes)
    assert found.rejected.tolist() == [False, True, False, True, True]  # a score that is not finite is never accepted
    assert found.margins.tolist() == [0.0, 0.5, -np.inf, np.inf, np.inf]


def test_a_detector_without_a_threshold_is_refused(linear):
    linear.threshold = float("nan")
    with pytest.raises(InputError, match="this detector has no threshold"):
        Decisions.of(linear, np.zeros(3), np.zeros(3, int))


def test_a_set_has_the_answers_to_its_examples(linear):
    found = SetDecisions.asked(linear, "test", Images(X[40:]))
    assert np.array_equal(found.scores, linear.score(X[40:]))
    assert np.array_equal(found.classes, linear.classify(X[40:]))
    assert np.array_equal(found.rejected, linear.predict(X[40:]) == wildood.UNKNOWN)
    assert np.array_equal(found.accepted, ~found.rejected)
    assert np.array_equal(found.margins > 0, found.rejected)
    assert (found.name, found.role_of) == ("test", "")
    assert SetDecisions.asked(linear, "test", Images(X[:40])).role_of == "threshold"


def test_the_most_confident_mistakes_come_first(linear):
    found = SetDecisions.asked(linear, "test", Images(1.5 * X))
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
def test_what_the_detector_cannot_take_is_refused_with_the_name_of_the_set(linear, images, message):
    with pytest.raises(InputError, match=message):
        SetDecisions.asked(linear, "svhn", images)


HOLDOUT = np.random.default_rng(0).normal(size=400).astype("f")
TWO_CLASSES = np.random.default_rng(1).integers(0, 2, 500)


@pytest.fixture
def calibrated():
    found = wildood.posthoc(torch.nn.Linear(1, 2), wildood.EnergyScore(), holdout=np.zeros((400, 1), "f"))
    found.holdout_scores, found.holdout_classes = HOLDOUT, np.arange(400) % 2
    return found.calibrate(alpha=0.05)


def decided(calibrated, scores, classes=None):
    return Decisions.of(calibrated, scores, TWO_CLASSES[: len(scores)] if classes is None else classes)


def test_luck_is_the_share_of_all_orders_with_as_many_false_alarms(calibrated):
    """Seven scores: in which of the 35 ways to draw a holdout of four is the threshold exceeded by so many of the rest?"""
    ranks, held, fresh = range(7), np.array([0.0, 1.0, 2.0, 4.0]), np.array([3.0, 5.0, 6.0])
    calibrated.holdout_scores, calibrated.threshold = held, 2.0  # the third of four
    as_many = [sum(rank > sorted(chosen)[2] for rank in set(ranks) - set(chosen)) >= 3 for chosen in combinations(ranks, 4)]
    assert by_luck(calibrated, decided(calibrated, fresh)) == pytest.approx(np.mean(as_many))


def test_luck_by_class_is_paid_for_in_each_class(calibrated):
    calibrated.calibrate(alpha=0.05, by_class=True)
    fresh, classes = np.array([3.0] * 40), np.zeros(40, int)
    both, held = by_luck(calibrated, decided(calibrated, fresh, classes)), HOLDOUT[::2]
    calibrated.class_thresholds, calibrated.threshold, calibrated.holdout_scores = None, calibrated.class_thresholds[0], held
    assert both == pytest.approx(2 * by_luck(calibrated, decided(calibrated, fresh, classes)))
    assert 0 < both < 1e-9


def alarms(calibrated, count, examples, confidence=0.95):
    """What is said of so many false alarms among so many ID examples."""
    return check_on_known(calibrated, decided(calibrated, np.where(np.arange(examples) < count, 9.0, -9.0)), confidence)


def test_the_promise_is_compared_with_the_rate_on_id_examples(calibrated):
    said = [alarms(calibrated, count, 500) for count in (5, 25, 37, 100)]
    assert [check.verdict for check in said] == ["holds", "not contradicted", "above", "broken"]
    assert [check.rate.low > 0.05 for check in said] == [False, False, True, True]
    assert said[0].rate.high <= 0.05
    assert said[2].by_luck > 0.05 >= said[3].by_luck
    assert said[0].says.startswith("5 of 500 (1.0 %; 0.33 to 2.3 % at 95 % confidence) of the ID examples are rejected")
    assert said[1].says.endswith(": nothing speaks against the promise of at most 5 %")  # it is 5 % exactly
    more = alarms(calibrated, 30, 500)
    assert (more.verdict, more.rate.low < 0.05 < more.rate.value) == ("not contradicted", True)
    assert more.says.endswith("above the promise of at most 5 %, but not by more than so few examples may show by chance")
    assert "the luck of drawing 400 holdout examples may explain it" in said[2].says
    assert "the promise of at most 5 % looks broken" in said[3].says


@pytest.mark.parametrize("by_class", [False, True])
def test_the_luck_of_a_small_holdout_excuses_a_rate_above_a_promise_on_average(calibrated, by_class):
    """From 40 examples a threshold of 5 % may well have a rate of 9 %, but not one of 60 %."""
    calibrated.holdout_scores, calibrated.holdout_classes = HOLDOUT[:40], np.arange(40) % 2
    calibrated.calibrate(alpha=0.05, by_class=by_class)
    said = [alarms(calibrated, count, 500) for count in (45, 300)]
    assert [check.verdict for check in said] == ["above", "broken"]
    assert min(check.rate.low for check in said) > 0.05


def test_an_aim_without_a_promise_can_be_missed_but_not_broken(calibrated):
    calibrated.promise = Promise(alpha=0.05, examples=400, unseen=False)
    said = [alarms(calibrated, count, 500) for count in (5, 100)]
    assert [(check.verdict, check.by_luck) for check in said] == [("holds", None), ("above", None)]
    assert "(no promise) is missed" in said[1].says
    calibrated.promise = None
    assert alarms(calibrated, 5, 500).verdict == "no promise"


def test_a_promise_for_each_class_is_judged_in_each_predicted_class(calibrated):
    calibrated.calibrate(alpha=0.05, by_class=True)
    assert alarms(calibrated, 0, 500).says.endswith(": the promise of at most 5 % in each predicted class holds")
    classes = np.repeat([1, 0], [100, 400])
    fresh = decided(calibrated, np.where(np.arange(500) < 25, 9.0, -9.0), classes)  # 25 of 100 of class 1, none of class 0
    said = check_on_known(calibrated, fresh, 0.95)
    assert said.rate.value == 0.05  # over all classes all is well
    assert (said.verdict, said.worst_class) == ("broken", 1)
    share = Share.of((25, 100), 0.975)  # each of two classes has half of what may be wrong
    assert f"of those predicted as class 1, {share.text(0.95)}: the promise of at most 5 % in each predicted" in said.says
    calibrated.record["classes"] = ["cat", "dog"]
    assert "of those predicted as dog, 25 of 100" in check_on_known(calibrated, fresh, 0.95).says
    calibrated.calibrate(by_class=False)
    assert check_on_known(calibrated, decided(calibrated, fresh.scores, classes), 0.95).verdict == "not contradicted"


def test_examples_that_the_detector_was_made_from_say_nothing_of_the_promise(calibrated):
    fresh = decided(calibrated, np.full(200, 9.0))
    said = check_on_known(calibrated, fresh, 0.95, role_of="threshold")
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
