"""What is known of a set that has a name: what it is, where it comes from and where its files lie."""

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from wildood.data.listing import PICTURES
from wildood.errors import InputError

IN_SCIKIT_LEARN = "the digits are inside scikit-learn: pip install scikit-learn"


@dataclass(frozen=True)
class Download:
    """A file to download.

    Attributes:
        url: where from.
        file: its name on disk.
        md5: its published checksum, or None where none is known.
        size: its bytes, or None where they are not known.
        unpacked: how many bytes an archive may have when it is unpacked; 0 for a file that is used as it is.
        members: how many members an archive may have.
        part: the one part it is for, or None where it holds all of the set.
    """

    url: str
    file: str
    md5: str | None = None
    size: int | None = None
    unpacked: int = 0
    members: int = 0
    part: str | None = None


@dataclass(frozen=True)
class SetPart:
    """A part of a set, such as train or test.

    Attributes:
        name: of the part.
        count: how many images it has officially.
        files: that hold it; none where it is a directory of pictures.
        on_request: downloaded only when it is asked for by name.
    """

    name: str
    count: int
    files: tuple[str, ...] = ()
    on_request: bool = False


@dataclass(frozen=True)
class NamedSet:
    """A set, as its source describes it.

    Attributes:
        name: by which it is asked for.
        what: it is.
        terms: of use, as far as they are publicly known.
        source: the page to read.
        kind: how its files are read.
        parts: in which it is divided.
        places: where its files may lie, below the data root: where wildood, torchvision or the released code puts them.
        downloads: its files.
        meta: the file beside the parts' own that names the classes.
        how: its pictures are framed to 32 x 32 pixels (see `Framing`); None where they are that already.
        as_published: whether the released code frames them in its own way, which is that of `Framing` by this name.
        labelled: whether it has classes.
    """

    name: str
    what: str
    terms: str
    source: str
    kind: Literal["cifar10", "cifar100", "svhn", "pictures", "drawn", "array", "digits"]
    parts: tuple[SetPart, ...]
    places: tuple[str, ...] = ()
    downloads: tuple[Download, ...] = ()
    meta: str = ""
    how: Literal["cover", "centre"] | None = None
    as_published: bool = False
    labelled: bool = False

    def part(self, name: str) -> SetPart:
        """The part of this name; an only part needs none. There is no part that is meant when none is named.

        >>> NamedSet("a", "", "", "", "array", (SetPart("train", 2), SetPart("test", 1))).part("")
        Traceback (most recent call last):
        wildood.errors.InputError: a has several parts: give a:train or a:test
        """
        if not name and len(self.parts) == 1:
            return self.parts[0]
        for part in self.parts:
            if part.name == name:
                return part
        *others, last = [f"{self.name}:{part.name}" for part in self.parts]
        problem = f"has no part {name!r}" if name else "has several parts"
        raise InputError(f"{self.name} {problem}: give " + (f"{', '.join(others)} or {last}" if others else self.name))

    def place(self, part: SetPart, root: Path) -> Path | None:
        """The directory that holds a part, or None if it is nowhere.

        >>> named = NamedSet("a", "", "", "", "array", (SetPart("all", 2, ("a.npy",)),), places=("a", "."))
        >>> named.place(named.parts[0], Path("nowhere")) is None
        True
        """
        if self.kind == "digits":
            return Path() if find_spec("sklearn") else None
        files = (*part.files, self.meta) if self.meta else part.files
        for place in (root / place for place in self.places):
            whole = all((place / file).is_file() for file in files) if files else _holds_pictures(place)
            if whole:
                return place
        return None


def _holds_pictures(place: Path) -> bool:
    return any(Path(file).suffix.lower() in PICTURES for _, _, files in os.walk(place) for file in files)
