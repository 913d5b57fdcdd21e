"""What a process does whose group is gone, or was never there; several real ones are in test_together."""

import logging
import signal

import pytest
import torch
from torch import nn

from wildood.errors import InputError, TrainingError
from wildood.methods.objective import CrossEntropyObjective
from wildood.models.classifier import Classifier
from wildood.models.features import FeatureTap
from wildood.train import distributed
from wildood.train.distributed import (
    Process,
    peer_failure_message,
    synchronised,
    synchronised_batch_norm,
    training_device,
)


@pytest.fixture
def sigterm():
    """The handler of SIGTERM is the usual one, and is put back."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def test_sigterm_passes_while_the_loss_of_a_process_is_said_and_has_its_usual_effect_later(sigterm, monkeypatch):
    monkeypatch.setattr(distributed, "this_process", lambda: Process(0, 2))
    with (
        pytest.raises(TrainingError, match="it goes on from its last checkpoint"),
        peer_failure_message(),
    ):
        raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer")
    came = []
    monkeypatch.setattr(signal, "raise_signal", came.append)
    handler = signal.getsignal(signal.SIGTERM)
    handler(signal.SIGTERM, None)
    assert came == []
    now = distributed.time.monotonic()
    monkeypatch.setattr(distributed.time, "monotonic", lambda: now + distributed.SECONDS)
    handler(signal.SIGTERM, None)
    assert came == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_sigterm_is_as_it_was_after_a_run_that_ended_well_or_by_an_error_of_its_own(sigterm, monkeypatch):
    monkeypatch.setattr(distributed, "this_process", lambda: Process(0, 2))
    with peer_failure_message():
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with pytest.raises(RuntimeError, match="shapes"), peer_failure_message():
        raise RuntimeError("shapes cannot be multiplied")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_group_that_the_user_has_left_already_is_not_left_again():
    distributed._leave()
    assert not torch.distributed.is_initialized()


def test_a_model_where_processes_cannot_exchange_gradients_is_refused(monkeypatch):
    monkeypatch.setattr(distributed, "join", lambda: Process(0, 2))
    assert training_device(nn.Linear(2, 3)) is None
    with pytest.raises(InputError, match="the model is on meta, where processes cannot share a run: move it to the CPU or"):
        training_device(nn.Linear(2, 3, device="meta"))


def test_each_of_several_processes_has_the_gpu_that_the_launcher_gave_it(monkeypatch):
    used = []
    monkeypatch.setattr(distributed, "chosen_device", torch.device)
    monkeypatch.setattr(torch.cuda, "set_device", used.append)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(distributed, "join", lambda: Process(0, 1))
    assert training_device(nn.Linear(2, 3), "cuda") == torch.device("cuda")
    monkeypatch.setattr(distributed, "join", lambda: Process(1, 2))
    assert training_device(nn.Linear(2, 3), "cuda") == torch.device("cuda", 1)
    assert training_device(nn.Linear(2, 3), "cpu") == torch.device("cpu")
    assert used == [1]


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
    monkeypatch.setattr(distributed, "this_process", lambda: Process(0, 2))
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
