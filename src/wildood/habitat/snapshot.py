"""A snapshot of some of the traffic, which stays while budget and retention remove the original: for a training run."""

import os
import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt

from wildood.data.files import DAMAGED_ARRAY, write_array_file
from wildood.data.mapped import MappedSource, open_examples
from wildood.errors import InputError
from wildood.habitat.store import Store

ROWS = "rows.npz"


def take_snapshot(store: Store, ids: npt.ArrayLike, directory: Path) -> MappedSource:
    """The examples of these answers, in this order, from links to their files below a directory.

    If that is interrupted, it can be called again. A finished snapshot is opened by `open_snapshot`.
    """
    directory.mkdir(parents=True, exist_ok=True)

    def link() -> list[tuple[str, int]]:
        places = store.places(ids)
        for name in {name for name, _ in places}:
            if not (directory / name).exists():
                _link(store.traffic / name, directory / name)
        return places

    places = store.again(link)
    names, rows = zip(*places, strict=True)
    numbers = np.asarray(ids, np.int64)
    write_array_file(directory / ROWS, ids=numbers, names=np.array(names, np.str_), rows=np.array(rows, np.int64))
    return open_snapshot(directory)[1]


def open_snapshot(directory: Path) -> tuple[npt.NDArray[np.int64], MappedSource]:
    """The ids of the answers of a finished snapshot, and their examples; a missing one is a FileNotFoundError."""
    try:
        with np.load(directory / ROWS, allow_pickle=False) as file:
            ids, names, rows = (file[name] for name in ("ids", "names", "rows"))
    except FileNotFoundError:
        raise
    except DAMAGED_ARRAY as error:
        raise InputError(f"{directory / ROWS} is damaged ({error}): remove {directory}, and begin again") from error
    files, which = np.unique(names, return_inverse=True)
    sources = tuple(open_examples(directory / name) for name in files.tolist())
    return ids, MappedSource(sources, which.astype(np.int64), rows)


def _link(file: Path, link: Path) -> None:
    """A second name of a file; a copy where the file system has no such names."""
    try:
        os.link(file, link)
    except FileNotFoundError:
        raise
    except OSError:
        draft = link.with_name(f"{link.name}.part")
        shutil.copyfile(file, draft)
        draft.replace(link)
