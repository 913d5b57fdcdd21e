"""Archives: examples of any number, from array files, pipes and folders of images, read shard by shard."""

import hashlib
import io
import os
import platform
import shutil
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import KW_ONLY, dataclass
from itertools import count as integers
from itertools import islice
from math import prod
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wildood.data.files import open_plain
from wildood.data.folders import array_errors, is_array_file, list_images, open_arrays, pick_inputs, split_array_names
from wildood.data.image_cache import Listed, Listing, in_order
from wildood.data.images import Broken, Decoded, Framing, decode, pillow_warnings
from wildood.data.sources import memory_of
from wildood.data.validation import unlabelled_source
from wildood.errors import InputError

BATCH = 256  # examples: a shard holds whole batches, so that the batches do not depend on how an archive is cut
LARGEST = 16 * BATCH  # examples in a shard
_SHARD_BYTES = 1 << 24  # about, of the examples of a shard
_MAGIC = 8  # bytes at the beginning of a file that tell its type


class ShardExamples(NamedTuple):
    """The examples of a shard, their names or numbers, and the files that cannot be read, each with the reason."""

    examples: Any  # an array, or a dict of arrays
    names: Sequence[str | int]
    broken: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, eq=False)
class Shard:
    """Consecutive examples of an archive."""

    first: int  # the index of the first example, or of its file, in the archive
    count: int  # how many examples, or files, there are
    _: KW_ONLY
    fingerprint: str = ""  # a hash that changes with the examples, where it can be had without decoding them
    path: Path | None = None  # the file or directory that the examples are read from, if any; a Ray worker must see it

    @property
    def nbytes(self) -> int:
        """The bytes of the examples that it carries; none of those that are read from `path`."""
        return 0

    def read(self, threads: int) -> ShardExamples:
        """Read and check the examples."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True, eq=False)
class ArrayShard(Shard):
    """Rows in memory."""

    rows: NDArray[Any]
    names: Sequence[str] = ()

    @property
    def nbytes(self) -> int:
        """The bytes of its rows."""
        return int(self.rows.nbytes)

    def read(self, threads: int) -> ShardExamples:  # noqa: ARG002 - only images are decoded in threads
        """Check the rows; messages count them from the beginning of the archive."""
        unlabelled_source(self.rows, "x", first=self.first)
        return ShardExamples(self.rows, self.names or range(self.first, self.first + self.count))


@dataclass(frozen=True, kw_only=True, eq=False)
class FileShard(Shard):
    """Rows of an .npy file, which must keep the size and the modification time that it had when it was opened."""

    path: Path
    size: int
    modified: int

    def read(self, threads: int) -> ShardExamples:
        """Copy the rows out of the file."""
        status = self.path.stat() if self.path.exists() else None
        if status is not None and (status.st_size, status.st_mtime_ns) == (self.size, self.modified):
            # The file is mapped anew for each shard: its pages count as memory until the map is closed.
            array = np.load(self.path, mmap_mode="r", allow_pickle=False)
            rows = np.array(array[self.first : self.first + self.count])
            if len(rows) == self.count:
                return ArrayShard(self.first, self.count, rows=rows).read(threads)
        raise InputError(
            f"{self.path} is not the file that was opened, as seen from {platform.node()}: leave it as it is while it is "
            "scored, put it where all nodes see the same, and start again"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageShard(Shard):
    """Image files, decoded when they are read."""

    path: Path
    files: Sequence[Listed]
    framing: Framing
    skip_broken: bool

    def read(self, threads: int) -> ShardExamples:
        """Decode the images in threads; a file that cannot be read is refused, or left out."""
        images: dict[str, NDArray[np.uint8]] = {}
        broken: list[tuple[str, str]] = []
        with pillow_warnings(), closing(in_order(self.files, self._decode, threads)) as outcomes:
            for file, outcome in outcomes:
                if isinstance(outcome, Decoded):
                    images[file.name] = outcome.pixels
                    self._check_size(images, file.name)
                elif self.skip_broken:
                    broken.append((file.name, outcome.reason))
                else:
                    raise InputError(
                        f"{self._path(file)} cannot be read as a picture ({outcome.reason}): repair or remove it, or leave "
                        "such files out with --skip-broken"
                    )
        pixels = np.stack(list(images.values())) if images else np.empty((0, 1, 1, 3), np.uint8)
        return ShardExamples(pixels, list(images), broken)

    def _path(self, file: Listed) -> str:
        return os.path.join(self.path, file.name)  # noqa: PTH118 - there may be millions

    def _decode(self, file: Listed) -> Decoded | Broken:
        """Decode a file; one that is not as it was when it was listed is refused, not taken for broken."""
        outcome = decode(self._path(file), self.framing)
        if file.size < 0:  # it was no plain file
            return outcome
        try:
            size = os.stat(self._path(file)).st_size  # noqa: PTH116 - there may be millions
            now = f"has {size} bytes"
        except FileNotFoundError:
            size, now = None, "is not there"
        if size != file.size:
            raise InputError(
                f"{self._path(file)} was listed with {file.size} bytes, but {now}, as seen from {platform.node()}: leave "
                "pictures as they are while they are scored, put them where all nodes see the same, and start again"
            )
        return outcome

    def _check_size(self, images: Mapping[str, NDArray[np.uint8]], name: str) -> None:
        first = next(iter(images))
        if images[name].shape != images[first].shape:
            sizes = [f"{images[one].shape[1]} x {images[one].shape[0]}" for one in (first, name)]
            raise InputError(
                f"{self.path}: {first} is {sizes[0]} pixels, {name} {sizes[1]} (width x height): give pictures of one size"
            )


@dataclass(frozen=True)
class Archive:
    """Examples to be scored in one pass."""

    where: str  # what the user named
    identity: str  # a text that changes with the examples, as far as it can be had without reading them
    count: int | None  # how many examples there are, if known
    shards: Iterator[Shard]  # the examples, in their order


@contextmanager
def open_archive(text: str, framing: Framing, *, skip_broken: bool = False) -> Iterator[Archive]:
    """The examples of a path, or of standard input (-), in the order of `open_images`."""
    if not is_array_file(text):
        listing = list_images(text)
        identity = f"{os.path.realpath(listing.place)} {framing}"
        yield Archive(text, identity, None, _image_shards(listing, framing, skip_broken=skip_broken))
    elif text.lower().endswith(".npy") and isinstance(array := open_arrays(text).examples, np.memmap):
        yield Archive(text, _identity(text), len(array), _file_shards(Path(text), array))
    else:
        with open_stream(text) as stream:
            piped = split_array_names(text)[0] == "-"
            identity = text if piped else _identity(text)
            yield Archive(text, identity, stream.shape[0], _stream_shards(stream, hashed=piped))


def array_archive(rows: NDArray[Any], names: Sequence[str], where: str, identity: str) -> Archive:
    """The rows of an array in memory, such as a named set's."""
    size = shard_size(rows.nbytes // max(1, len(rows)))
    parts = ((first, rows[first : first + size]) for first in range(0, len(rows), size))
    shards = (ArrayShard(first, len(part), rows=part, names=names[first : first + size]) for first, part in parts)
    return Archive(where, identity, len(rows), shards)


def shard_size(example_bytes: int) -> int:
    """How many examples of a size are read at once: whole batches, and fewer of large examples."""
    return min(LARGEST, max(BATCH, _SHARD_BYTES // max(1, example_bytes) // BATCH * BATCH))


def _image_shards(listing: Listing, framing: Framing, *, skip_broken: bool) -> Iterator[Shard]:
    size = shard_size(prod(framing.size) * framing.channels if isinstance(framing.size, tuple) else 1 << 20)
    root, listed = listing.root.absolute(), iter(listing)
    for first, files in zip(integers(0, size), iter(lambda: tuple(islice(listed, size)), ()), strict=False):
        states = repr([(file.name, file.size, file.changed, file.stamped) for file in files])
        state = _fingerprint(states.encode(errors="surrogateescape"))
        yield ImageShard(
            first, len(files), fingerprint=state, path=root, files=files, framing=framing, skip_broken=skip_broken
        )
    listing.remarks()


def _file_shards(path: Path, array: NDArray[Any]) -> Iterator[Shard]:
    path, total, status = path.absolute(), len(array), path.stat()
    size = shard_size(array.nbytes // max(1, total))
    for first in range(0, max(1, total), size):
        count = min(size, total - first)
        yield FileShard(first, count, path=path, size=status.st_size, modified=status.st_mtime_ns)


def _stream_shards(stream: "ArrayStream", *, hashed: bool) -> Iterator[Shard]:
    first = 0
    for rows in stream.rows(shard_size(stream.row_bytes)):
        yield ArrayShard(first, len(rows), fingerprint=_fingerprint(memory_of(rows)) if hashed else "", rows=rows)
        first += len(rows)


def _fingerprint(content: bytes | memoryview) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _identity(text: str) -> str:
    place, names = split_array_names(text)
    status = Path(place).stat()
    return f"{os.path.realpath(place)} {names} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"


class ArrayStream:
    """The rows of one array in .npy format, read once from the beginning to the end."""

    def __init__(self, file: IO[bytes], magic: bytes, where: str) -> None:
        self._file, self._where = file, where
        version = np.lib.format.read_magic(io.BytesIO(magic))
        read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        self.shape, fortran, self._dtype = read_header(file)
        if self._dtype.hasobject:
            raise TypeError("an array of objects")  # for `array_errors`
        if not self.shape:
            raise InputError(f"{where} holds a single number: give at least one example, along the first axis")
        self.row_bytes = self._dtype.itemsize * prod(self.shape[1:])
        self._whole: NDArray[Any] | None = None
        if fortran and len(self.shape) > 1:  # each row is spread over the whole file
            self._whole = self._read(self.shape[0]).reshape(self.shape[::-1]).T

    def rows(self, size: int) -> Iterator[NDArray[Any]]:
        """All rows, `size` at a time; an array without rows gives one empty array."""
        for start in range(0, max(1, self.shape[0]), size):
            count = min(size, self.shape[0] - start)
            yield self._read(count) if self._whole is None else self._whole[start : start + count]

    def _read(self, count: int) -> NDArray[Any]:
        with array_errors(self._where):
            content = self._file.read(count * self.row_bytes)
            if len(content) != count * self.row_bytes:
                raise InputError(f"{self._where} ends in the middle of an array: give the whole of it")
            return np.frombuffer(content, self._dtype).reshape(count, *self.shape[1:])


@contextmanager
def open_stream(text: str) -> Iterator[ArrayStream]:
    """The inputs that FILE.npz, FILE.npz:x or - names, to be read row by row."""
    place, names = split_array_names(text)
    with ExitStack() as stack:
        with array_errors(place):
            file: IO[bytes] = sys.stdin.buffer if place == "-" else stack.enter_context(open_plain(place))
            magic = file.read(_MAGIC)
            if magic.startswith(b"PK"):
                archive = stack.enter_context(zipfile.ZipFile(_seekable(file, magic, stack)))
                arrays = [name.removesuffix(".npy") for name in archive.namelist()]
                file = stack.enter_context(archive.open(f"{pick_inputs(arrays, names, text)}.npy"))
                magic = file.read(_MAGIC)
            stream = ArrayStream(file, magic, text)
        yield stream


def _seekable(file: IO[bytes], magic: bytes, stack: ExitStack) -> IO[bytes]:
    """A zip file has its index at the end, so that one from a pipe is copied to the disk first."""
    if not file.seekable():
        pipe, file = file, stack.enter_context(TemporaryFile())  # noqa: SIM115 - closed by the stack
        file.write(magic)
        shutil.copyfileobj(pipe, file)
    file.seek(0)
    return file
