"""Archives: examples of any number, listed chunk by chunk in a fixed order; nothing is held, decoded or kept as a whole."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count as numbers
from itertools import islice
from math import prod
from pathlib import Path

from wildood.data.array_files import names_arrays, open_arrays, place_and_names
from wildood.data.array_streams import open_stream
from wildood.data.chunks import Array, Chunk, FileRows, Pictures, Rows, chunk_size
from wildood.data.files import open_plain
from wildood.data.images import Framing
from wildood.data.listing import Listing
from wildood.data.opening import listing_of


@dataclass(frozen=True)
class Archive:
    """Examples, to be gone through once.

    Attributes:
        where: what the user named.
        identity: a text that is another one when the examples are, as far as that is known before they are read.
        count: how many there are, where that is known.
        chunks: all of them, in their order.
    """

    where: str
    identity: str
    count: int | None
    chunks: Iterator[Chunk]


@contextmanager
def open_archive(text: str, framing: Framing, *, skip_broken: bool = False) -> Iterator[Archive]:
    """The examples that a path, or - for standard input, names: what `open_images` opens, in the same order.

    >>> import tempfile, numpy as np
    >>> with tempfile.TemporaryDirectory() as place:
    ...     np.save(f"{place}/a.npy", np.zeros((5000, 3)))
    ...     with open_archive(f"{place}/a.npy", Framing()) as archive:
    ...         archive.count, [(chunk.first, chunk.count) for chunk in archive.chunks]
    (5000, [(0, 4096), (4096, 904)])
    """
    if not names_arrays(text):
        listing = listing_of(text)
        identity = f"{os.path.realpath(listing.place)} {framing}"
        yield Archive(text, identity, None, _pictures(listing, framing, skip_broken=skip_broken))
    elif _is_one_array(text):
        array = open_arrays(text).examples
        path, found = Path(text).absolute(), Path(text).stat()
        size, total = chunk_size(array.nbytes // max(1, len(array))), len(array)
        pieces = (
            FileRows(path, start, min(size, total - start), found.st_size, found.st_mtime_ns)
            for start in range(0, max(1, total), size)
        )
        yield Archive(text, _identity(text), total, pieces)
    else:
        with open_stream(text) as stream:
            piped = place_and_names(text)[0] == "-"
            rows = stream.rows(chunk_size(stream.row_bytes))
            yield Archive(text, text if piped else _identity(text), stream.shape[0], _numbered(rows, hashed=piped))


def archive_of(examples: Array, names: Sequence[str], where: str, identity: str) -> Archive:
    """The examples of an array that is at hand, such as a named set's.

    >>> import numpy as np
    >>> [chunk.count for chunk in archive_of(np.zeros((5000, 3)), (), "a set", "c0ffee").chunks]
    [4096, 904]
    """
    size = chunk_size(examples.nbytes // max(1, len(examples)))
    pieces = (
        Rows(examples[start : start + size], start, names[start : start + size]) for start in range(0, len(examples), size)
    )
    return Archive(where, identity, len(examples), pieces)


def _pictures(listing: Listing, framing: Framing, *, skip_broken: bool) -> Iterator[Chunk]:
    size = chunk_size(prod(framing.size) * framing.channels if isinstance(framing.size, tuple) else 1 << 20)
    root, files = listing.root.absolute(), iter(listing)
    for first, some in zip(numbers(0, size), iter(lambda: tuple(islice(files, size)), ()), strict=False):
        yield Pictures(root, first, some, framing, skip_broken)
    listing.remarks()


def _numbered(pieces: Iterator[Array], *, hashed: bool) -> Iterator[Chunk]:
    first = 0
    for piece in pieces:
        yield Rows(piece, first, hashed=hashed)
        first += len(piece)


def _is_one_array(text: str) -> bool:
    """Whether it is an .npy file by its content, which can be read from any row on."""
    place, names = place_and_names(text)
    if place == "-" or names:
        return False
    try:
        with open_plain(place) as file:
            return file.read(6) == b"\x93NUMPY"
    except OSError:
        return False


def _identity(text: str) -> str:
    place, names = place_and_names(text)
    status = Path(place).stat()
    return f"{os.path.realpath(place)} {names} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
