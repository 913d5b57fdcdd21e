"""BatchNorm of several processes: which layers become SyncBatchNorm, and that they are themselves again afterwards."""

import logging

import pytest
import torch
from torch import nn

from wildood.methods.objective import CrossEntropyObjective
from wildood.models.classifier import Classifier
from wildood.models.features import FeatureTap
from wildood.train import distributed as batch_norm
from wildood.train.distributed import Process, synchronised, synchronised_batch_norm


class FrozenBatchNorm(nn.BatchNorm1d):
    def train(self, mode=True):
        return super().train(False)


class ActivatedBatchNorm(nn.BatchNorm1d):
    def forward(self, x):
        return super().forward(x).relu()


def objective_of(*layers):
    return CrossEntropyObjective(Classifier(nn.Sequential(nn.Linear(2, 4), *layers)))


@pytest.mark.parametrize(("layer", "lines"), [(nn.BatchNorm1d(4), 1), (FrozenBatchNorm(4), 0), (nn.ReLU(), 0)])
def test_batch_norm_that_sees_a_share_of_a_batch_is_told_of_unless_it_is_frozen(caplog, monkeypatch, layer, lines):
    monkeypatch.setattr(batch_norm, "this_process", lambda: Process(0, 2))
    with caplog.at_level(logging.INFO, logger="wildood"), synchronised_batch_norm(objective_of(layer)):
        pass
    assert len(caplog.records) == lines


def test_only_layers_that_normalise_by_the_batch_are_synchronised_and_come_back_with_what_was_learned():
    shared = nn.BatchNorm1d(4)
    layers = nn.BatchNorm1d(4), FrozenBatchNorm(4), ActivatedBatchNorm(4), nn.Sequential(shared, shared)
    objective = objective_of(*layers)
    network = objective.classifier.model
    names = list(objective.state_dict())
    with synchronised(objective):
        assert [type(part) for part in network[1:4]] == [nn.SyncBatchNorm, FrozenBatchNorm, ActivatedBatchNorm]
        assert isinstance(network[4][0], nn.SyncBatchNorm)
        assert network[4][0] is network[4][1]
        assert not network[2].training
        assert list(objective.state_dict()) == names
        with torch.no_grad():
            network[1].weight.fill_(7.0)
            network[1].running_mean.fill_(8.0)
        objective.load_state_dict({name: value + 1 for name, value in objective.state_dict().items()})
        objective.eval()
    assert [network[at] is layer for at, layer in enumerate(layers, 1)] == 4 * [True]
    assert network[4][0] is network[4][1] is shared
    assert layers[0].weight.tolist() == 4 * [8.0]
    assert layers[0].running_mean.tolist() == 4 * [9.0]
    assert not layers[0].training


def test_a_layer_that_is_synchronised_keeps_its_hooks():
    classifier = Classifier(nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU()), tap=FeatureTap("1", "output"))
    seen = []
    classifier.model[1].register_forward_pre_hook(lambda *_: seen.append("mine"))
    x = torch.randn(3, 2)
    with synchronised(CrossEntropyObjective(classifier)):
        classifier.eval()
        assert isinstance(classifier.model[1], nn.SyncBatchNorm)
        features = classifier(x).features
    assert torch.equal(features, classifier.model[1](classifier.model[0](x)))
    assert seen == ["mine", "mine"]
