"""The optimiser: gradients of the last layer in white coordinates, for the methods that ask for it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import wildood
from wildood.data.given import labelled_source
from wildood.data.wild import WildPool, as_wild
from wildood.models.outputs import Classifier, tap_features
from wildood.models.small import MLP
from wildood.train.loop import Training
from wildood.train.monitor import start_of
from wildood.train.optimiser import optimiser_of

RNG = np.random.default_rng(0)
LABELLED = labelled_source((RNG.normal(size=(64, 2)).astype(np.float32), RNG.integers(0, 3, 64)), "labelled")
WILD: WildPool = as_wild(RNG.normal(size=(64, 2)).astype(np.float32))
PLAIN = wildood.Schedule(steps=1, batch=16, momentum=0.0, weight_decay=0.0, clip=0.0)


def network() -> Classifier:
    torch.manual_seed(0)
    return Classifier(MLP(2, 3))


@pytest.mark.parametrize(
    ("method", "white"),
    [
        (wildood.Woods(), True),
        (wildood.EnergyLogistic(), True),
        (wildood.OutlierExposure(), False),
        (wildood.EnergyMargin(), False),
        (wildood.WoodsAlt(), True),
        (wildood.Woods.as_published(), False),
        (wildood.WoodsAlt.as_published(), False),
    ],
)
def test_methods_that_are_trained_in_white_coordinates(method, white):
    classifier = network()
    classifier.tap = tap_features(classifier.model, torch.zeros(1, 2), None)
    assert (method.objective(classifier, start_of(classifier, LABELLED, 0)).whitening is not None) == white


def step(schedule: wildood.Schedule, *, white: bool) -> tuple[Classifier, torch.Tensor]:
    """The classifier after a step, and by what the gradient of its last layer is multiplied."""
    classifier = network()
    start = start_of(classifier, LABELLED, 0)
    objective = wildood.Woods().objective(classifier, start)
    objective.whitening = objective.whitening if white else None
    Training(objective, LABELLED, WILD, schedule, seed=0, keep="last").train()
    return classifier, start.whitening.matrix


@pytest.mark.parametrize("clip", [0.0, 0.01])
def test_step_of_the_last_layer_is_multiplied_after_the_clip_and_all_others_are_as_they_were(clip):
    schedule = replace(PLAIN, clip=clip)
    before = network().model.state_dict()
    (found, matrix), (plain, _) = step(schedule, white=True), step(schedule, white=False)
    for name, value in found.model.state_dict().items():
        moved, expected = value - before[name], plain.model.state_dict()[name] - before[name]
        if value.shape == (3, len(matrix)):
            assert not torch.allclose(moved, expected, rtol=1.0)
            moved = torch.linalg.solve(matrix.double(), moved.double(), left=False).float()
        torch.testing.assert_close(moved, expected, rtol=1e-3, atol=1e-7)


def test_head_of_woods_alt_is_trained_in_white_coordinates_of_its_features():
    classifier = network()
    classifier.tap = tap_features(classifier.model, torch.zeros(1, 2), None)
    start = start_of(classifier, LABELLED, 0)
    objective = wildood.WoodsAlt().objective(classifier, start)
    assert objective.whitening.weight is objective.score.head.layers[0].weight
    assert torch.equal(objective.whitening.matrix, start.whitening.matrix)


def test_head_on_features_that_are_not_the_last_layers_is_trained_as_it_is():
    classifier = network()
    classifier.tap = tap_features(classifier.model, torch.zeros(1, 2), None, name="body.0")
    assert wildood.WoodsAlt().objective(classifier, start_of(classifier, LABELLED, 0)).whitening is None


def test_optimiser_without_whitening_leaves_gradients_alone():
    classifier = network()
    objective = wildood.EnergyMargin().objective(classifier, start_of(classifier, LABELLED, 0))
    assert not optimiser_of(objective, PLAIN)._optimizer_step_pre_hooks
