"""Layers with running statistics in fine-tuning."""

import pytest
import torch
from torch import nn

from wildood.methods.objective import Batch, CrossEntropyObjective
from wildood.models.classifier import Classifier
from wildood.models.normalisation import running_statistics


class OwnNorm(nn.BatchNorm1d):
    """A user's own layer with running statistics."""

    def forward(self, x):
        return super().forward(x).relu()


NORMS = [
    (nn.BatchNorm1d(4), (7, 4)),
    (nn.BatchNorm2d(4), (7, 4, 3, 2)),
    (nn.BatchNorm3d(4), (7, 4, 3, 2, 2)),
    (nn.SyncBatchNorm(4), (7, 4)),
    (nn.InstanceNorm1d(4, affine=True, track_running_stats=True), (7, 4, 3)),
    (OwnNorm(4), (7, 4)),
]


@pytest.mark.parametrize(("norm", "shape"), NORMS)
def test_outputs_and_gradients_are_those_of_the_deployed_network_and_statistics_stay(norm, shape):
    nn.init.normal_(norm.running_mean), nn.init.uniform_(norm.running_var, 0.5, 2), nn.init.normal_(norm.weight)
    before, x = norm.running_mean.clone(), torch.randn(shape, requires_grad=True)
    with running_statistics(norm.train()):
        found = norm(x)
    (ours,) = torch.autograd.grad(found.square().sum(), x)
    deployed = norm.eval()(x)
    (theirs,) = torch.autograd.grad(deployed.square().sum(), x)
    assert torch.equal(found, deployed)
    assert torch.equal(ours, theirs)
    assert torch.equal(norm.running_mean, before)


def test_a_layer_without_running_statistics_is_left_alone_and_all_modes_are_as_they_were_afterwards():
    frozen, own, without = nn.BatchNorm1d(2).eval(), OwnNorm(2), nn.BatchNorm1d(2, track_running_stats=False)
    model, x = nn.Sequential(frozen, own, without), 5 + torch.randn(6, 2)
    with running_statistics(model):
        inside = [layer.training for layer in model]
        model(x)
    assert inside == [False, False, True]
    assert [layer.training for layer in model] == [False, True, True]
    assert torch.equal(own.running_mean, torch.zeros(2))


@pytest.mark.parametrize(("normalisation", "mean"), [("running", 0.0), ("batch", 5.0)])
def test_an_objective_normalises_by_what_the_schedule_names(normalisation, mean):
    norm = nn.BatchNorm1d(2, momentum=1.0)
    objective = CrossEntropyObjective(Classifier(nn.Sequential(norm, nn.Linear(2, 3)))).train()
    objective.normalisation = normalisation
    objective(Batch(torch.ones(4, 2), torch.zeros(4, dtype=torch.int64), 9 * torch.ones(4, 2)))
    assert torch.allclose(norm.running_mean, torch.full((2,), mean))


def test_training_without_wild_examples_normalises_by_the_batch():
    norm = nn.BatchNorm1d(2, momentum=1.0)
    objective = CrossEntropyObjective(Classifier(nn.Sequential(norm, nn.Linear(2, 3)))).train()
    objective(Batch(torch.ones(4, 2), torch.zeros(4, dtype=torch.int64)))
    assert torch.equal(norm.running_mean, torch.ones(2))
