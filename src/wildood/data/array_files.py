"""Arrays from files: FILE.npy, FILE.npz, FILE.npz:x or FILE.npz:x,y, or - for standard input."""

import io
import lzma
import re
import struct
import sys
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from wildood.data.files import open_plain
from wildood.data.images import Images
from wildood.errors import InputError, as_utf8

Array = np.ndarray[Any, Any]
X_NAMES, Y_NAMES = ("x", "images", "inputs", "features"), ("y", "labels", "targets")
DAMAGED = (  # what numpy and zipfile raise for damaged files
    *(ValueError, TypeError, KeyError, EOFError, RuntimeError, OverflowError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, tokenize.TokenError),
)
_FILE_AND_NAMES = re.compile(r"(-|.*\.np[yz])(?::(.*))?", re.DOTALL | re.IGNORECASE)


def names_arrays(text: str) -> bool:
    """Whether a text names a file of arrays.

    >>> [names_arrays(text) for text in ("a.npy", "a.npz:x,y", "-", "photos", "photos.csv")]
    [True, True, True, False, False]
    """
    return _FILE_AND_NAMES.fullmatch(text) is not None


def open_arrays(text: str) -> Images:
    """The inputs of a file, with labels where there are any; an .npy file is memory-mapped.

    The arrays of an .npz file are named behind a colon, or have usual names (x and y, images and labels). An array
    `classes` beside them names the classes, in the order of the labels.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     np.savez(f"{place}/a.npz", features=np.zeros((3, 2)), labels=np.array([0, 1, 1]))
    ...     open_arrays(f"{place}/a.npz").labels
    array([0, 1, 1])
    """
    place, names = place_and_names(text)
    with _arrays_of(place) as arrays:
        stored = list(arrays)
        x = _pick(arrays, names[:1] or (stored if len(stored) == 1 else X_NAMES), place, text)
        has_labels = bool(names[1:]) or (not names and len(stored) > 1 and any(name in stored for name in Y_NAMES))
        y = _pick(arrays, names[1:] or Y_NAMES, place, text) if has_labels else None
        has_classes = has_labels and not names and "classes" in stored
        class_names = _pick(arrays, ["classes"], place, text) if has_classes else np.empty(0, str)
    if x.ndim == 0 or (y is not None and y.ndim == 0):
        raise InputError(f"{text} holds a single number: give at least one example, along the first axis")
    if y is not None and len(x) != len(y):
        raise InputError(f"{text}: {len(x)} examples but {len(y)} labels: give as many of one as of the other")
    if y is None:
        return Images(x, where=text, unlabelled=_how_to_label(stored, place))
    if y.ndim != 1 or y.dtype.kind not in "iu":  # the inputs may still be wild data
        problem = f"its labels have dtype {y.dtype} and shape {y.shape}: give one integer class for each example"
        return Images(x, where=text, unlabelled=problem)
    classes = tuple(map(as_utf8, class_names.tolist())) if class_names.dtype.kind == "U" and class_names.ndim == 1 else ()
    if classes and int(y.max(initial=0)) >= len(classes):
        raise InputError(f"{text}: a label is {y.max()}, but classes names {len(classes)}: name every class")
    return Images(x, y, where=text, classes=classes)


def place_and_names(text: str) -> tuple[str, tuple[str, ...]]:
    """The file of a text, and the names of arrays behind a colon.

    >>> place_and_names("a.npz:x,y"), place_and_names("-")
    (('a.npz', ('x', 'y')), ('-', ()))
    """
    match = _FILE_AND_NAMES.fullmatch(text)
    if match is None or match[2] is None or Path(text).exists():
        return text, ()
    names = tuple(match[2].split(","))
    if not all(names) or len(names) > 2:
        raise InputError(f"{text}: name the inputs, or the inputs and the labels, as in {match[1]}:x or {match[1]}:x,y")
    return match[1], names


@contextmanager
def _arrays_of(place: str) -> Iterator[Mapping[str, Array]]:
    try:
        with nullcontext(io.BytesIO(sys.stdin.buffer.read())) if place == "-" else open_plain(place) as file:
            is_archive = file.read(2) == b"PK"
            file.seek(0)
            if is_archive:  # numpy reads its arrays when they are asked for
                with np.load(file, allow_pickle=False) as arrays:
                    yield arrays
            elif place == "-":
                yield {"x": np.load(file, allow_pickle=False)}
            else:
                yield {"x": np.load(place, mmap_mode="r", allow_pickle=False)}
    except InputError:
        raise
    except OSError as error:
        raise not_read(place, error) from error
    except MemoryError as error:
        raise too_large(place) from error
    except DAMAGED as error:
        raise no_arrays(place) from error


def _pick(arrays: Mapping[str, Array], names: Sequence[str], place: str, text: str) -> Array:
    array = arrays[name_in(list(arrays), names, place, text)]
    if not isinstance(array, np.ndarray):
        raise no_arrays(place)
    return array


def name_in(stored: Sequence[str], names: Sequence[str], place: str, text: str) -> str:
    """The first of some names that is the name of a stored array.

    >>> name_in(["y", "images"], X_NAMES, "a.npz", "a.npz")
    'images'
    """
    for name in names:
        if name in stored:
            return name
    raise InputError(
        f"{text}: no array named {' or '.join(names)}, it holds {', '.join(stored)}: name one, as in "
        f"{place}:{','.join(stored[:2])}"
    )


def _how_to_label(names: Sequence[str], place: str) -> str:
    if len(names) > 1:
        return f"it holds {', '.join(names)}: name the inputs and the labels, as in {place}:{names[0]},{names[1]}"
    return "save x and y together, as numpy.savez does"


def not_read(place: str, error: OSError) -> InputError:
    """The error for a file that cannot be read; bzip2's own error for a damaged one has no text of the system."""
    if error.strerror is None:
        return no_arrays(place)
    return InputError(f"{place}: {error.strerror}: give the path of a file that is there")


def too_large(place: str) -> InputError:
    """The error for an array that does not fit into memory."""
    return InputError(f"{place} holds, or claims to hold, an array larger than memory: give an .npy file, which is mapped")


def no_arrays(place: str) -> InputError:
    """The error for a file that is not one of arrays."""
    return InputError(f"{place} is not an .npz or .npy file of plain arrays: numpy.savez writes one")
