"""Data that cannot be used is refused with the line to write instead."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from wildood.data.images import Images
from wildood.data.validation import has_labels, id_source, labelled_source, unlabelled_source
from wildood.errors import InputError

X = np.random.default_rng(0).normal(size=(10, 3)).astype(np.float32)
Y = np.arange(10) % 4
ORDER = torch.tensor([7, 0, 7, 3])


class Items(Dataset):
    """One item, as often as its length says."""

    def __init__(self, item, length=10):
        self.item, self.length = item, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.item


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64"])
def test_labels_of_any_integer_type_become_int64(dtype):
    _, labels = labelled_source((X, Y.astype(dtype)), "labelled").gather(ORDER)
    assert (labels.dtype, labels.tolist()) == (torch.int64, [3, 0, 3, 3])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"x": X, "y": Y}, r"labelled is a dict of 'x', 'y': give labelled=\(x, y\), or the classes as its 'labels'"),
        ([X, Y, Y], r"labelled is a list of 3: give \(x, y\), or \(\(x1, x2\), y\) for a model of several inputs"),
        (TensorDataset(*map(torch.from_numpy, (X, X, Y))), r"labelled is a tuple of 3: give \(x, y\), or \(\(x1, x2\), y\)"),
        (
            [(row, 0) for row in X],
            r"labelled is a list of 10: give \(x, y\), or DataLoader\(labelled\), which reads such examples",
        ),
        (([*X], Y), r"labelled x is a list of one array for each example: give np\.stack\(x\)"),
        ((["hello", "you"], Y[:2]), "labelled x is text: give the numbers that a tokenizer makes of it"),
        (
            ([{"input_ids": [1, 2]}] * 10, Y),
            "labelled x is a list of 10 dicts: give one dict of arrays, .* or a DataLoader with a collate_fn that pads them",
        ),
        ((X,), r"labelled is a tuple of 1: give \(x, y\)"),
        ((X.tolist(), Y), r"labelled x is a list: give a numpy array or a torch tensor, such as np\.asarray\(x\)"),
        ((X, Y.tolist()), r"labelled y is a list: .* np\.asarray\(y\)"),
        (None, r"labelled is a NoneType: give labelled=\(x, y\)"),
        (5, r"labelled is a int: give labelled=\(x, y\)"),
        pytest.param(
            "data/train", r"labelled is a str: give labelled=\(x, y\) .*, or wildood.open_images\(path\) for files"
        ),
        pytest.param(Path("data"), r"labelled is a PosixPath: give .*, or wildood.open_images\(path\) for files"),
    ],
)
def test_labelled_data_that_cannot_be_read_is_refused_with_what_to_write(data, message):
    with pytest.raises(InputError, match=message):
        labelled_source(data, "labelled")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"pixels": X, "y": Y[:5]}, r"wild has parts of different lengths \(10 in wild\['pixels'\], 5 in wild\['y'\]\)"),
        ({}, "wild is an empty dict: give at least one array"),
        ({3: X}, "wild has a key 3: give the names of the model's arguments, as text"),
        ({"text": ["a", "b"]}, r"wild\['text'\]\[0\] is text: give the numbers that a tokenizer makes of it"),
        (None, "wild is a NoneType: give wild=x"),
        pytest.param("data/wild", "wild is a str: give wild=x"),
    ],
)
def test_wild_data_that_cannot_be_read_is_refused_with_what_to_write(data, message):
    with pytest.raises(InputError, match=message):
        unlabelled_source(data, "wild")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (Y[:9], "10 examples but 9 labels"),
        (Y.astype(float), r"labels have dtype float64 and shape \(10,\): give one integer class"),
        (Y > 1, "labels have dtype bool"),
        (torch.from_numpy(Y).float(), "labels have dtype float32"),
        (Y[:, None], r"shape \(10, 1\)"),
        (np.eye(4, dtype=int)[Y], r"shape \(10, 4\)"),
        (Y - 1, "a label is -1: classes count from 0, and unlabelled examples belong in wild"),
    ],
)
def test_labels_that_are_not_classes_are_refused(labels, message):
    with pytest.raises(InputError, match=message):
        labelled_source((X, labels), "labelled")


def test_a_list_of_pairs_is_read_by_a_loader():
    source = labelled_source(DataLoader([(row, int(label)) for row, label in zip(X, Y, strict=True)]), "labelled")
    examples, labels = source.gather(ORDER)
    assert torch.equal(examples, torch.from_numpy(X)[ORDER])
    assert labels.tolist() == [3, 0, 3, 3]


@pytest.mark.parametrize(
    ("labels", "line"),
    [
        (np.array([True, False]), ", such as y.astype(int)"),
        (np.array([1.0, 0.0], np.float32), ", such as y.astype(int)"),
        (np.array([0.5, 0.0]), ""),
        (np.array(["cat", "dog"]), ", such as np.unique(y, return_inverse=True)[1]"),
        (torch.tensor([True, False]), ", such as y.long()"),
        (torch.tensor([1.0, 0.0]), ", such as y.long()"),
        (torch.tensor([0.5, 0.0]), ""),
    ],
)
def test_the_line_that_makes_classes_of_labels_is_given(labels, line):
    with pytest.raises(InputError) as caught:
        labelled_source((X[:2], labels), "labelled")
    assert str(caught.value).endswith(f"give one integer class for each example{line}")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy], ids=["array", "tensor"])
@pytest.mark.parametrize("row", [0, 4095, 4096, 9999])
def test_the_example_that_is_not_finite_is_named(value, convert, row):
    x = np.zeros((10_000, 2, 1), np.float32)
    x[row, 1] = value
    with pytest.raises(InputError, match=f"wild: example {row} holds NaN or infinity: repair or drop"):
        unlabelled_source(convert(x), "wild")


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((0, 3)), r"wild has shape \(0, 3\): give at least one example"),
        (torch.zeros(0, 3), r"wild has shape \(0, 3\): give at least one example"),
        (np.zeros(3), r"wild has shape \(3,\): give at least one example, along the first axis"),
        (
            np.array(["a", "b"])[:, None],
            "dtype <U1: give float32 numbers or uint8 images; of texts, the numbers that a token",
        ),
        (
            np.array(["hello", "you"], object),
            "wild has dtype object: .* of texts, the numbers that a tokenizer makes of them",
        ),
        (np.array([[None]]), "dtype object"),
        (np.ones((2, 2), bool), "dtype bool"),
        (np.ones((2, 2), complex), "dtype complex128"),
        (Items(X[0], length=0), "wild is empty: give at least one example"),
    ],
)
def test_examples_that_are_no_numbers_or_none_at_all_are_refused(x, message):
    with pytest.raises(InputError, match=message):
        unlabelled_source(x, "wild")


NOT_NUMBERS = {
    "is a sparse tensor: give a dense one": torch.eye(10).to_sparse(),
    "is a tensor on the meta device, without data": torch.empty(10, 3, device="meta"),
    r"has dtype torch\.float8_e5m2: give float32": torch.ones(10, 3).to(torch.float8_e5m2),
    r"has dtype torch\.complex64: give float32": torch.ones(10, 3, dtype=torch.complex64),
    "has dtype datetime64": np.zeros((10, 3), "M8[s]"),
    "has dtype .*: give float32": np.zeros((10, 3), "g"),
    "has dtype object": np.full((10, 3), None),
    r"has shape \(10, 0\): give at least one": np.zeros((10, 0)),
    r"has shape \(\): give at least one": np.array(1.0),
}


@pytest.mark.parametrize("message", NOT_NUMBERS)
def test_what_holds_no_numbers_that_can_be_computed_with_is_refused(message):
    array = NOT_NUMBERS[message]
    with pytest.raises(InputError, match=f"^wild {message}"):
        unlabelled_source(array, "wild")
    with pytest.raises(InputError, match=f"^labelled( x)? {message}"):
        labelled_source((array, np.zeros(10, int)), "labelled")


@pytest.mark.parametrize("length", [-1, 2.5, "7", None, 2**70])
@pytest.mark.parametrize("read", [labelled_source, unlabelled_source])
def test_a_length_that_is_none_is_refused(read, length):
    with pytest.raises(InputError, match=r"^wild: the length of the Items cannot be used .*: let __len__ return"):
        read(Items((X[0], 0), length), "wild")


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.int8])
def test_labels_may_be_integers_of_any_kind(dtype):
    assert labelled_source((X, torch.from_numpy(Y).to(dtype)), "labelled").gather(ORDER)[1].tolist() == Y[ORDER].tolist()


@pytest.mark.parametrize(
    ("data", "labelled"),
    [
        ((X, Y), True),
        ([X, Y], True),
        (TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), True),
        (Items((X[0], 1)), True),
        (Images(X, Y), True),
        (X, False),
        (torch.from_numpy(X), False),
        (TensorDataset(torch.from_numpy(X)), False),
        (Items(X[0]), False),
        (Items((X[0], 1, 2)), False),
        (Items((X[0], "cat")), False),
        (Images(X), False),
    ],
)
def test_id_examples_have_labels_if_each_comes_with_a_class(data, labelled):
    source = id_source(data, "id")
    assert len(source) == 10
    assert has_labels(source) is labelled
    assert id_source(source, "id") is source


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((X, Y[:5]), "id: 10 examples but 5 labels: give as many of one as of the other"),
        (Images(X, Y.astype("f")), "id: labels have dtype float32"),
        (TensorDataset(torch.from_numpy(X), torch.rand(10)), "id: labels have dtype float32"),
        (None, "id is a NoneType: give id=x"),
        (Items(X[0] * np.nan), "id: example 0 holds NaN or infinity"),
    ],
)
def test_id_examples_that_cannot_be_read_are_refused(data, message):
    with pytest.raises(InputError, match=f"^{message}"):
        id_source(data, "id").gather(torch.arange(1))
