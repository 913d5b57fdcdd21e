"""What a folder of pictures holds: files in a fixed order, each with its class and what tells that it changed."""

import json
import logging
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from wildood.errors import InputError, as_utf8

PICTURES = frozenset({".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"})
# Pictures that cannot be read: they are listed all the same, so that they are refused by their names.
_FOREIGN = frozenset({".heic", ".heif", ".avif", ".jp2"})
_LOGGER = logging.getLogger("wildood")


class Listed(NamedTuple):
    """A file that should hold a picture.

    >>> Listed("cat/1.png", 68, 1700000000000000000, 1700000000000000000, 0).recorded()
    '["cat/1.png", 68, 1700000000000000000, 1700000000000000000, 0'
    """

    name: str
    size: int  # -1: not a plain file, or not there
    changed: int
    stamped: int  # when the system last noted a change: rsync -t, cp -p and tar -x put `changed` back, but not this
    label: int | None

    def recorded(self) -> str:
        """The beginning of its line in an index; a line that begins otherwise is of another file, or another state."""
        return json.dumps(self)[:-1]


class Listing(Protocol):
    """Files that should hold pictures, in an order that depends on nothing but their names or their manifest.

    Attributes:
        place: what the user named, a folder or a manifest.
        root: the folder that the files' names begin at.
        classes: the names of the classes, in the order of the labels.
        unlabelled: what to do to get labels, where there are none.
    """

    place: Path
    root: Path
    classes: tuple[str, ...]
    unlabelled: str

    def __iter__(self) -> Iterator[Listed]: ...

    def remarks(self) -> None:
        """Tell the log what the last whole iteration left alone."""
        ...


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
