"""Chunks: some thousand examples of an archive, named by the one who lists them and read by the one who scores them."""

import hashlib
import os
import platform
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from wildood.data.building import in_order
from wildood.data.decoding import Broken, Decoded, decode, pillow_kept_quiet
from wildood.data.given import unlabelled_source
from wildood.data.images import Framing
from wildood.data.listing import Listed
from wildood.data.sources import memory_of
from wildood.errors import InputError

Array = np.ndarray[Any, Any]
BATCH = 256  # a chunk holds whole batches of it, so that batches are the same however an archive is cut
MOST = 16 * BATCH  # examples in a chunk
_BYTES = 1 << 24  # about, of a chunk's examples


class Read(NamedTuple):
    """The examples of a chunk, their names or numbers, and the files that gave none, each with the reason."""

    examples: Array
    names: Sequence[str | int]
    broken: Sequence[tuple[str, str]] = ()


class Chunk(Protocol):
    """Examples that stand side by side in an archive."""

    @property
    def first(self) -> int:
        """The place of the first of them, or of its file, in the archive."""
        ...

    @property
    def count(self) -> int:
        """How many examples, or files, these are."""
        ...

    @property
    def state(self) -> str:
        """A text that is another one when they are others, where that can be known without decoding them."""
        ...

    @property
    def place(self) -> Path | None:
        """Where they are read from, if it is a place on the disk."""
        ...

    def read(self, threads: int) -> Read:
        """Read them from where they are."""
        ...


@dataclass(frozen=True, eq=False)
class Rows:
    """Examples of an array that is at hand.

    >>> Rows(np.zeros((3, 2)), first=7).read(1).names
    range(7, 10)
    """

    examples: Array
    first: int = 0
    names: Sequence[str] = ()
    hashed: bool = False
    place: Path | None = None

    @property
    def count(self) -> int:
        """How many these are."""
        return len(self.examples)

    @property
    def state(self) -> str:
        """A hash of every byte, if it was asked for."""
        return hashlib.blake2b(memory_of(self.examples), digest_size=16).hexdigest() if self.hashed else ""

    def read(self, threads: int) -> Read:  # noqa: ARG002 - pictures are decoded in threads
        """Check them, by their numbers in the whole archive."""
        unlabelled_source(self.examples, "x", first=self.first)
        return Read(self.examples, self.names or range(self.first, self.first + self.count))


@dataclass(frozen=True)
class FileRows:
    """Examples of an .npy file, which must stay as it was when it was opened.

    Attributes:
        size: of the file, in bytes,
        changed: and its time; not the one that the system keeps besides, which other nodes may not see alike.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     np.save(f"{place}/a.npy", np.arange(10.0).reshape(5, 2))
    ...     found = os.stat(f"{place}/a.npy")
    ...     rows = FileRows(Path(place) / "a.npy", first=1, count=2, size=found.st_size, changed=found.st_mtime_ns)
    ...     rows.read(1).examples
    array([[2., 3.], [4., 5.]])
    """

    place: Path
    first: int
    count: int
    size: int
    changed: int
    state: str = ""

    def read(self, threads: int) -> Read:
        """Copy them out of the file."""
        try:
            found = self.place.stat()
        except FileNotFoundError as error:
            raise self._other() from error
        if (found.st_size, found.st_mtime_ns) != (self.size, self.changed):
            raise self._other()
        # Mapped for each chunk anew: pages of the file that were looked at count as memory until it is let go of.
        array = np.load(self.place, mmap_mode="r", allow_pickle=False)
        rows = np.array(array[self.first : self.first + self.count])
        if len(rows) != self.count:
            raise self._other()
        return Rows(rows, self.first).read(threads)

    def _other(self) -> InputError:
        return InputError(
            f"{self.place} is not the file that was opened, as seen from {platform.node()}: leave it as it is while it is "
            "scored, put it where all nodes see the same, and start again"
        )


@dataclass(frozen=True)
class Pictures:
    """Files that should hold pictures.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as place:
    ...     Image.new("RGB", (4, 4)).save(f"{place}/a.png")
    ...     file = Listed("a.png", os.stat(f"{place}/a.png").st_size, 0, 0, None)
    ...     found = Pictures(Path(place), 0, (file,), Framing(2), skip_broken=False).read(1)
    ...     found.examples.shape, found.names
    ((1, 2, 2, 3), ['a.png'])
    """

    place: Path
    first: int
    files: tuple[Listed, ...]
    framing: Framing
    skip_broken: bool

    @property
    def count(self) -> int:
        """How many files these are."""
        return len(self.files)

    @property
    def state(self) -> str:
        """A hash of their names, sizes and times."""
        text = repr([(file.name, file.size, file.changed, file.stamped) for file in self.files])
        return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=16).hexdigest()

    def read(self, threads: int) -> Read:
        """Decode them in threads; one that cannot be read is refused, or left out."""
        found: list[tuple[str, Decoded]] = []
        broken: list[tuple[str, str]] = []
        with pillow_kept_quiet(), closing(in_order(self.files, self._decode, threads)) as outcomes:
            for file, outcome in outcomes:
                if isinstance(outcome, Decoded):
                    self._refuse_other_size(file.name, outcome, found)
                    found.append((file.name, outcome))
                elif self.skip_broken:
                    broken.append((file.name, outcome.reason))
                else:
                    raise InputError(
                        f"{self._path(file)} cannot be read as a picture ({outcome.reason}): repair or remove it, or leave "
                        "such files out with --skip-broken"
                    )
        pixels = np.stack([outcome.pixels for _, outcome in found]) if found else np.empty((0, 1, 1, 3), np.uint8)
        return Read(pixels, [name for name, _ in found], broken)

    def _path(self, file: Listed) -> str:
        return os.path.join(self.place, file.name)  # noqa: PTH118 - there may be millions

    def _decode(self, file: Listed) -> Decoded | Broken:
        outcome = decode(self._path(file), self.framing)
        # What was no plain file when it was listed may be broken; the others were there, so that this is another place.
        if file.size >= 0 and (size := _size(self._path(file))) != file.size:
            is_now = "is not there" if size is None else f"has {size} bytes"
            raise InputError(
                f"{self._path(file)} was listed with {file.size} bytes, but {is_now}, as seen from {platform.node()}: leave "
                "pictures as they are while they are scored, put them where all nodes see the same, and start again"
            )
        return outcome

    def _refuse_other_size(self, name: str, outcome: Decoded, found: list[tuple[str, Decoded]]) -> None:
        if found and outcome.pixels.shape != found[0][1].pixels.shape:
            sizes = [f"{shape[1]} x {shape[0]}" for shape in (found[0][1].pixels.shape, outcome.pixels.shape)]
            raise InputError(
                f"{self.place}: {found[0][0]} is {sizes[0]} pixels, {name} {sizes[1]} (width x height): give "
                "pictures of one size"
            )


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size  # noqa: PTH116 - there may be millions
    except FileNotFoundError:
        return None


def chunk_size(nbytes: int) -> int:
    """How many examples of so many bytes each are read together: whole batches, and few of large ones.

    >>> chunk_size(100), chunk_size(20_000), chunk_size(10_000_000)
    (4096, 768, 256)
    """
    return min(MOST, max(BATCH, _BYTES // max(1, nbytes) // BATCH * BATCH))
