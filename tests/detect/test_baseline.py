"""The best post-hoc score of the start, which training must beat."""

import numpy as np
import pytest
import torch
from torch import nn

import wildood
from wildood.data.sources import ArraySource, Part
from wildood.detect.baseline import StoredOutputs, best_start
from wildood.detect.split import split_for_fit
from wildood.evaluate.selection import Comparison
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


START = Classifier(model())


@pytest.fixture(scope="module")
def data():
    strange = np.concatenate([ring(400)[0] * (0.8, 0.8, -1)]).astype(np.float32)  # less sure by little, but far from all
    return ring(600), RNG.permutation(np.concatenate([ring(800)[0], strange])), ring(400)


def split(data, **settings):
    return split_for_fit(*data, SHORT, 0.05, None, "best", 0, **settings)


def test_a_score_that_is_shown_to_beat_the_energy_is_the_starts(data):
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


def test_without_unknowns_the_start_has_its_energy():
    found = best_start(model(), START, split((ring(600), ring(800)[0], ring(400))), 0.05, seed=0)
    assert isinstance(found.score, EnergyScore)
    assert found.classifier.tap is None


def test_wild_and_fresh_examples_of_the_training_choose_the_score_too(data):
    parts = split(data)
    aside = parts._replace(wild_aside=Part(parts.wild_aside, torch.arange(5)), fresh=ArraySource(data[0][0]))
    found = best_start(model(), START, aside, 0.05, seed=0)
    assert isinstance(found.score, Knn | Mahalanobis)
    assert [len(each) for each in found.aside] == [200, 5]  # what training will be compared on
    for without in (aside._replace(wild=None), aside._replace(fingerprints={"ood": "which then choose alone"})):
        assert isinstance(best_start(model(), START, without, 0.05, seed=0).score, EnergyScore)


def test_a_model_without_a_linear_layer_is_judged_by_its_logits():
    class Logits(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.eye(3)[:, :2])

        def forward(self, x):
            return x @ self.weight

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
    assert isinstance(found.score, EnergyScore)
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
