"""Named sets, opened: `cifar10:train`, `svhn:test`, `textures`, from the data root to images and labels.

CIFAR's pickles are read without running any code that they name.
"""

import csv
import io
import logging
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io

from wildood.data.array_files import DAMAGED
from wildood.data.files import data_root, write_atomically
from wildood.data.folders import Folder, open_images
from wildood.data.images import How, Images
from wildood.data.named_sets import IN_SCIKIT_LEARN, SETS, NamedSet, SetPart, find_set
from wildood.errors import InputError, as_utf8

Array = np.ndarray[Any, Any]
SIDE = 32  # pixels of the images of all sets but the digits
SAMPLE_LIST, SAMPLE_SEED = "chosen.csv", 0  # the part that is used of a larger set
_DIGITS = tuple(map(str, range(10)))
_NO_CLASSES = "the set has no classes, give it as wild or test data"
_DAMAGED = (  # what the readers raise for damaged files
    *(*DAMAGED, pickle.UnpicklingError, scipy.io.matlab.MatReadError),
    *(ArithmeticError, AttributeError, ImportError, LookupError, MemoryError),
)
_LOGGER = logging.getLogger("wildood")


def is_named_set(text: str) -> bool:
    """Whether a text names a set, with or without a part, rather than a file.

    >>> is_named_set("svhn:test"), is_named_set("svhn.npz")
    (True, False)
    """
    return text.partition(":")[0] in SETS


def open_set(text: str, root: str | Path | None = None, *, as_published: bool = False) -> Images:
    """The images of a named set, with their labels where it has classes.

    A number of images other than the official one is logged as a warning.

    Args:
        text: `name` or `name:part`; `wildood data list` shows the names.
        root: the data root; by default WILDOOD_DATA, or the user's cache.
        as_published: crop and resize images as the released code does.

    >>> digits = open_set("digits")
    >>> len(digits), digits.examples.shape[1:], digits.classes[7]
    (1797, (8, 8, 1), '7')
    """
    named, part_name = find_set(text)
    part = named.part(part_name)
    images = read_part(named, part, data_root(root), is_default_root=root is None, as_published=as_published)
    if len(images) != part.count:
        _LOGGER.warning("%s has %s images, officially %s", text, f"{len(images):,}", f"{part.count:,}")
    return replace(images, where=text)


def read_part(
    named: NamedSet, part: SetPart, root: Path, *, is_default_root: bool = False, as_published: bool = False
) -> Images:
    """A part of a set, whatever number of images it has.

    >>> len(read_part(SETS["digits"], SETS["digits"].parts[0], Path("nowhere")))
    1797
    """
    place = named.place(part, root)
    if place is None:
        raise InputError(_missing(named, part, root, is_default_root=is_default_root))
    files = [place / file for file in part.files]
    match named.kind:
        case "pictures" | "drawn":
            how: How | None = "as_published" if as_published and named.as_published else named.how
            listed = _sample_list(place, part.count, named.name) if named.kind == "drawn" else place
            return _read_pictures(listed, named, how, root)
        case "cifar10" | "cifar100":
            fine = "fine_" if named.kind == "cifar100" else ""
            classes = _read_cifar_classes(place / named.meta, f"{fine}label_names")
            return Images(*_read_cifar(files, f"{fine}labels", len(classes)), classes=classes)
        case "svhn":
            return Images(*_read_svhn(files[0]), classes=_DIGITS)
        case "array":
            return Images(_read_array(files[0]), unlabelled=_NO_CLASSES)
        case "digits":
            scans, labels = import_module("sklearn.datasets").load_digits(return_X_y=True)
            pixels = (scans.reshape(-1, 8, 8, 1) * (255 / 16)).round().astype(np.uint8)
            return Images(pixels, labels.astype(np.int64), classes=_DIGITS)


def _missing(named: NamedSet, part: SetPart, root: Path, *, is_default_root: bool) -> str:
    """How to get a part that is not below the data root."""
    if named.kind == "digits":
        return IN_SCIKIT_LEARN
    full_name = f"{named.name}:{part.name}"
    command = f"wildood data get {full_name if part.on_request else named.name}"
    command += "" if is_default_root else f" --data-root {root}"
    files = ", ".join((*part.files, named.meta) if named.meta else part.files) or "its pictures"
    by_hand = f"place {files} in {root / named.places[0]}"
    what = full_name if len(named.parts) > 1 else named.name
    return f"{what} is not below {root}: {f'{command}, or ' if named.downloads else ''}{by_hand}"


def _read_pictures(place: Path, named: NamedSet, how: How | None, root: Path) -> Images:
    images = open_images(place, None if how is None else (SIDE, SIDE), how=how or "cover", cache=root)
    if images.examples.shape[1:] != (SIDE, SIDE, 3):
        size = " x ".join(map(str, images.examples.shape[1:3]))
        raise InputError(f"{place} has pictures of {size} pixels where {named.name} has {SIDE} x {SIDE}: get it again")
    return images if named.labelled else replace(images, labels=None, classes=(), unlabelled=_NO_CLASSES)


def _sample_list(place: Path, count: int, name: str) -> Path:
    """The manifest of a random sample of the pictures, drawn once; the folder itself if it has no more than `count`."""
    path = place / SAMPLE_LIST
    if path.exists():
        return path
    names = sorted(file.name for file in Folder(place))
    if len(names) <= count:
        return place
    order = np.random.default_rng(SAMPLE_SEED).choice(len(names), count, replace=False)
    sample = [names[index] for index in np.sort(order)]
    odd = next((file for file in sample if as_utf8(file) != file), None)
    if odd is not None:
        raise InputError(f"{name}: {place} holds {odd!r}, a name that is not UTF-8: rename it")
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([("path",), *((file,) for file in sample)])
    try:
        write_atomically(path, text.getvalue().encode())
    except OSError as error:
        raise InputError(
            f"{name}: the list of drawn pictures cannot be written to {path} ({error.strerror}): make it writable"
        ) from error
    return path


def _read_cifar(files: Sequence[Path], labels_key: str, classes: int) -> tuple[Array, Array]:
    """Images (N x 32 x 32 x 3, uint8) and labels (int64) of CIFAR's Python files, concatenated."""
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


def _read_cifar_classes(file: Path, key: str) -> tuple[str, ...]:
    names = _read_pickle(file).get(key)
    if not isinstance(names, list) or not all(isinstance(name, bytes | str) for name in names):
        raise InputError(f"{file} has no {key}: it is not one of CIFAR's Python files")
    return tuple(name.decode(errors="replace") if isinstance(name, bytes) else name for name in names)


def _read_pickle(file: Path) -> dict[str, Any]:
    """The dict in one of CIFAR's files, its keys as text."""
    try:
        content = _Unpickler(io.BytesIO(file.read_bytes()), encoding="bytes").load()
        return {key.decode() if isinstance(key, bytes) else str(key): value for key, value in content.items()}
    except _DAMAGED as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{file} is not one of CIFAR's Python files ({reason}): remove it and get it again") from error


class _Pixels:
    """Stands for numpy's array while a pickle is read: numpy itself never sees the content of an unknown file."""

    def __init__(self, *_: Any) -> None:
        self.shape: tuple[int, ...] = ()
        self.content, self.by_column = b"", False

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, column_major, content = state
        sound = isinstance(dtype, _Dtype) and dtype.name in {"u1", b"u1"} and isinstance(content, bytes)
        if not sound or not all(type(side) is int and side >= 0 for side in shape) or prod(shape) != len(content):
            raise pickle.UnpicklingError("it holds an array that is not of bytes")
        self.shape, self.content, self.by_column = tuple(shape), content, bool(column_major)

    def array(self) -> Array:
        return np.frombuffer(self.content, np.uint8).reshape(self.shape, order="F" if self.by_column else "C")


class _Dtype:
    """Stands for numpy's dtype."""

    def __init__(self, name: Any = None, *_: Any) -> None:
        self.name = name

    def __setstate__(self, state: Any) -> None:
        """Ignores the byte order and the like, which bytes do not have."""


def _encode(text: str, encoding: str) -> bytes:
    """How Python 3 pickles bytes for Python 2."""
    if not isinstance(text, str) or encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes in {encoding!r}")
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _Pixels,
    ("numpy._core.multiarray", "_reconstruct"): _Pixels,
    ("numpy", "ndarray"): _Pixels,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): lambda: b"",  # without arguments: bytes(10**12) would fill the memory
    ("builtins", "bytes"): lambda: b"",
}


class _Unpickler(pickle.Unpickler):
    """Allows what the official files need, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which CIFAR's files do not need")
        allowed = _ALLOWED[module, name]
        # A pickle may set attributes of what it gets, so each gets a function of its own.
        return lambda *arguments: allowed(*arguments)


def _read_svhn(file: Path) -> tuple[Array, Array]:
    """Images (N x 32 x 32 x 3, uint8) and labels (int64; in the file, the digit 0 has label 10) of SVHN's .mat files."""
    try:
        content = scipy.io.loadmat(file, variable_names=["X", "y"])
        pixels, numbers = np.asarray(content["X"]), np.asarray(content["y"]).ravel()
    except (*_DAMAGED, OSError) as error:
        raise InputError(f"{file} is not a whole Matlab file with X and y: remove it and get it again") from error
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[:3] != (SIDE, SIDE, 3):
        raise InputError(f"{file}: X has dtype {pixels.dtype} and shape {pixels.shape}, not uint8 and (32, 32, 3, N)")
    if len(numbers) != pixels.shape[3] or numbers.dtype.kind not in "iuf" or not np.isin(numbers, range(11)).all():
        raise InputError(f"{file}: y does not have a digit from 1 to 10 for each of {pixels.shape[3]} images")
    return np.ascontiguousarray(pixels.transpose(3, 0, 1, 2)), numbers.astype(np.int64) % 10


def _read_array(file: Path) -> Array:
    """Images (N x 32 x 32 x 3, uint8) of an .npy file, memory-mapped."""
    try:
        images: Array = np.load(file, mmap_mode="r", allow_pickle=False)
    except (*_DAMAGED, OSError) as error:
        raise InputError(f"{file} is not a whole .npy file: remove it and get it again") from error
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[1:] != (SIDE, SIDE, 3):
        raise InputError(f"{file} does not hold uint8 images of shape (N, 32, 32, 3): remove it and get it again")
    return images
