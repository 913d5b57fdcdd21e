"""Chunks: some thousand examples of an archive, named by the one who lists them and read by the one who scores them."""

import hashlib
import os
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
    """Examples of an .npy file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     np.save(f"{place}/a.npy", np.arange(10.0).reshape(5, 2))
    ...     FileRows(Path(place) / "a.npy", first=1, count=2).read(1).examples
    array([[2., 3.], [4., 5.]])
    """

    place: Path
    first: int
    count: int
    state: str = ""

    def read(self, threads: int) -> Read:
        """Copy them out of the file."""
        # Mapped for each chunk anew: pages of the file that were looked at count as memory until it is let go of.
        array = np.load(self.place, mmap_mode="r", allow_pickle=False)
        return Rows(np.array(array[self.first : self.first + self.count]), self.first).read(threads)


@dataclass(frozen=True)
class Pictures:
    """Files that should hold pictures.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as place:
    ...     Image.new("RGB", (4, 4)).save(f"{place}/a.png")
    ...     found = Pictures(Path(place), 0, (Listed("a.png", 68, 0, 0, None),), Framing(2), skip_broken=False).read(1)
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
        return decode(self._path(file), self.framing)

    def _refuse_other_size(self, name: str, outcome: Decoded, found: list[tuple[str, Decoded]]) -> None:
        if found and outcome.pixels.shape != found[0][1].pixels.shape:
            sizes = [f"{shape[1]} x {shape[0]}" for shape in (found[0][1].pixels.shape, outcome.pixels.shape)]
            raise InputError(
                f"{self.place}: {found[0][0]} is {sizes[0]} pixels, {name} {sizes[1]} (width x height): give "
                "pictures of one size"
            )


def chunk_size(nbytes: int) -> int:
    """How many examples of so many bytes each are read together: whole batches, and few of large ones.

    >>> chunk_size(100), chunk_size(20_000), chunk_size(10_000_000)
    (4096, 768, 256)
    """
    return min(MOST, max(BATCH, _BYTES // max(1, nbytes) // BATCH * BATCH))
