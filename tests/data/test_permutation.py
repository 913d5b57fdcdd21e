"""Orders too long for memory: every number once, no order favoured, parts without memory."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wildood.data import sampling as module
from wildood.data.sampling import IN_MEMORY, Permutation, ShuffledCycle, generator, permutation, split
from wildood.data.sources import ArraySource, Part


def whole(length, key):
    return Permutation(length, key, 0, length)[torch.arange(length)]


@settings(max_examples=80, deadline=None, derandomize=True)
@given(length=st.integers(1, 2000), key=st.integers(0, 2**62 - 1))
def test_every_number_comes_once(length, key):
    assert whole(length, key).sort().values.equal(torch.arange(length))


def test_every_number_comes_once_in_a_long_order():
    length = IN_MEMORY + 12345
    assert whole(length, 7).sort().values.equal(torch.arange(length))


def test_a_number_is_equally_often_at_every_place():
    """Pearson's chi-squared for 20 numbers at 20 places over 4000 keys: each row below 43.8 with probability 0.999."""
    keys, length = 4000, 20
    counts = np.zeros((length, length))
    for key in range(keys):
        counts[np.arange(length), whole(length, key)] += 1
    expected = keys / length
    rows = ((counts - expected) ** 2 / expected).sum(1)
    assert (rows > 43.8).sum() <= 1


def test_neighbours_are_not_kept_together():
    order = whole(100_000, 3).double()
    correlation = float(torch.corrcoef(torch.stack([order[:-1], order[1:]]))[0, 1])
    assert abs(correlation) < 4 / 100_000**0.5
    along = float(torch.corrcoef(torch.stack([order, torch.arange(100_000).double()]))[0, 1])
    assert abs(along) < 4 / 100_000**0.5


def test_keys_give_unrelated_orders():
    first, second = whole(50_000, 0).double(), whole(50_000, 1).double()
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 4 / 50_000**0.5


def test_parts_are_the_whole_in_pieces():
    order = Permutation(1000, 5, 0, 1000)
    parts = [order[:300], order[300:]]
    assert [len(part) for part in parts] == [300, 700]
    joined = torch.cat([part[torch.arange(len(part))] for part in parts])
    assert joined.equal(whole(1000, 5))
    assert parts[1][10:20][torch.tensor([0])] == whole(1000, 5)[310]


@pytest.fixture
def short_memory(monkeypatch):
    monkeypatch.setattr(module, "IN_MEMORY", 10)


def test_a_long_cycle_resumes_from_a_small_state(short_memory):
    cycle = ShuffledCycle(1000, generator(0, "order"))
    cycle.take(1700)
    state = cycle.state_dict()
    assert state["place"] == 700
    expected = cycle.take(900)
    resumed = ShuffledCycle(1000, generator(9, "another"))
    resumed.load_state_dict(state)
    assert resumed.take(900).equal(expected)


def test_a_long_cycle_gives_every_number_in_every_round_and_rounds_differ(short_memory):
    rounds = ShuffledCycle(500, generator(0, "order")).take(1000).reshape(2, 500)
    assert rounds.sort(1).values.equal(torch.arange(500).expand(2, 500))
    assert not rounds[0].equal(rounds[1])


def test_a_split_of_a_long_range_is_disjoint_and_capped(short_memory):
    kept, aside = split(1000, 0.1, generator(0, "split"), most=30)
    assert (type(kept), len(kept), len(aside)) == (Permutation, 970, 30)
    numbers = torch.cat([kept[torch.arange(970)], aside[torch.arange(30)]])
    assert numbers.sort().values.equal(torch.arange(1000))


def test_a_part_by_a_computed_order_reads_and_is_told_apart(short_memory):
    source = ArraySource(np.arange(1000)[:, None])
    kept, aside = (Part(source, which) for which in split(1000, 0.1, generator(0, "split")))
    assert kept.gather(torch.tensor([0]))[0].item() not in aside.gather(torch.arange(100))[0].flatten().tolist()
    assert kept.fingerprint() != aside.fingerprint()
    assert kept.fingerprint() == Part(source, split(1000, 0.1, generator(0, "split"))[0]).fingerprint()


def test_a_short_order_is_what_torch_draws():
    drawn = torch.randperm(100, generator=generator(0, "x"))
    assert permutation(100, generator(0, "x")).equal(drawn)
