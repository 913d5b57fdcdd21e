"""A small trained classifier on separable data, shared by the tests of the scores."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import wildood
from wildood.models.small import MLP


@pytest.fixture(scope="session")
def separable():
    """Three classes that are easy to tell apart, and OOD data far from all of them."""
    rng = np.random.default_rng(0)
    centres = 5 * np.eye(6)[:3]

    def known(count):
        y = rng.integers(0, 3, count)
        return (rng.normal(size=(count, 6)) + centres[y]).astype("float32"), y

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        start = MLP(6, 3, hidden=(24, 12))
    labelled = known(900)
    schedule = wildood.Schedule(epochs=15, batch=64, lr=0.05, decay="milestones", averaging=False, clip=0.0)
    model = wildood.pretrain(start, labelled, schedule=schedule, verbose=False)
    ood = (rng.normal(size=(300, 6)) - 5 * np.eye(6)[3:].sum(0)).astype("float32")
    wild = np.concatenate([known(450)[0], ood[:50]])
    return SimpleNamespace(
        model=model, labelled=labelled, holdout=known(200), test=known(300), wild=wild, ood=ood[50:], known=known
    )
