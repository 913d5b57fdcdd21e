"""A detector gives the numbers of its model, its score and its threshold, whatever the data comes in."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import wildood
from wildood import UNKNOWN, InputError
from wildood.data.fingerprint import role_of
from wildood.data.sources import ArraySource, DatasetSource
from wildood.detect.detector import Detector, Example
from wildood.evaluate.thresholds import conformal_threshold
from wildood.models.classifier import Classifier
from wildood.models.small import MLP


class Items(Dataset):
    def __init__(self, x):
        self.x = x

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return torch.tensor(self.x[index])


def pairs(x):
    return TensorDataset(torch.tensor(x), torch.zeros(len(x)))


FORMS = {"array": np.asarray, "tensor": torch.tensor, "dataset of x": Items, "dataset of (x, y)": pairs}


@pytest.fixture(params=FORMS)
def form(request):
    return FORMS[request.param]


def modes(model):
    return {name: module.training for name, module in model.named_modules()}


def test_every_output_is_what_the_model_says(woods, toy, form):
    x = np.concatenate([toy.test[0], toy.unknown])
    logits = woods.classifier.model(torch.tensor(x)).detach().numpy().astype(np.float64)
    exponentials = np.exp(logits)
    np.testing.assert_allclose(woods.score(form(x)), -np.log(exponentials.sum(1)), atol=1e-5)
    np.testing.assert_allclose(woods.predict_proba(form(x)), exponentials / exponentials.sum(1, keepdims=True), atol=1e-6)
    np.testing.assert_array_equal(woods.classify(form(x)), logits.argmax(1))
    assert woods.score(form(x)).dtype == woods.predict_proba(form(x)).dtype == np.float32
    assert woods.classify(form(x)).dtype == woods.predict(form(x)).dtype == np.int64


@pytest.mark.parametrize("method", ["woods", "woods-alt"])
def test_forms_of_data_agree_to_the_bit(fits, toy, form, method):
    detector = fits[method]
    for say in (detector.score, detector.predict, detector.predict_proba, detector.classify):
        assert np.array_equal(say(form(toy.test[0])), say(toy.test[0]))


@pytest.mark.parametrize("method", ["woods", "woods-alt"])
def test_unknown_exactly_where_the_score_is_above_the_threshold(fits, toy, method):
    detector = fits[method]
    x = np.concatenate([toy.test[0], toy.unknown])
    rejected = detector.score(x) > detector.threshold
    assert UNKNOWN == -1
    assert 0 < rejected.sum() < len(x)
    np.testing.assert_array_equal(detector.predict(x), np.where(rejected, UNKNOWN, detector.classify(x)))


def test_a_score_equal_to_the_threshold_is_accepted(woods, toy):
    scores = woods.score(toy.test[0])
    woods.threshold = float(np.median(scores[:299]))
    at = int(np.flatnonzero(scores == woods.threshold)[0])
    predicted = woods.predict(toy.test[0])
    assert predicted[at] == woods.classify(toy.test[0])[at]
    assert (predicted == UNKNOWN).sum() == (scores > woods.threshold).sum()


def test_a_trained_classifier_is_right_about_what_it_knows_and_what_lies_between_is_unknown(woods, toy):
    assert np.mean(woods.classify(toy.test[0]) == toy.test[1]) > 0.95
    assert np.mean(woods.predict(toy.unknown) == UNKNOWN) > 0.9
    assert np.mean(woods.predict(toy.test[0]) == UNKNOWN) < 0.15


@pytest.mark.parametrize("method", ["woods", "woods-alt"])
def test_batching_does_not_change_results(fits, toy, method):
    detector = fits[method]
    x = toy.test[0]
    assert len(x) == 300  # more than one batch of 256
    one_by_one = np.concatenate([detector.score(x[row : row + 1]) for row in range(300)])
    np.testing.assert_allclose(detector.score(x), one_by_one, atol=1e-6, rtol=1e-6)
    probabilities = np.concatenate([detector.predict_proba(x[row : row + 1]) for row in range(300)])
    np.testing.assert_allclose(detector.predict_proba(x), probabilities, atol=1e-6)
    np.testing.assert_array_equal(detector.classify(x), [int(detector.classify(row[None])[0]) for row in x])


def test_float64_examples_are_scored_as_float32(woods, toy):
    assert np.array_equal(woods.score(toy.test[0].astype(np.float64)), woods.score(toy.test[0]))


def test_images_go_through_the_input_spec(image_detector, images):
    batch = (torch.from_numpy(images).permute(0, 3, 1, 2) / 255 - 0.5) / 0.25
    expected = -image_detector.classifier.model(batch).logsumexp(1).detach().numpy()
    np.testing.assert_allclose(image_detector.score(images), expected, atol=1e-5)
    with pytest.raises(InputError, match="x holds float values, expected uint8"):
        image_detector.score((images / 255).astype(np.float32))


@pytest.fixture
def noisy():
    """BatchNorm and dropout in the modes of somebody who is fine-tuning; scores must not depend on them."""
    model = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3))
    detector = Detector(Classifier(model), wildood.EnergyScore(), Example((2,), "float"), threshold=0.0)
    model.train()
    model[1].eval()
    return detector


@pytest.mark.parametrize("say", ["score", "predict", "predict_proba", "classify"])
def test_the_models_modes_and_buffers_are_left_as_found(noisy, toy, say):
    model = noisy.classifier.model
    before, buffers = modes(model), {name: value.clone() for name, value in model.named_buffers()}
    assert set(before.values()) == {True, False}
    first = getattr(noisy, say)(toy.test[0])
    assert modes(model) == before
    assert all(torch.equal(value, buffers[name]) for name, value in model.named_buffers())
    model.eval()
    assert np.array_equal(getattr(noisy, say)(toy.test[0]), first)


def test_modes_are_restored_when_the_data_fails(noisy, toy):
    class Broken(Items):
        def __getitem__(self, index):
            if index == 270:
                raise OSError("disk on fire")
            return super().__getitem__(index)

    before = modes(noisy.classifier.model)
    with pytest.raises(OSError, match="disk on fire"):
        noisy.score(Broken(toy.test[0]))
    assert modes(noisy.classifier.model) == before
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def test_detecting_draws_no_random_numbers(woods, noisy, toy):
    state = torch.get_rng_state()
    for detector in (woods, noisy):
        detector.score(toy.test[0])
        detector.predict(toy.test[0])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("alpha", [0.01, 0.1, 0.5])
def test_calibrate_sets_threshold_and_promise_and_returns_the_detector(woods, toy, alpha):
    assert woods.calibrate(toy.test, alpha) is woods
    assert woods.threshold == conformal_threshold(woods.score(toy.test[0]), alpha)
    assert (woods.promise.alpha, woods.promise.examples, woods.promise.unseen) == (alpha, 300, True)
    assert np.mean(woods.predict(toy.test[0]) == UNKNOWN) <= alpha


def test_calibrate_takes_holdouts_of_every_form(woods, toy):
    x, y = toy.test
    thresholds = {
        woods.calibrate(holdout, 0.1).threshold for holdout in ((x, y), [x, y], x, torch.tensor(x), pairs(x), Items(x))
    }
    assert len(thresholds) == 1


def test_the_holdout_that_chose_the_epoch_can_promise_nothing_more(chosen, toy):
    before = chosen.threshold, chosen.promise
    with pytest.raises(InputError, match="a part of this holdout chose the epoch"):
        chosen.calibrate(toy.holdout, 0.1)
    assert (chosen.threshold, chosen.promise) == before
    assert chosen.calibrate(toy.holdout, 0.1, unseen=False).promise.unseen is False


def test_another_alpha_needs_no_new_holdout(woods, toy, tmp_path):
    woods.calibrate(toy.test, 0.05)
    expected = conformal_threshold(woods.score(toy.test[0]), 0.2)
    assert woods.calibrate(alpha=0.2).threshold == expected
    assert (woods.promise.alpha, woods.promise.examples, woods.promise.unseen) == (0.2, 300, True)
    again = wildood.load(woods.save(tmp_path))
    assert again.calibrate(alpha=0.05).threshold == conformal_threshold(woods.score(toy.test[0]), 0.05)


def test_a_confidence_moves_the_threshold_up_and_is_promised(woods, toy):
    average = woods.calibrate(toy.test, 0.1).threshold
    woods.calibrate(toy.test, 0.1, confidence=0.95)
    assert woods.threshold == conformal_threshold(woods.score(toy.test[0]), 0.1, confidence=0.95) > average
    assert "with probability 95 %, if the 300 holdout examples are unseen" in str(woods.promise)
    assert "exchangeable" in woods.promise.assumption


def test_by_class_each_predicted_class_has_its_own_threshold(woods, toy, tmp_path):
    woods.calibrate(toy.test, 0.2, by_class=True)
    scores, classes = woods.score_and_classify(toy.test[0])
    expected = [conformal_threshold(scores[classes == number], 0.2) for number in range(classes.max() + 1)]
    assert woods.class_thresholds.tolist() == expected
    assert len(set(expected)) > 1
    x = np.concatenate([toy.test[0], toy.unknown])
    scores, classes = woods.score_and_classify(x)
    answers = np.where(scores <= np.array(expected)[classes], classes, UNKNOWN)
    assert np.array_equal(woods.predict(x), answers)
    again = wildood.load(woods.save(tmp_path), model=woods.classifier.model)
    assert np.array_equal(again.predict(x), answers)
    assert again.promise == woods.promise
    assert again.calibrate(alpha=0.3, by_class=True).class_thresholds.tolist() == [
        conformal_threshold(again.holdout_scores[again.holdout_classes == number], 0.3) for number in range(len(expected))
    ]
    assert again.calibrate(alpha=0.3, by_class=False).class_thresholds is None


def test_thresholds_by_class_are_told_by_their_range(woods, toy):
    one = f"threshold: {woods.threshold:.6g};"
    assert one in repr(woods)
    each = woods.calibrate(toy.test, 0.2, by_class=True).class_thresholds
    assert f"threshold: one for each of 3 predicted classes, from {each.min():.6g} to {each.max():.6g}; " in repr(woods)


def test_newer_examples_keep_the_promise_that_was_made(woods, toy):
    woods.calibrate(toy.test, 0.2, confidence=0.9, by_class=True)
    first = woods.promise
    woods.calibrate(toy.test[0][:299])
    assert woods.promise == replace(first, examples=299)
    assert len(woods.class_thresholds) == 3
    woods.calibrate(alpha=0.3)
    assert (woods.promise.alpha, woods.promise.confidence, woods.promise.by_class) == (0.3, 0.9, True)
    woods.calibrate(confidence="average", by_class=False)
    assert (woods.promise.alpha, woods.promise.confidence, woods.promise.by_class) == (0.3, None, False)
    assert woods.threshold == conformal_threshold(woods.score(toy.test[0][:299]), 0.3)


def test_too_few_for_a_confidence_in_each_class_says_how_it_is_divided(woods, toy):
    told = r"in each class with confidence 0.95, divided over 3 classes \(0.9833 in each\): give at least 80 for each"
    with pytest.raises(InputError, match=told):
        woods.calibrate(toy.test[0][:150], 0.05, confidence=0.95, by_class=True)


def test_a_class_with_too_few_examples_is_named_and_nothing_changes(woods, toy):
    woods.calibrate(toy.test, 0.1)
    before = woods.threshold, woods.promise
    with pytest.raises(InputError, match=r"class \d is predicted for \d+ of 30 holdout examples, too few"):
        woods.calibrate(toy.test[0][:30], 0.05, by_class=True)
    assert (woods.threshold, woods.promise) == before


def test_p_values_agree_with_the_threshold(woods, toy):
    woods.calibrate(toy.test, 0.1)
    x = np.concatenate([toy.test[0], toy.unknown])
    assert np.array_equal(woods.p_value(x) <= 0.1, woods.predict(x) == UNKNOWN)
    small = woods.p_value(x) <= 0.1
    woods.calibrate(confidence=0.95)  # a higher threshold rejects some of these only
    assert np.array_equal(woods.p_value(x) <= 0.1, small)
    rejected = woods.predict(x) == UNKNOWN
    assert np.all(small[rejected])
    assert rejected.sum() < small.sum()


def test_calibrating_on_data_the_model_has_seen_promises_nothing(woods, toy):
    woods.calibrate(toy.labelled, 0.05, unseen=False)
    assert woods.promise.unseen is False
    assert str(woods.promise).startswith("no promise:")
    assert "give an unseen holdout" in str(woods.promise)


def test_the_promise_is_in_words(woods, toy):
    woods.calibrate(toy.test, 0.025)
    assert str(woods.promise).startswith(
        "false-alarm rate <= 2.5 % on average over holdouts, if the 300 holdout examples are unseen"
    )
    assert "false-alarm rate <= 2.5 %" in repr(woods)
    assert "MLP" in repr(woods)


@pytest.mark.parametrize(
    ("count", "alpha", "message"),
    [
        (18, 0.05, "18 holdout examples cannot promise a false-alarm rate of 0.05: give at least 19"),
        (120, 0.0, "alpha is 0.0: give a false-alarm rate strictly between 0 and 1"),
        (120, 1.0, "alpha is 1.0"),
        (120, float("nan"), "alpha is nan"),
    ],
)
def test_calibration_that_is_refused_changes_nothing(woods, toy, count, alpha, message):
    before = woods.threshold, woods.promise
    with pytest.raises(InputError, match=message):
        woods.calibrate(toy.test[0][:count], alpha)
    assert (woods.threshold, woods.promise) == before


@pytest.fixture
def uncalibrated():
    return Detector(Classifier(MLP(2, 3)), wildood.EnergyScore(), Example((2,), "float"))


def test_predict_without_a_threshold_is_refused(uncalibrated, toy):
    with pytest.raises(InputError, match=r"no threshold: call detector\.calibrate\(holdout, alpha\) first"):
        uncalibrated.predict(toy.test[0])
    assert uncalibrated.score(toy.test[0]).shape == uncalibrated.classify(toy.test[0]).shape == (300,)
    assert "not calibrated" in repr(uncalibrated)
    assert uncalibrated.calibrate(toy.holdout, 0.05).predict(toy.test[0]).shape == (300,)


SAY = pytest.mark.parametrize("say", ["score", "predict", "predict_proba", "classify"])


@SAY
@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((5, 3), np.float32), r"x: an example has shape \(3,\), expected \(2,\)"),
        (np.zeros((5, 2, 1), np.float32), r"x: an example has shape \(2, 1\), expected \(2,\)"),
        (np.zeros((0, 2), np.float32), r"x has shape \(0, 2\): give at least one example"),
        (np.full((5, 2), np.nan, np.float32), "x: example 0 holds NaN or infinity"),
        (torch.tensor([[0.0, 0.0], [1.0, float("inf")]]), "x: example 1 holds NaN or infinity"),
        ([[0.0, 0.0]], "x is a list of 1: give x alone, as one array"),
        (np.zeros((5, 2), np.uint8), "x holds uint8 values, expected float: give the same type everywhere"),
        ({"x": np.zeros((5, 2))}, "x is a dict of 1: give x alone, as one array$"),
    ],
)
def test_examples_that_are_not_like_the_detectors_are_refused(woods, say, x, message):
    with pytest.raises(InputError, match=message):
        getattr(woods, say)(x)


@SAY
def test_a_single_image_without_its_batch_axis_is_refused_with_what_to_write(image_detector, images, say):
    with pytest.raises(InputError, match=r"expected \(8, 8, 1\) \(add the batch axis to a single example: x\[None\]\)"):
        getattr(image_detector, say)(images[0])
    assert len(getattr(image_detector, say)(images[0][None])) == 1


def test_a_single_row_without_its_batch_axis_is_refused_with_what_to_write(woods, toy):
    with pytest.raises(InputError, match=r"x\[None\]"):
        woods.score(toy.test[0][0])


@SAY
def test_nan_in_a_dataset_is_refused(woods, toy, say):
    x = toy.test[0].copy()
    x[280, 1] = np.nan
    with pytest.raises(InputError, match="NaN"):
        getattr(woods, say)(Items(x))


def test_images_of_another_size_need_a_spec_that_resizes(image_detector, images):
    larger = np.repeat(np.repeat(images, 2, axis=1), 2, axis=2)
    with pytest.raises(InputError, match=r"shape \(16, 16, 1\), expected \(8, 8, 1\)"):
        image_detector.score(larger)
    spec = wildood.InputSpec(mean=(0.5,), std=(0.25,), size=(8, 8))
    resizing = wildood.posthoc(image_detector.classifier.model, wildood.EnergyScore(), holdout=images, input=spec)
    assert np.array_equal(resizing.score(images), image_detector.score(images))
    assert resizing.score(larger).shape == (60,)


def test_posthoc_leaves_the_model_it_was_given(trained, toy):
    model = trained().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    detector = wildood.posthoc(model, wildood.MaxSoftmax(), holdout=toy.holdout, alpha=0.1)
    assert model.training
    assert detector.classifier.model is not model
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert np.array_equal(detector.score(toy.test[0]), -detector.predict_proba(toy.test[0]).max(1))


def as_file(x, y, place):
    np.savez(place / "again.npz", x=x, y=y)
    return wildood.open_images(place / "again.npz", cache=place)


def as_unlabelled_file(x, y, place):
    np.save(place / "again.npy", x)
    return wildood.open_images(place / "again.npy", cache=place)


FORMS_OF_PAIRS = {
    "pair": lambda x, y, _: (x, y),
    "x": lambda x, y, _: x,
    "tensors": lambda x, y, _: (torch.tensor(x), torch.tensor(y)),
    "dataset": lambda x, y, _: TensorDataset(torch.tensor(x), torch.tensor(y)),
    "file": as_file,
    "file without labels": as_unlabelled_file,
}


@pytest.fixture(params=FORMS_OF_PAIRS)
def pair_form(request):
    return FORMS_OF_PAIRS[request.param]


@pytest.fixture(params=["made", "loaded", "made from files"])
def detector(request, chosen, tmp_path, toy, trained, schedule):
    if request.param == "made from files":
        data = [as_file(*pair, tmp_path) for pair in (toy.labelled, toy.holdout)]
        return wildood.fit(trained(), data[0], toy.wild, data[1], schedule=schedule, verbose=False)
    return chosen if request.param == "made" else wildood.load(chosen.save(tmp_path / "saved"))


def test_what_a_fit_was_given_is_refused(detector, toy, pair_form, tmp_path):
    before = detector.threshold, detector.promise
    wild = toy.wild, np.zeros(len(toy.wild), np.int64)
    for name, (x, y) in (("labelled", toy.labelled), ("wild", wild)):
        with pytest.raises(InputError, match=f"these examples were the detector's {name} data, so they promise nothing"):
            detector.calibrate(pair_form(x, y, tmp_path), 0.1)
    with pytest.raises(InputError, match="a part of this holdout chose the epoch"):
        detector.calibrate(pair_form(*toy.holdout, tmp_path), 0.1)
    assert (detector.threshold, detector.promise) == before


def test_without_a_promise_it_may_set_the_threshold(woods, toy, pair_form, tmp_path):
    for x, y in (toy.labelled, toy.holdout):
        assert woods.calibrate(pair_form(x, y, tmp_path), 0.1, unseen=False).promise.unseen is False


def test_other_examples_promise(detector, toy, pair_form, tmp_path):
    assert detector.calibrate(pair_form(*toy.test, tmp_path), 0.1).promise.unseen
    assert detector.calibrate(pair_form(*toy.test, tmp_path), 0.2).promise.alpha == 0.2  # it may set it again
    x, y = toy.labelled
    assert detector.calibrate((x[1:], y[1:])).promise.unseen  # a part cannot be noticed: the guide says so


def test_a_holdout_that_chose_nothing_may_set_the_threshold_again(trained, toy, schedule):
    last = wildood.fit(trained(), toy.labelled, toy.wild, toy.holdout, schedule=schedule, keep="last", verbose=False)
    assert last.calibrate(toy.holdout, 0.1).promise.unseen
    with pytest.raises(InputError, match="labelled data"):
        last.calibrate(toy.labelled)


def test_both_pools_of_a_mixture_are_refused(trained, toy, schedule):
    mixture = wildood.WildMixture(id=toy.wild, ood=toy.unknown, pi=0.2)
    detector = wildood.fit(trained(), toy.labelled, mixture, toy.holdout, schedule=schedule, verbose=False)
    for pool in (toy.wild, toy.unknown):
        with pytest.raises(InputError, match="wild data"):
            detector.calibrate(pool)


def test_what_a_score_was_fitted_or_chosen_on_is_refused(trained, toy, pair_form, tmp_path):
    given = {"labelled": toy.labelled, "wild": toy.wild, "ood": toy.unknown}
    detector = wildood.posthoc(trained(), wildood.Odin(None), **given, holdout=toy.holdout, alpha=0.1)
    for name, (x, y) in {name: each if isinstance(each, tuple) else (each, None) for name, each in given.items()}.items():
        labels = np.zeros(len(x), np.int64) if y is None else y
        with pytest.raises(InputError, match=f"{name} data"):
            detector.calibrate(pair_form(x, labels, tmp_path), 0.1)
    with pytest.raises(InputError, match="a part of this holdout chose"):
        detector.calibrate(pair_form(*toy.holdout, tmp_path), 0.1)


class Random(Dataset):
    """Other examples at each reading."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return 40

    def __getitem__(self, index):
        if index >= 40:
            raise IndexError
        return self.rng.normal(size=2).astype("float32"), index % 2


def test_datasets_of_one_type_and_length_are_not_taken_for_each_other():
    first, second = (DatasetSource(Random(seed), labelled=True, name="x") for seed in (0, 1))
    assert first.fingerprint() == second.fingerprint()
    assert role_of({"data": {"labelled": first.fingerprint()}}, second) == ""


def test_the_whole_of_which_a_part_was_used_is_recognised(toy):
    x = ArraySource(toy.test[0])
    assert role_of({"data": {"wild": f"{x.fingerprint()}/0a1b+other at pi = 0.1"}}, x) == "wild"
    assert role_of({"data": {"wild": f"other/{x.fingerprint()}"}}, x) == ""


def test_the_share_of_unknowns_in_what_a_fit_was_given_is_refused(detector, toy, pair_form, tmp_path):
    """As `wildood inspect` does, in whatever form it comes."""
    wild = toy.wild, np.zeros(len(toy.wild), np.int64)
    for name, (x, y) in (("labelled", toy.labelled), ("wild", wild)):
        given = pair_form(x, y, tmp_path)
        with pytest.raises(
            InputError, match=f"these examples were the detector's {name} data, so they are no sample .*give later traffic"
        ):
            detector.unknown_share(x if isinstance(given, tuple) else given)


def test_the_share_of_unknowns_is_that_of_the_scores_of_fresh_traffic(detector, toy):
    traffic = np.concatenate([toy.test[0], toy.unknown])
    found = detector.unknown_share(traffic, confidence=0.9)
    assert found == wildood.unknown_share(detector.holdout_scores, detector.score(traffic), confidence=0.9)
    assert found.bound > 0.05


def test_the_share_of_unknowns_needs_a_holdout_that_is_unseen(toy, trained):
    seen = wildood.posthoc(trained(), wildood.EnergyScore(), labelled=toy.labelled)
    with pytest.raises(InputError, match=r"fresh ID data scores higher: call detector\.calibrate\(holdout\)"):
        seen.unknown_share(toy.test[0])
    assert seen.calibrate(toy.holdout, by_class=False).unknown_share(toy.test[0]).holdout == 120
