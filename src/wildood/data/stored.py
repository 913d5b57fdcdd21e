"""Decoded pictures as they lie in a cache: what is believed of it, and what of it can be used again."""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from wildood.data.decoding import Broken, Decoded
from wildood.data.images import Framing, Images
from wildood.data.index import Index, Names, Numbers
from wildood.data.listing import Listed, Listing
from wildood.data.schema import ArgumentsOf, Count, parse

EXAMPLES, LABELS, INDEX, ABOUT = "examples.npy", "labels.npy", "index.jsonl", "about.json"
_FORMAT = 2  # of the files below; another number is decoded anew


@dataclass(frozen=True)
class About:
    """What a cache says of itself, in about.json, which is written last.

    Attributes:
        source: whose pictures these are and how they are framed, as `source_of` has it.
        shape: of the examples.
        sizes: of the other files, in bytes.
        hashes: of the index and the labels; to hash the examples would be to read them all.
        broken: line in the index, name, reason and whether it was unread, of each file that gave no example.
        content: a hash of the examples' files, their labels and their shape.

    >>> About("{}", (1, 2, 2, 3), {}, {}, [], "c0ffee").as_text()
    '{"source": "{}", "shape": [1, 2, 2, 3], "sizes": {}, "hashes": {}, "broken": [], "content": "c0ffee"}'
    """

    source: str
    shape: tuple[int, ...]
    sizes: dict[str, int]
    hashes: dict[str, str]
    broken: list[tuple[Count, str, str, bool]]
    content: str

    def as_text(self) -> str:
        """The content of about.json."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, eq=False)
class Stored:
    """A whole cache, opened; see `wildood.data.decoded`, which makes one."""

    about: About
    examples: npt.NDArray[np.uint8]
    labels: Numbers | None
    index: Index

    def agrees(self, listing: Listing) -> bool:
        """Whether every file is as it was, none is new and none is gone."""
        for listed, line in zip_longest(listing, self.index.lines()):
            if listed is None or line is None or not line.startswith(f"{listed.recorded()}, ".encode()):
                return False
        return not any(unread and _can_be_read(listing.root / name) for _, name, _, unread in self.about.broken)

    def finder(self) -> Callable[[Listed], Decoded | Broken | None]:
        """A function that says what a file gave, if it has not changed since; threads may call it."""
        find_line, broken_lines = self.index.finder(), self._broken_lines()

        def find(listed: Listed) -> Decoded | Broken | None:
            number = find_line(listed)
            if number is None:
                return None
            digest, *why = self.index.record(number)[len(listed) :]
            if digest is None:
                return None if why[1] else Broken(why[0])
            return Decoded(digest, self.examples[number - int(np.searchsorted(broken_lines, number))])

        return find

    def images(self, listing: Listing) -> Images:
        """The examples, as a user has them."""
        names = Names(self.index, self._broken_lines(), len(self.examples))
        broken = tuple(name for _, name, _, _ in self.about.broken)
        return Images(
            self.examples,
            self.labels,
            where=str(listing.place),
            classes=listing.classes,
            names=names,
            broken=broken,
            content=self.about.content,
            unlabelled=listing.unlabelled,
        )

    def _broken_lines(self) -> Numbers:
        return np.array([line for line, *_ in self.about.broken], np.int64)


def source_of(listing: Listing, framing: Framing) -> str:
    """Which pictures, and how they are framed: what a cache is for.

    >>> from wildood.data.listing import Folder
    >>> json.loads(source_of(Folder(Path()), Framing(32)))["size"]
    [32, 32]
    """
    return json.dumps({"format": _FORMAT, "place": os.path.realpath(listing.place), **asdict(framing)})


def key_of(source: str) -> str:
    """The name of a cache.

    >>> len(key_of("{}"))
    32
    """
    return hashlib.blake2b(source.encode(), digest_size=16).hexdigest()


def hash_of(path: Path) -> str:
    """A hash of a file.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     hash_of(Path(file.name))
    'cae66941d9efbd404e4d88758ea67670'
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def open_stored(place: Path, source: str) -> Stored | None:
    """The cache of this source, or None if it is not there, torn, of another source or not ours.

    >>> open_stored(Path("nowhere"), "{}") is None
    True
    """
    try:
        found = parse((place / ABOUT).read_bytes(), Annotated[dict[str, Any], ArgumentsOf(About)])
        about = About(**found | {"shape": tuple(found["shape"]), "broken": [tuple(each) for each in found["broken"]]})
        if about.source != source or {EXAMPLES, *about.hashes} != {*about.sizes} or INDEX not in about.hashes:
            return None
        if any((place / name).stat().st_size != size for name, size in about.sizes.items()):
            return None
        if any(hash_of(place / name) != known for name, known in about.hashes.items()):
            return None
        examples = np.load(place / EXAMPLES, mmap_mode="r", allow_pickle=False)
        labels = np.load(place / LABELS, allow_pickle=False) if LABELS in about.sizes else None
        if examples.shape != about.shape or examples.dtype != np.uint8:
            return None
        if labels is not None and (labels.shape != about.shape[:1] or labels.dtype != np.int64):
            return None
        return Stored(about, examples, labels, Index(place / INDEX))
    except (OSError, ValueError, EOFError):
        return None


def _can_be_read(path: Path) -> bool:
    try:
        if not path.is_file():  # to open a pipe would wait for its other end
            return False
        with path.open("rb") as file:
            file.read(1)
    except OSError:
        return False
    return True
