"""Wild data: the mixture is the paper's Huber model, and what is set aside is never trained on."""

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from wildood.data.validation import unlabelled_source
from wildood.data.wild import WildMixture, WildPool, as_wild
from wildood.errors import InputError

OOD = 1000  # examples are numbered: ID from 0, OOD from 1000


def numbered(count, start=0):
    return np.arange(start, start + count, dtype=np.float32)[:, None]


def mixture(id_count=30, ood_count=20, pi=0.3):
    return WildMixture(id=numbered(id_count), ood=numbered(ood_count, OOD), pi=pi)


def numbers(batch):
    return batch[:, 0].long().tolist()


def everything(source):
    return numbers(source.gather(torch.arange(len(source)))[0])


@pytest.mark.parametrize("count", [1, 2, 31, 128, 500])
def test_a_batch_holds_exactly_as_many_examples_as_asked(count):
    sampler = mixture().sampler(seed=0)
    for _ in range(5):
        assert sampler.draw(count).shape == (count, 1)


@pytest.mark.parametrize("pi", [0.05, 0.3, 0.9])
def test_the_number_of_ood_examples_is_binomial(pi):
    draws, size = 3000, 16
    sampler = mixture(pi=pi).sampler(seed=1)
    found = np.array([int((sampler.draw(size) >= OOD).sum()) for _ in range(draws)])
    variance = size * pi * (1 - pi)
    fourth = variance * (1 + 3 * (size - 2) * pi * (1 - pi))  # the binomial's fourth central moment
    assert abs(found.mean() - size * pi) < 4 * np.sqrt(variance / draws)
    assert abs(found.var() - variance) < 4 * np.sqrt((fourth - variance**2) / draws)


def test_coins_of_successive_batches_are_independent():
    sampler = mixture(pi=0.3).sampler(seed=2)
    found = np.array([int((sampler.draw(16) >= OOD).sum()) for _ in range(2000)])
    assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 4 / np.sqrt(2000)


@pytest.mark.parametrize(("pi", "ood"), [(0, 0), (1, 64), (0.0, 0), (1.0, 64)])
def test_at_the_ends_of_pi_all_examples_are_of_one_kind(pi, ood):
    sampler = mixture(pi=pi).sampler(seed=0)
    for _ in range(5):
        assert int((sampler.draw(64) >= OOD).sum()) == ood


def test_every_example_of_each_pool_is_used_equally_often():
    sampler = mixture(id_count=30, ood_count=20, pi=0.3).sampler(seed=0)
    drawn = torch.cat([sampler.draw(16) for _ in range(200)])
    _, id_uses = drawn[drawn < OOD].unique(return_counts=True)
    _, ood_uses = drawn[drawn >= OOD].unique(return_counts=True)
    assert (len(id_uses), len(ood_uses)) == (30, 20)
    assert int(id_uses.max() - id_uses.min()) <= 1
    assert int(ood_uses.max() - ood_uses.min()) <= 1


@pytest.mark.parametrize("wild", [mixture(), as_wild(numbered(13))], ids=["mixture", "pool"])
@pytest.mark.parametrize("before", [0, 1, 7, 40])
def test_sampler_resumes_at_any_point(wild, before):
    sampler = wild.sampler(seed=0)
    for _ in range(before):
        sampler.draw(5)
    state = sampler.state_dict()
    expected = [numbers(sampler.draw(8)) for _ in range(20)]
    resumed = wild.sampler(seed=12345)
    resumed.load_state_dict(state)
    assert [numbers(resumed.draw(8)) for _ in range(20)] == expected


@pytest.mark.parametrize("wild", [mixture(), as_wild(numbered(13))], ids=["mixture", "pool"])
def test_the_seed_decides_the_draws(wild):
    first = [numbers(wild.sampler(seed=0).draw(50)) for _ in range(2)]
    assert first[0] == first[1]
    assert numbers(wild.sampler(seed=1).draw(50)) != first[0]


def test_a_pool_is_drawn_by_a_shuffled_cycle_whatever_its_length():
    drawn = numbers(as_wild(numbered(7)).sampler(seed=0).draw(70))
    assert [sorted(drawn[start : start + 7]) for start in range(0, 70, 7)] == [list(range(7))] * 10


def test_the_two_pools_are_shuffled_independently():
    sampler = mixture(id_count=20, ood_count=20, pi=0.5).sampler(seed=0)
    drawn = torch.cat([sampler.draw(8) for _ in range(30)])
    first_id, first_ood = numbers(drawn[drawn < OOD][:20, None]), numbers(drawn[drawn >= OOD][:20, None])
    assert sorted(first_id) == [number - OOD for number in sorted(first_ood)]
    assert first_id != [number - OOD for number in first_ood]


def test_mixture_takes_datasets_and_ignores_their_labels():
    pool = TensorDataset(torch.from_numpy(numbered(10)), torch.zeros(10))
    sampler = WildMixture(id=pool, ood=torch.from_numpy(numbered(10, OOD)), pi=0.5).sampler(seed=0)
    assert {number % OOD for number in numbers(sampler.draw(200))} == set(range(10))


@pytest.mark.parametrize("seed", range(3))
def test_what_a_pool_sets_aside_is_not_drawn_from_it(seed):
    kept, aside = as_wild(numbered(50)).set_aside(0.1, seed)
    out = everything(aside)
    assert len(out) == len(set(out)) == 5
    assert set(numbers(kept.sampler(seed).draw(45))) == set(range(50)) - set(out)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("pi", [0.0, 0.1, 0.5, 1.0])
def test_what_a_mixture_sets_aside_is_not_drawn_from_it(seed, pi):
    kept, aside = mixture(200, 100, pi=pi).set_aside(0.1, seed)
    assert [len(pool) for pool in kept.pools] == [180, 90]
    trained_on = {number for pool in kept.pools for number in everything(pool)}
    assert trained_on.isdisjoint(everything(aside))
    assert set(numbers(kept.sampler(seed).draw(300))) <= trained_on
    assert kept.pi == pi


def test_the_set_aside_sample_is_of_the_mixture_and_has_no_example_twice():
    share, size = [], []
    for seed in range(150):
        _, aside = mixture(800, 300, pi=0.2).set_aside(0.1, seed)
        out = everything(aside)
        assert len(out) == len(set(out))
        share.append(np.mean(np.array(out) >= OOD))
        size.append(len(out))
    assert abs(np.mean(share) - 0.2) < 4 * np.sqrt(0.2 * 0.8 / sum(size))
    assert min(size) >= 80  # 80 ID and 30 OOD examples: one kind is used up


@pytest.mark.parametrize(("pi", "size"), [(0.0, 40), (1.0, 25)])
def test_at_the_ends_of_pi_the_whole_part_of_one_kind_is_set_aside(pi, size):
    _, aside = mixture(400, 250, pi=pi).set_aside(0.1, seed=0)
    assert len(set(everything(aside))) == size
    assert {number >= OOD for number in everything(aside)} == {pi == 1.0}


def test_the_set_aside_sample_reads_the_same_in_any_order():
    _, aside = mixture(400, 250, pi=0.4).set_aside(0.1, seed=0)
    order = torch.randperm(len(aside), generator=torch.Generator().manual_seed(0))
    expected = np.array(everything(aside))[order.numpy()]
    assert numbers(aside.gather(order)[0]) == expected.tolist()


@pytest.mark.parametrize("pi", [-0.1, 1.1, float("nan")])
def test_pi_outside_0_and_1_is_refused(pi):
    with pytest.raises(InputError, match=r"pi is .*: give the share of OOD in the wild data, from 0 to 1"):
        mixture(pi=pi)


@pytest.mark.parametrize(("pool", "name"), [("id", "wild id"), ("ood", "wild ood")])
def test_a_pool_that_cannot_be_used_is_named(pool, name):
    pools = {"id": numbered(5), "ood": numbered(5)} | {pool: np.full((5, 1), np.nan)}
    with pytest.raises(InputError, match=f"{name}: example 0 holds NaN"):
        WildMixture(**pools, pi=0.1)


def test_as_wild_leaves_a_mixture_as_it_is():
    wild = mixture()
    assert as_wild(wild) is wild
    assert isinstance(as_wild(numbered(3)), WildPool)


def test_fingerprint_of_a_part_tells_which_part():
    pool = WildPool(unlabelled_source(numbered(50), "wild"))
    prints = {pool.set_aside(0.1, seed)[0].source.fingerprint() for seed in range(5)}
    assert len(prints) == 5


WHOLES = {
    "pool": lambda: as_wild(np.arange(23.0)[:, None]),
    "mixture": lambda: WildMixture(id=np.arange(23.0)[:, None], ood=100 + np.arange(11.0)[:, None], pi=0.3),
    "no OOD": lambda: WildMixture(id=np.arange(23.0)[:, None], ood=100 + np.arange(11.0)[:, None], pi=0.0),
    "all OOD": lambda: WildMixture(id=np.arange(23.0)[:, None], ood=100 + np.arange(11.0)[:, None], pi=1.0),
}


@pytest.mark.parametrize("wild", WHOLES)
@pytest.mark.parametrize("world", [2, 3, 5])
def test_shards_together_draw_what_one_sampler_draws(wild, world):
    one = WHOLES[wild]().sampler(seed=4)
    shards = [WHOLES[wild]().sampler(seed=4, rank=rank, world=world) for rank in range(world)]
    for _ in range(6):
        whole = one.draw(16)
        for rank, shard in enumerate(shards):
            assert torch.equal(shard.draw(16), whole[rank::world])


def test_a_shards_state_goes_on_with_another_number_of_shards():
    shards = [WHOLES["mixture"]().sampler(seed=4, rank=rank, world=2) for rank in range(2)]
    for shard in shards:
        shard.draw(13)
    alone = WHOLES["mixture"]().sampler(seed=0)
    alone.load_state_dict(shards[1].state_dict())
    whole = alone.draw(13)
    for rank, shard in enumerate(shards):
        assert torch.equal(shard.draw(13), whole[rank::2])


@pytest.mark.parametrize(("rank", "world"), [(2, 2), (-1, 2), (0, 0)])
def test_a_shard_that_does_not_exist_is_refused(rank, world):
    with pytest.raises(InputError, match=f"rank is {rank} of {world}"):
        WHOLES["pool"]().sampler(seed=0, rank=rank, world=world)


def test_no_more_wild_examples_are_set_aside_than_are_needed():
    kept, aside = as_wild(np.zeros((150_000, 1), np.uint8)).set_aside(0.1, seed=0)
    assert (len(kept.pools[0]), len(aside)) == (140_000, 10_000)
