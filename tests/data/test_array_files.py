"""Arrays come from files as they are, with labels where a name tells them."""

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from wildood.data.array_files import open_arrays
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
