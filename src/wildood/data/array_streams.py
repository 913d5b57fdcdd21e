"""Arrays read from their first row to their last, of any size: an .npz file's, or those that come through a pipe."""

import io
import shutil
import sys
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from math import prod
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np

from wildood.data.array_files import DAMAGED, X_NAMES, name_in, no_arrays, not_read, place_and_names, too_large
from wildood.data.files import open_plain
from wildood.errors import InputError

Array = np.ndarray[Any, Any]
_MAGIC = 8  # bytes


class ArrayStream:
    """The rows of one array, once.

    Attributes:
        shape: of the whole array.
        row_bytes: of one example.
    """

    def __init__(self, file: IO[bytes], begin: bytes, where: str) -> None:
        self._file, self._where = file, where
        version = np.lib.format.read_magic(io.BytesIO(begin))
        read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        self.shape, by_column, self._dtype = read_header(file)
        if self._dtype.hasobject:
            raise no_arrays(where)
        if not self.shape:
            raise InputError(f"{where} holds a single number: give at least one example, along the first axis")
        self.row_bytes = self._dtype.itemsize * prod(self.shape[1:])
        self._whole: Array | None = None
        if by_column and len(self.shape) > 1:  # rows are scattered over all of it
            self._whole = self._read(self.shape[0]).reshape(self.shape[::-1]).T

    def rows(self, together: int) -> Iterator[Array]:
        """All of them, so many together; an array without any gives one empty one."""
        for start in range(0, max(1, self.shape[0]), together):
            count = min(together, self.shape[0] - start)
            yield self._read(count) if self._whole is None else self._whole[start : start + count]

    def _read(self, count: int) -> Array:
        try:
            content = self._file.read(count * self.row_bytes)
            if len(content) == count * self.row_bytes:
                return np.frombuffer(content, self._dtype).reshape(count, *self.shape[1:])
        except MemoryError as error:
            raise too_large(self._where) from error
        except (OSError, *DAMAGED) as error:
            raise no_arrays(self._where) from error
        raise InputError(f"{self._where} ends in the middle of an array: give the whole of it")


@contextmanager
def open_stream(text: str) -> Iterator[ArrayStream]:
    """The inputs that FILE.npz, FILE.npz:x or - names, to be read row by row.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     np.savez(f"{place}/a.npz", x=np.zeros((3, 2)))
    ...     with open_stream(f"{place}/a.npz") as stream:
    ...         [rows.shape for rows in stream.rows(2)]
    [(2, 2), (1, 2)]
    """
    place, names = place_and_names(text)
    with ExitStack() as after:
        try:
            file: IO[bytes] = sys.stdin.buffer if place == "-" else after.enter_context(open_plain(place))
            begin = file.read(_MAGIC)
            if begin.startswith(b"PK"):
                archive = after.enter_context(zipfile.ZipFile(_seekable(file, begin, after)))
                held = [name.removesuffix(".npy") for name in archive.namelist()]
                name = name_in(held, names[:1] or (held if len(held) == 1 else X_NAMES), place, text)
                file = after.enter_context(archive.open(f"{name}.npy"))
                begin = file.read(_MAGIC)
            stream = ArrayStream(file, begin, text)
        except InputError:
            raise
        except OSError as error:
            raise not_read(place, error) from error
        except DAMAGED as error:
            raise no_arrays(place) from error
        yield stream


def _seekable(file: IO[bytes], begin: bytes, after: ExitStack) -> IO[bytes]:
    """A file whose end, where an archive has its list, can be looked at first: the disk keeps what comes through a pipe."""
    if file.seekable():
        file.seek(0)
        return file
    kept = after.enter_context(TemporaryFile())  # noqa: SIM115 - closed with the others
    kept.write(begin)
    shutil.copyfileobj(file, kept)
    kept.seek(0)
    return kept
