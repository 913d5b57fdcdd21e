"""Arrays, tensors and datasets give the same batches and the same fingerprints."""

import logging
import tracemalloc

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset, get_worker_info

from wildood.data import sources
from wildood.data.mapped import read_ahead
from wildood.data.sources import ArraySource, DatasetSource, Part, StructuredSource, for_process, from_process
from wildood.data.structures import parts_of
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


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ((torch.eye(3).to_sparse(), 0), "example 0 is a sparse tensor"),
        ((torch.empty(3, device="meta"), 0), "example 0 is a tensor on the meta device"),
        ((torch.ones(3, dtype=torch.complex64), 0), "example 0 has dtype torch.complex64"),
        ((np.zeros(3, "M8[s]"), 0), "example 0 is a ndarray: a dataset must give an array"),
        ((1.0, 0), r"example 0 has shape \(\): give an array with at least one number"),
        ((torch.empty(0), 0), r"example 0 has shape \(0,\)"),
        ((), r"a labelled dataset must give \(x, y\) for each index, 0 has 1 parts"),
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


@pytest.mark.parametrize(
    "item",
    [
        torch.eye(3)[1],
        torch.tensor(2.5, dtype=torch.bfloat16),
        torch.arange(6).reshape(2, 3).T,
        {"x": (torch.ones(2, dtype=torch.bool), np.zeros(3)), "id": "a", "more": [1, 2.5, None]},
        (torch.ones(2, requires_grad=True), 4),
    ],
)
def test_items_arrive_from_a_process_as_they_were_sent(item):
    arrived = from_process(for_process(item))
    assert type(arrived) is type(item)
    for part, sent in zip(parts_of(arrived), parts_of(item), strict=True):
        assert part[0] == sent[0]
        assert type(part[1]) is type(sent[1])
        assert np.array_equal(part[1], sent[1].detach() if isinstance(sent[1], torch.Tensor) else sent[1]) or (
            part[1] is sent[1]
        )


def test_workers_do_not_draw_the_same_numbers():
    class Draws(Items):
        def __getitem__(self, index):
            return torch.rand(1)

    source = unlabelled_source(DataLoader(Draws(None, 40), num_workers=2), "wild")
    drawn = source.gather(torch.arange(40))[0][:, 0].tolist()
    assert len(set(drawn)) == 40
    assert source.gather(torch.arange(40))[0][:, 0].tolist() != drawn


def test_workers_are_begun_as_those_of_the_loader():
    class Opened(Items):
        offset = 0.0

        def __getitem__(self, index):
            return torch.tensor([self.offset, float(index)])

    def begin(number):
        worker = get_worker_info()
        assert (worker.id, worker.num_workers) == (number, 2)
        worker.dataset.offset = 7.0

    source = unlabelled_source(DataLoader(Opened(None, 6), num_workers=2, worker_init_fn=begin), "wild")
    assert source.gather(torch.arange(6))[0].tolist() == [[7.0, float(index)] for index in range(6)]


def test_batches_are_read_ahead_where_that_changes_nothing(tmp_path):
    repeatable, arrays = Pairs(X), ArraySource(X)
    mapped = ArraySource(memory_map(tmp_path / "x.npy", X))
    assert read_ahead([arrays, Part(mapped, torch.arange(3))])
    assert read_ahead([StructuredSource({"a": arrays, "b": mapped})])
    assert not read_ahead([mapped, unlabelled_source(repeatable, "wild")])
    loader = unlabelled_source(DataLoader(repeatable, num_workers=2), "wild")
    assert read_ahead([arrays, loader])
    assert read_ahead([Part(loader, torch.arange(3))])
    assert not read_ahead([arrays])
    assert not read_ahead([loader, unlabelled_source(repeatable, "wild")])


def test_a_line_says_that_workers_read_slow_items_at_once(monkeypatch, caplog):
    monkeypatch.setattr(sources, "_LONG", 0.0)
    with caplog.at_level(logging.INFO, logger="wildood"):
        assert unlabelled_source(Pairs(X), "wild").is_repeatable
        assert unlabelled_source(DataLoader(Pairs(X), num_workers=2), "more").is_repeatable
    assert "wild: 10 examples take" in caplog.text
    assert "more: 10 examples take" not in caplog.text


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.bfloat16], ids=str)
def test_tensors_of_every_dtype_give_their_rows(dtype):
    rows, _ = ArraySource(torch.arange(30).reshape(10, 3).to(dtype)).gather(ORDER)
    assert rows.dtype == dtype
    assert rows.tolist() == [[21, 22, 23], [0, 1, 2], [21, 22, 23], [9, 10, 11]]
