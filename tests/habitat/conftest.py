"""A clock that tests set, a store of short windows, and answers to record."""

import numpy as np
import pytest
import torch

import wildood
from wildood.habitat.answers import Answers
from wildood.habitat.store import Store
from wildood.models.small import MLP


class Clock:
    """Tells the time that was set."""

    def __init__(self, now):
        self.now = now

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock(1_000_000.0)


@pytest.fixture
def store(tmp_path, clock):
    return Store.create(tmp_path / "store", clock=clock, window=100.0)


@pytest.fixture(scope="session")
def answers():
    """A function that makes answers whose scores count on from a number."""

    def make(count, first=0, **settings):
        numbers = np.arange(first, first + count)
        request = [f"r{number}" for number in numbers]
        return Answers(request, "d0001", numbers / 10, numbers % 3, numbers % 2 == 0, numbers / 1000, **settings)

    return make


@pytest.fixture(scope="session")
def vectors():
    """A function that makes examples that are their own number, twice."""

    def make(count, first=0):
        return torch.arange(first, first + count, dtype=torch.float32)[:, None].repeat(1, 2)

    return make


@pytest.fixture(scope="session")
def detector():
    """A detector of points of the plane, with a promise."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MLP(2, 3, hidden=(4,))
    holdout = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
    return wildood.posthoc(model, wildood.EnergyScore(), holdout=holdout, alpha=0.1)
