"""Arrays, tensors and datasets give the same batches; what cannot be read is refused with the line to write instead."""

import tracemalloc

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from wildood.data.sources import ArraySource, DatasetSource, Part
from wildood.data.validation import labelled_source, unlabelled_source
from wildood.errors import InputError

X = np.random.default_rng(0).normal(size=(10, 3)).astype(np.float32)
Y = np.arange(10) % 4
ORDER = torch.tensor([7, 0, 7, 3])


class Pairs(Dataset):
    """Items as a user's own dataset gives them."""

    def __init__(self, *columns):
        self.columns = columns

    def __len__(self):
        return len(self.columns[0])

    def __getitem__(self, index):
        return self.columns[0][index] if len(self.columns) == 1 else tuple(column[index] for column in self.columns)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


def memory_map(path, array):
    np.save(path, array)
    return np.load(path, mmap_mode="r")


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


ARRAYS = {
    "array": lambda array, _: array.copy(),
    "read-only": lambda array, _: read_only(array),
    "fortran": lambda array, _: np.asfortranarray(array),
    "strided": lambda array, _: np.repeat(array, 2, axis=0)[::2],
    "memory map": lambda array, place: memory_map(place / f"{array.ndim}.npy", array),
    "tensor": lambda array, _: torch.from_numpy(array.copy()),
    "transposed tensor": lambda array, _: torch.from_numpy(array.T.copy()).T if array.ndim == 2 else torch.from_numpy(array),
}


@pytest.fixture(params=ARRAYS)
def stored(request, tmp_path):
    return lambda array: ARRAYS[request.param](array, tmp_path)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "uint8", "int64"])
def test_gather_gives_the_rows_asked_for_in_their_own_type(stored, dtype):
    x = (X * 50 + 100).astype(dtype)
    batch, labels = labelled_source((stored(x), stored(Y)), "labelled").gather(ORDER)
    assert batch.numpy().dtype == dtype
    assert np.array_equal(batch.numpy(), x[ORDER.numpy()])
    assert labels.dtype == torch.int64
    assert labels.tolist() == [3, 0, 3, 3]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64"])
def test_labels_of_any_integer_type_become_int64(dtype):
    _, labels = labelled_source((X, Y.astype(dtype)), "labelled").gather(ORDER)
    assert (labels.dtype, labels.tolist()) == (torch.int64, [3, 0, 3, 3])


def test_writing_to_a_batch_leaves_the_data_alone(stored):
    source = unlabelled_source(stored(X), "wild")
    source.gather(torch.arange(10))[0].zero_()
    assert np.array_equal(source.gather(torch.arange(10))[0].numpy(), X)


def test_wild_data_has_no_labels():
    assert unlabelled_source(X, "wild").gather(ORDER)[1] is None


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_checking_hashing_and_reading_copy_no_more_than_a_block(dtype):
    x = np.zeros((60_000, 256), dtype)
    y = np.zeros(60_000, np.int64)
    tracemalloc.start()
    try:
        source = labelled_source((x, y), "labelled")
        source.fingerprint()
        source.gather(torch.arange(128))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < x.nbytes / 6


def test_equal_data_has_equal_fingerprints_wherever_it_is_kept(stored):
    source = labelled_source((stored(X), stored(Y)), "labelled")
    assert source.fingerprint() == labelled_source((X, Y), "labelled").fingerprint()


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_fingerprint_changes_with_any_byte(dtype):
    x = (X * 50 + 100).astype(dtype)
    raw = bytearray(x.tobytes())
    prints = {ArraySource(x).fingerprint()}
    for position in range(len(raw)):
        raw[position] ^= 1
        prints.add(ArraySource(np.frombuffer(bytes(raw), dtype).reshape(x.shape)).fingerprint())
        raw[position] ^= 1
    assert len(prints) == 1 + len(raw)


def test_fingerprint_reads_past_the_first_block():
    x = np.zeros((9000, 2), np.float32)
    before = ArraySource(x).fingerprint()
    x[8999, 1] = 1e-30
    assert ArraySource(x).fingerprint() != before


def test_fingerprint_changes_with_type_shape_labels_and_order():
    zeros = np.zeros((4, 6), np.float32)
    sources = [
        ArraySource(zeros),
        ArraySource(zeros.view(np.int32)),
        ArraySource(zeros.reshape(6, 4)),
        ArraySource(zeros.reshape(4, 2, 3)),
        ArraySource(zeros, np.array([0, 1, 2, 3])),
        ArraySource(zeros, np.array([0, 1, 3, 2])),
        ArraySource(X),
        ArraySource(X[::-1]),
        ArraySource(X[:9]),
    ]
    assert len({source.fingerprint() for source in sources}) == len(sources)


def test_part_is_the_chosen_examples_in_the_chosen_order():
    part = Part(ArraySource(X, Y), torch.tensor([9, 2, 5]))
    batch, labels = part.gather(torch.tensor([2, 0]))
    assert len(part) == 3
    assert np.array_equal(batch.numpy(), X[[5, 9]])
    assert labels.tolist() == [1, 1]


def test_part_of_a_part():
    part = Part(Part(ArraySource(X), torch.tensor([9, 2, 5, 7])), torch.tensor([3, 1]))
    assert np.array_equal(part.gather(torch.arange(2))[0].numpy(), X[[7, 2]])


def test_parts_of_equal_length_have_different_fingerprints():
    source = ArraySource(X)
    assert Part(source, torch.tensor([0, 1])).fingerprint() != Part(source, torch.tensor([1, 2])).fingerprint()


@pytest.mark.parametrize(
    "dataset",
    [
        TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)),
        Pairs(X, Y),
        Pairs(list(torch.from_numpy(X)), Y.tolist()),
        Subset(TensorDataset(torch.from_numpy(np.repeat(X, 2, 0)), torch.from_numpy(np.repeat(Y, 2))), range(0, 20, 2)),
        ConcatDataset([Pairs(X[:4], Y[:4]), Pairs(X[4:], Y[4:])]),
    ],
    ids=["TensorDataset", "arrays", "lists", "Subset", "ConcatDataset"],
)
def test_datasets_give_the_same_batches_as_arrays(dataset):
    source = labelled_source(dataset, "labelled")
    batch, labels = source.gather(ORDER)
    assert len(source) == 10
    assert torch.equal(batch, torch.from_numpy(X)[ORDER])
    assert (labels.dtype, labels.tolist()) == (torch.int64, [3, 0, 3, 3])
    wild, none = unlabelled_source(dataset, "wild").gather(ORDER)
    assert torch.equal(wild, batch)
    assert none is None


@pytest.mark.parametrize("dataset", [Pairs(X), TensorDataset(torch.from_numpy(X))], ids=["x", "(x,)"])
def test_wild_datasets_may_hold_examples_alone(dataset):
    assert torch.equal(unlabelled_source(dataset, "wild").gather(ORDER)[0], torch.from_numpy(X)[ORDER])


@pytest.fixture
def every_warning():
    """torch gives some warnings once in a process; here always."""
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


def test_dataset_that_reads_from_a_memory_map_gives_no_warning(tmp_path, every_warning):
    source = unlabelled_source(Pairs(memory_map(tmp_path / "x.npy", X)), "wild")
    assert torch.equal(source.gather(ORDER)[0], torch.from_numpy(X)[ORDER])


def test_arrays_that_are_not_writable_give_no_warning(stored, every_warning):
    source = labelled_source((stored(X), stored(Y)), "labelled")
    source.fingerprint()
    assert torch.equal(source.gather(ORDER)[0], torch.from_numpy(X)[ORDER])


def test_labelled_dataset_without_labels_is_refused():
    with pytest.raises(InputError, match=r"must give \(x, y\) for each index"):
        labelled_source(Pairs(X), "labelled").gather(ORDER)


def test_dataset_with_float_labels_is_refused():
    with pytest.raises(InputError, match="integer"):
        labelled_source(Pairs(X, Y + 0.7), "labelled").gather(ORDER)


def test_fingerprint_of_a_dataset_names_its_type_and_length():
    assert (
        "TensorDataset[10]" in DatasetSource(TensorDataset(torch.from_numpy(X)), labelled=False, name="wild").fingerprint()
    )


LOADER = DataLoader(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (LOADER, r"labelled is a DataLoader.* write labelled=loader\.dataset instead"),
        ({"x": X, "y": Y}, r"labelled is a dict: write labelled=\(data\['x'\], data\['y'\]\) instead"),
        (Stream(), r"labelled is an IterableDataset \(Stream\), which cannot be indexed: give labelled=\(x, y\)"),
        ([X, Y, Y], r"labelled is a list of 3: give \(x, y\)"),
        ((X,), r"labelled is a tuple of 1: give \(x, y\)"),
        ((X.tolist(), Y), r"labelled x is a list: give a numpy array or a torch tensor, such as np\.asarray\(x\)"),
        ((X, Y.tolist()), r"labelled y is a list: .* np\.asarray\(y\)"),
        (iter(zip(X, Y, strict=True)), r"labelled is a zip: give labelled=\(x, y\)"),
        (None, r"labelled is a NoneType: give labelled=\(x, y\)"),
        (5, r"labelled is a int: give labelled=\(x, y\)"),
        pytest.param("data/train", r"labelled is a str: give labelled=\(x, y\)"),
    ],
)
def test_labelled_data_that_cannot_be_read_is_refused_with_what_to_write(data, message):
    with pytest.raises(InputError, match=message):
        labelled_source(data, "labelled")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (LOADER, r"wild is a DataLoader.* write wild=loader\.dataset instead"),
        ({"pixels": X, "y": Y}, r"wild is a dict: write wild=data\['pixels'\] instead"),
        (Stream(), r"wild is an IterableDataset \(Stream\), which cannot be indexed: give wild=x with arrays"),
        (list(X), "wild is a list of 10: give x alone, as one array"),
        ((X, Y), "wild is a tuple of 2: give x alone, as one array, without labels"),
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
        (np.array(["a", "b"])[:, None], "dtype <U1: give float32 numbers or uint8 images"),
        (np.array([[None]]), "dtype object"),
        (np.ones((2, 2), bool), "dtype bool"),
        (np.ones((2, 2), complex), "dtype complex128"),
        (Pairs(X[:0]), "wild is empty: give at least one example"),
    ],
)
def test_examples_that_are_no_numbers_or_none_at_all_are_refused(x, message):
    with pytest.raises(InputError, match=message):
        unlabelled_source(x, "wild")


@pytest.mark.parametrize("order", [">f2", ">f4", ">f8", ">i4", ">u2"])
def test_the_other_byte_order_gives_the_same_batches_and_the_same_fingerprint(order):
    swapped, plain = X.astype(order), X.astype(np.dtype(order).newbyteorder("="))
    for source in (unlabelled_source(swapped, "x"), labelled_source((swapped, Y.astype(">i8")), "x")):
        assert np.array_equal(source.gather(ORDER)[0].numpy(), plain[ORDER])
    assert ArraySource(swapped).fingerprint() == ArraySource(plain).fingerprint()
    assert np.array_equal(DatasetSource(Pairs(swapped), labelled=False, name="x").gather(ORDER)[0].numpy(), plain[ORDER])


@pytest.mark.parametrize(
    "array",
    [
        X[::-1],
        X[:, ::-1],
        np.asfortranarray(X),
        np.repeat(X, 2, 0)[::2],
        X.astype(np.float16),
        torch.from_numpy(X).bfloat16(),
        torch.from_numpy(X).clone().requires_grad_(),
        torch.nn.Parameter(torch.from_numpy(X).clone()),
        torch.from_numpy(X).T.contiguous().T,
        torch.complex(torch.from_numpy(X), -torch.from_numpy(X)).conj().imag,  # a view that negates
    ],
)
def test_numbers_are_read_however_they_lie_in_memory(array):
    source = unlabelled_source(array, "x")
    rows = source.gather(ORDER)[0]
    assert not rows.requires_grad
    meant = np.array(array)[ORDER] if isinstance(array, np.ndarray) else array.detach()[ORDER]
    assert rows.float().tolist() == torch.as_tensor(meant).float().tolist()
    assert len(source.fingerprint()) == 32


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


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ((torch.eye(3).to_sparse(), 0), "example 0 is a sparse tensor"),
        ((torch.empty(3, device="meta"), 0), "example 0 is a tensor on the meta device"),
        ((torch.ones(3, dtype=torch.complex64), 0), "example 0 has dtype torch.complex64"),
        ((np.zeros(3, "M8[s]"), 0), "example 0 is a ndarray: a dataset must give an array"),
        ((1.0, 0), r"example 0 has shape \(\): give an array with at least one number"),
        ((torch.empty(0), 0), r"example 0 has shape \(0,\)"),
        ((), r"example 0 has shape \(0,\)"),
        ((X[0], np.zeros(2, int)), r"the label of example 0 is array\(\[0, 0\]\): give an integer class"),
        ((X[0], torch.zeros(2)), "the label of example 0 is tensor"),
        ((X[0], torch.empty((), device="meta")), "the label of example 0 is tensor"),
        ((X[0], 2**70), f"the label of example 0 is {2**70}"),
    ],
)
def test_an_item_of_a_dataset_that_is_no_example_is_refused_by_its_number(item, message):
    with pytest.raises(InputError, match=f"^labelled: {message}"):
        labelled_source(Items(item), "labelled").gather(torch.arange(1))


class Items(Dataset):
    """One item, as often as it is said to be."""

    def __init__(self, item, length=10):
        self.item, self.length = item, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.item


@pytest.mark.parametrize("length", [-1, 2.5, "7", None, 2**70])
@pytest.mark.parametrize("read", [labelled_source, unlabelled_source])
def test_a_length_that_is_none_is_refused(read, length):
    with pytest.raises(InputError, match=r"^wild: the length of the Items cannot be used .*: let __len__ return"):
        read(Items((X[0], 0), length), "wild")


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.int8])
def test_labels_may_be_integers_of_any_kind(dtype):
    assert labelled_source((X, torch.from_numpy(Y).to(dtype)), "labelled").gather(ORDER)[1].tolist() == Y[ORDER].tolist()
