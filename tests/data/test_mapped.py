"""Examples in several files are one source: read when needed, the same whichever files they are in."""

import numpy as np
import pytest
import torch

import wildood
from wildood.data.files import DamagedFileError
from wildood.data.fingerprint import ExampleHashes
from wildood.data.mapped import MappedSource, examples_file, open_examples, read_ahead
from wildood.data.sources import ArraySource, Part
from wildood.data.validation import all_labels, has_labels, id_source, labelled_source, unlabelled_source
from wildood.errors import InputError
from wildood.models.small import MLP


def saved(place, name, batch):
    suffix, content = examples_file(batch)
    path = place / f"{name}{suffix}"
    path.write_bytes(content)
    return open_examples(path)


def whole(*sources, labels=None):
    which = np.concatenate([np.full(len(source), number) for number, source in enumerate(sources)])
    rows = np.concatenate([np.arange(len(source)) for source in sources])
    return MappedSource(sources, which, rows, labels)


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(90, 4)).astype(np.float32)


@pytest.fixture
def mapped(tmp_path, x):
    """The same examples in three files of different lengths."""
    parts = np.split(x, [10, 50])
    return whole(*(saved(tmp_path, str(number), torch.from_numpy(part)) for number, part in enumerate(parts)))


def test_examples_are_gathered_in_any_order(mapped, x):
    order = torch.from_numpy(np.random.default_rng(1).integers(0, 90, 200))
    examples, labels = mapped.gather(order)
    assert torch.equal(examples, torch.from_numpy(x)[order])
    assert labels is None
    assert len(mapped) == 90


def test_files_are_memory_mapped(mapped, tmp_path):
    assert all(isinstance(each.examples, np.memmap) for each in mapped.sources)
    assert read_ahead([Part(mapped, torch.arange(3))])
    texts = saved(tmp_path, "texts", {"ids": torch.ones(2, 3)})
    (tmp_path / "texts.safetensors").unlink()
    assert texts.gather(torch.tensor([1]))[0]["ids"].tolist() == [[1.0, 1.0, 1.0]]


def test_the_fingerprint_does_not_depend_on_the_files(mapped, x, tmp_path):
    other = whole(*(saved(tmp_path, f"other{n}", torch.from_numpy(part)) for n, part in enumerate(np.split(x, 30))))
    assert mapped.fingerprint() == other.fingerprint()
    assert mapped.fingerprint() != whole(ArraySource(x[::-1])).fingerprint()
    assert mapped.fingerprint() != whole(ArraySource(x.astype(np.float64))).fingerprint()
    labelled = whole(*mapped.sources, labels=np.arange(90) % 3)
    assert labelled.fingerprint() != mapped.fingerprint()
    assert labelled.fingerprint(labels=False) == mapped.fingerprint()


def test_a_part_of_a_structure_may_differ_in_size(tmp_path):
    short = {"ids": torch.arange(6).reshape(2, 3), "pair": (torch.ones(2), torch.zeros(2, 1, 2))}
    long = {"ids": torch.arange(4).reshape(1, 4), "pair": (torch.ones(1), torch.zeros(1, 3, 1))}
    source = whole(saved(tmp_path, "short", short), saved(tmp_path, "long", long))
    assert source.is_padded
    batch = source.gather(torch.tensor([2, 0]))[0]
    assert batch["ids"].tolist() == [[0, 1, 2, 3], [0, 1, 2, 0]]
    assert batch["pair"][1].shape == (2, 3, 2)
    hashes = ExampleHashes(source).values()
    assert hashes.tolist() == [ExampleHashes(Part(source, torch.tensor([number]))).values().item() for number in range(3)]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"mask": torch.zeros(2, 3)}, "different parts"),
        ({"ids": torch.zeros(2, 3, dtype=torch.int64)}, "different parts or types"),
        ({"ids": torch.zeros(2, 3, 1)}, "different numbers of axes"),
    ],
)
def test_structures_that_fit_no_batch_are_refused(other, message):
    both = whole(unlabelled_source({"ids": torch.zeros(2, 3)}, "x"), unlabelled_source(other, "x"))
    with pytest.raises(InputError, match=message):
        both.gather(torch.tensor([0, 2]))


def test_images_of_different_sizes_are_refused():
    both = whole(ArraySource(np.zeros((2, 4, 4, 1))), ArraySource(np.zeros((2, 5, 5, 1))))
    with pytest.raises(InputError, match="different shapes"):
        both.gather(torch.tensor([0, 2]))


def test_it_is_taken_as_it_is_wherever_sources_are(mapped):
    labelled = whole(*mapped.sources, labels=np.arange(90) % 3)
    assert unlabelled_source(mapped, "wild") is mapped
    assert labelled_source(labelled, "labelled") is labelled
    assert id_source(labelled, "id") is labelled
    assert has_labels(labelled)
    assert not has_labels(id_source(mapped, "id"))
    assert all_labels(labelled).tolist() == [number % 3 for number in range(90)]
    with pytest.raises(InputError, match="labelled"):
        labelled_source(mapped, "labelled")


def test_files_that_hold_no_examples_are_refused(tmp_path):
    for name, content in {"a.npy": b"", "b.npy": b"\x93NUMPY\x01\x00v\x00{", "c.safetensors": b"123"}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DamagedFileError, match=name):
            open_examples(tmp_path / name)
    np.save(tmp_path / "d.npy", np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(DamagedFileError, match=r"d\.npy"):
        open_examples(tmp_path / "d.npy")
    with pytest.raises(FileNotFoundError):
        open_examples(tmp_path / "none.safetensors")


def test_fit_trains_on_files_to_the_bits_of_arrays(mapped, x):
    rng = np.random.default_rng(2)
    known, y = rng.normal(size=(60, 4)).astype(np.float32), rng.integers(0, 3, 60)
    torch.manual_seed(0)
    model, schedule = MLP(4, 3, hidden=(8,)), wildood.Schedule(steps=4, batch=16)
    settings = {"schedule": schedule, "keep": "last", "verbose": False, "holdout": (known[20:], y[20:])}
    first, second = (wildood.fit(model, (known[:20], y[:20]), wild, **settings) for wild in (x, mapped))
    assert first.score(x).tolist() == second.score(x).tolist() == second.score(mapped).tolist()
    assert second.record["data"]["wild"].startswith(mapped.fingerprint())
