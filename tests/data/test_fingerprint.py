"""Examples that two sources share are found by their place in a dataset or by their content, and chance is no leak."""

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

from wildood.data import fingerprint
from wildood.data.fingerprint import ExampleHashes, Overlap, same_examples
from wildood.data.sources import ArraySource, DatasetSource, Part

IMAGES = np.random.default_rng(0).integers(0, 256, (50, 4, 4, 3), dtype=np.uint8)


class Rows(Dataset):
    """Rows of an array, read one by one; with noise, others at each reading."""

    def __init__(self, rows, noise=False):
        self.rows, self.noise = torch.as_tensor(rows, dtype=torch.float32), noise

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index] + (torch.randn(self.rows.shape[1]) if self.noise else 0)


def dataset(data):
    return ExampleHashes(DatasetSource(data, labelled=False, name="x"))


def array(rows):
    return ExampleHashes(ArraySource(rows))


def test_examples_are_equal_when_every_byte_is():
    changed = IMAGES.copy()
    changed[7, 3, 3, 2] ^= 128
    changed[9, 0, 0, 0] ^= 1
    same = array(IMAGES).values() == array(changed).values()
    assert np.flatnonzero(~same).tolist() == [7, 9]


def test_arrays_tensors_parts_and_memory_maps_agree(tmp_path):
    np.save(tmp_path / "x.npy", IMAGES)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    kinds = [ArraySource(torch.from_numpy(IMAGES)), ArraySource(mapped), Part(ArraySource(IMAGES), torch.arange(50))]
    for source in kinds:
        assert ExampleHashes(source).values().tolist() == array(IMAGES).values().tolist()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_any_precision_is_compared(dtype):
    values = torch.randn(5, 3).to(torch.bfloat16)
    assert array(values.to(dtype)).overlap(array(values.float())).shared == 5


def test_repeated_examples_are_counted_each():
    held = array(np.concatenate([IMAGES[:3], IMAGES[:3], IMAGES[40:]]))
    assert held.overlap(array(IMAGES[:10])).shared == 6


def test_a_source_is_read_in_parts(monkeypatch):
    monkeypatch.setattr(fingerprint, "BLOCK_BYTES", 100)
    assert array(IMAGES[[3, 45]]).overlap(array(IMAGES[:20])).shared == 1


def test_a_sample_of_a_large_source_is_random(monkeypatch):
    """Copies of every other example were missed where every other one was looked at."""
    monkeypatch.setattr(fingerprint, "ARRAY_SAMPLE", 500)
    large = array(np.arange(1000)[:, None])
    assert large.count == len(large.values()) == 500
    for first in (0, 1):
        found = array(np.arange(first, 1000, 2)[:, None]).overlap(large)
        assert (found.share_compared, found.is_leak) == (0.5, True)
        assert 200 < found.shared < 300


def test_items_of_one_dataset_are_compared_by_their_index_even_if_each_reading_differs():
    whole = Rows(np.zeros((100, 3)), noise=True)
    first, second = Subset(whole, range(60)), Subset(Subset(whole, range(99, -1, -1)), range(50))  # 0 .. 59 and 50 .. 99
    found = dataset(second).overlap(dataset(ConcatDataset([Rows(np.ones((5, 3))), first])))
    assert (found.shared, found.compared, found.same_items, found.is_leak) == (10, 50, True, True)


@pytest.mark.parametrize("noise", [True, False])
def test_disjoint_subsets_of_one_dataset_are_no_leak(noise):
    whole = Rows(np.random.default_rng(0).normal(size=(100, 3)), noise=noise)
    found = dataset(Subset(whole, range(60))).overlap(dataset(Subset(whole, range(60, 100))))
    assert (found.shared, found.is_checked, found.is_leak) == (0, True, False)


def test_copies_beside_items_of_a_common_dataset_are_found():
    rng = np.random.default_rng(0)
    first, second = Rows(rng.normal(size=(110, 3))), rng.normal(size=(200, 3))
    holdout = dataset(ConcatDataset([Subset(first, range(100, 110)), Rows(second)]))
    assert holdout.overlap(dataset(ConcatDataset([Subset(first, range(100)), Rows(second)]))).is_leak


def test_an_item_that_is_drawn_again_and_again_is_counted_each_time():
    whole = Rows(np.zeros((100, 3)), noise=True)
    found = dataset(Subset(whole, [1, 2, 3, 4, 5] * 40)).overlap(dataset(Subset(whole, range(50))))
    assert (found.shared, found.compared, found.is_leak) == (200, 200, True)


def test_a_doubled_holdout_of_trained_rows_is_a_leak():
    rows = np.random.default_rng(0).normal(size=(400, 3))
    assert array(np.concatenate([rows[:100], rows[:100]])).overlap(array(rows)).is_leak


@pytest.mark.parametrize("copy", [np.int16, np.int32, np.uint8])
def test_whole_numbers_of_any_type_are_compared_by_value(copy):
    tokens = np.random.default_rng(0).integers(0, 200, (50, 8))
    assert array(tokens.astype(copy)).overlap(array(tokens)).shared == 50


@pytest.mark.parametrize("copy", [lambda x: x.astype(np.float16), np.float64, np.negative])
def test_copies_in_less_precision_and_negative_zeros_are_found(copy):
    rows = (
        np.zeros((50, 8), np.float32) if copy is np.negative else np.random.default_rng(0).normal(size=(50, 8)).astype("f")
    )
    assert array(copy(rows)).overlap(array(rows)).shared == 50


def test_parts_of_a_dataset_keep_their_items():
    whole = DatasetSource(Rows(np.zeros((100, 3)), noise=True), labelled=False, name="x")
    part = Part(whole, torch.arange(90, 100))
    assert ExampleHashes(part).overlap(ExampleHashes(whole)).shared == 10


def test_other_datasets_are_read_and_compared_by_content(monkeypatch):
    monkeypatch.setattr(fingerprint, "DATASET_SAMPLE", 500)
    rows = np.random.default_rng(0).normal(size=(1000, 3)).astype(np.float32)
    found = dataset(Rows(rows[:200])).overlap(dataset(Rows(rows)))
    assert (found.compared, found.share_compared) == (200, 0.5)
    assert 80 < found.shared < 120
    assert found.is_leak


def test_what_differs_at_each_reading_cannot_be_checked():
    rows = np.zeros((20, 3))
    found = array(rows).overlap(dataset(Rows(rows, noise=True)))
    assert (found.repeatable, found.is_checked, found.is_leak) == (False, False, False)


def test_too_small_a_sample_of_a_source_cannot_tell():
    assert not Overlap(shared=0, compared=100, share_compared=0.001).is_checked
    assert Overlap(shared=0, compared=100, share_compared=0.5).is_checked


@pytest.mark.parametrize("distinct", [30, 300, 3000])
def test_independent_draws_of_few_distinct_rows_are_no_leak(distinct):
    """The share of equal rows that chance explains is estimated well enough not to refuse a fresh holdout."""
    refused = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        known, holdout = (rng.integers(0, distinct, (count, 1)) for count in (2000, 400))
        found = array(holdout).overlap(array(known))
        assert found.shared > 150
        refused += found.is_leak
    assert refused <= 2


def test_equal_rows_are_no_evidence_where_most_rows_repeat_even_beside_rows_that_do_not():
    """Unknown rows of wild data that occur once say nothing of how often known ones repeat."""
    rng = np.random.default_rng(0)
    wild = np.concatenate([rng.integers(0, 300, (900, 1)), 1000 + np.arange(100)[:, None]])
    found = array(rng.integers(0, 300, (400, 1))).overlap(array(wild))
    assert (found.shared > 370, found.is_leak) == (True, False)


@pytest.mark.parametrize("distinct", [10_000, 100_000])
def test_a_holdout_of_trained_rows_is_a_leak_where_rows_seldom_repeat(distinct):
    rng = np.random.default_rng(0)
    known = rng.integers(0, distinct, (2000, 1))
    assert array(known[:400]).overlap(array(known)).is_leak


def test_two_sources_of_the_same_examples_are_recognised_unless_they_change_at_each_reading():
    labels = np.zeros(50, int)
    assert same_examples(ArraySource(IMAGES), ArraySource(IMAGES.copy(), labels))
    assert not same_examples(ArraySource(IMAGES), ArraySource(IMAGES[::-1]))
    rows = IMAGES.reshape(50, -1)
    first, second, noisy = (DatasetSource(Rows(rows, noise), labelled=False, name="x") for noise in (False, False, True))
    assert same_examples(first, second)
    assert not same_examples(noisy, DatasetSource(Rows(rows, noise=True), labelled=False, name="x"))
