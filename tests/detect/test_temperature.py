"""A classifier with logits of another size is the same classifier: its last layer is divided by a temperature."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wildood
from wildood.data.sources import ArraySource
from wildood.detect.temperature import degenerate_temperature, divide_logits
from wildood.evaluate.metrics import fpr_at_tpr
from wildood.models.classifier import Classifier
from wildood.models.small import MLP

SHORT = wildood.Schedule(steps=60, batch=64)


@pytest.fixture(scope="module")
def answers():
    """Logits of ten classes, right on about nine tenths, and their labels."""
    rng = np.random.default_rng(0)
    labels = torch.from_numpy(rng.integers(0, 10, 400))
    return 4 * F.one_hot(labels, 10) + torch.from_numpy(1.4 * rng.normal(size=(400, 10))), labels


@pytest.mark.parametrize("scale", [1e-5, 1e-2, 30.0, 1e4])
def test_logits_that_are_too_small_or_too_large_get_the_temperature_with_the_least_cross_entropy(answers, scale):
    logits, labels = answers
    found = degenerate_temperature(scale * logits, labels)
    temperature = torch.tensor(found, dtype=torch.float64, requires_grad=True)
    F.cross_entropy(scale * logits / temperature, labels, label_smoothing=1 / 401).backward()
    assert abs(float(temperature.grad) * found) < 1e-3  # of the logarithm of the temperature
    assert found == pytest.approx(scale * 1e3 * degenerate_temperature(1e-3 * logits, labels), rel=0.01)


def test_examples_without_an_error_have_a_finite_temperature(answers):
    logits, _ = answers
    gaps = logits.topk(2).values.diff().abs()
    found = degenerate_temperature(1e-4 * logits, logits.argmax(1))
    assert 3 < float((1e-4 * gaps / found).median()) < 20


def test_other_classifiers_keep_their_probabilities(answers):
    logits, labels = answers
    assert [degenerate_temperature(scale * logits, labels) for scale in (0.5, 1.0, 3.0)] == [None] * 3
    assert degenerate_temperature(1e-3 * logits, labels.roll(1)) is None  # wrong on most examples
    assert degenerate_temperature(1e-3 * logits[:0], labels[:0]) is None


def scaled(model: MLP, by: float) -> MLP:
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.mul_(by)
    return model


@pytest.mark.parametrize("by", [1e-4, 1e4])
def test_fit_is_as_good_whatever_the_size_of_the_logits(trained, toy, by, caplog, tmp_path):
    rng = np.random.default_rng(5)
    wild = np.concatenate([toy.test[0], (0.5 * rng.normal(size=(100, 2)) + 3).astype(np.float32)])
    model = scaled(trained(), by)
    before = copy.deepcopy(model.state_dict())
    detector = wildood.fit(model, toy.labelled, wild, toy.holdout, schedule=SHORT, alpha=0.1, verbose=False)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())
    plain = wildood.fit(trained(), toy.labelled, wild, toy.holdout, schedule=SHORT, alpha=0.1, verbose=False)
    first, second = (fpr_at_tpr(each.score(toy.test[0]), each.score(toy.unknown)) for each in (detector, plain))
    assert first <= second + 0.1
    assert np.mean(detector.classify(toy.test[0]) == toy.test[1]) > 0.98
    (warning,) = [text for text in detector.warnings if text.startswith("the model's logits are too")]
    assert [record.message for record in caplog.records].count(warning) == 1
    detector.save(tmp_path)
    assert warning in wildood.load(tmp_path, model=trained()).warnings
    assert not any("logits are too" in text for text in plain.warnings)


class Cubed(nn.Module):
    """The cubes of what a model returns, made small."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return 1e-5 * self.inner(x) ** 3


def test_a_model_whose_last_layer_does_not_make_the_logits_is_only_warned_of(trained, toy):
    model = Cubed(trained())
    classifier = Classifier(model)
    data = ArraySource(*toy.labelled), ArraySource(*toy.test)
    same, as_before, notes = divide_logits(model, classifier, data, Classifier)
    assert same is model
    assert as_before is classifier
    assert "too small" in notes["temperature"]
    assert "; divide them by " in notes["temperature"]


def test_a_holdout_that_is_scaled_otherwise_is_no_reason(trained, toy):
    model, wrong = trained(), ArraySource(1000 * toy.test[0], (toy.test[1] + 1) % 3)
    classifier = Classifier(model)
    logits = classifier(torch.from_numpy(wrong.examples)).logits.detach()
    assert degenerate_temperature(logits, logits.argmax(1)) is None
    labels = np.where(np.arange(300) < 100, wrong.labels, logits.argmax(1))
    right = ArraySource(wrong.examples, labels)
    assert degenerate_temperature(logits, torch.from_numpy(right.labels)) is not None
    assert divide_logits(model, classifier, (ArraySource(*toy.labelled), right), Classifier) == (model, classifier, {})
