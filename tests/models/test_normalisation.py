"""Normalisation by the labelled examples of a batch."""

import copy

import pytest
import torch
from torch import nn

from wildood.methods.objective import Batch, CrossEntropyObjective
from wildood.models.classifier import Classifier
from wildood.models.normalisation import normalised_by_labelled


class OwnNorm(nn.BatchNorm1d):
    """A user's own layer with running statistics."""

    def forward(self, x):
        return super().forward(x).relu()


def by_hand(norm, x, labelled):
    """BatchNorm by its definition, with the statistics of the first examples."""
    axes = [0, *range(2, x.ndim)]
    shape = [1, -1, *([1] * (x.ndim - 2))]
    known = x[:labelled]
    mean = known.mean(axes, keepdim=True)
    variance = ((known - mean) ** 2).mean(axes, keepdim=True)
    return (x - mean) / (variance + norm.eps).sqrt() * norm.weight.view(shape) + norm.bias.view(shape)


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (nn.BatchNorm1d(4), (7, 4)),
        (nn.BatchNorm1d(4), (7, 4, 3)),
        (nn.BatchNorm2d(4), (7, 4, 3, 2)),
        (nn.BatchNorm3d(4), (7, 4, 3, 2, 2)),
        (nn.SyncBatchNorm(4), (7, 4)),
        (nn.BatchNorm1d(4, momentum=None), (7, 4)),
    ],
)
def test_outputs_gradients_and_running_statistics_are_those_of_the_labelled_examples(norm, shape):
    nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
    alone, x = copy.deepcopy(norm), torch.randn(shape, dtype=torch.float64)
    norm.double(), alone.double()
    x[4:] *= 1000
    theirs, ours = x.clone().requires_grad_(), x.clone().requires_grad_()
    weights = torch.randn(shape, dtype=torch.float64)
    with normalised_by_labelled(norm, labelled=4, total=7):
        found = norm(ours)
    expected = by_hand(alone, theirs, 4)
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    assert torch.allclose(ours.grad, theirs.grad, rtol=1e-3, atol=1e-4)
    alone.train()(x[:4])
    assert torch.allclose(norm.running_mean, alone.running_mean)
    assert torch.allclose(norm.running_var, alone.running_var)
    assert int(norm.num_batches_tracked) == 1


@pytest.mark.parametrize("rows", [3, 15])  # pooled, or tokens, which may be in any order
def test_a_layer_whose_rows_are_not_those_of_the_examples_normalises_by_running_statistics(rows):
    norm, x = nn.BatchNorm1d(2), 10 + torch.randn(rows, 2)
    with normalised_by_labelled(norm, labelled=2, total=5):
        found = norm(x)
    assert torch.allclose(found, norm.eval()(x))
    assert torch.equal(norm.running_mean, torch.zeros(2))


def test_a_layer_without_running_statistics_then_normalises_by_all_rows():
    norm, tokens = nn.BatchNorm1d(2, track_running_stats=False), torch.randn(15, 2)
    with normalised_by_labelled(norm, labelled=2, total=5):
        found = norm(tokens)
    assert torch.allclose(found, norm(tokens))


def test_layers_in_evaluation_mode_and_layers_of_ones_own_keep_their_statistics_and_all_are_as_they_were_afterwards():
    frozen, own, plain = nn.BatchNorm1d(2).eval(), OwnNorm(2), nn.BatchNorm1d(2)
    model, x = nn.Sequential(frozen, own, plain), 5 + torch.randn(6, 2)
    with normalised_by_labelled(model, labelled=3, total=6):
        model(x)
    assert torch.equal(frozen.running_mean, torch.zeros(2))
    assert torch.equal(own.running_mean, torch.zeros(2))
    assert not torch.equal(plain.running_mean, torch.zeros(2))
    assert [layer.training for layer in model] == [False, True, True]
    assert "forward" not in vars(plain)


@pytest.mark.parametrize(("normalisation", "mean"), [("labelled", 1.0), ("batch", 5.0)])
def test_an_objective_normalises_by_the_examples_that_the_schedule_names(normalisation, mean):
    norm = nn.BatchNorm1d(2, momentum=1.0)
    objective = CrossEntropyObjective(Classifier(nn.Sequential(norm, nn.Linear(2, 3)))).train()
    objective.normalisation = normalisation
    objective(Batch(torch.ones(4, 2), torch.zeros(4, dtype=torch.int64), 9 * torch.ones(4, 2)))
    assert torch.allclose(norm.running_mean, torch.full((2,), mean))
