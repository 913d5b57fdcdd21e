"""Folders of pictures and lists of them, opened as images."""

import csv
import io
import json
import logging
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from wildood.data.array_files import names_arrays, open_arrays
from wildood.data.files import PICTURES, data_root, open_plain
from wildood.data.image_cache import Listed, Listing, open_cached
from wildood.data.images import Framing, How, Images
from wildood.errors import InputError, as_utf8
from wildood.settings import check_flag, check_integer, check_path

# Pictures that cannot be read: they are listed all the same, so that they are refused by their names.
_FOREIGN = frozenset({".heic", ".heif", ".avif", ".jp2"})
_LOGGER = logging.getLogger("wildood")


@dataclass
class Tally:
    """How many, and the first of them.

    >>> tally = Tally()
    >>> tally.add("a.txt"), tally.add("b.txt"), tally
    (None, None, Tally(count=2, first='a.txt'))
    """

    count: int = 0
    first: str = ""

    def add(self, name: str) -> None:
        """One more."""
        self.first = self.first or name
        self.count += 1


class Folder:
    """The pictures below a folder; if it holds no pictures itself, the folders in it are the classes.

    Classes are numbered in the order of their names, or of their values if all names are integers (0, 1, 2, 10).

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     for name in ("dog/a.png", "cat/2/b.jpg", "cat/notes.txt"):
    ...         (Path(place) / name).parent.mkdir(parents=True, exist_ok=True)
    ...         (Path(place) / name).touch()
    ...     folder = Folder(Path(place))
    ...     folder.classes, [(file.name, file.label) for file in folder], folder.left_alone
    (('cat', 'dog'), [('cat/2/b.jpg', 0), ('dog/a.png', 1)], Tally(count=1, first='cat/notes.txt'))
    """

    def __init__(self, place: Path) -> None:
        self.place = self.root = place
        self.left_alone, self.without_pictures = Tally(), Tally()
        folders, beside = _folders_and_a_picture(place)
        self._folders = () if beside else tuple(_ordered(folders))
        self.classes = tuple(map(as_utf8, self._folders))
        self.unlabelled = "" if self.classes else "put the pictures of each class into a folder of their own"
        if beside and folders:
            self.unlabelled = f"{beside} lies beside folders: put every picture into the folder of its class"

    def __iter__(self) -> Iterator[Listed]:
        labels = {name: label for label, name in enumerate(self._folders)}
        left_alone, without_pictures, empty = Tally(), Tally(), dict.fromkeys(self._folders)
        name = ""
        for name, found in self._walk(left_alone):
            top = name.partition("/")[0]
            if labels and top not in labels:
                raise InputError(f"{self.root}: {top} appeared while it was listed: open it again")
            empty.pop(top, None)
            yield listed(name, found, labels.get(top))
        if not name:
            others = f", but other files ({left_alone.count}, such as {left_alone.first})" if left_alone.count else ""
            raise InputError(
                f"{self.place} holds no pictures{others}: give a folder with {', '.join(sorted(PICTURES))} files"
            )
        for top in empty:
            without_pictures.add(top)
        self.left_alone, self.without_pictures = left_alone, without_pictures

    def remarks(self) -> None:
        """Tell the log which files were left alone, and which classes have no pictures."""
        if self.left_alone.count:
            others = self.left_alone
            what = "files left alone, hidden or not pictures by their names"
            _LOGGER.info("%s: %s: %d, such as %s", self.place, what, others.count, others.first)
        if self.without_pictures.count:
            empty = self.without_pictures
            _LOGGER.warning("%s: classes without pictures: %d, such as %s", self.place, empty.count, empty.first)

    def _walk(self, left_alone: Tally) -> Iterator[tuple[str, os.stat_result | None]]:
        """The pictures below a folder, sorted at each level; a link back to one of those above it is left alone."""
        status = _status(str(self.root))
        # One entry for each level, not one call: folders may lie deeper in each other than Python's calls may.
        levels = [("", frozenset({_identity(status)} if status else ()), iter(_names(self.root)))]
        while levels:
            below, above, names = levels[-1]
            own = next(names, None)
            if own is None:
                levels.pop()
                continue
            name = f"{below}{own}"
            status = _status(f"{self.root}/{name}")
            is_folder = status is not None and stat.S_ISDIR(status.st_mode)
            if _is_hidden(own) or not (is_folder or _is_picture(own)):
                left_alone.add(name)
            elif status is None or not is_folder:
                yield name, status
            elif _identity(status) in above:
                left_alone.add(name)
            else:
                levels.append((f"{name}/", above | {_identity(status)}, iter(_names(self.root / name))))


def listed(name: str, status: os.stat_result | None, label: int | None) -> Listed:
    """A file by what the system says of it; what is no plain file is listed, too: nothing is dropped in silence.

    >>> listed("gone.png", None, 3)
    Listed(name='gone.png', size=-1, changed=0, stamped=0, label=3)
    """
    if status is None or not stat.S_ISREG(status.st_mode):
        return Listed(name, -1, 0, 0, label)
    return Listed(name, status.st_size, status.st_mtime_ns, status.st_ctime_ns, label)


def _folders_and_a_picture(place: Path) -> tuple[list[str], str]:
    folders, pictures = [], ""
    try:
        with os.scandir(place) as found:
            for entry in found:
                if _is_hidden(entry.name):
                    continue
                if entry.is_dir():
                    folders.append(entry.name)
                elif _is_picture(entry.name):
                    pictures = min(pictures or entry.name, entry.name)
    except OSError as error:
        raise _not_listed(place, error) from error
    return folders, pictures


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - names take a fraction of the memory of paths
    except OSError as error:
        raise _not_listed(folder, error) from error


def _not_listed(folder: Path, error: OSError) -> InputError:
    return InputError(f"{folder} cannot be listed ({error.strerror}): give a folder that you may read")


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116 - there may be millions
    except OSError:
        return None


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _ordered(names: list[str]) -> list[str]:
    if all(name.isascii() and name.isdecimal() for name in names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"  # which macOS puts into archives beside the folders


def _is_picture(name: str) -> bool:
    suffix = name[name.rfind(".") :].lower()
    return suffix in PICTURES or suffix in _FOREIGN


KINDS = (".csv", ".jsonl")
_PATHS, _LABELS = ("path", "file", "image"), ("label", "class")
_INTEGER, _FRACTION = re.compile(r"\d{1,9}"), re.compile(r"-\d+|-?\d+\.\d*")


class _Row(NamedTuple):
    line: int
    path: str
    label: str | None


class Manifest:
    r"""The pictures that a manifest names, in its order; integer labels count as they are, names by their sorted place.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     path = Path(place) / "pets.csv"
    ...     _ = path.write_text("path,label\nb.png,dog\na.png,cat\n")
    ...     manifest = Manifest(path)
    ...     manifest.classes, [(file.name, file.label) for file in manifest]
    (('cat', 'dog'), [('b.png', 1), ('a.png', 0)])
    """

    def __init__(self, place: Path) -> None:
        self.place, self.root = place, place.parent
        found: set[str | None] = set()
        for row in self._rows():
            if found and (row.label is None) != (None in found):
                has, others = ("no label", "have one") if row.label is None else ("a label", "have none")
                raise InputError(f"{place}: line {row.line} has {has} where lines before {others}: label all or none")
            found.add(row.label)
        if not found:
            raise InputError(f"{place} names no pictures: write a path on each line, below a header path or path,label")
        names = sorted(name for name in found if name is not None)
        self._labels: dict[str | None, int | None] = {None: None}
        if all(_INTEGER.fullmatch(name) for name in names):
            self.classes: tuple[str, ...] = ()
            self._labels |= {name: int(name) for name in names}
        else:
            self.classes = tuple(names)
            self._labels |= {name: label for label, name in enumerate(names)}
        self.unlabelled = "" if names else "add a column label to it, with an integer or a name for each picture"

    def __iter__(self) -> Iterator[Listed]:
        for row in self._rows():
            if row.label not in self._labels:
                raise InputError(f"{self.place} changed while it was read: open it again")
            try:
                status = os.stat(self.root / row.path)  # noqa: PTH116 - there may be millions
            except OSError:
                status = None
            yield listed(row.path, status, self._labels[row.label])

    def remarks(self) -> None:
        """A manifest leaves nothing alone."""

    def _rows(self) -> Iterator[_Row]:
        """Every row, checked."""
        read = _csv_rows if self.place.suffix.lower() == ".csv" else _json_rows
        try:
            # Spreadsheets put a byte order mark in front.
            with io.TextIOWrapper(open_plain(self.place), encoding="utf-8-sig", newline="") as file:
                for row in read(file, self.place):
                    if not _may_be_a_file(row.path):
                        raise InputError(f"{self.place}: line {row.line} has no path: give each row that of a picture")
                    if row.label is not None and not _may_be_a_file(row.label):
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


def _may_be_a_file(path: str) -> bool:
    try:
        return bool(path) and b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def _csv_rows(file: Any, place: Path) -> Iterator[_Row]:
    reader = csv.reader(file)
    try:
        first = next(reader, [])
        names = [name.strip().lower() for name in first]
        at, label_at = _column(names, _PATHS), _column(names, _LABELS)
        if at is None:
            if not (0 < len(first) <= 2 and first[0] and (place.parent / first[0]).is_file()):
                raise InputError(
                    f"{place}: line 1 is {','.join(first)[:80]!r}: begin with a header path or path,label, or with a "
                    "picture's path"
                )
            at, label_at = 0, 1 if len(first) == 2 else None
            yield _csv_row(1, first, at, label_at)
        for cells in reader:
            if len(cells) not in {0, len(first)}:
                raise InputError(
                    f"{place}: line {reader.line_num} has {len(cells)} cells, line 1 has {len(first)}: quote a path "
                    "that holds a comma"
                )
            if cells:
                yield _csv_row(reader.line_num, cells, at, label_at)
    except csv.Error as error:
        raise InputError(f"{place}: line {reader.line_num} is not CSV ({error}): write path,label on each") from error


def _csv_row(line: int, cells: list[str], at: int, label_at: int | None) -> _Row:
    return _Row(line, cells[at], (cells[label_at].strip() or None) if label_at is not None else None)


def _column(names: list[str], accepted: tuple[str, ...]) -> int | None:
    return next((names.index(name) for name in accepted if name in names), None)


def _json_rows(file: Any, place: Path) -> Iterator[_Row]:
    for line, text in enumerate(file, 1):
        if not text.strip():
            continue
        wrong = InputError(f'{place}: line {line} is not as {{"path": "a.png", "label": 0}}: write one on each line')
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise wrong from error
        if not isinstance(row, dict):
            raise wrong
        path = next((row[name] for name in _PATHS if name in row), None)
        label = next((row[name] for name in _LABELS if name in row), None)
        if not isinstance(path, str) or isinstance(label, bool | list | dict):
            raise wrong
        yield _Row(line, path, None if label in {None, ""} else str(label))


_ACCEPTED = "give a folder of pictures, a .csv or .jsonl manifest, or an .npy or .npz file of arrays"


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
    """Open a folder of pictures, a manifest of pictures, or arrays.

    A folder holds pictures at any depth (.jpg, .png, .gif, .tiff, .webp and others, by their names). If all of them
    lie in subfolders, those right below the folder are the classes, numbered in the order of their names, or of their
    values if all names are integers; else there are no labels. A manifest is a .csv file with a header path,label (or
    path alone), or a .jsonl file with lines of {"path": ..., "label": ...}; paths are relative to it, labels are
    integers, or names, numbered in their order.

    Pictures of any size and mode become uint8 arrays in NHWC: upright, the first frame, without transparency, 16 bits
    scaled to 8 (32 bits, too, unless all values are below 256), floats scaled from 0..1 (or taken as 0..255). They are
    decoded once, in threads, into a cache; opened again, only files that are new or changed are decoded.

    Arrays come from FILE.npy (mapped into memory), FILE.npz, FILE.npz:x, FILE.npz:x,y, or - (standard input), and stay
    as they are, of any shape and type: the arguments below are for pictures only.

    Args:
        path: the folder, manifest or file of arrays.
        size: height and width to make of each picture, or one number for both; None takes them as they are.
        how: "cover" resizes and crops the centre, "centre" only crops; see `Framing`.
        channels: 3 for RGB, 1 for grey.
        skip_broken: leave out files that cannot be read, with a warning, and list them in `broken`.
        cache: the directory below which decoded pictures are kept; else that of WILDOOD_DATA, else the user's cache.
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
    if names_arrays(str(path)):
        return open_arrays(str(path))
    listing, root = listing_of(path), data_root(cache)
    if isinstance(listing, Folder) and listing.classes and _shows_in(root.resolve(), listing.root.resolve()):
        raise InputError(f"{root} lies in {path}, where it would count as a class: give another cache= (--data-root)")
    return open_cached(listing, framing, root, skip_broken=skip_broken, workers=threads)


def listing_of(path: str | Path) -> Listing:
    """The files that a folder or a manifest names.

    >>> listing_of("")
    Traceback (most recent call last):
    wildood.errors.InputError: the path is empty: give a folder of pictures, a .csv or .jsonl manifest, or an .npy or ...
    """
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
    if place.suffix.lower() in PICTURES:
        raise InputError(f"{place} is one picture: give the folder that it lies in")
    raise InputError(f"{place} is not of a kind that can be opened: {_ACCEPTED}")


def _shows_in(cache: Path, folder: Path) -> bool:
    return cache.is_relative_to(folder) and not any(part.startswith(".") for part in cache.relative_to(folder).parts)


def _processors() -> int:
    # Those that this process may use: a container often has fewer than the machine.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
