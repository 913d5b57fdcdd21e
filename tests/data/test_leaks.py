"""Equal examples are found by their content, whatever they are kept in."""

import numpy as np
import torch

from wildood.data import leaks
from wildood.data.leaks import contents, found_in, looked_at
from wildood.data.sources import ArraySource, Part

IMAGES = np.random.default_rng(0).integers(0, 256, (50, 4, 4, 3), dtype=np.uint8)


def test_examples_are_equal_when_every_byte_is():
    changed = IMAGES.copy()
    changed[7, 3, 3, 2] ^= 128
    changed[9, 0, 0, 0] ^= 1
    same = contents(ArraySource(IMAGES)) == contents(ArraySource(changed))
    assert np.flatnonzero(~same).tolist() == [7, 9]


def test_arrays_tensors_parts_and_memory_maps_agree(tmp_path):
    np.save(tmp_path / "x.npy", IMAGES)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    kinds = [ArraySource(torch.from_numpy(IMAGES)), ArraySource(mapped), Part(ArraySource(IMAGES), torch.arange(50))]
    for source in kinds:
        assert contents(source).tolist() == contents(ArraySource(IMAGES)).tolist()


def test_half_precision_is_read_too():
    values = torch.randn(5, 3).to(torch.bfloat16)
    assert len(set(contents(ArraySource(values)))) == 5


def test_repeated_examples_are_counted_each():
    held = ArraySource(np.concatenate([IMAGES[:3], IMAGES[:3], IMAGES[40:]]))
    assert found_in(contents(held), ArraySource(IMAGES[:10])).tolist() == [True] * 6 + [False] * 10


def test_a_source_is_read_in_parts(monkeypatch):
    monkeypatch.setattr(leaks, "_BYTES_TOGETHER", 100)
    assert found_in(contents(ArraySource(IMAGES[[3, 45]])), ArraySource(IMAGES[:20])).tolist() == [True, False]


def test_a_large_source_is_looked_at_evenly(monkeypatch):
    monkeypatch.setattr(leaks, "LOOKED_AT", 10)
    large = ArraySource(np.arange(1000)[:, None])
    assert looked_at(large) == len(contents(large)) == 10
    assert found_in(contents(ArraySource(np.array([[0], [1], [999]]))), large).tolist() == [True, False, True]
