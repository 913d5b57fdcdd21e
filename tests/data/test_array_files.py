"""Arrays come from files as they are, with labels where a name tells them."""

import io
import os
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from wildood.data.archives import open_archive
from wildood.data.array_files import open_arrays
from wildood.data.images import Framing
from wildood.data.validation import labelled_source, unlabelled_source
from wildood.errors import InputError

X, Y = np.arange(12.0).reshape(3, 2, 2), np.array([2, 0, 1])


@pytest.fixture(autouse=True)
def _there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def from_standard_input(monkeypatch, text, save, *arrays, **named):
    content = io.BytesIO()
    save(content, *arrays, **named)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content.getvalue())))
    return open_arrays(text)


def test_npy_is_mapped_into_memory_as_it_is():
    np.save("a.npy", X)
    found = open_arrays("a.npy")
    assert isinstance(found.examples, np.memmap)
    assert found.examples.dtype == np.float64
    assert np.array_equal(found.examples, X)
    assert not found.examples.flags.writeable
    assert (found.labels, found.where) == (None, "a.npy")
    assert found.unlabelled == "save x and y together, as numpy.savez does"


@pytest.mark.parametrize("names", [("x", "y"), ("images", "labels"), ("inputs", "targets"), ("features", "y")])
def test_usual_names_are_found(names):
    np.savez("a.npz", other=np.zeros(7), **dict(zip(names, (X, Y), strict=True)))
    found = open_arrays("a.npz")
    assert np.array_equal(found.examples, X)
    assert np.array_equal(found.labels, Y)
    assert (found.names, found.broken, found.classes, found.content) == ((), (), (), "")


def test_names_are_given_behind_a_colon():
    np.savez("a.npz", p=X, q=Y, x=np.zeros(2), y=np.zeros(2))
    found = open_arrays("a.npz:p,q")
    assert np.array_equal(found.examples, X)
    assert np.array_equal(found.labels, Y)
    assert open_arrays("a.npz:p").labels is None
    assert open_arrays("a.npz:p").unlabelled == ("it holds p, q, x, y: name the inputs and the labels, as in a.npz:p,q")


def test_single_array_needs_no_name():
    np.savez("a.npz", whatever=X)
    assert np.array_equal(open_arrays("a.npz").examples, X)
    np.savez("a.npz", y=X)
    assert np.array_equal(open_arrays("a.npz").examples, X)
    assert open_arrays("a.npz").labels is None


def test_file_may_have_a_colon_in_its_name():
    np.save("a.npz:x.npy", X)
    assert np.array_equal(open_arrays("a.npz:x.npy").examples, X)


def test_standard_input(monkeypatch):
    assert np.array_equal(from_standard_input(monkeypatch, "-", np.save, X).examples, X)
    found = from_standard_input(monkeypatch, "-", np.savez, x=X, y=Y)
    assert np.array_equal(found.labels, Y)
    found = from_standard_input(monkeypatch, "-:p,q", np.savez, p=X, q=Y, r=Y)
    assert np.array_equal(found.examples, X)
    assert np.array_equal(found.labels, Y)


def test_only_what_is_asked_for_is_read_from_an_archive():
    np.savez("a.npz", x=X, z=np.arange(50.0, 59.0))
    content = bytearray(Path("a.npz").read_bytes())
    at = content.index(np.arange(50.0, 59.0).tobytes())
    content[at : at + 8] = b"torn now"
    Path("a.npz").write_bytes(content)
    assert np.array_equal(open_arrays("a.npz:x").examples, X)
    with pytest.raises(InputError, match=r"a.npz is not an .npz or .npy file of plain arrays: numpy.savez writes one"):
        open_arrays("a.npz:z")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no.npy", "no.npy: No such file or directory: give the path of a file that is there"),
        ("no.npz:x,y", "no.npz: No such file or directory: give the path of a file that is there"),
        ("a.npz:x,nope", "a.npz:x,nope: no array named nope, it holds x, y, z: name one, as in a.npz:x,y"),
        ("b.npz", "b.npz: no array named x or images or inputs or features, it holds p, q: name one, as in b.npz:p,q"),
        ("a.npz:", "a.npz:: name the inputs, or the inputs and the labels, as in a.npz:x or a.npz:x,y"),
        ("a.npz:x,y,z", "a.npz:x,y,z: name the inputs, or the inputs and the labels, as in a.npz:x or a.npz:x,y"),
        ("a.npz:x,z", "a.npz:x,z: 3 examples but 2 labels: give as many of one as of the other"),
        ("number.npy", "number.npy holds a single number: give at least one example, along the first axis"),
    ],
)
def test_wrong_names_are_refused(text, message):
    np.savez("a.npz", x=X, y=Y, z=np.zeros(2))
    np.savez("b.npz", p=X, q=Y)
    np.save("number.npy", np.float64(3))
    with pytest.raises(InputError) as refused:
        open_arrays(text)
    assert str(refused.value) == message


def torn_npy():
    np.save("whole.npy", X)
    return Path("whole.npy").read_bytes()[:-1]


def torn_npz():
    np.savez("whole.npz", x=X)
    return Path("whole.npz").read_bytes()[:-30]


def with_objects():
    np.save("objects.npy", np.array([{}, []], object), allow_pickle=True)
    return Path("objects.npy").read_bytes()


@pytest.mark.parametrize("content", [bytes, lambda: b"hello", lambda: b"\x80\x04N.", torn_npy, torn_npz, with_objects])
@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
def test_file_that_holds_no_plain_arrays_is_refused(content, name):
    Path(name).write_bytes(content())
    with pytest.raises(InputError, match=f"{name} is not an .npz or .npy file of plain arrays: numpy.savez writes one"):
        open_arrays(name)


def header(shape, descr="<f4", *, by_column=False):
    return f"{{'descr': {descr!r}, 'fortran_order': {by_column}, 'shape': {shape}, }}"


MADE_UP = {
    "36 TiB": header("(9895604649984, 4)"),
    "36 TiB in one example": header("(1, 9895604649984)"),
    "36 TiB by column": header("(9895604649984, 4)", by_column=True),
    "more than a number can say": header("(99999999999999999999999, 4)"),
    "none of a huge size": header("(0, 99999999999999999999999)"),
    "fewer than none": header("(-5, 4)"),
    "fewer than none, twice": header("(-6, -4)"),
    "70 axes": header(str((1,) * 70)),
    "no shape": header("None"),
    "no such type": header("(6, 4)", "zz"),
    "brackets without end": "[" * 4000,
    "nothing": "",
}


def read_whole(name):
    unlabelled_source(open_arrays(name), "a.npy or a.npz")


def read_shards(name):
    with open_archive(name, Framing()) as archive:
        for shard in archive.shards:
            unlabelled_source(shard.read(1).examples, "a.npy or a.npz")


@pytest.mark.parametrize("read", [read_whole, read_shards])
@pytest.mark.parametrize("kind", ["npy", "npz", "lzma"])
@pytest.mark.parametrize("text", MADE_UP.values(), ids=MADE_UP)
def test_a_file_that_claims_what_cannot_be_is_refused_by_its_name(text, kind, read):
    head = text.encode().ljust(max(117, len(text) + 1)) + b"\n"
    content = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + bytes(96)
    name = "a.npy" if kind == "npy" else "a.npz"
    if kind == "npy":
        Path(name).write_bytes(content)
    else:
        with zipfile.ZipFile(name, "w", zipfile.ZIP_LZMA if kind == "lzma" else zipfile.ZIP_STORED) as archive:
            archive.writestr("x.npy", content)
    with pytest.raises(InputError, match=r"a\.np[yz]") as refused:
        read(name)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_a_damaged_archive_is_refused_whatever_its_compression(compression):
    content = io.BytesIO()
    np.save(content, np.random.default_rng(0).normal(size=(50, 4)))
    with zipfile.ZipFile("a.npz", "w", compression) as archive:
        archive.writestr("x.npy", content.getvalue())
    whole = Path("a.npz").read_bytes()
    for place in range(60, 200, 7):
        Path("a.npz").write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
        with pytest.raises(InputError, match=r"a\.npz is not an \.npz or \.npy file of plain arrays"):
            open_arrays("a.npz")


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.npz:x"])
def test_a_pipe_is_refused_instead_of_waiting_for_its_other_end(name):
    os.mkfifo(name.partition(":")[0])
    with pytest.raises(InputError, match="is a pipe, a socket or a device: give a plain file"):
        open_arrays(name)
    with pytest.raises(InputError, match="is a pipe, a socket or a device"), open_archive(name, Framing()):
        pass


@pytest.mark.parametrize("labels", [np.zeros(3), np.array(["a", "b", "c"]), Y[:, None], Y.astype("M8[s]"), Y.astype("g")])
def test_labels_that_are_no_classes_leave_examples_without_labels(labels):
    np.savez("a.npz", x=X, y=labels)
    found = open_arrays("a.npz")
    assert found.labels is None
    assert torch.equal(unlabelled_source(found, "wild").gather(torch.arange(3))[0], torch.from_numpy(X))
    with pytest.raises(InputError, match=r"a\.npz has no labels: its labels have dtype .*: give one integer class"):
        labelled_source(found, "labelled")


def test_names_of_too_few_classes_are_refused():
    np.savez("a.npz", x=X, y=Y, classes=np.array(["cat", "dog"]))
    with pytest.raises(InputError, match=r"a\.npz: a label is 2, but classes names 2: name every class"):
        open_arrays("a.npz")


@pytest.mark.parametrize("order", [">f4", ">f8", ">i2", ">u2"])
def test_numbers_in_the_other_byte_order_are_read_as_they_are_meant(order):
    np.save("a.npy", X.astype(order))
    np.savez("a.npz", x=X.astype(order), y=Y.astype(">i8"))
    for name in ("a.npy", "a.npz"):
        rows, _ = unlabelled_source(open_arrays(name), "x").gather(torch.arange(3))
        assert np.array_equal(rows.numpy(), X)
        with open_archive(name, Framing()) as archive:
            shard = next(archive.shards).read(1)
        assert np.array_equal(shard.examples, X)
    assert labelled_source(open_arrays("a.npz"), "labelled").gather(torch.arange(3))[1].tolist() == Y.tolist()
