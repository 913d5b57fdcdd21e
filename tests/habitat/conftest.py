"""A clock that tests set, a store of short windows, answers to record; and a habitat of points of the plane."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import wildood
from wildood.habitat.answers import Answers
from wildood.habitat.habitat import Habitat, Settings
from wildood.habitat.store import Store
from wildood.models.small import MLP

DAY = 86400.0
CENTRES = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0]])


class Clock:
    """Tells the time that was set."""

    def __init__(self, now):
        self.now = now

    def __call__(self):
        return self.now

    def pass_days(self, days=1.0):
        self.now += days * DAY


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


@dataclass
class Plane:
    """Draws points, known ones in three heaps and unknown ones beyond them, and feeds them to habitats as a server would."""

    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def known(self, count, shift=0.0):
        y = self.rng.integers(0, 3, count)
        return (CENTRES[y] + self.rng.normal(size=(count, 2)) + shift).astype(np.float32), y

    def unknown(self, count):
        return (0.5 * self.rng.normal(size=(count, 2)) + 8).astype(np.float32)

    def traffic(self, count, share=0.0, shift=0.0):
        """Points, and the class of each; -1 for unknown."""
        x, y = self.known(count, shift)
        some = self.rng.random(count) < share
        x[some], y[some] = self.unknown(int(some.sum())), -1
        return x, y

    def feed(self, habitat, x, truth=None, **settings):
        """Answer and record; remembers the truth by the id of the answer in `habitat.truth`."""
        detector = habitat.detector()
        scores, classes = detector.score_and_classify(x)
        answers = Answers(
            [""] * len(x), habitat.champion, scores, classes, detector.accepts(scores, classes), np.full(len(x), np.nan)
        )
        last = habitat.store.rows().id.max(initial=0)
        habitat.store.append(answers, torch.from_numpy(x), **settings)
        if truth is not None:
            habitat.truth = {**getattr(habitat, "truth", {}), **dict(enumerate(truth.tolist(), int(last) + 1))}

    def judge(self, habitat, ids):
        """Judge as the truth is."""
        habitat.review({int(each): "unknown" if habitat.truth[each] < 0 else habitat.truth[each] for each in ids}, who="ann")


@pytest.fixture
def plane():
    return Plane()


@pytest.fixture(scope="session")
def plane_model():
    """A classifier of the three heaps."""
    plane = Plane(np.random.default_rng(7))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MLP(2, 3, hidden=(16,))
        optimizer = torch.optim.Adam(model.parameters(), 0.02)
        for _ in range(150):
            x, y = plane.known(128)
            optimizer.zero_grad()
            F.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y)).backward()
            optimizer.step()
    return model.eval()


@pytest.fixture(scope="session")
def first_detector(plane_model):
    """The first champion: a post-hoc score with a holdout of its own."""
    holdout = Plane(np.random.default_rng(8)).known(800)
    return wildood.posthoc(plane_model, wildood.EnergyScore(), holdout=holdout)


@pytest.fixture
def plane_habitat(tmp_path, first_detector, clock):
    """A habitat whose champion misses half of the unknown points."""
    return Habitat.create(tmp_path / "h", first_detector, Settings(retain=None), clock=clock)
