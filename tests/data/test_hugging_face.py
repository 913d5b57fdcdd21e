"""Hugging Face datasets by the names of their columns: what is read of them, what is left out, what is refused."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from wildood.data.sources import DatasetSource
from wildood.data.tables import TableSpec
from wildood.data.validation import (
    all_labels,
    classes_of,
    id_source,
    in_order,
    labelled_and_holdout,
    labelled_source,
    rows_of,
    unlabelled_source,
)
from wildood.data.wild import WildMixture
from wildood.errors import InputError

datasets = pytest.importorskip("datasets")
IDS = [[5, 6, 7], [8, 9, 0], [1, 2, 3], [4, 4, 4]]


@pytest.fixture
def rows():
    columns = {
        "text": ["a", "b", "c", "d"],
        "words": [["a"], ["b"], ["c"], ["d"]],
        "input_ids": IDS,
        "weight": [0.5, 1.5, 2.5, 3.5],
        "flag": [True, False, True, False],
        "label": [0, 1, 1, 0],
    }
    dataset = datasets.Dataset.from_dict(columns)
    features = dataset.features.copy()
    features["label"] = datasets.ClassLabel(names=["cat", "dog"])
    return dataset.cast(features)


@pytest.fixture(autouse=True)
def _no_progress_bars():
    datasets.disable_progress_bars()


@pytest.mark.parametrize("form", [None, "numpy", "torch"])
def test_columns_of_numbers_are_the_inputs_in_every_format(rows, form):
    source = labelled_source(rows.with_format(form), "labelled")
    x, y = source.gather(torch.tensor([2, 0]))
    assert {name: (part.dtype, part.tolist()) for name, part in x.items()} == {
        "input_ids": (torch.int64, [[1, 2, 3], [5, 6, 7]]),
        "weight": (torch.float32, [2.5, 0.5]),
        "flag": (torch.bool, [True, True]),
    }
    assert y.tolist() == [1, 0]
    assert all_labels(source).tolist() == [0, 1, 1, 0]


def test_a_stream_gives_what_its_dataset_gives(rows):
    stream = rows.to_iterable_dataset()
    assert classes_of(stream) == ("cat", "dog")
    for source in (labelled_source(stream, "labelled"), id_source(stream, "id")):
        x, y = source.gather(torch.tensor([2, 0]))
        assert {name: part.tolist() for name, part in x.items()} == {
            "input_ids": [[1, 2, 3], [5, 6, 7]],
            "weight": [2.5, 0.5],
            "flag": [True, True],
        }
        assert y.tolist() == [1, 0]
    unlabelled = next(in_order(stream, "x", 3)).gather(torch.arange(3))
    assert (unlabelled[0]["input_ids"].tolist(), unlabelled[1]) == (IDS[:3], None)
    with pytest.raises(InputError, match="call that of the classes 'label'"):
        labelled_source(stream.rename_column("label", "intent"), "labelled")


def test_a_table_is_given_as_a_frame(rows):
    spec = TableSpec.fit({"weight": [0.5, 1.5], "text": ["a", "b"]})
    with pytest.raises(InputError, match=r"wild is a Dataset: give wild.to_pandas\(\), which a TableSpec reads"):
        rows_of(rows, spec, "wild")


def test_a_line_names_the_columns_of_text_that_are_left_out(rows, caplog):
    with caplog.at_level("INFO", logger="wildood"):
        unlabelled_source(rows, "wild")
        unlabelled_source(rows.remove_columns(["words"]), "holdout")
    assert caplog.messages == [
        "wild: left out, because a model takes no text: columns 'text', 'words'",
        "holdout: left out, because a model takes no text: column 'text'",
    ]


def test_the_class_is_no_input_of_wild_data(rows):
    x, y = unlabelled_source(rows, "wild").gather(torch.arange(4))
    assert y is None
    assert set(x) == {"input_ids", "weight", "flag"}


def test_only_the_columns_of_a_format_are_inputs(rows):
    source = labelled_source(rows.with_format("torch", columns=["input_ids", "label"]), "labelled")
    assert set(source.gather(torch.arange(2))[0]) == {"input_ids"}


def test_items_are_read_in_batches(rows, monkeypatch):
    read = []
    own = type(rows).__getitems__
    monkeypatch.setattr(type(rows), "__getitems__", lambda self, numbers: read.append(list(numbers)) or own(self, numbers))
    source = unlabelled_source(rows, "wild")
    source.gather(torch.arange(4))
    assert read[-1] == [0, 1, 2, 3]
    before = len(read)
    assert source.gather(torch.tensor([3, 1]))[0]["input_ids"].tolist() == [[4, 4, 4], [8, 9, 0]]
    assert len(read) == before  # from memory


def test_a_transform_decides_for_itself(rows):
    double = rows.with_transform(lambda batch: {"x": 2 * np.array(batch["input_ids"]), "label": batch["label"]})
    x, y = labelled_source(double, "labelled").gather(torch.arange(2))
    assert x["x"].tolist() == [[10, 12, 14], [16, 18, 0]]
    assert y.tolist() == [0, 1]


def test_a_collate_fn_gets_the_text(rows):
    def collate(items):
        return {"x": torch.tensor([[float(ord(item["text"]))] for item in items])}

    source = unlabelled_source(DataLoader(rows, collate_fn=collate), "wild")
    assert isinstance(source, DatasetSource)
    assert source.gather(torch.arange(3))[0]["x"].tolist() == [[97.0], [98.0], [99.0]]


def test_a_mixture_takes_datasets(rows):
    pool = rows.select_columns(["input_ids"])
    batch = WildMixture(id=pool, ood=pool, pi=0.5).sampler(seed=0).draw(8)
    assert batch["input_ids"].shape == (8, 3)


def test_classes_are_read_where_there_are_any(rows):
    assert id_source(rows, "id").gather(torch.arange(2))[1].tolist() == [0, 1]
    assert id_source(rows.remove_columns(["label"]), "id").gather(torch.arange(2))[1] is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda rows: rows.rename_column("label", "intent"),
            r"labelled has the columns 'text', .*, 'intent': call that of the classes 'label', as ds.rename_column\('int",
        ),
        (
            lambda rows: rows.remove_columns(["label"]).rename_column("text", "label"),
            r"labelled: its column 'label' holds text: give integer classes, as ds.class_encode_column\('label'\) makes",
        ),
        (lambda rows: rows.add_column("labels", [0, 1, 1, 0]), "call that of the classes 'label'"),
        (lambda rows: rows.select([]), "labelled is empty: give at least one example"),
        (lambda rows: datasets.DatasetDict(train=rows), r"labelled is a DatasetDict of 'train': give one .*ds\['train'\]"),
        (lambda rows: rows.select_columns(["text", "label"]), r"labelled holds text alone \('text'\)"),
    ],
)
def test_what_cannot_be_used_is_refused_with_what_to_do(rows, change, message):
    with pytest.raises(InputError, match=message):
        labelled_source(change(rows), "labelled")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"text": ["a", "b"]},
            r"wild holds text alone \('text'\): give the numbers that a tokenizer makes of it, as ds",
        ),
        ({"input_ids": [[1, 2], [3]]}, r"wild: examples have different shapes, such as .* a collate_fn that pads them"),
        ({"input_ids": [[1, None], [3, 4]]}, r"wild: a part of example 0 \('input_ids'\) is a list"),
        ({"x": [[1.0, float("nan")], [3.0, 4.0]]}, r"wild: a part of example 0 \('x'\) holds NaN or infinity"),
    ],
)
def test_rows_that_cannot_be_used_are_refused(columns, message):
    with pytest.raises(InputError, match=message):
        unlabelled_source(datasets.Dataset.from_dict(columns), "wild").gather(torch.arange(2))


def test_splits_are_refused_as_wild_data(rows):
    with pytest.raises(InputError, match=r"wild is a DatasetDict of 'a', 'b': give one of them, such as ds\['a'\]"):
        unlabelled_source(datasets.DatasetDict(a=rows, b=rows), "wild")


def test_classes_that_are_numbered_otherwise_are_refused(rows):
    other = rows.cast_column("label", datasets.ClassLabel(names=["dog", "cat"]))
    assert len(labelled_and_holdout(rows, rows)[1]) == 4
    with pytest.raises(InputError, match="holdout: class 0 is 'dog', but 'cat' in labelled: number the classes alike"):
        labelled_and_holdout(rows, other)
