"""The store: what is recorded is read back, sampled uniformly, and consistent."""

import numpy as np
import pytest
import torch

from wildood.habitat.answers import Answers
from wildood.habitat.store import Store


class Clock:
    def __init__(self, now=1_000_000.0):
        self.now = now

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(tmp_path, clock):
    return Store.create(tmp_path, clock=clock, window=100.0)


def answers(count, first=0, **settings):
    numbers = np.arange(first, first + count)
    return Answers(
        [f"r{n}" for n in numbers], "d0001", numbers / 10, numbers % 3, numbers % 2 == 0, numbers / 1000, **settings
    )


def vectors(count, first=0):
    return torch.arange(first, first + count, dtype=torch.float32)[:, None].expand(-1, 2).clone()


def test_what_was_recorded_is_read_back(store):
    assert store.append(answers(3), vectors(3)) == 3
    assert store.append(answers(2, 3), None) == 2
    rows = store.rows()
    assert rows.id.tolist() == [1, 2, 3, 4, 5]
    assert rows.request.tolist() == ["r0", "r1", "r2", "r3", "r4"]
    assert rows.score.tolist() == [0.0, 0.1, 0.2, 0.3, 0.4]
    assert rows.class_.tolist() == [0, 1, 2, 0, 1]
    assert rows.known.tolist() == [True, False, True, False, True]
    assert rows.p_value.tolist() == [0.0, 0.001, 0.002, 0.003, 0.004]
    assert rows.time.tolist() == [1e6] * 5
    assert rows.has_example.tolist() == [True, True, True, False, False]
    assert len(store.rows(with_examples=True)) == 3
    assert store.rows(after=1, until=4).id.tolist() == [2, 3, 4]
    assert len(store.rows(detector="d0002")) == 0
    assert store.source([3, 1]).gather(torch.tensor([0, 1]))[0].tolist() == [[2.0, 2.0], [0.0, 0.0]]
    windows = store.windows()
    assert (windows.seen.tolist(), windows.unknown.tolist(), windows.sampled.tolist()) == ([5], [2], [5])
    assert store.check() == []


def test_sampling(store):
    for first in range(0, 1000, 100):
        store.append(answers(100, first), vectors(100, first), sample=0.5, per_window=50)
    windows = store.windows()
    assert windows.seen.tolist() == [1000]
    assert windows.sampled.tolist() == [50]
    rows = store.rows()
    assert len(rows) == 50
    assert rows.priority.max() == windows.below[0]
    store.sweep()
    assert store.check() == []
    x = store.source(rows.id).gather(torch.arange(50))[0][:, 0].numpy()
    assert np.allclose(x / 10, rows.score)


def test_budget_and_retention(store, clock):
    for number in range(10):
        clock.now = 1e6 + 100 * number
        store.append(answers(100), torch.zeros(100, 1000))
    store.sweep(retain=500)
    assert store.rows().time.min() == 1e6 + 400
    store.sweep(budget=2 * 450_000)
    assert store.rows().time.min() == 1e6 + 800
    assert store.check() == []
    store.sweep(budget=100_000)
    assert 0 < len(store.rows()) < 25
    assert store.check() == []


def test_judged(store, clock):
    store.append(answers(10), vectors(10))
    store.judge(3, 2, "ann")
    store.judge(4, None, "ann")
    store.judge(4, None, "bob")
    clock.now += 1e6
    store.sweep(retain=100)
    assert len(store.rows()) == 0
    judged = store.judged()
    assert judged.answer.tolist() == [3, 4]
    assert judged.class_.tolist() == [2, -1]
    x, y = judged.known.gather(torch.arange(1))
    assert (x.tolist(), y.tolist()) == ([[2.0, 2.0]], [2])
    assert judged.unknown.gather(torch.arange(1))[0].tolist() == [[3.0, 3.0]]
    assert store.check() == []
