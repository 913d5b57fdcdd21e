"""The best post-hoc score of the start, which training must beat."""

from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import wildood
from wildood.data.sources import ArraySource, Part
from wildood.detect.baseline import StoredOutputs, best_start, fitted_ensemble, has_enough_examples
from wildood.detect.drift import _difference
from wildood.detect.split import split_for_fit
from wildood.evaluate.metrics import auroc
from wildood.evaluate.selection import Comparison
from wildood.models.classifier import Classifier, with_features
from wildood.scores.energy import EnergyScore
from wildood.scores.ensemble import Ensemble
from wildood.scores.knn import Knn
from wildood.scores.mahalanobis import Mahalanobis
from wildood.scores.score import score_all

fit_module = import_module("wildood.detect.fit")
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


START = Classifier(model())


@pytest.fixture(scope="module")
def data():
    strange = np.concatenate([ring(400)[0] * (0.8, 0.8, -1)]).astype(np.float32)  # less sure by little, but far from all
    return ring(600), RNG.permutation(np.concatenate([ring(800)[0], strange])), ring(400)


def split(data, **settings):
    return split_for_fit(*data, SHORT, 0.05, None, "best", 0, **settings)


def test_a_score_that_is_shown_to_beat_the_ensemble_is_the_starts(data):
    found = best_start(model(), START, split(data), 0.05, seed=0)
    assert isinstance(found.score, Knn | Mahalanobis)
    known, wild = found.aside
    assert np.mean(wild <= np.quantile(known, 0.95)) < 0.75
    assert isinstance(best_start(model(), START, split(data), 0.05, seed=0, only_energy=True).score, EnergyScore)


def test_fit_deploys_it_where_training_does_not_help_and_the_warning_names_it(data, tmp_path):
    detector = wildood.fit(model(), *data, schedule=SHORT, verbose=False)
    assert isinstance(detector.scorer, Knn | Mahalanobis)
    assessment = detector.record["assessment"]
    assert (assessment["start_kept"], assessment["start_score"]) == (True, type(detector.scorer).__name__)
    assert any(name in assessment["warnings"][0] for name in ("KNN score", "Mahalanobis score"))
    again = wildood.load(detector.save(tmp_path), model=model())
    new = ring(50)[0]
    assert np.allclose(again.score(new), detector.score(new))


def test_without_unknowns_the_start_has_the_ensemble_in_units_of_the_holdout():
    parts = split((ring(600), ring(800)[0], ring(400)))
    found = best_start(model(), START, parts, 0.05, seed=0)
    assert isinstance(found.score, Ensemble)
    known = score_all(found.classifier, parts.selection, found.score.members[0])[0]
    assert found.score.centre[0].item() == pytest.approx(np.median(known), rel=1e-4)
    only_energy = best_start(model(), START, parts, 0.05, seed=0, only_energy=True)
    assert isinstance(only_energy.score, EnergyScore)
    assert only_energy.classifier.tap is None


def wide():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 200), nn.ReLU(), nn.Linear(200, 2))


@pytest.mark.parametrize(
    ("network", "labelled", "score"),
    [
        (model, 40, EnergyScore),  # fewer than neighbours
        (model, 80, EnergyScore),  # each class has fewer
        (model, 120, Ensemble),
        (wide, 120, EnergyScore),  # fewer than features
        (wide, 600, Ensemble),
    ],
)
def test_with_few_labelled_examples_the_start_has_its_energy(network, labelled, score):
    parts = split((ring(600), ring(800)[0], ring(400)))._replace(labelled=ArraySource(*ring(labelled)))
    assert isinstance(best_start(network(), START, parts, 0.05, seed=0).score, score)


@pytest.mark.parametrize(
    ("examples", "classes", "directions", "enough"),
    [
        (499, 10, 64, False),  # 50 neighbours: more than of a class, and than a tenth
        (500, 10, 64, True),
        (500, 100, 64, True),
        (150, 3, 64, True),
        (150, 3, 73, False),  # 147 degrees of freedom
    ],
)
def test_an_ensemble_needs_more_examples_than_neighbours_and_directions(examples, classes, directions, enough):
    score = Ensemble()
    score.members[2].whitening = torch.empty(100, directions)
    assert has_enough_examples(score, torch.arange(examples) % classes) == enough


def test_the_ensemble_of_a_trained_classifier_needs_neighbours():
    parts = split((ring(600), ring(800)[0], ring(400)))
    tapped = with_features(Classifier(model()), parts.labelled)
    score = fitted_ensemble(tapped, parts, seed=0)
    examples = ring(200)[0], ring(200)[0] * np.float32([0.8, 0.8, -1])
    known, strange = (score_all(tapped, ArraySource(x), score)[0] for x in examples)
    assert auroc(known, strange) > 0.8
    few = parts._replace(labelled=ArraySource(*ring(40)))
    assert fitted_ensemble(tapped, few, seed=0) is None
    assert with_features(Classifier(Logits()), parts.labelled) is None


def hooks(classifier):
    return [hook for part in classifier.model.modules() for hook in (*part._forward_pre_hooks, *part._forward_hooks)]


def test_no_hook_stays_on_a_model_whose_features_are_not_needed(data, monkeypatch):
    classifier, parts = Classifier(model()), split(data)
    _difference(classifier, parts.labelled, parts.selection, None)
    assert not hooks(classifier)
    start = best_start(model(), classifier, parts, 0.05, seed=0)
    monkeypatch.setattr(fit_module, "fitted_ensemble", lambda *_: None)
    trained = fit_module._Deployed(classifier, EnergyScore(), {})
    settings = SimpleNamespace(features=None, seed=0, alpha=0.05)
    assert fit_module._with_ensemble(trained, start, parts, settings) is trained
    assert not hooks(classifier)


def test_the_features_that_the_user_names_are_those_of_the_ensemble(data):
    body = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 2))
    found = best_start(body, Classifier(body), split(data), 0.05, seed=0, features="1")
    assert (found.classifier.tap.layer, found.classifier.tap.side) == ("1", "output")
    assert with_features(Classifier(body), split(data).labelled, "1").tap == found.classifier.tap


def test_wild_and_fresh_examples_of_the_training_choose_the_score_too(data):
    parts = split(data)
    aside = parts._replace(wild_aside=Part(parts.wild_aside, torch.arange(5)), fresh=ArraySource(data[0][0]))
    found = best_start(model(), START, aside, 0.05, seed=0)
    assert isinstance(found.score, Knn | Mahalanobis)
    assert [len(each) for each in found.aside] == [200, 5]  # what training will be compared on
    for without in (aside._replace(wild=None), aside._replace(fingerprints={"ood": "which then choose alone"})):
        assert isinstance(best_start(model(), START, without, 0.05, seed=0).score, Ensemble)


class Logits(nn.Module):
    """A linear classifier without a linear layer."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(3)[:, :2])

    def forward(self, x):
        return x @ self.weight


def test_a_model_without_a_linear_layer_is_judged_by_its_logits():
    found = best_start(Logits(), START, split((ring(600), ring(800)[0], ring(400))), 0.05, seed=0)
    assert isinstance(found.score, EnergyScore)


def test_stored_outputs_are_those_of_the_classifier():
    classifier, source = Classifier(model()), ArraySource(ring(20)[0])
    stored = StoredOutputs(classifier, source)
    assert torch.equal(stored(torch.tensor([[3], [0]])).logits, classifier(source.gather(torch.tensor([3, 0]))[0]).logits)
    assert stored.rows().gather(torch.tensor([19]))[0].tolist() == [[19]]


def test_scores_are_not_compared_where_known_traffic_is_like_labelled_data_and_not_like_the_holdout(data):
    labelled, wild, (x, y) = data
    harder = x * np.float32([0.5, 0.5, 1])  # half as sure
    found = best_start(model(), START, split((labelled, wild, (harder, y))), 0.05, seed=0)
    assert found.like_labelled
    assert isinstance(found.score, Ensemble)
    detector = wildood.fit(model(), labelled, wild, (harder, y), schedule=SHORT, verbose=False)
    assert any(
        "as sure of the wild data as of labelled, and surer than of the holdout" in each for each in detector.warnings
    )


@pytest.mark.parametrize("size", [0.8, 3.0])  # less sure of unknowns than of known examples, or surer
def test_unknowns_do_not_make_traffic_look_like_labelled_data(data, size):
    labelled, _, holdout = data
    strange = ring(400)[0] * np.float32([size, size, -1])
    found = best_start(
        model(), Classifier(model()), split((labelled, np.concatenate([ring(800)[0], strange]), holdout)), 0.05, seed=0
    )
    assert not found.like_labelled
    assert isinstance(found.score, Knn | Mahalanobis)


def test_several_candidates_share_the_error_of_the_test():
    comparison = Comparison(start=0.95, trained=0.935, error=0.01, wild=1000, tail=1e9)  # 1.5 standard errors
    assert comparison.helped
    assert comparison.is_shown(0.9, candidates=1)
    assert not comparison.is_shown(0.9, candidates=2)  # 95 % each: 1.64 standard errors
    assert not comparison.is_shown(0.95)
