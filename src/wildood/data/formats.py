"""The files that the named sets are published in, read into arrays; no code that a file names is ever run."""

import io
import pickle
import struct
import zlib
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io

from wildood.errors import InputError

Array = np.ndarray[Any, Any]
SIDE = 32  # pixels, of the images in all of these files
_DAMAGED = (
    pickle.UnpicklingError,
    struct.error,
    zlib.error,
    ArithmeticError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)


def read_cifar(files: Sequence[Path], labels_key: str, classes: int) -> tuple[Array, Array]:
    """Images (N x 32 x 32 x 3, uint8) and labels (int64) of CIFAR's Python files, one after the other.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     file = Path(place) / "test_batch"
    ...     _ = file.write_bytes(pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [3, 1]}, protocol=2))
    ...     images, labels = read_cifar([file], "labels", classes=10)
    >>> images.shape, labels
    ((2, 32, 32, 3), array([3, 1]))
    """
    images, labels = [], []
    for file in files:
        content = _read_pickle(file)
        pixels, numbers = content.get("data"), content.get(labels_key)
        if not isinstance(pixels, _Pixels) or pixels.shape[1:] != (3 * SIDE * SIDE,):
            raise InputError(f"{file} has no images of {SIDE} x {SIDE} pixels: it is not one of CIFAR's Python files")
        if not isinstance(numbers, list) or len(numbers) != pixels.shape[0]:
            raise InputError(
                f"{file} has no {labels_key} of {pixels.shape[0]} images: it is not one of CIFAR's Python files"
            )
        if not all(type(number) is int and 0 <= number < classes for number in numbers):
            raise InputError(f"{file} has {labels_key} that are not from 0 to {classes - 1}: it is damaged")
        images.append(pixels.array().reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1))
        labels.append(np.array(numbers, np.int64))
    return np.concatenate(images), np.concatenate(labels)


def read_cifar_classes(file: Path, key: str) -> tuple[str, ...]:
    """The names of CIFAR's classes.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     file = Path(place) / "batches.meta"
    ...     _ = file.write_bytes(pickle.dumps({"label_names": [b"cat", b"dog"]}, protocol=2))
    ...     read_cifar_classes(file, "label_names")
    ('cat', 'dog')
    """
    names = _read_pickle(file).get(key)
    if not isinstance(names, list) or not all(isinstance(name, bytes | str) for name in names):
        raise InputError(f"{file} has no {key}: it is not one of CIFAR's Python files")
    return tuple(name.decode(errors="replace") if isinstance(name, bytes) else name for name in names)


def read_svhn(file: Path) -> tuple[Array, Array]:
    """Images (N x 32 x 32 x 3, uint8) and labels (int64, the digit 0 has 0) of a .mat file of SVHN.

    >>> import tempfile, scipy.io
    >>> with tempfile.TemporaryDirectory() as place:
    ...     file = Path(place) / "test_32x32.mat"
    ...     scipy.io.savemat(file, {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[10], [4]])})
    ...     images, labels = read_svhn(file)
    >>> images.shape, labels
    ((2, 32, 32, 3), array([0, 4]))
    """
    try:
        content = scipy.io.loadmat(file, variable_names=["X", "y"])
        pixels, numbers = np.asarray(content["X"]), np.asarray(content["y"]).ravel()
    except (*_DAMAGED, scipy.io.matlab.MatReadError, OSError) as error:
        raise InputError(f"{file} is not a whole Matlab file with X and y: remove it and get it again") from error
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[:3] != (SIDE, SIDE, 3):
        raise InputError(f"{file}: X has dtype {pixels.dtype} and shape {pixels.shape}, not uint8 and (32, 32, 3, N)")
    if len(numbers) != pixels.shape[3] or numbers.dtype.kind not in "iuf" or not np.isin(numbers, range(11)).all():
        raise InputError(f"{file}: y does not have a digit from 1 to 10 for each of {pixels.shape[3]} images")
    return np.ascontiguousarray(pixels.transpose(3, 0, 1, 2)), numbers.astype(np.int64) % 10


def read_array(file: Path) -> Array:
    """Images (N x 32 x 32 x 3, uint8) of an .npy file, which stay on disk until they are looked at.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     np.save(f"{place}/a.npy", np.zeros((2, 32, 32, 3), np.uint8))
    ...     read_array(Path(place) / "a.npy").shape
    (2, 32, 32, 3)
    """
    try:
        images: Array = np.load(file, mmap_mode="r", allow_pickle=False)
    except (*_DAMAGED, OSError) as error:
        raise InputError(f"{file} is not a whole .npy file: remove it and get it again") from error
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[1:] != (SIDE, SIDE, 3):
        raise InputError(f"{file} does not hold uint8 images of shape (N, 32, 32, 3): remove it and get it again")
    return images


class _Pixels:
    """Stands for numpy's array while a pickle is read, so that numpy itself never sees what an unknown file says."""

    def __init__(self, *_: Any) -> None:
        self.shape: tuple[int, ...] = ()
        self.content, self.by_column = b"", False

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, column_major, content = state
        sound = isinstance(kind, _Kind) and kind.name in {"u1", b"u1"} and isinstance(content, bytes)
        if not sound or not all(type(side) is int and side >= 0 for side in shape) or prod(shape) != len(content):
            raise pickle.UnpicklingError("it holds an array that is not of bytes")
        self.shape, self.content, self.by_column = tuple(shape), content, bool(column_major)

    def array(self) -> Array:
        return np.frombuffer(self.content, np.uint8).reshape(self.shape, order="F" if self.by_column else "C")


class _Kind:
    """Stands for numpy's dtype."""

    def __init__(self, name: Any = None, *_: Any) -> None:
        self.name = name

    def __setstate__(self, state: Any) -> None:
        """Byte order and the like: nothing that a byte has."""


def _encode(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes for Python 2."""
    if not isinstance(text, str) or encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes in {encoding!r}")
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _Pixels,
    ("numpy._core.multiarray", "_reconstruct"): _Pixels,
    ("numpy", "ndarray"): _Pixels,
    ("numpy", "dtype"): _Kind,
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): lambda: b"",  # no more is needed, and bytes(10**12) would fill the memory
    ("builtins", "bytes"): lambda: b"",
}


class _Unpickler(pickle.Unpickler):
    """Knows what the official files need, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which CIFAR's files do not need")
        allowed = _ALLOWED[module, name]
        # A pickle may set attributes of what it is given: let it be a function that nobody else has.
        return lambda *arguments: allowed(*arguments)


def _read_pickle(file: Path) -> dict[str, Any]:
    """The dict in one of CIFAR's files, its keys as text."""
    try:
        content = _Unpickler(io.BytesIO(file.read_bytes()), encoding="bytes").load()
        return {key.decode() if isinstance(key, bytes) else str(key): value for key, value in content.items()}
    except _DAMAGED as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{file} is not one of CIFAR's Python files ({reason}): remove it and get it again") from error
