"""The promise of a whole `fit` holds on average, whatever trains and chooses: the threshold's examples do neither."""

import numpy as np
import pytest
import torch
from torch import nn

import wildood

ALPHA, DRAWS = 0.1, 60


class Shaken(wildood.Callback):
    """An adversary: random weights after each step, so that every look is at another candidate, good or bad by luck."""

    def on_step_end(self, training):
        with torch.no_grad():
            for parameter in training.objective.classifier.parameters():
                parameter.add_(0.5 * torch.randn_like(parameter))


def classifier():
    layer = nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[3.0, -3.0], [-3.0, 3.0]]))
        layer.bias.zero_()
    return layer


def known(rng, count, size):
    y = rng.integers(0, 2, count)
    x = np.where(y[:, None] == 0, [1.0, -1.0], [-1.0, 1.0]) * size + 0.5 * rng.normal(size=(count, 2))
    return x.astype(np.float32), y


def false_alarms(rng, size, callbacks):
    """The false-alarm rate on 2,000 new known examples, and whether holdout examples trained."""
    unknown = rng.normal(size=(60, 2)).astype(np.float32) + np.float32([2, 2])
    detector = wildood.fit(
        classifier(),
        known(rng, 300, 1.0),
        np.concatenate([known(rng, 240, size)[0], unknown]),
        known(rng, 300, size),
        schedule=wildood.Schedule(steps=50, batch=64, averaging=not callbacks),
        alpha=ALPHA,
        callbacks=callbacks,
        seed=int(rng.integers(1000)),
        verbose=False,
    )
    found = detector.record["drift"]["found"]
    return float(np.mean(detector.predict(known(rng, 2000, size)[0]) == wildood.UNKNOWN)), found


@pytest.mark.slow
@pytest.mark.parametrize("shaken", [False, True])
@pytest.mark.parametrize(("size", "drifted"), [(1.0, False), (0.5, True)])
def test_new_known_examples_are_rejected_at_most_at_the_promised_rate(size, drifted, shaken):
    rng = np.random.default_rng(0)
    rates, found = zip(*(false_alarms(rng, size, [Shaken()] if shaken else []) for _ in range(DRAWS)), strict=True)
    error = np.std(rates) / np.sqrt(DRAWS)
    assert np.mean(rates) <= ALPHA + 3 * error
    assert np.mean(rates) >= ALPHA - 0.02 - 3 * error  # and the threshold is not needlessly high
    assert np.mean(found) > 0.9 if drifted else np.mean(found) < 0.2
