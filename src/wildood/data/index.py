"""The index of decoded pictures: one JSON line for each file that was listed, read where it lies."""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from wildood.data.decoding import Broken, Decoded
from wildood.data.listing import Listed
from wildood.data.sources import blocks

Numbers = npt.NDArray[np.int64]
_STATE = Listed._fields.index("label")  # what is the same of a file that has not changed


def index_line(listed: Listed, outcome: Decoded | Broken) -> str:
    """What an index says of a file: name, size, times, label, then its digest, or null and why it is broken.

    >>> index_line(Listed("a.png", 0, 5, 6, None), Broken("is empty"))
    '["a.png", 0, 5, 6, null, null, "is empty", false]'
    """
    found = [outcome.digest] if isinstance(outcome, Decoded) else [None, outcome.reason, outcome.unread]
    return f"{listed.recorded()}, {json.dumps(found)[1:]}"


class Index:
    """An index file; its lines are found when they are asked for.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     path = Path(place) / "index.jsonl"
    ...     _ = path.write_text(index_line(Listed("a.png", 0, 5, 6, None), Broken("is empty")) + chr(10))
    ...     Index(path).record(0)[:4], Index(path).finder()(Listed("a.png", 0, 5, 6, label=7))
    (['a.png', 0, 5, 6], 0)
    """

    def __init__(self, path: Path) -> None:
        self._path, self._bytes = path, np.memmap(path, np.uint8, "r")

    @cached_property
    def _ends(self) -> Numbers:
        return np.concatenate([start + np.flatnonzero(block == ord("\n")) for start, block in blocks(self._bytes)])

    def lines(self) -> Iterator[bytes]:
        """Every line of the file, in order."""
        with self._path.open("rb") as file:
            yield from file

    def record(self, number: int) -> list[Any]:
        """A line's content."""
        found: list[Any] = json.loads(self._line(number))
        return found

    def finder(self) -> Callable[[Listed], int | None]:
        """A function for the line of a file that has not changed since; its label may have. Threads may call it."""
        # 16 bytes for each file instead of a dictionary of names, for folders of millions.
        hashes = np.fromiter((_hash(json.loads(line)) for line in self.lines()), np.int64, len(self._ends))
        numbers = np.argsort(hashes, kind="stable")
        hashes = hashes[numbers]

        def find(listed: Listed) -> int | None:
            place = int(np.searchsorted(hashes, _hash(listed)))
            while place < len(hashes) and hashes[place] == _hash(listed):
                if self.record(numbers[place])[:_STATE] == list(listed[:_STATE]):
                    return int(numbers[place])
                place += 1
            return None

        return find

    def _line(self, number: int) -> bytes:
        return self._bytes[self._ends[number - 1] + 1 if number else 0 : self._ends[number]].tobytes()


class Names(Sequence[str]):
    r"""The names of the files that became examples, read from the index; `broken` are the lines of those that did not.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     path = Path(place) / "index.jsonl"
    ...     _ = path.write_text('["a.png", 0, 5, 5, null, null, "is empty", 0]\n["b.png", 7, 5, 5, null, "c0ffee"]\n')
    ...     list(Names(Index(path), broken=np.array([0]), count=1))
    ['b.png']
    """

    def __init__(self, index: Index, broken: Numbers, count: int) -> None:
        self._index, self._broken, self._count = index, broken, count

    def __len__(self) -> int:
        return self._count

    @cached_property
    def _lines(self) -> Numbers:
        return np.delete(np.arange(self._count + len(self._broken)), self._broken)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(self._count))]
        name: str = self._index.record(int(self._lines[place]))[0]
        return name


def _hash(record: Sequence[Any]) -> int:
    return hash(tuple(record[:_STATE]))
