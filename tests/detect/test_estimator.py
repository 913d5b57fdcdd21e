"""`WildClassifier` as scikit-learn uses it: its own checks, pipelines, cross-validation; and the promise of `fit`."""

import importlib.util
import logging
import pickle
import sys

import numpy as np
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import wildood
from wildood.detect import estimator as home
from wildood.detect.estimator import stratified_sample
from wildood.models.small import MLP

PRETRAINING = wildood.Schedule(steps=100, batch=32, lr=0.1, decay="cosine", averaging=False)
SHORT = {"pretraining": PRETRAINING, "schedule": wildood.Schedule(steps=50, batch=64)}
CENTRES = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
NAMES = np.array(["cat", "dog", "eel"])
RNG = np.random.default_rng(0)


def known(count):
    codes = RNG.integers(0, 3, count)
    return CENTRES[codes] + 0.3 * RNG.normal(size=(count, 2)), codes


def unknown(count):
    return [2.0, 2.0] + 0.3 * RNG.normal(size=(count, 2))


(X, CODES), (X_TEST, TEST_CODES), UNKNOWNS = known(800), known(1000), unknown(200)
Y, Y_TEST = NAMES[CODES], NAMES[TEST_CODES]
WILD = np.concatenate([known(500)[0], unknown(200)])


@pytest.fixture(scope="module")
def fitted():
    return wildood.WildClassifier(**SHORT).fit(X, Y, wild=WILD)


# What scikit-learn checks of every estimator, with a threshold and without one: alpha = 0.01 % takes 9,999 examples.
DEFAULT, REJECTS_NOTHING = wildood.WildClassifier(pretraining=PRETRAINING), wildood.WildClassifier(alpha=1e-4, **SHORT)
BY_NATURE = {
    "check_classifiers_train": "predict must equal the argmax of predict_proba, but rejected examples have no class"
}


@parametrize_with_checks(
    [DEFAULT, REJECTS_NOTHING],
    expected_failed_checks=lambda estimator: BY_NATURE if estimator.alpha is None else {},
    xfail_strict=True,
)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


def test_known_examples_have_their_label_and_unknown_ones_the_word(fitted):
    assert fitted.classes_.tolist() == NAMES.tolist()
    assert (fitted.unknown_, fitted.n_features_in_) == ("unknown", 2)
    predicted = fitted.predict(X_TEST)
    accepted = predicted != "unknown"
    assert np.mean(predicted[accepted] == Y_TEST[accepted]) > 0.99
    assert np.mean(~accepted) <= 0.05 + 3 * np.sqrt(0.05 / 60)  # of one holdout, of which half has 80 examples
    assert np.mean(fitted.predict(UNKNOWNS) == "unknown") > 0.9


def test_it_is_pretrain_and_fit_on_x_without_the_holdout(fitted):
    """The same network from the same parts by the functions themselves."""
    x = X.astype(np.float32)
    aside = stratified_sample(CODES, 160, seed=0)
    labelled, holdout = (x[~aside], CODES[~aside]), (x[aside], CODES[aside])
    with home.seeded(0, "module"):
        model = MLP(2, 3)
    model = wildood.pretrain(model, labelled, schedule=PRETRAINING, verbose=False)
    wild = WILD.astype(np.float32)
    detector = wildood.fit(model, labelled, wild, holdout, schedule=SHORT["schedule"], verbose=False)
    assert fitted.detector_.threshold == detector.threshold
    assert np.array_equal(fitted.predict_proba(X_TEST), detector.predict_proba(X_TEST.astype(np.float32)))
    assert fitted.detector_.promise == detector.promise
    assert fitted.detector_.promise.unseen


def test_the_functions_agree_with_the_detector(fitted):
    x = X_TEST.astype(np.float32)
    detector, logits = fitted.detector_, fitted.decision_function(X_TEST)
    assert logits.shape == (1000, 3)
    assert np.array_equal(fitted.classes_[logits.argmax(1)], fitted.classes_[detector.classify(x)])
    assert np.allclose(fitted.predict_proba(X_TEST), torch.from_numpy(logits).softmax(1).numpy(), atol=1e-6)
    assert np.array_equal(fitted.score_samples(X_TEST), -detector.score(x))
    assert np.array_equal(fitted.predict(X_TEST) == "unknown", fitted.score_samples(X_TEST) < -detector.threshold)


def test_score_samples_are_higher_for_known_examples(fitted):
    both, is_known = np.concatenate([X_TEST, UNKNOWNS]), np.repeat([1, 0], [1000, 200])
    assert roc_auc_score(is_known, fitted.score_samples(both)) > 0.95


def test_of_two_classes_decision_function_is_the_evidence_for_the_second():
    two = CODES < 2
    classifier = wildood.WildClassifier(**SHORT, wild=WILD).fit(X[two], Y[two])
    test = TEST_CODES < 2
    decision = classifier.decision_function(X_TEST[test])
    assert decision.shape == (test.sum(),)
    assert np.array_equal(decision > 0, classifier.predict_proba(X_TEST[test])[:, 1] > 0.5)
    assert np.mean((decision > 0) == (Y_TEST[test] == "dog")) > 0.99
    assert np.mean(cross_val_score(classifier, X[two], Y[two], scoring="roc_auc", cv=2)) > 0.99


def test_score_is_the_accuracy_and_counts_unknown_examples_that_are_rejected(fitted):
    assert fitted.score(X_TEST, Y_TEST) == np.mean(fitted.predict(X_TEST) == Y_TEST)
    assert fitted.score(UNKNOWNS, ["unknown"] * 200) == np.mean(fitted.predict(UNKNOWNS) == "unknown")


@pytest.mark.parametrize(
    ("classes", "settings", "expected"),
    [
        ([0, 1, 2], {}, -1),
        ([7.0, 8.0, 9.0], {}, -1.0),
        ([0, 1, 2], {"unknown": 99}, 99),
        (np.array([0, 1, 2], np.uint8), {}, -1),
        ([-1, 0, 1], {"unknown": -2}, -2),
        (["a", "b", "c"], {"unknown": "something else"}, "something else"),
        (np.array(["a", "b", "c"], object), {}, "unknown"),
    ],
)
def test_labels_of_any_kind_come_back_and_rejected_examples_have_the_label_for_unknown(classes, settings, expected):
    labels = np.asarray(classes)
    classifier = wildood.WildClassifier(**SHORT, **settings).fit(X, labels[CODES], wild=WILD)
    predicted = classifier.predict(np.concatenate([X_TEST, UNKNOWNS]))
    assert set(predicted.tolist()) == {*labels.tolist(), expected}
    assert np.mean(predicted[:1000] == labels[TEST_CODES]) > 0.85
    assert np.mean(predicted[1000:] == expected) > 0.9


def test_two_truth_values_are_classes():
    two = CODES < 2
    classifier = wildood.WildClassifier(**SHORT).fit(X[two], CODES[two] == 1, wild=WILD)
    assert classifier.classes_.tolist() == [False, True]
    assert set(classifier.predict(WILD).tolist()) == {0, 1, -1}
    assert classifier.score(X[two], CODES[two] == 1) > 0.85


@pytest.mark.parametrize(
    ("settings", "arguments", "message"),
    [
        ({}, {"y": CODES - 1}, "y has the class -1, as rejected examples would: give another unknown="),
        ({"unknown": "dog"}, {}, "y has the class 'dog', as rejected"),
        ({"unknown": -1}, {}, "unknown is -1: give text, as the classes of y are"),
        ({"unknown": "?"}, {"y": CODES}, "unknown is '\\?': give a number, as the classes of y are"),
        ({}, {"y": np.repeat("dog", 800)}, "y has one class, 'dog'"),
        ({"module": MLP(2, 3)}, {}, "module is a network: give a function that makes one"),
        ({"module": lambda: MLP(2, 3)}, {}, "module cannot be called .*: give a function of 2 argument"),
        ({"module": lambda features, classes: MLP(features, 4)}, {}, "the module has 4 outputs for 3 classes"),
        ({"module": lambda features, classes: MLP(features + 1, classes)}, {}, "the model fails on a batch of shape"),
        ({"method": wildood.Woods}, {}, "method is .*: give one such as Woods"),
        ({"schedule": 100}, {}, "schedule is 100: give a Schedule"),
        ({"pretraining": 100}, {}, "schedule is 100: give a Schedule"),
        ({"alpha": 0}, {}, "alpha is 0: give"),
        (
            {},
            {"X": np.where(X > 0, "tcp", "udp").astype(object)},
            r"X holds text .*'(tcp|udp)'\): .* fit\(spec\(X\), y, wild=spec",
        ),
        ({"holdout_share": 0.6}, {}, "holdout_share is 0.6: give a share of X, above 0 and at most 0.5"),
        ({"random_state": -1}, {}, "random_state is -1: give a whole number from 0 on"),
        ({"keep": "first"}, {}, "keep is 'first'"),
        ({}, {"wild": WILD[:, :1]}, "wild has 1 features, X has 2: give the same ones"),
        ({}, {"wild": np.where(np.arange(700)[:, None] == 3, np.nan, WILD)}, "Input wild contains NaN"),
        ({}, {"wild": X + 0.0}, "holdout examples are in wild, too"),
        ({}, {"holdout": X_TEST}, r"holdout is array\(.*\): give \(X, y\)"),
        ({}, {"holdout": (X_TEST, np.repeat("fox", 1000))}, "holdout has the label 'fox', which is no class of y"),
        ({}, {"holdout": (X, Y)}, "holdout examples are in labelled, too"),
        ({}, {"wild": None, "fresh": X_TEST}, "fresh examples are for training on wild data: give wild=, too"),
        ({}, {"X": X[:60], "y": Y[:60]}, "X has 60 examples: too few to set 38 aside .* or holdout=\\(X, y\\)"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(settings, arguments, message):
    classifier = wildood.WildClassifier(**(SHORT | settings))
    with pytest.raises(ValueError, match=message):
        classifier.fit(**({"X": X, "y": Y, "wild": WILD} | arguments))


def test_a_classifier_that_is_not_fitted_says_so():
    with pytest.raises(NotFittedError):
        wildood.WildClassifier().predict(X)
    classifier = wildood.WildClassifier(**SHORT)
    with pytest.raises(wildood.InputError, match="too few"):
        classifier.fit(X[:60], Y[:60], wild=WILD)
    with pytest.raises(NotFittedError):
        classifier.predict(X)


def test_without_wild_data_it_is_a_plain_classifier_with_an_energy_score_and_says_so_once(caplog):
    with caplog.at_level(logging.WARNING, logger="wildood"):
        classifier = wildood.WildClassifier(**SHORT).fit(X, Y)
    expected = "no wild data: this is a plain classifier with an energy score; give wild= to train on what it meets"
    assert caplog.messages == [expected]
    assert type(classifier.detector_.scorer).__name__ == "EnergyScore"
    assert (classifier.detector_.history, classifier.detector_.promise.examples) == ([], 160)
    assert np.mean(classifier.predict(X_TEST) == "unknown") <= 0.1


def test_too_few_examples_without_wild_data_reject_nothing_until_the_detector_is_calibrated(caplog):
    with caplog.at_level(logging.WARNING, logger="wildood"):
        classifier = wildood.WildClassifier(**SHORT).fit(X[:37], Y[:37])
    (warning,) = caplog.messages
    assert warning.endswith("X has 37 examples, too few for a false-alarm rate of 5 %: it rejects nothing")
    assert "unknown" not in classifier.predict(np.concatenate([X_TEST, 100 * UNKNOWNS]))
    classifier.detector_.calibrate(X_TEST[:500].astype(np.float32), 0.2)
    assert np.mean(classifier.predict(X_TEST[:500]) == "unknown") == pytest.approx(0.2, abs=0.01)


def test_a_method_that_trains_without_wild_data_is_trained(caplog):
    classifier = wildood.WildClassifier(method=wildood.Godin(epsilon=0.0), **SHORT).fit(X, Y)
    assert classifier.detector_.record["method"]["name"] == "Godin"
    assert not any("no wild data" in message for message in caplog.messages)


def test_the_holdout_has_the_same_share_of_each_class_and_is_as_large_as_alpha_needs():
    codes = np.repeat([0, 1, 2, 3], [700, 290, 9, 1])
    counts = np.array([np.bincount(codes[stratified_sample(codes, 200, seed)], minlength=4) for seed in range(200)])
    assert (counts.sum(1) == 200).all()
    assert (counts.min(0) >= [140, 58, 1, 0]).all()
    assert (counts.max(0) <= [140, 58, 2, 1]).all()
    assert counts[:, 3].mean() == pytest.approx(0.2, abs=0.1)
    assert not np.array_equal(stratified_sample(codes, 200, 0), stratified_sample(codes, 200, 1))
    few = wildood.WildClassifier(**SHORT | {"schedule": None}, holdout_share=0.01)
    assert few.fit(X[:100], Y[:100], wild=WILD).detector_.promise.examples == 19  # one half of 38
    assert few.set_params(keep="last", alpha=0.1).fit(X[:100], Y[:100], wild=WILD).detector_.promise.examples == 9


def test_a_holdout_of_the_users_leaves_x_whole():
    classifier = wildood.WildClassifier(**SHORT).fit(
        X, Y, wild=WILD, holdout=(X_TEST[:200], Y_TEST[:200]), fresh=X_TEST[200:]
    )
    assert classifier.detector_.promise.examples == 100
    assert classifier.detector_.record["drift"]["found"] in {True, False}
    again = classifier.fit(X, Y, wild=WILD, holdout=[X_TEST[:200], Y_TEST[:200]], fresh=(X_TEST[200:], Y_TEST[200:]))
    assert again.detector_.promise.examples == 100


def test_a_module_of_the_users_and_other_methods():
    def linear(features, classes):
        return nn.Linear(features, classes)

    classifier = wildood.WildClassifier(linear, wildood.WoodsAlt(), **SHORT, keep="last").fit(X, Y, wild=WILD)
    assert isinstance(classifier.detector_.classifier.model, nn.Linear)
    assert classifier.detector_.record["method"]["name"] == "WoodsAlt"
    other = wildood.WildClassifier(linear, **SHORT, random_state=1).fit(X, Y)
    same = wildood.WildClassifier(linear, **SHORT, random_state=np.random.RandomState(0)).fit(X, Y)
    first = wildood.WildClassifier(linear, **SHORT).fit(X, Y)
    assert len({each.detector_.threshold for each in (other, same, first)}) == 3


def test_the_random_state_decides_everything():
    states = [0, 0, np.random.RandomState(0), np.random.RandomState(0), None, None]
    made = [wildood.WildClassifier(**SHORT, random_state=state).fit(X, Y).detector_.threshold for state in states]
    assert made[0] == made[1]
    assert made[2] == made[3]
    assert len(set(made)) == 4


def test_rows_that_repeat_by_nature_are_accepted_where_the_caller_says_so():
    holdout = np.concatenate([X_TEST[:200], X[:50]]), np.concatenate([Y_TEST[:200], Y[:50]])
    with pytest.raises(wildood.InputError, match=r"50 of the 250 holdout examples are in labelled.*allow_duplicates=True"):
        wildood.WildClassifier(**SHORT).fit(X, Y, holdout=holdout)
    promise = wildood.WildClassifier(**SHORT, allow_duplicates=True).fit(X, Y, holdout=holdout).detector_.promise
    assert "the promise holds only if they are equal by chance" in promise.caveat


def test_rows_of_x_that_repeat_are_said_in_the_promise():
    classifier = wildood.WildClassifier(**SHORT).fit(np.concatenate([X, X[:300]]), np.concatenate([Y, Y[:300]]))
    assert "the promise holds only if they are equal by chance" in classifier.detector_.promise.caveat


def test_wild_data_far_from_x_is_warned_of(caplog):
    with caplog.at_level(logging.WARNING, logger="wildood"):
        wildood.WildClassifier(**SHORT).fit(X, Y, wild=WILD + np.array([0, 100]))
    assert any("100 % of wild is outside the range of X in feature 1: was it scaled" in text for text in caplog.messages)


def test_parameters_are_those_of_the_constructor_and_a_clone_has_the_same():
    classifier = wildood.WildClassifier(method=wildood.Woods(alpha=0.1), wild=WILD, alpha=0.2)
    names = {"module", "method", "schedule", "pretraining", "wild", "alpha", "holdout_share", "keep", "unknown"}
    assert set(classifier.get_params()) == names | {"allow_duplicates", "random_state", "verbose"}
    copy = clone(classifier).set_params(alpha=0.3)
    assert (copy.method, copy.alpha, classifier.alpha) == (wildood.Woods(alpha=0.1), 0.3, 0.2)
    assert np.array_equal(copy.wild, WILD)


@pytest.mark.parametrize("method", [None, wildood.WoodsAlt()])
def test_a_fitted_classifier_can_be_pickled_and_its_detector_saved(method, tmp_path):
    classifier = wildood.WildClassifier(method=method, keep="last", **SHORT).fit(X, Y, wild=WILD)
    again = pickle.loads(pickle.dumps(classifier))  # noqa: S301 - our own bytes
    assert np.array_equal(again.predict(X_TEST), classifier.predict(X_TEST))
    detector = wildood.load(classifier.detector_.save(tmp_path / "out"))
    found = detector.predict(UNKNOWNS.astype(np.float32))
    assert np.array_equal(found == wildood.UNKNOWN, classifier.predict(UNKNOWNS) == "unknown")
    assert [detector.class_name(number) for number in range(3)] == NAMES.tolist()


class Spy(wildood.WildClassifier):
    """Notes how much wild data each fit gets."""

    lengths = ()

    def fit(self, X, y, wild=None, holdout=None, fresh=None):  # noqa: N803 - scikit-learn's name
        given = self.wild if wild is None else wild
        Spy.lengths = (*Spy.lengths, len(given))
        Spy.last = given
        return super().fit(X, y, wild, holdout, fresh)


@pytest.mark.parametrize("routing", [False, True])
@pytest.mark.parametrize(
    ("wild", "as_parameter", "lengths"),
    [
        (WILD, False, (700, 700)),  # of another length than X: whole
        (WILD, True, (700, 700)),
        (np.concatenate([WILD, WILD[:100] + 0.01]), False, (400, 400)),  # of the same length: the rows of the training fold
        (np.concatenate([WILD, WILD[:100] + 0.01]), True, (800, 800)),  # as a parameter of the constructor: whole
    ],
)
def test_cross_validation_passes_wild_data_on(routing, wild, as_parameter, lengths):
    Spy.lengths = ()
    classifier = Spy(**SHORT, wild=wild if as_parameter else None)
    with sklearn.config_context(enable_metadata_routing=routing):
        scores = cross_val_score(classifier, X, Y, cv=KFold(2), params=None if as_parameter else {"wild": wild})
    assert Spy.lengths == lengths
    if lengths == (400, 400):
        assert np.array_equal(Spy.last, wild[:400])  # the second fold trains on the first half
    assert scores.mean() > 0.85


@pytest.mark.parametrize("routing", [False, True])
def test_a_grid_search_tries_parameters_and_refits(routing):
    with sklearn.config_context(enable_metadata_routing=routing):
        search = GridSearchCV(wildood.WildClassifier(**SHORT), {"alpha": [0.05, 0.4]}, cv=2).fit(X, Y, wild=WILD)
    assert search.best_params_ == {"alpha": 0.05}  # rejecting 40 % of known data costs as much accuracy
    assert search.cv_results_["mean_test_score"][0] > search.cv_results_["mean_test_score"][1] + 0.2
    assert np.mean(search.predict(UNKNOWNS) == "unknown") > 0.9


def test_a_pipeline_transforms_wild_data_where_transform_input_says_so():
    scaler = StandardScaler().fit(100 * X)
    by_hand = wildood.WildClassifier(**SHORT).fit(scaler.transform(100 * X), Y, wild=scaler.transform(100 * WILD))
    with sklearn.config_context(enable_metadata_routing=True):
        pipeline = make_pipeline(StandardScaler(), wildood.WildClassifier(**SHORT), transform_input=["wild"])
        pipeline.fit(100 * X, Y, wild=100 * WILD)
        scores = cross_val_score(pipeline, 100 * X, Y, params={"wild": 100 * WILD}, cv=2)
    assert pipeline[-1].detector_.threshold == by_hand.detector_.threshold
    assert np.mean(pipeline.predict(100 * UNKNOWNS) == "unknown") > 0.9
    assert scores.mean() > 0.85


def test_a_pipeline_without_it_leaves_wild_data_as_it_is_and_a_warning_says_so(caplog):
    pipeline = make_pipeline(StandardScaler(), wildood.WildClassifier(**SHORT))
    with caplog.at_level(logging.WARNING, logger="wildood"):
        pipeline.fit(100 * X, Y, wildclassifier__wild=100 * WILD)
    assert any("A Pipeline transforms X alone" in text for text in caplog.messages)
    caplog.clear()
    scaled = StandardScaler().fit(100 * X).transform(100 * WILD)
    with caplog.at_level(logging.WARNING, logger="wildood"):
        pipeline.fit(100 * X, Y, wildclassifier__wild=scaled)
    assert not any("A Pipeline" in text for text in caplog.messages)
    assert np.mean(pipeline.predict(100 * UNKNOWNS) == "unknown") > 0.9


def test_without_scikit_learn_the_class_can_be_imported_and_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    spec = importlib.util.spec_from_file_location("estimator_alone", home.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(wildood.InputError, match=r"needs scikit-learn 1.6 or newer: pip install 'wildood\[sklearn\]'"):
        module.WildClassifier()
