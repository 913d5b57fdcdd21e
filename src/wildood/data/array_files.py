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
# What numpy and zipfile raise for files that are torn, or made up.
DAMAGED = (
    *(ValueError, TypeError, KeyError, EOFError, RuntimeError, OverflowError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, tokenize.TokenError),
)
_NAMED = re.compile(r"(-|.*\.np[yz])(?::(.*))?", re.DOTALL | re.IGNORECASE)


def names_arrays(text: str) -> bool:
    """Whether a text names arrays.

    >>> [names_arrays(text) for text in ("a.npy", "a.npz:x,y", "-", "photos", "photos.csv")]
    [True, True, True, False, False]
    """
    return _NAMED.fullmatch(text) is not None


def open_arrays(text: str) -> Images:
    """The inputs that a text names, with labels where there are any; an .npy file is mapped, not read.

    Their names in an .npz file are found (x and y, images and labels) or given behind a colon. An array `classes` beside
    them names the classes, in the order of the labels.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     np.savez(f"{place}/a.npz", features=np.zeros((3, 2)), labels=np.array([0, 1, 1]))
    ...     open_arrays(f"{place}/a.npz").labels
    array([0, 1, 1])
    """
    place, names = place_and_names(text)
    with _opened(place) as arrays:
        held = list(arrays)
        x = _pick(arrays, names[:1] or (held if len(held) == 1 else X_NAMES), place, text)
        labelled = bool(names[1:]) or (not names and len(held) > 1 and any(name in held for name in Y_NAMES))
        y = _pick(arrays, names[1:] or Y_NAMES, place, text) if labelled else None
        named = _pick(arrays, ["classes"], place, text) if labelled and not names and "classes" in held else np.empty(0, str)
    if x.ndim == 0 or (y is not None and y.ndim == 0):
        raise InputError(f"{text} holds a single number: give at least one example, along the first axis")
    if y is not None and len(x) != len(y):
        raise InputError(f"{text}: {len(x)} examples but {len(y)} labels: give as many of one as of the other")
    unlabelled = "" if y is not None else _how_to_label(held, place)
    if y is not None and (y.ndim != 1 or y.dtype.kind not in "iu"):  # which may still be wild data
        unlabelled = f"its labels have dtype {y.dtype} and shape {y.shape}: give one integer class for each example"
        y = None
    classes = tuple(map(as_utf8, named.tolist())) if y is not None and named.dtype.kind == "U" and named.ndim == 1 else ()
    if classes and y is not None and int(y.max(initial=0)) >= len(classes):
        raise InputError(f"{text}: a label is {y.max()}, but classes names {len(classes)}: name every class")
    return Images(x, y, where=text, classes=classes, unlabelled=unlabelled)


def place_and_names(text: str) -> tuple[str, tuple[str, ...]]:
    """The file that a text names, and the names of arrays behind a colon.

    >>> place_and_names("a.npz:x,y"), place_and_names("-")
    (('a.npz', ('x', 'y')), ('-', ()))
    """
    found = _NAMED.fullmatch(text)
    if found is None or found[2] is None or Path(text).exists():
        return text, ()
    names = tuple(found[2].split(","))
    if not all(names) or len(names) > 2:
        raise InputError(f"{text}: name the inputs, or the inputs and the labels, as in {found[1]}:x or {found[1]}:x,y")
    return found[1], names


@contextmanager
def _opened(place: str) -> Iterator[Mapping[str, Array]]:
    try:
        with nullcontext(io.BytesIO(sys.stdin.buffer.read())) if place == "-" else open_plain(place) as file:
            is_archive = file.read(2) == b"PK"
            file.seek(0)
            if is_archive:  # of which numpy reads those arrays that are asked for
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
    found = arrays[name_in(list(arrays), names, place, text)]
    if not isinstance(found, np.ndarray):
        raise no_arrays(place)
    return found


def name_in(held: Sequence[str], names: Sequence[str], place: str, text: str) -> str:
    """The first of some names that a file holds.

    >>> name_in(["y", "images"], X_NAMES, "a.npz", "a.npz")
    'images'
    """
    for name in names:
        if name in held:
            return name
    raise InputError(
        f"{text}: no array named {' or '.join(names)}, it holds {', '.join(held)}: name one, as in "
        f"{place}:{','.join(held[:2])}"
    )


def _how_to_label(names: Sequence[str], place: str) -> str:
    if len(names) > 1:
        return f"it holds {', '.join(names)}: name the inputs and the labels, as in {place}:{names[0]},{names[1]}"
    return "save x and y together, as numpy.savez does"


def not_read(place: str, error: OSError) -> InputError:
    """That a file cannot be read: by what the system says, or by what bzip2 says of a damaged one.

    >>> not_read("a.npy", FileNotFoundError(2, "No such file or directory"))
    InputError('a.npy: No such file or directory: give the path of a file that is there')
    """
    if error.strerror is None:
        return no_arrays(place)
    return InputError(f"{place}: {error.strerror}: give the path of a file that is there")


def too_large(place: str) -> InputError:
    """That an array, as a file describes it, does not fit into memory.

    >>> too_large("a.npz")
    InputError('a.npz holds, or claims to hold, an array larger than memory: give an .npy file, which is mapped')
    """
    return InputError(f"{place} holds, or claims to hold, an array larger than memory: give an .npy file, which is mapped")


def no_arrays(place: str) -> InputError:
    """That a file cannot be read as arrays.

    >>> no_arrays("a.npy")
    InputError('a.npy is not an .npz or .npy file of plain arrays: numpy.savez writes one')
    """
    return InputError(f"{place} is not an .npz or .npy file of plain arrays: numpy.savez writes one")
