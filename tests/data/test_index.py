"""The index of a cache finds a file's line by its name and state, and names of examples without holding them."""

import copy
import pickle

import numpy as np
import pytest

from wildood.data import image_cache as index_module
from wildood.data.image_cache import Index, Listed, Names, index_line
from wildood.data.images import Broken, Decoded

PIXELS = np.zeros((1, 1, 3), np.uint8)
FILES = [Listed(f"é {number}\n.png", number, 10 * number, 5, number % 2) for number in range(50)]


@pytest.fixture
def index(tmp_path):
    lines = [index_line(file, Broken("torn") if file.size % 10 == 3 else Decoded("d" * 32, PIXELS)) for file in FILES]
    path = tmp_path / "index.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return Index(path)


@pytest.fixture
def names(index):
    return Names(index, np.array([3, 13, 23, 33, 43]), 45)


def test_every_file_is_found_in_its_line(index):
    assert [*map(index.finder(), FILES)] == list(range(50))


def test_label_may_change_but_nothing_else(index):
    find = index.finder()
    assert find(FILES[7]._replace(label=None)) == 7
    for other in ({"size": 0}, {"changed": 0}, {"stamped": 0}, {"name": "other.png"}):
        assert find(FILES[7]._replace(**other)) is None


def test_files_whose_hashes_are_equal_are_told_apart(index, monkeypatch):
    monkeypatch.setattr(index_module, "_hash", lambda record: 0)
    find = index.finder()
    assert [*map(find, FILES)] == list(range(50))
    assert find(FILES[7]._replace(size=0)) is None


def test_names_are_those_of_examples_in_order(names):
    expected = [file.name for file in FILES if file.size % 10 != 3]
    assert list(names) == expected
    assert len(names) == 45
    assert names[-1] == expected[-1]
    assert names[10:40:7] == expected[10:40:7]
    assert expected[20] in names
    with pytest.raises(IndexError):
        names[45]


def test_names_survive_a_copy_and_another_process(names):
    assert list(copy.deepcopy(names)) == list(names)
    assert list(pickle.loads(pickle.dumps(names))) == list(names)  # noqa: S301 - our own
