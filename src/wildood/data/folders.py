"""Folders and manifests of images: which files they name, and `open_images`, which opens any of them, or arrays."""

import csv
import io
import json
import logging
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from wildood.data.files import DAMAGED_ARRAY, IMAGE_SUFFIXES, data_root, open_plain
from wildood.data.image_cache import Listed, Listing, open_cached
from wildood.data.images import Framing, How, Images
from wildood.errors import InputError, as_utf8
from wildood.settings import can_be_named, check_flag, check_integer, check_path

KINDS = (".csv", ".jsonl")  # of manifests
_SUFFIXES = IMAGE_SUFFIXES | {".heic", ".heif", ".avif", ".jp2"}  # the last cannot be read, and are refused by name
_ACCEPTED = "give a folder of pictures, a .csv or .jsonl manifest, or an .npy or .npz file of arrays"
_PATHS, _LABELS = ("path", "file", "image"), ("label", "class")
_INTEGER, _FRACTION = re.compile(r"\d{1,9}"), re.compile(r"-\d+|-?\d+\.\d*")
Array = np.ndarray[Any, Any]
_X_NAMES, _Y_NAMES = ("x", "images", "inputs", "features"), ("y", "labels", "targets")  # of arrays
_FILE_AND_NAMES = re.compile(r"(-|.*\.np[yz])(?::(.*))?", re.DOTALL | re.IGNORECASE)
_LOGGER = logging.getLogger("wildood")


def open_images(
    path: str | Path,
    size: tuple[int, int] | int | None = None,
    *,
    how: How = "cover",
    channels: Literal[1, 3] = 3,
    skip_broken: bool = False,
    cache: str | Path | None = None,
    workers: int | None = None,
) -> Images:
    """Open a folder of images, a manifest of images, or arrays.

    A folder holds images at any depth (.jpg, .png, .gif, .tiff, .webp and others, by their names). If all of them
    are in subfolders, the subfolders of the first level are the classes, numbered in the order of their names, or of
    their values if all names are integers; else there are no labels. A manifest is a .csv file with a header
    path,label (or path alone), or a .jsonl file with lines of {"path": ..., "label": ...}; paths are relative to it,
    labels are integers, or names, numbered in their order.

    Images of any size and mode become uint8 arrays in NHWC: upright, the first frame, without transparency, 16 bits
    scaled to 8 (32 bits, too, unless all values are below 256), floats scaled from 0..1 (or taken as 0..255). They are
    decoded once, in threads, into a cache; opened again, only files that are new or changed are decoded.

    Arrays come from FILE.npy (memory-mapped), FILE.npz, FILE.npz:x, FILE.npz:x,y, or - (standard input), and stay
    as they are, of any shape and type: the arguments below are for images only.

    Args:
        path: the folder, manifest or file of arrays.
        size: height and width of the examples, or one number for both; None takes images as they are.
        how: "cover" resizes and crops the centre, "centre" only crops; see `Framing`.
        channels: 3 for RGB, 1 for grey.
        skip_broken: leave out files that cannot be read, with a warning, and list them in `broken`.
        cache: the directory for the cache; by default WILDOOD_DATA, else the user's cache.
        workers: threads that decode; by default one for each processor.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as place:
    ...     for name in ("cat", "dog"):
    ...         Path(place, "pets", name).mkdir(parents=True)
    ...         Image.new("RGB", (40, 30), name == "dog" and "white" or "black").save(f"{place}/pets/{name}/1.png")
    ...     images = open_images(f"{place}/pets", size=16, cache=place)
    ...     images.examples.shape, images.labels, images.classes, list(images.names)
    ((2, 16, 16, 3), array([0, 1]), ('cat', 'dog'), ['cat/1.png', 'dog/1.png'])
    """
    framing = Framing(size, how, channels)
    threads = _processors() if workers is None else check_integer(workers, "workers", "at least 1, at most 1024", most=1024)
    skip_broken = check_flag(skip_broken, "skip_broken")
    check_path(path, "the path")
    if is_array_file(str(path)):
        return open_arrays(str(path))
    listing, root = list_images(path), data_root(cache)
    if isinstance(listing, Folder) and listing.classes and root.resolve().is_relative_to(listing.root.resolve()):
        below = root.resolve().relative_to(listing.root.resolve())
        if not any(part.startswith(".") for part in below.parts):
            raise InputError(f"{root} lies in {path}, where it would count as a class: give another cache= (--data-root)")
    return open_cached(listing, framing, root, skip_broken=skip_broken, workers=threads)


def _processors() -> int:
    # Those that this process may use: a container often has fewer than the machine.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def list_images(path: str | Path) -> Listing:
    """The files of a folder or a manifest."""
    place = Path(path)
    if not str(path):
        raise InputError(f"the path is empty: {_ACCEPTED}")
    try:
        is_folder = stat.S_ISDIR(place.stat().st_mode)
    except FileNotFoundError as error:
        raise InputError(f"{place} does not exist: {_ACCEPTED}") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{place} cannot be opened ({getattr(error, 'strerror', error)}): {_ACCEPTED}") from error
    if is_folder:
        return Folder(place)
    if place.suffix.lower() in KINDS:
        return Manifest(place)
    if place.suffix.lower() in IMAGE_SUFFIXES:
        raise InputError(f"{place} is one picture: give the folder that it lies in")
    raise InputError(f"{place} is not of a kind that can be opened: {_ACCEPTED}")


@dataclass
class Tally:
    """A count of names, and the first of them."""

    count: int = 0
    first: str = ""

    def add(self, name: str) -> None:
        """Count a name."""
        self.first = self.first or name
        self.count += 1


class Folder:
    """The images below a folder; if it holds no images itself, its subfolders are the classes.

    Classes are numbered in the order of their names, or of their values if all names are integers (0, 1, 2, 10).
    """

    def __init__(self, place: Path) -> None:
        self.place = self.root = place
        self.ignored, self.empty_classes = Tally(), Tally()
        folders, stray = _folders_and_first_picture(place)
        self._folders = () if stray else tuple(_in_order_of_value(folders))
        self.classes = tuple(map(as_utf8, self._folders))
        self.unlabelled = "" if self.classes else "put the pictures of each class into a folder of their own"
        if stray and folders:
            self.unlabelled = f"{stray} lies beside folders: put every picture into the folder of its class"

    def __iter__(self) -> Iterator[Listed]:
        labels = {name: label for label, name in enumerate(self._folders)}
        ignored, empty_classes, without_files = Tally(), Tally(), dict.fromkeys(self._folders)
        name = ""
        for name, status in self._walk(ignored):
            top = name.partition("/")[0]
            if labels and top not in labels:
                raise InputError(f"{self.root}: {top} appeared while it was listed: open it again")
            without_files.pop(top, None)
            yield _listed(name, status, labels.get(top))
        if not name:
            others = f", but other files ({ignored.count}, such as {ignored.first})" if ignored.count else ""
            raise InputError(
                f"{self.place} holds no pictures{others}: give a folder with {', '.join(sorted(IMAGE_SUFFIXES))} files"
            )
        for top in without_files:
            empty_classes.add(top)
        self.ignored, self.empty_classes = ignored, empty_classes

    def remarks(self) -> None:
        """Log which files were ignored, and which classes have no images."""
        if self.ignored.count:
            what = "files left alone, hidden or not pictures by their names"
            _LOGGER.info("%s: %s: %d, such as %s", self.place, what, self.ignored.count, self.ignored.first)
        if self.empty_classes.count:
            empty = self.empty_classes
            _LOGGER.warning("%s: classes without pictures: %d, such as %s", self.place, empty.count, empty.first)

    def _walk(self, ignored: Tally) -> Iterator[tuple[str, os.stat_result | None]]:
        """The images below the folder, sorted at each level; a link to a folder above is ignored."""
        status = _status(str(self.root))
        # A stack, not recursion: folders may be nested deeper than Python's calls.
        stack = [("", frozenset({_identity(status)} if status else ()), iter(_names(self.root)))]
        while stack:
            prefix, above, names = stack[-1]
            own_name = next(names, None)
            if own_name is None:
                stack.pop()
                continue
            name = f"{prefix}{own_name}"
            status = _status(f"{self.root}/{name}")
            is_folder = status is not None and stat.S_ISDIR(status.st_mode)
            if _is_hidden(own_name) or not (is_folder or _is_picture(own_name)):
                ignored.add(name)
            elif status is None or not is_folder:
                yield name, status
            elif _identity(status) in above:
                ignored.add(name)
            else:
                stack.append((f"{name}/", above | {_identity(status)}, iter(_names(self.root / name))))


def _listed(name: str, status: os.stat_result | None, label: int | None) -> Listed:
    # What is missing or no plain file is listed, too: it is reported as broken later.
    if status is None or not stat.S_ISREG(status.st_mode):
        return Listed(name, -1, 0, 0, label)
    return Listed(name, status.st_size, status.st_mtime_ns, status.st_ctime_ns, label)


def _folders_and_first_picture(place: Path) -> tuple[list[str], str]:
    folders, picture = [], ""
    with _readable(place), os.scandir(place) as entries:
        for entry in entries:
            if _is_hidden(entry.name):
                continue
            if entry.is_dir():
                folders.append(entry.name)
            elif _is_picture(entry.name):
                picture = min(picture or entry.name, entry.name)
    return folders, picture


def _names(folder: Path) -> list[str]:
    with _readable(folder):
        return sorted(os.listdir(folder))  # noqa: PTH208 - names take a fraction of the memory of paths


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{folder} cannot be listed ({error.strerror}): give a folder that you may read") from error


def _status(path: str | Path) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116 - paths would be slow for millions of files
    except OSError:
        return None


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _in_order_of_value(names: list[str]) -> list[str]:
    if all(name.isascii() and name.isdecimal() for name in names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"  # which macOS adds to archives


def _is_picture(name: str) -> bool:
    return name[name.rfind(".") :].lower() in _SUFFIXES


class _Row(NamedTuple):
    line: int
    path: str
    label: str | None


class Manifest:
    """The images of a manifest, in its order; integer labels are taken as they are, names are numbered in sorted order."""

    def __init__(self, place: Path) -> None:
        self.place, self.root = place, place.parent
        labels: set[str | None] = set()
        for row in self._rows():
            if labels and (row.label is None) != (None in labels):
                has, others = ("no label", "have one") if row.label is None else ("a label", "have none")
                raise InputError(f"{place}: line {row.line} has {has} where lines before {others}: label all or none")
            labels.add(row.label)
        if not labels:
            raise InputError(f"{place} names no pictures: write a path on each line, below a header path or path,label")
        names = sorted(name for name in labels if name is not None)
        are_integers = all(_INTEGER.fullmatch(name) for name in names)
        self.classes = () if are_integers else tuple(names)
        self._labels: dict[str | None, int | None] = {None: None}
        self._labels |= {name: int(name) if are_integers else number for number, name in enumerate(names)}
        self.unlabelled = "" if names else "add a column label to it, with an integer or a name for each picture"

    def __iter__(self) -> Iterator[Listed]:
        for row in self._rows():
            if row.label not in self._labels:
                raise InputError(f"{self.place} changed while it was read: open it again")
            yield _listed(row.path, _status(self.root / row.path), self._labels[row.label])

    def remarks(self) -> None:
        """Nothing to log: a manifest ignores nothing."""

    def _rows(self) -> Iterator[_Row]:
        read = _csv_rows if self.place.suffix.lower() == ".csv" else _json_rows
        try:
            # utf-8-sig: spreadsheets begin a file with a byte order mark.
            with io.TextIOWrapper(open_plain(self.place), encoding="utf-8-sig", newline="") as file:
                for row in read(file, self.place):
                    if not row.path or not can_be_named(row.path):
                        raise InputError(f"{self.place}: line {row.line} has no path: give each row that of a picture")
                    if row.label is not None and not can_be_named(row.label):
                        raise InputError(f"{self.place}: line {row.line} has a label that is no text: give a name")
                    if row.label is not None and _FRACTION.fullmatch(row.label):
                        raise InputError(
                            f"{self.place}: line {row.line} has label {row.label}: give integers from 0, or names"
                        )
                    yield row
        except OSError as error:
            raise InputError(f"{self.place} cannot be read ({error.strerror}): give one that you may read") from error
        except UnicodeDecodeError as error:
            raise InputError(f"{self.place} is not UTF-8 text: save it as UTF-8") from error


def _csv_rows(file: Any, place: Path) -> Iterator[_Row]:
    reader = csv.reader(file)

    def row(cells: list[str], path_at: int, label_at: int | None) -> _Row:
        label = None if label_at is None else cells[label_at].strip() or None
        return _Row(reader.line_num, cells[path_at], label)

    try:
        first = next(reader, [])
        header = [name.strip().lower() for name in first]
        path_at, label_at = (
            next((header.index(name) for name in names if name in header), None) for names in (_PATHS, _LABELS)
        )
        if path_at is None:
            if not (0 < len(first) <= 2 and first[0] and (place.parent / first[0]).is_file()):
                raise InputError(
                    f"{place}: line 1 is {','.join(first)[:80]!r}: begin with a header path or path,label, or with a "
                    "picture's path; a table needs --label-column, texts need --tokenizer"
                )
            path_at, label_at = 0, 1 if len(first) == 2 else None
            yield row(first, path_at, label_at)
        for cells in reader:
            if len(cells) not in {0, len(first)}:
                raise InputError(
                    f"{place}: line {reader.line_num} has {len(cells)} cells, line 1 has {len(first)}: quote a path "
                    "that holds a comma"
                )
            if cells:
                yield row(cells, path_at, label_at)
    except csv.Error as error:
        raise InputError(f"{place}: line {reader.line_num} is not CSV ({error}): write path,label on each") from error


def _json_rows(file: Any, place: Path) -> Iterator[_Row]:
    for line, text in enumerate(file, 1):
        if not text.strip():
            continue
        instead = "write one on each line; texts need --tokenizer"
        wrong = InputError(f'{place}: line {line} is not as {{"path": "a.png", "label": 0}}: {instead}')
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise wrong from error
        if not isinstance(row, dict):
            raise wrong
        path, label = (next((row[name] for name in names if name in row), None) for names in (_PATHS, _LABELS))
        if not isinstance(path, str) or isinstance(label, bool | list | dict):
            raise wrong
        yield _Row(line, path, None if label in {None, ""} else str(label))


def is_array_file(text: str) -> bool:
    """Whether a text names a file of arrays."""
    return _FILE_AND_NAMES.fullmatch(text) is not None


def open_arrays(text: str) -> Images:
    """The inputs of a file, with labels where there are any; an .npy file is memory-mapped.

    The arrays of an .npz file are named behind a colon, or have usual names (x and y, images and labels). An array
    `classes` beside them names the classes, in the order of the labels.
    """
    place, names = split_array_names(text)
    with _arrays_of(place) as arrays:
        stored = list(arrays)
        x = _plain(arrays[pick_inputs(stored, names, text)])
        has_labels = bool(names[1:]) or (not names and len(stored) > 1 and any(name in stored for name in _Y_NAMES))
        y = _plain(arrays[_pick_name(stored, names[1:] or _Y_NAMES, text)]) if has_labels else None
        has_classes = has_labels and not names and "classes" in stored
        class_names = _plain(arrays["classes"]) if has_classes else np.empty(0, str)
    if x.ndim == 0 or (y is not None and y.ndim == 0):
        raise InputError(f"{text} holds a single number: give at least one example, along the first axis")
    if y is not None and len(x) != len(y):
        raise InputError(f"{text}: {len(x)} examples but {len(y)} labels: give as many of one as of the other")
    if y is None:
        example = f"it holds {', '.join(stored)}: name the inputs and the labels, as in {place}:{','.join(stored[:2])}"
        how_to_label = example if len(stored) > 1 else "save x and y together, as numpy.savez does"
        return Images(x, where=text, unlabelled=how_to_label)
    if y.ndim != 1 or y.dtype.kind not in "iu":  # the inputs may still be wild data
        problem = f"its labels have dtype {y.dtype} and shape {y.shape}: give one integer class for each example"
        return Images(x, where=text, unlabelled=problem)
    classes = tuple(map(as_utf8, class_names.tolist())) if class_names.dtype.kind == "U" and class_names.ndim == 1 else ()
    if classes and int(y.max(initial=0)) >= len(classes):
        raise InputError(f"{text}: a label is {y.max()}, but classes names {len(classes)}: name every class")
    return Images(x, y, where=text, classes=classes)


def split_array_names(text: str) -> tuple[str, tuple[str, ...]]:
    """The file of a text, and the names of arrays behind a colon."""
    match = _FILE_AND_NAMES.fullmatch(text)
    if match is None or match[2] is None or Path(text).exists():
        return text, ()
    names = tuple(match[2].split(","))
    if not all(names) or len(names) > 2:
        raise InputError(f"{text}: name the inputs, or the inputs and the labels, as in {match[1]}:x or {match[1]}:x,y")
    return match[1], names


@contextmanager
def _arrays_of(place: str) -> Iterator[Mapping[str, Array]]:
    standard_input = place == "-"
    with array_errors(place), io.BytesIO(sys.stdin.buffer.read()) if standard_input else open_plain(place) as file:
        is_archive = file.read(2) == b"PK"
        file.seek(0)
        if is_archive:  # numpy reads its arrays when they are asked for
            with np.load(file, allow_pickle=False) as arrays:
                yield arrays
        elif standard_input:
            yield {"x": np.load(file, allow_pickle=False)}
        else:
            yield {"x": np.load(place, mmap_mode="r", allow_pickle=False)}


def pick_inputs(stored: Sequence[str], names: Sequence[str], text: str) -> str:
    """The name of the array that holds the inputs: the first of `names`, the only one, or one with a usual name."""
    return _pick_name(stored, names[:1] or (stored if len(stored) == 1 else _X_NAMES), text)


def _pick_name(stored: Sequence[str], names: Sequence[str], text: str) -> str:
    for name in names:
        if name in stored:
            return name
    raise InputError(
        f"{text}: no array named {' or '.join(names)}, it holds {', '.join(stored)}: name one, as in "
        f"{split_array_names(text)[0]}:{','.join(stored[:2])}"
    )


def _plain(array: Any) -> Array:
    if not isinstance(array, np.ndarray):
        raise TypeError("not an array")  # for `array_errors`
    return array


@contextmanager
def array_errors(place: str) -> Iterator[None]:
    """Make errors of numpy, zipfile and the system InputErrors that name the file."""
    try:
        yield
    except InputError:
        raise
    except MemoryError as error:
        raise InputError(
            f"{place} holds, or claims to hold, an array larger than memory: give an .npy file, which is mapped"
        ) from error
    except (OSError, *DAMAGED_ARRAY) as error:
        reason = getattr(error, "strerror", None)  # bzip2's own error for a damaged file has none
        if reason:
            raise InputError(f"{place}: {reason}: give the path of a file that is there") from error
        raise InputError(f"{place} is not an .npz or .npy file of plain arrays: numpy.savez writes one") from error
