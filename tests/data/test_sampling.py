"""Draws are decided by seed and stream; permutations and cycles are whole, small and resumable."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wildood.data import sampling as module
from wildood.data.sampling import IN_MEMORY, Permutation, ShuffledCycle, generator, permutation, split
from wildood.data.sources import ArraySource, Part


def rounds_of(cycle, takes):
    taken = torch.cat([cycle.take(count) for count in takes])
    return taken[: len(taken) // cycle.length * cycle.length].reshape(-1, cycle.length)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(length=st.integers(1, 9), takes=st.lists(st.integers(0, 23), min_size=1, max_size=12))
def test_every_round_is_a_permutation_however_it_is_taken(length, takes):
    for numbers in rounds_of(ShuffledCycle(length, generator(0, "order")), takes):
        assert sorted(numbers.tolist()) == list(range(length))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    length=st.integers(1, 9),
    before=st.lists(st.integers(0, 23), max_size=6),
    after=st.lists(st.integers(0, 23), min_size=1, max_size=6),
)
def test_cycle_resumes_at_any_point(length, before, after):
    cycle = ShuffledCycle(length, generator(0, "order"))
    for count in before:
        cycle.take(count)
    state = cycle.state_dict()
    expected = [cycle.take(count).tolist() for count in after]
    resumed = ShuffledCycle(length, generator(99, "another order"))
    resumed.load_state_dict(state)
    assert [resumed.take(count).tolist() for count in after] == expected


def test_state_is_a_snapshot_that_later_draws_leave_alone():
    cycle = ShuffledCycle(10, generator(0, "order"))
    cycle.take(4)
    state = cycle.state_dict()
    first = cycle.take(50)
    cycle.load_state_dict(state)
    assert torch.equal(cycle.take(50), first)
    cycle.load_state_dict(state)
    assert torch.equal(cycle.take(50), first)


def test_order_does_not_depend_on_how_many_are_taken_at_once():
    one_by_one = ShuffledCycle(7, generator(3, "order"))
    at_once = ShuffledCycle(7, generator(3, "order"))
    assert [int(one_by_one.take(1)) for _ in range(30)] == at_once.take(30).tolist()


def test_rounds_differ():
    first, second = rounds_of(ShuffledCycle(50, generator(0, "order")), [100])
    assert not torch.equal(first, second)


def test_every_order_is_equally_likely():
    """Pearson's chi-squared over the 6 orders of 3 numbers: below 20.5 with probability 0.999 (5 degrees of freedom)."""
    orders = rounds_of(ShuffledCycle(3, generator(0, "order")), [3 * 6000])
    _, counts = orders.unique(dim=0, return_counts=True)
    assert len(counts) == 6
    assert float(((counts - 1000) ** 2 / 1000).sum()) < 20.5


@pytest.mark.parametrize(("seed", "stream"), [(1, "labelled"), (0, "wild"), (0, "labelle"), (10, "labelled")])
def test_another_seed_or_stream_is_another_sequence(seed, stream):
    here = torch.rand(1000, generator=generator(0, "labelled"), dtype=torch.float64)
    there = torch.rand(1000, generator=generator(seed, stream), dtype=torch.float64)
    assert abs(float(torch.corrcoef(torch.stack([here, there]))[0, 1])) < 4 / 1000**0.5


def test_same_seed_and_stream_are_the_same_sequence():
    assert torch.equal(torch.rand(9, generator=generator(5, "a")), torch.rand(9, generator=generator(5, "a")))


def test_draws_leave_other_streams_and_the_global_generator_alone():
    torch.manual_seed(0)
    untouched, state = generator(0, "wild"), torch.get_rng_state()
    ShuffledCycle(5, generator(0, "labelled")).take(100)
    split(20, 0.3, generator(0, "holdout"))
    assert torch.equal(torch.rand(5, generator=untouched), torch.rand(5, generator=generator(0, "wild")))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("length", "share", "aside"), [(10, 0.1, 1), (100, 0.5, 50), (7, 0.0, 0), (7, 1.0, 7), (1000, 0.123, 123)]
)
def test_split_gives_two_disjoint_parts_of_the_asked_size(length, share, aside):
    kept, out = split(length, share, generator(0, "split"))
    assert (len(kept), len(out)) == (length - aside, aside)
    assert sorted(kept.tolist() + out.tolist()) == list(range(length))


def test_split_is_random_and_repeatable():
    _, first = split(100, 0.3, generator(0, "split"))
    assert torch.equal(first, split(100, 0.3, generator(0, "split"))[1])
    assert set(first.tolist()) != set(split(100, 0.3, generator(1, "split"))[1].tolist())


def test_split_puts_every_example_aside_equally_often():
    rng = generator(0, "split")
    counts = torch.zeros(10)
    for _ in range(2000):
        counts[split(10, 0.3, rng)[1]] += 1
    assert float((counts / 2000 - 0.3).abs().max()) < 4 * (0.3 * 0.7 / 2000) ** 0.5


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
