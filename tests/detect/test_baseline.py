"""The best post-hoc score of the start, which training must beat."""

import logging

import numpy as np
import pytest
import torch
from torch import nn

import wildood
from wildood.data.sources import ArraySource
from wildood.detect.baseline import StoredOutputs, best_start
from wildood.detect.split import split_for_fit
from wildood.models.classifier import Classifier
from wildood.scores.energy import EnergyScore
from wildood.scores.knn import Knn
from wildood.scores.mahalanobis import Mahalanobis

RNG = np.random.default_rng(0)
SHORT = wildood.Schedule(steps=2, batch=32, lr=1e-9)  # trains nothing


def ring(count):
    """Two classes on a circle: in its middle, a linear classifier is no surer or less sure than on it."""
    angle = RNG.uniform(0, 2 * np.pi, count)
    x = np.stack([10 * np.cos(angle), 10 * np.sin(angle), np.ones(count)], 1) + 0.1 * RNG.normal(size=(count, 3))
    return x.astype(np.float32), (x[:, 0] > 0).astype(np.int64)


def model():
    layer = nn.Linear(3, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[-1.0, 0, 0], [1.0, 0, 0]])), layer.bias.zero_()
    return layer


@pytest.fixture(scope="module")
def data():
    strange = np.concatenate([ring(400)[0] * (0.8, 0.8, -1)]).astype(np.float32)  # less sure by little, but far from all
    return ring(600), RNG.permutation(np.concatenate([ring(800)[0], strange])), ring(400)


def split(data, **settings):
    return split_for_fit(*data, SHORT, 0.05, None, "best", 0, **settings)


def test_a_score_that_is_shown_to_beat_the_energy_is_the_starts(data):
    found = best_start(model(), None, split(data), 0.05, seed=0)
    assert isinstance(found.score, Knn | Mahalanobis)
    known, wild = found.aside
    assert np.mean(wild <= np.quantile(known, 0.95)) < 0.75
    assert isinstance(best_start(model(), None, split(data), 0.05, seed=0, only_energy=True).score, EnergyScore)


def test_fit_deploys_it_where_training_does_not_help_and_the_warning_names_it(data, tmp_path):
    detector = wildood.fit(model(), *data, schedule=SHORT, verbose=False)
    assert isinstance(detector.scorer, Knn | Mahalanobis)
    assessment = detector.record["assessment"]
    assert (assessment["start_kept"], assessment["start_score"]) == (True, type(detector.scorer).__name__)
    assert any(name in assessment["warnings"][0] for name in ("KNN score", "Mahalanobis score"))
    again = wildood.load(detector.save(tmp_path), model=model())
    new = ring(50)[0]
    assert np.allclose(again.score(new), detector.score(new))


def test_without_unknowns_the_start_has_its_energy():
    found = best_start(model(), None, split((ring(600), ring(800)[0], ring(400))), 0.05, seed=0)
    assert isinstance(found.score, EnergyScore)
    assert found.classifier.tap is None


def test_a_model_without_a_linear_layer_is_judged_by_its_logits():
    class Logits(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.eye(3)[:, :2])

        def forward(self, x):
            return x @ self.weight

    found = best_start(Logits(), None, split((ring(600), ring(800)[0], ring(400))), 0.05, seed=0)
    assert isinstance(found.score, EnergyScore)


def test_stored_outputs_are_those_of_the_classifier():
    classifier, source = Classifier(model()), ArraySource(ring(20)[0])
    stored = StoredOutputs(classifier, source)
    assert torch.equal(stored(torch.tensor([[3], [0]])).logits, classifier(source.gather(torch.tensor([3, 0]))[0]).logits)
    assert stored.rows().gather(torch.tensor([19]))[0].tolist() == [[19]]


def test_a_third_of_a_large_holdout_is_fresh_and_neither_chooses_nor_sets_the_threshold(data, caplog):
    labelled, wild, _ = data
    holdout = ring(600)
    with caplog.at_level(logging.INFO, logger="wildood"):
        parts = split((labelled, wild, holdout), from_holdout=True)
    assert [len(part) for part in (parts.fresh, parts.selection, parts.threshold)] == [200, 200, 200]
    rows = [part.gather(torch.arange(200))[0].numpy() for part in (parts.fresh, parts.selection, parts.threshold)]
    assert len(np.unique(np.concatenate(rows), axis=0)) == 600
    assert "200 of the 600 holdout examples take part in training" in caplog.text


@pytest.mark.parametrize(("count", "settings"), [(599, {"from_holdout": True}), (600, {})])
def test_a_smaller_holdout_and_a_published_method_train_on_labelled_alone(data, count, settings):
    labelled, wild, _ = data
    parts = split((labelled, wild, ring(count)), **settings)
    assert parts.fresh is None
    assert len(parts.selection) + len(parts.threshold) == count


def test_fresh_examples_are_used_as_given_and_recorded(data):
    fresh = ring(100)
    detector = wildood.fit(model(), *data, fresh=fresh, schedule=SHORT, verbose=False)
    assert "fresh" in detector.record["data"]
    assert detector.promise.examples == 200
    with pytest.raises(wildood.InputError, match="100 of the 400 holdout examples are in fresh, too"):
        wildood.fit(model(), *data, fresh=data[2][0][:100], schedule=SHORT, verbose=False)
    with pytest.raises(wildood.InputError, match="fresh has shape"):
        wildood.fit(model(), *data, fresh=np.zeros(3, np.float32), schedule=SHORT, verbose=False)
    with pytest.raises(wildood.InputError, match="fresh examples are for methods that train on wild data"):
        wildood.fit(model(), data[0], None, data[2], fresh=fresh, method=wildood.Godin(epsilon=0.0), verbose=False)
