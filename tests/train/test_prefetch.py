"""Batches drawn ahead in a thread: the same training, bit by bit, and the same resumption."""

import numpy as np
import pytest
import torch

import wildood
from wildood.models.small import MLP
from wildood.train import checkpoint
from wildood.train.batches import Prefetch

SCHEDULE = wildood.Schedule(steps=9, batch=16)


@pytest.fixture
def arrays(tmp_path):
    rng = np.random.default_rng(0)
    known = {name: rng.normal(size=(90, 3)).astype("float32") for name in ("labelled", "wild", "holdout")}
    for name, array in known.items():
        np.save(tmp_path / f"{name}.npy", array)
    mapped = {name: np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in known}
    return known, mapped, rng.integers(0, 2, 90)


def fitted(arrays, y, **settings):
    torch.manual_seed(0)
    data = (arrays["labelled"], y), arrays["wild"], (arrays["holdout"], y)
    return wildood.fit(MLP(3, 2), *data, alpha=0.1, schedule=SCHEDULE, verbose=False, **settings)


def weights(detector):
    return torch.cat([value.flatten() for value in detector.classifier.model.state_dict().values()])


def test_mapped_data_trains_to_the_same_bits_as_data_in_memory(arrays):
    known, mapped, y = arrays
    assert weights(fitted(mapped, y)).equal(weights(fitted(known, y)))


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("at", [1, 4, 8])
def test_a_run_on_mapped_data_that_was_stopped_goes_on_to_the_same_bits(arrays, tmp_path, monkeypatch, at):
    _, mapped, y = arrays
    expected = weights(fitted(mapped, y))
    monkeypatch.setattr(checkpoint, "SECONDS", 0.0)
    steps = []

    class Watch(wildood.Callback):
        def on_step_end(self, training):
            steps.append(training.steps)
            if steps == list(range(1, at + 2)):
                raise StoppedError

    with pytest.raises(StoppedError):
        fitted(mapped, y, run_dir=tmp_path / "run", callbacks=[Watch()])
    del steps[:]
    assert weights(fitted(mapped, y, run_dir=tmp_path / "run", callbacks=[Watch()])).equal(expected)
    assert steps == list(range(at + 1, 10))


def test_an_error_in_the_thread_is_raised_where_the_batch_is_taken():
    class Gone:
        def draw(self):
            raise OSError("the disk is gone")

    with Prefetch(Gone()) as batches, pytest.raises(OSError, match="the disk is gone"):
        batches.draw()
