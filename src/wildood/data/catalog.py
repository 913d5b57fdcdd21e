"""The named sets, such as `cifar10:train` or `textures`: their files, where to download them, and their images.

CIFAR's pickles are read without running any code that they name. torch is imported only to open a set: `wildood data list`
must start fast.
"""

import csv
import io
import logging
import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from math import prod
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import numpy as np

from wildood.data.files import DAMAGED_ARRAY, IMAGE_SUFFIXES, data_root, write_atomically
from wildood.errors import InputError, as_utf8

if TYPE_CHECKING:
    from wildood.data.images import How, Images

Array = np.ndarray[Any, Any]
SIDE = 32  # pixels of the images of all sets but the digits
SAMPLE_LIST, SAMPLE_SEED = "chosen.csv", 0  # the part that is used of a larger set
IN_SCIKIT_LEARN = "the digits are inside scikit-learn: pip install scikit-learn"
_DIGITS = tuple(map(str, range(10)))
_NO_CLASSES = "the set has no classes, give it as wild or test data"
_DAMAGED = (  # what the readers raise for damaged files
    *(*DAMAGED_ARRAY, pickle.UnpicklingError),
    *(ArithmeticError, AttributeError, ImportError, LookupError, MemoryError),
)
_LOGGER = logging.getLogger("wildood")


@dataclass(frozen=True)
class Download:
    """A file to download."""

    url: str
    file: str  # its name on disk
    md5: str | None = None  # its published checksum, if known
    size: int | None = None  # in bytes, if known
    unpacked: int = 0  # the most bytes that an archive may unpack to; 0 for a file that is used as it is
    members: int = 0  # the most members that an archive may have
    part: str | None = None  # the part in it; None for the whole set


@dataclass(frozen=True)
class SetPart:
    """A part of a set, such as train or test."""

    name: str
    count: int  # the official number of images
    files: tuple[str, ...] = ()  # none for a directory of pictures
    on_request: bool = False  # downloaded only by its own name


@dataclass(frozen=True)
class NamedSet:
    """A set, as its source describes it."""

    name: str
    what: str
    terms: str  # of use, as far as they are publicly known
    source: str  # its web page
    kind: Literal["cifar10", "cifar100", "svhn", "pictures", "drawn", "array", "digits"]  # how its files are read
    parts: tuple[SetPart, ...]
    places: tuple[str, ...] = ()  # directories below the data root where wildood, torchvision or the released code puts it
    downloads: tuple[Download, ...] = ()
    meta: str = ""  # the file that names the classes
    how: Literal["cover", "centre"] | None = None  # how its pictures are framed to 32 x 32; None if they have that size
    as_published: bool = False  # whether the released code crops them differently (`Framing.how` "as_published")
    labelled: bool = False

    def part(self, name: str) -> SetPart:
        """The part of this name; the name may be empty if there is only one."""
        if not name and len(self.parts) == 1:
            return self.parts[0]
        for part in self.parts:
            if part.name == name:
                return part
        *others, last = [f"{self.name}:{part.name}" for part in self.parts]
        problem = f"has no part {name!r}" if name else "has several parts"
        raise InputError(f"{self.name} {problem}: give " + (f"{', '.join(others)} or {last}" if others else self.name))

    def files(self, part: SetPart) -> tuple[str, ...]:
        """The files of a part; none for a directory of pictures."""
        return (*part.files, self.meta) if self.meta else part.files

    def place(self, part: SetPart, root: Path) -> Path | None:
        """The directory with the files of a part; None if they are not below the data root."""
        if self.kind == "digits":
            return Path() if find_spec("sklearn") else None
        files = self.files(part)
        for place in (root / place for place in self.places):
            if all((place / file).is_file() for file in files) if files else _has_pictures(place):
                return place
        return None


def _has_pictures(place: Path) -> bool:
    return any(Path(file).suffix.lower() in IMAGE_SUFFIXES for _, _, files in os.walk(place) for file in files)


def _archive(url: str, md5: str, limits: tuple[int, int], size: int | None = None) -> tuple[Download]:
    return (Download(url, PurePosixPath(urlsplit(url).path).name, md5, size, *limits),)


def _svhn_file(part: str, md5: str, size: int) -> Download:
    return Download(f"{_STANFORD}/{part}_32x32.mat", f"{part}_32x32.mat", md5, size, part=part)


def _odin(name: str, what: str, count: int, folder: str, key: str, md5: str) -> NamedSet:
    parts, places = (SetPart("all", count),), (f"{name}/{folder}", folder)
    downloads = _archive(f"https://www.dropbox.com/s/{key}/{folder}.tar.gz?dl=1", md5, _SCENES)
    return NamedSet(name, f"{what} (ODIN's)", "see the source", _ODIN, "pictures", parts, places, downloads)


_KRIZ, _STANFORD = "https://www.cs.toronto.edu/~kriz", "http://ufldl.stanford.edu/housenumbers"
_DTD, _PLACES = "https://www.robots.ox.ac.uk/~vgg/data/dtd", "http://data.csail.mit.edu/places/places365"
_ODIN = "https://github.com/facebookresearch/odin"
_HENDRYCKS, _300K = "https://people.eecs.berkeley.edu/~hendrycks", "300K_random_images.npy"
# The most bytes and members of an unpacked archive.
_CIFAR, _SCENES = (250_000_000, 100), (500_000_000, 50_000)
_TEXTURES, _MANY = (2_000_000_000, 20_000), (10_000_000_000, 400_000)

_SETS = (
    NamedSet(
        name="cifar10",
        what="CIFAR-10: ten classes of animals and vehicles",
        terms="no licence stated; cite Krizhevsky 2009",
        source=f"{_KRIZ}/cifar.html",
        kind="cifar10",
        parts=(
            SetPart("train", 50_000, tuple(f"data_batch_{number}" for number in range(1, 6))),
            SetPart("test", 10_000, ("test_batch",)),
        ),
        places=("cifar10/cifar-10-batches-py", "cifar-10-batches-py", "cifarpy/cifar-10-batches-py"),
        downloads=_archive(f"{_KRIZ}/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", _CIFAR, 170_498_071),
        meta="batches.meta",
        labelled=True,
    ),
    NamedSet(
        name="cifar100",
        what="CIFAR-100: a hundred classes of things",
        terms="no licence stated; cite Krizhevsky 2009",
        source=f"{_KRIZ}/cifar.html",
        kind="cifar100",
        parts=(SetPart("train", 50_000, ("train",)), SetPart("test", 10_000, ("test",))),
        places=("cifar100/cifar-100-python", "cifar-100-python", "cifar-100-python/cifar-100-python"),
        downloads=_archive(f"{_KRIZ}/cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", _CIFAR, 169_001_437),
        meta="meta",
        labelled=True,
    ),
    NamedSet(
        name="svhn",
        what="Street View House Numbers: cropped digits",
        terms="non-commercial use only",
        source=_STANFORD,
        kind="svhn",
        parts=(
            SetPart("train", 73_257, ("train_32x32.mat",)),
            SetPart("test", 26_032, ("test_32x32.mat",)),
            SetPart("extra", 531_131, ("extra_32x32.mat",), on_request=True),
        ),
        places=("svhn", "SVHN", "."),
        downloads=(
            _svhn_file("train", "e26dedcc434d2e4c54c9b2d4a06d8373", 182_040_794),
            _svhn_file("test", "eb5a983be6a315427106f1b164d9cef3", 64_275_384),
            _svhn_file("extra", "a93ce644f1a588dc4d68dda5feec44a7", 1_329_278_602),
        ),
        labelled=True,
    ),
    replace(
        _odin("lsun-c", "LSUN scenes, crops", 10_000, "LSUN", "fhtsw1m3qxlwj6h", "458a0a0ab8e5f1cb4516d7400568e460"),
        places=("lsun-c/LSUN", "LSUN_C", "LSUN"),
        how="centre",
        as_published=True,
    ),
    _odin("lsun-r", "LSUN scenes, resized", 10_000, "LSUN_resize", "moqh2wh8696c3yl", "278b7b31c8cb7e804a1465a8ce03a2dc"),
    _odin("isun", "iSUN scenes, resized", 8_925, "iSUN", "ssz7qxfqae0cca5", "be77b0f2c26fda898afac5f99645ee70"),
    NamedSet(
        name="textures",
        what="Describable Textures: 47 kinds",
        terms="for research purposes",
        source=f"{_DTD}/",
        kind="pictures",
        parts=(SetPart("all", 5_640),),
        places=("textures/dtd/images", "dtd/images", "dtd/dtd/images"),
        downloads=_archive(f"{_DTD}/download/dtd-r1.0.1.tar.gz", "fff73e5086ae6bdbea199a49dfb8a4c1", _TEXTURES, 625_239_812),
        how="cover",
        labelled=True,
    ),
    NamedSet(
        name="places365",
        what="Places365 scenes: 10,000 drawn of 328,500",
        terms="non-commercial research and education; not to be passed on",
        source="http://places2.csail.mit.edu/download.html",
        kind="drawn",
        parts=(SetPart("all", 10_000),),
        places=("places365/test_256", "places365"),
        downloads=_archive(f"{_PLACES}/test_256.tar", "f532f6ad7b582262a2ec8009075e186b", _MANY),
        how="cover",
    ),
    NamedSet(
        name="300k",
        what="300K Random Images: a cleaned part of 80 Million Tiny Images",
        terms="see the source",
        source="https://github.com/hendrycks/outlier-exposure",
        kind="array",
        parts=(SetPart("all", 300_000, (_300K,)),),
        places=("300k", "."),
        downloads=(Download(f"{_HENDRYCKS}/{_300K}", _300K, "64ca64357de98351f28454274a112dc3"),),
    ),
    NamedSet(
        name="digits",
        what="scikit-learn's digits: scans of 8 x 8 pixels",
        terms="CC BY 4.0 (UCI)",
        source="https://scikit-learn.org/stable/datasets/toy_dataset.html",
        kind="digits",
        parts=(SetPart("all", 1_797),),
        labelled=True,
    ),
)
SETS: dict[str, NamedSet] = {named.name: named for named in _SETS}


def find_set(text: str) -> tuple[NamedSet, str]:
    """The set of `name` or `name:part`, and the name of the part, empty if there is none."""
    name, _, part = text.partition(":")
    if name in SETS:
        return SETS[name], part
    near = get_close_matches(name.lower(), SETS, n=1)
    raise InputError(
        f"no set is named {name!r}: " + (f"did you mean {near[0]}?" if near else f"give one of {', '.join(SETS)}")
    )


def readable_size(named: NamedSet) -> str:
    """The size of a set's downloads, without the parts that are downloaded on request only."""
    left_out = {part.name for part in named.parts if part.on_request}
    sizes = [download.size for download in named.downloads if download.part not in left_out]
    known = [size for size in sizes if size is not None]
    if not sizes:
        return "nothing"
    return f"{sum(known) / 1e6:.0f} MB" if len(known) == len(sizes) else "not stated"


def is_named_set(text: str) -> bool:
    """Whether a text names a set, with or without a part, rather than a file."""
    return text.partition(":")[0] in SETS


def open_set(text: str, root: str | Path | None = None, *, as_published: bool = False) -> "Images":
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
) -> "Images":
    """A part of a set, whatever number of images it has."""
    from wildood.data.images import Images  # noqa: PLC0415 - imports torch

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
    if named.kind == "digits":
        return IN_SCIKIT_LEARN
    full_name = f"{named.name}:{part.name}"
    command = f"wildood data get {full_name if part.on_request else named.name}"
    command += "" if is_default_root else f" --data-root {root}"
    files = ", ".join(named.files(part)) or "its pictures"
    by_hand = f"place {files} in {root / named.places[0]}"
    what = full_name if len(named.parts) > 1 else named.name
    return f"{what} is not below {root}: {f'{command}, or ' if named.downloads else ''}{by_hand}"


def _read_pictures(place: Path, named: NamedSet, how: "How | None", root: Path) -> "Images":
    from wildood.data.folders import open_images  # noqa: PLC0415 - imports torch

    images = open_images(place, None if how is None else (SIDE, SIDE), how=how or "cover", cache=root)
    if images.examples.shape[1:] != (SIDE, SIDE, 3):
        size = " x ".join(map(str, images.examples.shape[1:3]))
        raise InputError(f"{place} has pictures of {size} pixels where {named.name} has {SIDE} x {SIDE}: get it again")
    return images if named.labelled else replace(images, labels=None, classes=(), unlabelled=_NO_CLASSES)


def _sample_list(place: Path, count: int, name: str) -> Path:
    """The manifest of a random sample of the pictures, drawn once; the folder itself if it has no more than `count`."""
    from wildood.data.folders import Folder  # noqa: PLC0415 - imports torch

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
    import scipy.io  # noqa: PLC0415 - slow to import

    try:
        content = scipy.io.loadmat(file, variable_names=["X", "y"])
        pixels, numbers = np.asarray(content["X"]), np.asarray(content["y"]).ravel()
    except (*_DAMAGED, OSError, scipy.io.matlab.MatReadError) as error:
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
