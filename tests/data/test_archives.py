"""An archive gives what `open_images` gives, in the same order, but a shard at a time."""

import io
import os
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from wildood.data import archives
from wildood.data.archives import FileShard, open_archive
from wildood.data.folders import open_images
from wildood.data.images import Framing
from wildood.errors import InputError

X = np.arange(48.0).reshape(12, 2, 2)


@pytest.fixture(autouse=True)
def _there(tmp_path, monkeypatch):
    """Shards of 5 examples."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(archives, "BATCH", 5)
    monkeypatch.setattr(archives, "LARGEST", 5)


def opened(text, framing=None, **options):
    with open_archive(text, framing or Framing(), **options) as archive:
        return archive, list(archive.shards)


def pieces(shards):
    return [shard.read(2) for shard in shards]


def as_saved(save, *arrays, **named):
    content = io.BytesIO()
    save(content, *arrays, **named)
    return content.getvalue()


class Pipe(io.RawIOBase):
    """Bytes that come once, and a count of those that were taken."""

    def __init__(self, content):
        self.content, self.taken = content, 0

    def read(self, size=-1):
        end = len(self.content) if size < 0 else self.taken + size
        found, self.taken = self.content[self.taken : end], min(end, len(self.content))
        return found

    def readinto(self, buffer):
        found = self.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def readable(self):
        return True

    def seekable(self):
        return False


@pytest.fixture
def piped(monkeypatch):
    def put(content):
        pipe = Pipe(content)
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=pipe))
        return pipe

    return put


ARRAYS = {
    "a.npy": as_saved(np.save, X),
    "columns.npy": as_saved(np.save, np.asfortranarray(X)),
    "a.npz": as_saved(np.savez, x=X, y=np.zeros(12)),
    "packed.npz": as_saved(np.savez_compressed, images=X),
    "columns.npz": as_saved(np.savez, x=np.asfortranarray(X)),
    "named.npz:p": as_saved(np.savez, p=X, q=np.zeros(3)),
}


@pytest.mark.parametrize("text", ARRAYS)
@pytest.mark.parametrize("through", ["file", "pipe"])
def test_rows_of_arrays_come_as_they_are_and_are_numbered(text, through, piped):
    if through == "pipe":
        piped(ARRAYS[text])
        text = "-:p" if ":" in text else "-"
    else:
        Path(text.partition(":")[0]).write_bytes(ARRAYS[text])
    with open_archive(text, Framing()) as archive:
        found = pieces(archive.shards)
    assert (archive.where, archive.count) == (text, 12)
    assert [list(piece.names) for piece in found] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]
    assert np.array_equal(np.concatenate([piece.examples for piece in found]), X)


def test_pipe_is_read_no_further_than_the_shard_that_is_asked_for(piped):
    pipe = piped(ARRAYS["a.npy"])
    with open_archive("-", Framing()) as archive:
        header = pipe.taken
        for number, _ in enumerate(archive.shards, 1):
            assert pipe.taken == header + min(12, 5 * number) * X[0].nbytes


def test_fingerprint_of_a_pipe_tells_its_bytes_and_identity_of_a_file_its_times(piped):
    piped(ARRAYS["a.npy"])
    _, first = opened("-")
    piped(as_saved(np.save, np.where(X == 47.0, 0.0, X)))
    _, second = opened("-")
    assert [one.fingerprint == other.fingerprint for one, other in zip(first, second, strict=True)] == [True, True, False]
    Path("a.npz").write_bytes(ARRAYS["a.npz"])
    before = opened("a.npz")[0].identity
    assert opened("a.npz")[0].identity == before
    Path("a.npz").write_bytes(ARRAYS["a.npz"])
    assert opened("a.npz")[0].identity != before


def test_nan_is_told_by_its_place_in_the_archive():
    np.save("a.npy", np.where(X == 47.0, np.nan, X))
    found = opened("a.npy")[1]
    assert len(found[0].read(1).examples) == 5
    with pytest.raises(InputError, match="x: example 11 holds NaN or infinity"):
        found[2].read(1)


def test_archive_without_examples_is_refused():
    np.savez("a.npz", x=X[:0])
    np.save("a.npy", X[:0])
    for name in ("a.npz", "a.npy"):
        with pytest.raises(InputError, match=r"x has shape \(0, 2, 2\): give at least one example"):
            pieces(opened(name)[1])


NO_ARRAYS = "is not an .npz or .npy file of plain arrays"
REFUSED = {
    "no.npz": (None, "no.npz: No such file or directory"),
    "objects.npz": (as_saved(np.savez, x=np.array([{}], dtype=object)), NO_ARRAYS),
    "single.npz": (as_saved(np.savez, x=np.float64(3)), "holds a single number"),
    "text.npz": (b"not arrays at all", NO_ARRAYS),
    "empty.npz": (b"", NO_ARRAYS),
    "torn.npz": (ARRAYS["packed.npz"][:-30], NO_ARRAYS),
    "nameless.npz": (as_saved(np.savez, p=X, q=X), "no array named x or images or inputs or features, it holds p, q"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_holds_no_arrays_is_refused(text):
    content, said = REFUSED[text]
    if content is not None:
        Path(text).write_bytes(content)
    with pytest.raises(InputError, match=said):
        opened(text)


def test_array_that_ends_too_early_is_refused_where_it_ends(piped):
    piped(ARRAYS["a.npy"][:-1])
    with open_archive("-", Framing()) as archive:
        next(archive.shards)
        next(archive.shards)
        with pytest.raises(InputError, match="- ends in the middle of an array: give the whole of it"):
            next(archive.shards)


def test_damaged_bytes_of_an_npz_are_noticed():
    content = bytearray(ARRAYS["a.npz"])
    at = content.index(X[11].tobytes())
    content[at] ^= 1
    Path("a.npz").write_bytes(content)
    assert zipfile.ZipFile("a.npz").testzip() == "x.npy"
    with pytest.raises(InputError, match=NO_ARRAYS):
        opened("a.npz")


@pytest.mark.parametrize("how", ["folder", "manifest"])
def test_pictures_have_the_pixels_names_and_order_of_opened_ones(photos, cache, how):
    if how == "manifest":
        names = [f"b/{number}.png" for number in range(33, 20, -1)]
        (photos / "list.csv").write_text("\n".join(["path", *names]))
        photos = photos / "list.csv"
    archive, found = opened(str(photos), Framing((2, 2)))
    images = open_images(photos, (2, 2), cache=cache)
    read = pieces(found)
    assert archive.count is None
    assert [name for piece in read for name in piece.names] == list(images.names)
    assert np.array_equal(np.concatenate([piece.examples for piece in read]), images.examples)
    assert [shard.first for shard in found] == list(range(0, len(images), 5))


def test_pictures_are_neither_decoded_before_they_are_read_nor_kept(photos, tmp_path, monkeypatch):
    monkeypatch.setenv("WILDOOD_DATA", str(tmp_path / "data"))
    decoded, really = [], archives.decode
    monkeypatch.setattr(archives, "decode", lambda path, framing: (decoded.append(path), really(path, framing))[1])
    found = opened(str(photos), Framing((2, 2)))[1]
    assert decoded == []
    found[3].read(1)
    assert decoded == [str(photos / "a" / f"{number}.png") for number in range(15, 20)]
    assert not (tmp_path / "data").exists()


def test_broken_picture_is_refused_by_its_name_or_left_out(photos):
    (photos / "a" / "07.png").write_bytes(b"torn")
    found = opened(str(photos), Framing((2, 2)))[1]
    assert len(found[0].read(1).examples) == 5
    with pytest.raises(InputError, match=r"a/07.png cannot be read as a picture \(is no picture in .*--skip-broken"):
        found[1].read(1)
    left = opened(str(photos), Framing((2, 2)), skip_broken=True)[1][1].read(1)
    assert list(left.names) == ["a/05.png", "a/06.png", "a/08.png", "a/09.png"]
    assert [name for name, _ in left.broken] == ["a/07.png"]


@pytest.mark.parametrize("rows", [7, 12])
def test_array_file_that_is_replaced_while_it_is_read_is_refused(rows):
    np.save("x.npy", X)
    found = opened("x.npy")[1]
    found[0].read(1)
    np.save("x.npy", X[:rows] + 1)
    os.utime("x.npy", ns=(0, 0))
    with pytest.raises(InputError, match=r"x.npy is not the file that was opened, as seen from .*: leave it as it is"):
        found[1].read(1)
    Path("x.npy").unlink()
    with pytest.raises(InputError, match=r"x.npy is not the file that was opened"):
        found[1].read(1)


def test_rows_that_an_array_file_has_not_are_never_left_out_in_silence():
    np.save("x.npy", X)
    found = Path("x.npy").stat()
    rows = FileShard(10, 5, path=Path("x.npy"), size=found.st_size, modified=found.st_mtime_ns)
    with pytest.raises(InputError, match=r"x.npy is not the file that was opened"):
        rows.read(1)


def test_listed_pictures_that_are_gone_or_others_are_refused_and_never_left_out_as_broken(photos):
    size = (photos / "a" / "07.png").stat().st_size
    found = opened(str(photos), Framing((2, 2)), skip_broken=True)[1]
    (photos / "a" / "07.png").write_bytes(b"torn")
    with pytest.raises(InputError, match=rf"a/07.png was listed with {size} bytes, but has 4 bytes, as seen from "):
        found[1].read(1)
    photos.rename(photos.with_name("elsewhere"))
    photos.mkdir()  # as where a disk is not mounted
    with pytest.raises(InputError, match=r"a/00.png was listed with \d+ bytes, but is not there, as seen from "):
        found[0].read(1)


def test_fingerprint_of_pictures_tells_a_file_that_changed_but_not_its_class(photos):
    before = opened(str(photos))[1]
    (photos / "0").mkdir()  # all classes have other numbers now
    assert [shard.fingerprint for shard in opened(str(photos))[1]] == [shard.fingerprint for shard in before]
    (photos / "a" / "07.png").write_bytes((photos / "a" / "08.png").read_bytes())
    after = opened(str(photos))[1]
    same = [one.fingerprint == other.fingerprint for one, other in zip(before, after, strict=True)]
    assert same == [True, False, *[True] * 6]


def test_pictures_of_other_sizes_are_refused_where_no_size_is_given(photos):
    (photos / "a" / "07.png").write_bytes(picture_of(9))
    with pytest.raises(InputError, match=r"a/05.png is 4 x 3 pixels, a/07.png 9 x 9 \(width x height\): give pictures of"):
        opened(str(photos))[1][1].read(1)


def picture_of(side):
    from PIL import Image  # noqa: PLC0415 - only here

    content = io.BytesIO()
    Image.new("RGB", (side, side)).save(content, "PNG")
    return content.getvalue()
