"""What a process does whose group is gone, or was never there; several real ones are in test_together."""

import signal

import pytest
import torch
from torch import nn

from wildood.errors import InputError, TrainingError
from wildood.train import distributed
from wildood.train.distributed import Process, peer_failure_message, training_device


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
