"""A frozen backbone: only the last layer and what the method adds are trained, on features computed once."""

import json
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
import torch
from torch import nn

import wildood
from wildood.data.sources import ArraySource
from wildood.data.validation import labelled_source
from wildood.data.wild import as_wild
from wildood.detect import frozen
from wildood.detect.baseline import best_start
from wildood.detect.detector import Example
from wildood.detect.split import FitSplit
from wildood.models.classifier import Classifier, tap_features
from wildood.models.moments import whitening_matrix
from wildood.models.small import MLP
from wildood.train.monitor import measure_start


def fit_frozen(model, toy, schedule, **settings):
    return wildood.fit(model, toy.labelled, toy.wild, toy.holdout, schedule=schedule, frozen=True, verbose=False, **settings)


def keep_of(method):
    """What was trained is to be seen, whatever data set aside says of it; an epsilon must be chosen."""
    return "last" if method.uses_wild else "best"


@pytest.mark.parametrize("method", [wildood.Woods(), wildood.WoodsAlt(), wildood.OutlierExposure(), wildood.Godin()])
def test_only_the_last_layer_changes(method, toy, trained, schedule):
    before = trained().state_dict()
    after = fit_frozen(trained(), toy, schedule, method=method, keep=keep_of(method)).classifier.model.state_dict()
    *_, weight, bias = before
    changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert changed <= {weight, bias}
    assert changed or isinstance(method, wildood.Godin)  # which puts a head in the last layer's place


def test_weights_are_those_of_a_training_whose_backbone_takes_no_gradient(toy, trained, schedule):
    whole = trained()
    *backbone, _, _ = whole.parameters()
    for parameter in backbone:
        parameter.requires_grad_(requires_grad=False)
    data = toy.labelled, toy.wild, toy.holdout
    expected = wildood.fit(whole, *data, schedule=schedule, verbose=False)
    found = fit_frozen(trained(), toy, schedule)
    for ours, theirs in zip(found.classifier.parameters(), expected.classifier.parameters(), strict=True):
        torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.score(toy.unknown), expected.score(toy.unknown), rtol=1e-4)
    assert found.threshold == pytest.approx(expected.threshold, rel=1e-4)


class Linear(nn.Module):
    """A linear model with a vector that is added to the weights of all classes."""

    def __init__(self):
        super().__init__()
        self.rows, self.shared = nn.Linear(16, 3), nn.Linear(16, 1, bias=False)
        nn.init.zeros_(self.shared.weight)

    def forward(self, x):
        return self.rows(x) + self.shared(x)


def test_detector_is_that_of_a_linear_model_trained_on_white_features(toy, trained, schedule, monkeypatch):
    # The energies are compared: the ensemble reads the features, which are others here and there.
    module = import_module("wildood.detect.fit")
    monkeypatch.setattr(module, "best_start", lambda *given, **named: best_start(*given, **named | {"only_energy": True}))
    monkeypatch.setattr(module, "fitted_ensemble", lambda *_: None)
    schedule = replace(schedule, weight_decay=0.0)  # which pulls to another place
    model = trained()
    *_, last = (module for module in model.modules() if isinstance(module, nn.Linear))
    classifier = Classifier(model.eval(), tap=tap_features(model, torch.tensor(toy.wild[:2]), None))

    def features(x):
        return classifier.features(torch.tensor(x)).detach().double().numpy()

    known = features(toy.labelled[0])
    start = measure_start(classifier, labelled_source(toy.labelled, "labelled"), seed=0)
    root = whitening_matrix(torch.tensor(known.T @ known / len(known)), len(known), float(start.logsumexp.var())).numpy()

    def white(x):
        return (features(x) @ root).astype(np.float32)

    linear = Linear()
    with torch.no_grad():
        linear.rows.weight.copy_(last.weight.double() @ torch.from_numpy(np.linalg.inv(root)))
        linear.rows.bias.copy_(last.bias)
    (x, y), (x_holdout, y_holdout) = toy.labelled, toy.holdout
    data = (white(x), y), white(toy.wild), (white(x_holdout), y_holdout)

    # The logits of this model are of two layers, so that it has no preconditioner.
    distilled = wildood.Woods(precondition=None, distillation=1.0)
    expected = wildood.fit(linear, *data, method=distilled, schedule=schedule, verbose=False)
    found = fit_frozen(trained(), toy, schedule)
    np.testing.assert_allclose(found.score(toy.unknown), expected.score(white(toy.unknown)), rtol=1e-3)
    assert found.threshold == pytest.approx(expected.threshold, rel=1e-3)


def test_scale_of_the_features_does_not_matter(toy, trained, schedule):
    def scaled(factor):
        model = trained()
        *_, before, last = (module for module in model.modules() if isinstance(module, nn.Linear))
        with torch.no_grad():
            for parameter in before.parameters():  # before a ReLU: the features are so many times as large
                parameter.mul_(factor)
            last.weight.div_(factor)
        return model

    first, second = (fit_frozen(scaled(factor), toy, schedule).score(toy.unknown) for factor in (0.125, 8.0))
    np.testing.assert_allclose(first, second, rtol=1e-4)


def test_run_that_was_cut_off_goes_on(toy, trained, schedule, tmp_path):
    expected = fit_frozen(trained(), toy, schedule)

    def interrupt(row):
        if row["step"] >= 5:
            raise RuntimeError("cut off")

    with pytest.raises(RuntimeError, match="cut off"):
        fit_frozen(trained(), toy, schedule, run_dir=tmp_path, on_epoch=interrupt)
    again = fit_frozen(trained(), toy, schedule, run_dir=tmp_path)
    np.testing.assert_array_equal(again.score(toy.unknown), expected.score(toy.unknown))
    assert json.loads((tmp_path / "run.json").read_text())["frozen"] is True


def test_backbone_is_in_evaluation_mode(toy, schedule):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    first, second = (fit_frozen(model, toy, schedule) for _ in range(2))
    after = first.classifier.model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before if name.startswith("1."))
    np.testing.assert_array_equal(first.score(toy.unknown), second.score(toy.unknown))


def test_half_precision_model_keeps_its_type(toy, trained, schedule):
    detector = fit_frozen(trained().bfloat16(), toy, schedule)
    assert {parameter.dtype for parameter in detector.classifier.model.parameters()} == {torch.bfloat16}
    assert np.isfinite(detector.score(toy.unknown)).all()


def test_last_layer_is_trained_though_the_model_takes_no_gradient(toy, trained, schedule):
    model = trained().requires_grad_(requires_grad=False)
    expected, found = (fit_frozen(each, toy, schedule) for each in (trained(), model))
    np.testing.assert_array_equal(found.score(toy.unknown), expected.score(toy.unknown))


def test_frozen_detector_is_saved_and_loaded(toy, trained, schedule, tmp_path):
    detector = fit_frozen(trained(), toy, schedule, method=wildood.WoodsAlt())
    detector.save(tmp_path / "detector")
    loaded = wildood.load(tmp_path / "detector")
    np.testing.assert_array_equal(loaded.score(toy.unknown), detector.score(toy.unknown))


def test_last_layer_without_bias_stays_without(toy, schedule):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3, bias=False))
    detector = fit_frozen(model, toy, schedule)
    assert [name for name, _ in detector.classifier.model.named_parameters()] == ["0.weight", "0.bias", "2.weight"]


def test_mixture_stays_a_mixture(toy, trained):
    mixture = wildood.WildMixture(id=toy.wild[:90], ood=toy.wild[90:], pi=0.3)
    model = trained()
    classifier = Classifier(model, tap=tap_features(model, torch.tensor(toy.wild[:2]), None))
    example = Example.of(ArraySource(toy.wild))
    known = ArraySource(*toy.labelled)
    _, seen = frozen.freeze(classifier, FitSplit(known, mixture, None, known, known, example, {}, {}), wildood.Schedule(), 0)
    assert isinstance(seen.wild, wildood.WildMixture)
    assert (seen.wild.pi, [len(pool) for pool in seen.wild.pools]) == (0.3, [90, 10])
    np.testing.assert_array_equal(seen.labelled.labels, toy.labelled[1])


@pytest.mark.parametrize(
    ("schedule", "features"),
    [
        (wildood.Schedule(steps=5, batch=64), 320),
        (wildood.Schedule(steps=2, batch=16), 32),
        (wildood.Schedule(steps=2, batch=16, epoch="shortest"), 160),
        (wildood.Schedule(steps=100), 1000),
    ],
    ids=["what steps read", "fewer than labelled", "an epoch as long as before", "all"],
)
def test_features_of_long_wild_data_are_those_that_steps_can_read(toy, trained, schedule, features):
    model = trained()
    classifier = Classifier(model, tap=tap_features(model, torch.tensor(toy.wild[:2]), None))
    known, wild = ArraySource(*toy.labelled), np.arange(2000, dtype=np.float32).reshape(1000, 2)
    data = FitSplit(known, as_wild(wild), None, known, known, Example.of(known), {}, {})
    assert len(known) == 160
    _, seen = frozen.freeze(classifier, data, schedule, 0)
    _, other = frozen.freeze(classifier, data, schedule, 1)
    assert len(seen.wild.source) == len(np.unique(seen.wild.source.examples, axis=0)) == features
    assert np.array_equal(seen.wild.source.examples, other.wild.source.examples) == (features == len(wild))


def test_method_that_trains_the_backbone_is_refused(toy, trained):
    with pytest.raises(wildood.InputError, match=r"Csi trains the backbone: leave frozen \(--frozen\) out"):
        wildood.fit(trained(), toy.labelled, None, toy.holdout, method=wildood.Csi(), frozen=True, verbose=False)


def test_augmentation_is_refused(toy, trained):
    schedule = wildood.Schedule(steps=2, augment=True)
    with pytest.raises(wildood.InputError, match="frozen computes the features once, of images as they are"):
        fit_frozen(trained(), toy, schedule)


class Positions(nn.Module):
    """A last layer that takes each position of an image: the mean over them is not what it takes."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(2, 3)

    def forward(self, x):
        return self.last(x[:, None, None].expand(-1, 4, 5, -1)).mean((1, 2))


def test_model_whose_features_are_not_what_its_last_linear_takes_is_refused(toy, schedule):
    with pytest.raises(wildood.errors.InputError, match="does not make the model's logits"):
        fit_frozen(Positions(), toy, schedule)


def test_model_whose_last_linear_does_not_make_the_logits_is_refused(toy, schedule):
    class Scaled(MLP):
        def forward(self, x):
            return 3 * super().forward(x)

    with pytest.raises(wildood.InputError, match="does not make the model's logits"):
        fit_frozen(Scaled(2, 3), toy, schedule)


def test_last_layer_with_tied_weights_is_refused(toy, schedule):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.last = nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 3)
            self.second.weight = self.last.weight

        def forward(self, x):
            return self.last(self.second(self.first(x)))

    with pytest.raises(wildood.InputError, match="the last layer shares its weights with another one"):
        fit_frozen(Tied(), toy, schedule)


@pytest.mark.parametrize("method", [wildood.Woods(), wildood.WoodsAlt()])
def test_a_deployed_model_has_a_hook_where_its_features_are_read_and_nowhere_else(method, toy, trained, schedule):
    detector = fit_frozen(trained(), toy, schedule, method=method, keep="last")
    hooks = sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in detector.classifier.model.modules())
    assert hooks == method.uses_features
