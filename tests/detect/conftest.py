"""Three Gaussian classes, wild traffic with something else in it, and a small classifier that knows the three."""

import copy
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import wildood
from wildood.models.small import MLP, SmallCNN

CENTRES = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0]])


class Toy(NamedTuple):
    """Points of the plane: known ones in three heaps, unknown ones between them."""

    labelled: tuple[np.ndarray, np.ndarray]
    wild: np.ndarray
    holdout: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    unknown: np.ndarray


@pytest.fixture(scope="session")
def toy():
    rng = np.random.default_rng(0)

    def known(count):
        y = rng.integers(0, 3, count)
        return (CENTRES[y] + rng.normal(size=(count, 2))).astype(np.float32), y

    def unknown(count):
        return (0.5 * rng.normal(size=(count, 2)) + 3).astype(np.float32)

    data = Toy(known(160), np.concatenate([known(90)[0], unknown(10)]), known(120), known(300), unknown(50))
    for array in (*data.labelled, data.wild, *data.holdout, *data.test, data.unknown):
        array.flags.writeable = False
    return data


@pytest.fixture(scope="session")
def trained(toy):
    """A function that gives a new copy of one trained classifier."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MLP(2, 3, hidden=(16,))
    x, y = torch.tensor(toy.labelled[0]), torch.tensor(toy.labelled[1])
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(100):
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimiser.step()
    model.zero_grad()
    return lambda: copy.deepcopy(model)


@pytest.fixture(scope="session")
def schedule():
    return wildood.Schedule(steps=10, batch=32, lr=0.01)


@pytest.fixture(scope="session")
def fits(toy, trained, schedule):
    """One detector for each method, of the last epoch: what training adds is there, whether it has helped or not."""
    settings = {"schedule": schedule, "keep": "last", "verbose": False}
    methods = {"woods": wildood.Woods(), "woods-alt": wildood.WoodsAlt()}
    return {
        name: wildood.fit(trained(), toy.labelled, toy.wild, toy.holdout, method=method, **settings)
        for name, method in methods.items()
    }


@pytest.fixture(scope="session")
def chosen_once(toy, trained, schedule):
    return wildood.fit(trained(), toy.labelled, toy.wild, toy.holdout, schedule=schedule, verbose=False)


@pytest.fixture
def chosen(chosen_once):
    """A detector that half of the holdout has chosen."""
    return copy.deepcopy(chosen_once)


@pytest.fixture
def woods(fits):
    return copy.deepcopy(fits["woods"])


@pytest.fixture
def woods_alt(fits):
    return copy.deepcopy(fits["woods-alt"])


@pytest.fixture
def images():
    """60 uint8 images in NHWC, and a detector of the energy score on them."""
    rng = np.random.default_rng(1)
    return rng.integers(0, 256, size=(60, 8, 8, 1), dtype=np.uint8)


@pytest.fixture
def image_detector(images):
    spec = wildood.InputSpec(mean=(0.5,), std=(0.25,))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = SmallCNN(4)
    return wildood.posthoc(model, wildood.EnergyScore(), holdout=images, input=spec)
