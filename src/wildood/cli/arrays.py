"""Arrays named on the command line: FILE.npz, FILE.npz:x or FILE.npz:x,y, FILE.npy, or - for standard input."""

import io
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from wildood.errors import InputError

Array = np.ndarray[Any, Any]
X_NAMES, Y_NAMES = ("x", "images", "inputs", "features"), ("y", "labels", "targets")


def read_pair(text: str, option: str) -> tuple[Array, Array]:
    """Inputs and labels from an .npz file; their names are found (x and y, images and labels) or given behind a colon."""
    arrays, names = _open(text, option)
    if names and len(names) != 2:
        raise InputError(f"{option} {text}: name the inputs and the labels, as in {text.split(':', maxsplit=1)[0]}:x,y")
    x, y = _pick(arrays, names[:1] or X_NAMES, option, text), _pick(arrays, names[1:] or Y_NAMES, option, text)
    if len(x) != len(y):
        raise InputError(f"{option} {text}: {len(x)} examples but {len(y)} labels: give as many of one as of the other")
    return x, y


def read_inputs(text: str, option: str) -> Array:
    """Inputs alone; labels beside them are left alone."""
    arrays, names = _open(text, option)
    if not names and len(arrays) == 1:
        return next(iter(arrays.values()))
    return _pick(arrays, names[:1] or X_NAMES, option, text)


def _open(text: str, option: str) -> tuple[dict[str, Array], tuple[str, ...]]:
    place, colon, names = text.rpartition(":") if ".np" in text.rpartition(":")[0] else (text, "", "")
    try:
        content: Any = io.BytesIO(sys.stdin.buffer.read()) if place == "-" else Path(place)
        loaded = np.load(content, allow_pickle=False)
        arrays = {"x": loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
    except OSError as error:
        raise InputError(f"{option} {place}: {error.strerror or 'is not an .npz or .npy file'}") from error
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{option} {place} is not an .npz or .npy file of plain arrays: numpy.savez writes one") from error
    return arrays, tuple(names.split(",")) if colon else ()


def _pick(arrays: dict[str, Array], names: tuple[str, ...], option: str, text: str) -> Array:
    for name in names:
        if name in arrays:
            return arrays[name]
    raise InputError(
        f"{option} {text}: no array named {' or '.join(names)}, it holds {', '.join(arrays)}: name one, as in "
        f"{text.split(':', maxsplit=1)[0]}:{','.join(list(arrays)[:2])}"
    )
