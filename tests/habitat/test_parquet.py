"""The traffic as a Parquet file, as other tools read it."""

import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from wildood.errors import InputError
from wildood.habitat import parquet
from wildood.habitat.parquet import export_traffic

INDEX_COLUMNS = ["id", "time", "request", "detector", "score", "class", "known", "p_value", "priority", "has_example"]
SHADOW_COLUMNS = ["shadow", "shadow_score", "shadow_known"]


def test_the_index_is_exported(store, answers, vectors, tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "_GROUP", 2)
    store.append(answers(5), vectors(5))
    assert export_traffic(store, tmp_path / "a.parquet") == 5
    table = pq.read_table(tmp_path / "a.parquet")
    assert table.column_names == INDEX_COLUMNS + SHADOW_COLUMNS
    assert table["score"].to_pylist() == [0.0, 0.1, 0.2, 0.3, 0.4]
    assert table["request"].to_pylist() == ["r0", "r1", "r2", "r3", "r4"]
    assert table["known"].to_pylist() == [True, False, True, False, True]
    assert [each.name for each in tmp_path.glob("*.parquet")] == ["a.parquet"]
    assert len(list(tmp_path.iterdir())) == 2  # nothing else but the store


def test_examples_are_lists_of_numbers_and_of_sizes(store, answers, tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "_GROUP", 3)
    images = torch.arange(5 * 12, dtype=torch.uint8).reshape(5, 2, 3, 2)
    store.append(answers(3), images[:3])
    store.append(answers(2, 3), None)
    store.append(answers(2, 5), images[3:])
    assert export_traffic(store, tmp_path / "a.parquet", examples=True) == 7
    table = pq.read_table(tmp_path / "a.parquet")
    found = table["example"].to_pylist()
    assert found[3:5] == [None, None]
    assert [found[place] for place in (0, 1, 2, 5, 6)] == images.reshape(5, 12).tolist()
    assert table["example_shape"].to_pylist() == [[2, 3, 2]] * 3 + [None] * 2 + [[2, 3, 2]] * 2
    assert str(table.schema.field("example").type.value_type) == "uint8"


def test_parts_of_examples_have_columns_of_their_own(store, answers, tmp_path):
    def texts(count, length):
        return {"ids": torch.arange(count * length).reshape(count, length), "more": (torch.ones(count),)}

    store.extend([(answers(1), texts(1, 3)), (answers(1, 1), texts(1, 2))])
    export_traffic(store, tmp_path / "a.parquet", examples=True)
    table = pq.read_table(tmp_path / "a.parquet")
    assert table["example['ids']"].to_pylist() == [[0, 1, 2], [0, 1]]
    assert table["example['ids']_shape"].to_pylist() == [[3], [2]]
    assert table["example['more'][0]"].to_pylist() == [[1.0], [1.0]]
    assert table["example['more'][0]_shape"].to_pylist() == [[], []]


def test_numbers_of_different_types_share_a_column(store, answers, tmp_path):
    store.append(answers(1), np.ones((1, 2), np.float32))
    store.append(answers(1), np.full((1, 2), 0.1))
    export_traffic(store, tmp_path / "a.parquet", examples=True)
    assert pq.read_table(tmp_path / "a.parquet")["example"].to_pylist() == [[1.0, 1.0], [0.1, 0.1]]


def test_no_traffic_is_an_empty_table(store, tmp_path):
    assert export_traffic(store, tmp_path / "a.parquet", examples=True) == 0
    assert pq.read_table(tmp_path / "a.parquet").num_rows == 0


def test_what_cannot_be_exported_is_said_in_one_line(store, tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"cannot be written \(.*\): give another path"):
        export_traffic(store, tmp_path / "nowhere" / "a.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(InputError, match="an export needs a package: pip install pyarrow"):
        export_traffic(store, tmp_path / "a.parquet")
