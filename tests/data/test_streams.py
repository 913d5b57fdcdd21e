"""Streams: read into memory for training, in order and in whole for scores."""

import itertools
import logging

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from wildood.data import streams
from wildood.data.sources import ArraySource, DatasetSource, StructuredSource
from wildood.data.streams import Stream, is_stream
from wildood.data.validation import has_labels, id_source, in_order, labelled_source, unlabelled_source
from wildood.errors import InputError

X = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
Y = np.arange(50) % 4


class Rows(IterableDataset):
    """Rows of an array, each read by one of the workers."""

    def __init__(self, *columns):
        self.columns = columns

    def __iter__(self):
        info = get_worker_info()
        rows = range(len(X)) if info is None else range(info.id, len(X), info.num_workers)
        for row in rows:
            item = tuple(column[row] for column in self.columns)
            yield item[0] if len(item) == 1 else item


class NoTorch:
    """What only iterates, as datasets of other libraries do."""

    def __iter__(self):
        return iter(X)


@pytest.mark.parametrize(
    "make",
    [lambda: (row for row in X), lambda: iter(X), NoTorch, lambda: Rows(X), lambda: Rows(X, Y), lambda: DataLoader(Rows(X))],
    ids=["generator", "iterator", "iterable", "dataset", "pairs", "loader"],
)
def test_a_stream_gives_what_its_array_gives(make):
    source = unlabelled_source(make(), "wild")
    assert isinstance(source, ArraySource)
    assert np.array_equal(source.examples, X)
    assert source.fingerprint() == ArraySource(X).fingerprint()


def test_a_stream_of_pairs_is_labelled_data():
    source = labelled_source(zip(X, Y, strict=True), "labelled")
    assert np.array_equal(source.examples, X)
    assert source.labels.tolist() == Y.tolist()
    assert source.fingerprint() == ArraySource(X, Y).fingerprint()


def test_id_streams_have_labels_if_the_first_item_has_a_class():
    assert has_labels(id_source(zip(X, Y, strict=True), "id"))
    assert not has_labels(id_source(iter(X), "id"))


def test_a_stream_of_dicts_is_a_structure():
    source = labelled_source(({"a": row, "b": row[:1], "label": int(y)} for row, y in zip(X, Y, strict=True)), "labelled")
    assert isinstance(source, StructuredSource)
    assert source.gather(torch.tensor([7]))[0]["b"].tolist() == [[X[7, 0]]]
    assert source.labels.tolist() == Y.tolist()


def test_a_stream_that_uses_its_memory_again_is_copied():
    def rows():
        row = torch.zeros(3)
        for number in range(5):
            yield row.fill_(number)

    assert unlabelled_source(rows(), "wild").examples[:, 0].tolist() == [0, 1, 2, 3, 4]


def test_workers_read_a_stream_in_the_order_of_the_loader():
    rows = unlabelled_source(DataLoader(Rows(X), batch_size=4, num_workers=2), "wild").examples
    assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, X.tolist()))
    assert np.array_equal(rows[:8], X[[0, 2, 4, 6, 1, 3, 5, 7]])


def test_a_collate_fn_makes_the_batches_of_a_stream():
    def pad(items):
        return torch.stack([torch.nn.functional.pad(torch.as_tensor(item), (0, 5 - len(item))) for item in items])

    ragged = [np.full(1 + number % 5, number, np.float32) for number in range(20)]
    loader = DataLoader(IterableOf(ragged), batch_size=3, collate_fn=pad)
    source = unlabelled_source(loader, "wild")
    assert isinstance(source, DatasetSource)
    assert source.gather(torch.tensor([3, 0]))[0].tolist() == [[3, 3, 3, 3, 0], [0, 0, 0, 0, 0]]
    assert source.fingerprint() == unlabelled_source(loader, "wild").fingerprint()
    batches = [part.gather(torch.arange(len(part)))[0] for part in in_order(loader, "x", 8)]
    assert [len(batch) for batch in batches] == [8, 8, 4]
    assert torch.cat(batches)[:, 0].tolist() == list(range(20))


class IterableOf(IterableDataset):
    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


def test_a_stream_beyond_memory_is_a_sample_that_is_the_same_each_time(monkeypatch, caplog):
    monkeypatch.setattr(streams, "STREAM_BYTES", 40 * (1024 + 4 + 64))
    first, second = (
        unlabelled_source((torch.tensor([float(number)]) for number in range(200)), "wild").examples for _ in range(2)
    )
    assert len(first) == len(set(first[:, 0].tolist())) == 40
    assert torch.equal(first, second)
    assert "wild: 200 examples were read from the stream: 40 of them, drawn at random, are kept in memory" in caplog.text


def test_places_of_a_stream_are_kept_with_equal_probability(monkeypatch):
    monkeypatch.setattr(streams, "STREAM_BYTES", 10 * (1024 + 4 + 64))
    counts = np.zeros(40)
    for seed in range(200):
        monkeypatch.setattr(streams, "generator", lambda *_, seed=seed: torch.Generator().manual_seed(seed))
        kept = unlabelled_source((torch.tensor([float(number)]) for number in range(40)), "wild").examples
        counts[kept[:, 0].long().numpy()] += 1
    # Each is kept in 50 of 200 runs on average: chi-squared of 39 degrees of freedom.
    assert np.sum((counts - 50) ** 2 / 37.5) < 80


def test_examples_of_different_sizes_stay_within_the_limit(monkeypatch):
    monkeypatch.setattr(streams, "STREAM_BYTES", 20_000)
    monkeypatch.setattr(streams, "_OBJECT", 0)
    sizes = np.random.default_rng(0).integers(1, 300, 500)
    loader = DataLoader(
        IterableOf([torch.zeros(size) for size in sizes]), collate_fn=lambda items: torch.zeros(len(items), 2)
    )
    source = unlabelled_source(loader, "wild")
    assert 15_000 < sum(each.nbytes for each in source.dataset) <= 20_000


def test_an_endless_stream_is_read_to_the_limit(monkeypatch, caplog):
    monkeypatch.setattr(streams, "STREAM_EXAMPLES", 30)
    endless = (torch.tensor([float(number)]) for number in itertools.count())
    assert unlabelled_source(endless, "wild").examples[:, 0].tolist() == list(range(30))
    assert "wild: 30 examples were read from the stream (the limit: it may have more): all are kept in memory" in caplog.text


def test_one_line_says_how_many_were_read(caplog):
    with caplog.at_level(logging.INFO, logger="wildood"):
        unlabelled_source(iter(X), "wild")
    assert caplog.messages == ["wild: 50 examples were read from the stream: all are kept in memory"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (iter([]), "wild is a stream that gave no example: give a new one, for an iterator can be read only once"),
        (iter([X[0], X[1][:2]]), r"wild: examples have different shapes, such as \(2,\) and \(3,\): give"),
        (
            iter([{"a": X[0], "b": X[0]}, {"a": X[1], "b": X[1][:2]}]),
            r"wild: examples have different shapes, such as \(2,\) and \(3,\) of x\['b'\]: give",
        ),
        (iter([X[0], X[1] * np.nan]), "wild: example 1 holds NaN or infinity"),
        (iter(["a", "b"]), "wild: example 0 is a str: a dataset must give an array or a tensor for each index"),
    ],
)
def test_streams_that_cannot_be_used_are_refused(data, message):
    with pytest.raises(InputError, match=f"^{message}"):
        unlabelled_source(data, "wild")


def test_a_stream_of_examples_alone_is_no_labelled_data():
    with pytest.raises(InputError, match=r"^labelled: a labelled dataset must give \(x, y\) for each index, 0 has 1 parts"):
        labelled_source(iter(X), "labelled")


@pytest.mark.parametrize("data", [X, torch.zeros(2), [1, 2], (1,), {"x": X}, "text", None, DataLoader(torch.zeros(3))])
def test_what_has_an_index_is_no_stream(data):
    assert not is_stream(data)


def test_scores_read_a_stream_in_order_and_only_once():
    stream = iter(X)
    parts = in_order(stream, "x", 20)
    assert np.array_equal(next(parts).examples, X[:20])
    assert np.array_equal(next(stream), X[20])  # nothing is read before it is needed
    assert [len(part) for part in parts] == [20, 9]
    assert list(Stream(iter([]), "x").batches(5)) == []


def test_frames_in_a_stream_are_refused_with_what_to_give():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(InputError, match="wild: example 0 is a DataFrame: give tables whole, with input=spec, or rows of"):
        unlabelled_source(iter([pandas.DataFrame(X)]), "wild")
