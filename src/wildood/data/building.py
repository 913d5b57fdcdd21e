"""Pictures decoded in threads and written in their order: a cache in the making."""

import hashlib
import json
import logging
import os
import struct
import sys
from array import array
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from wildood.data.decoding import Broken, Decoded, decode, pillow_kept_quiet
from wildood.data.files import write_atomically
from wildood.data.images import Framing
from wildood.data.index import index_line
from wildood.data.listing import Listed, Listing
from wildood.data.stored import ABOUT, EXAMPLES, INDEX, LABELS, About, Stored, hash_of
from wildood.errors import InputError

_LISTING = "listing.jsonl"
_TOGETHER = 16  # files that a thread takes at a time
_HEADER = 128  # bytes in front of the examples, written when their number is known
_WITH_BAR = 500  # files from which on it takes long enough to show how far it is

Outcome = Decoded | Broken
Outcomes = Generator[tuple[Listed, Outcome], None, None]


def build(listing: Listing, framing: Framing, place: Path, source: str, old: Stored | None, *, workers: int) -> None:
    """Write a cache into an empty directory; what `old` holds of files that did not change is not decoded again.

    Files that cannot be read are recorded beside the others: to refuse them here would throw away what was decoded.

    >>> import tempfile
    >>> from PIL import Image
    >>> from wildood.data.listing import Folder
    >>> with tempfile.TemporaryDirectory() as place:
    ...     (Path(place) / "cache").mkdir()
    ...     Image.new("L", (2, 2), 9).save(f"{place}/a.png")
    ...     build(Folder(Path(place)), Framing(), Path(place) / "cache", "{}", None, workers=1)
    ...     np.load(f"{place}/cache/{EXAMPLES}").shape
    (1, 2, 2, 3)
    """
    count = _write_listing(listing, place / _LISTING)
    find = old.finder() if old is not None else lambda _: None

    def outcome(listed: Listed) -> Outcome:
        known = find(listed)
        return known if known is not None else decode(os.path.join(listing.root, listed.name), framing)  # noqa: PTH118

    with (
        (place / _LISTING).open(encoding="utf-8") as lines,
        (place / EXAMPLES).open("wb", buffering=1 << 20) as examples,
        (place / INDEX).open("w", encoding="utf-8", buffering=1 << 20) as index,
        pillow_kept_quiet(),
        _bar(count) as advance,
    ):
        draft = _Draft(listing, examples, index)
        files = (Listed(*json.loads(line)) for line in lines)
        with closing(in_order(files, outcome, workers)) as outcomes:
            for listed, found in outcomes:
                draft.add(listed, found)
                advance()
        about = draft.finish(place, source, framing)
    (place / _LISTING).unlink()
    write_atomically(place / ABOUT, about.as_text().encode())


def in_order(files: Iterable[Listed], work: Callable[[Listed], Outcome], workers: int) -> Outcomes:
    """What each file gives, worked on in threads a bounded way ahead, in the order of the files.

    >>> files = [Listed(f"{number}.png", 0, 0, 0, None) for number in range(40)]
    >>> [found.reason for _, found in in_order(files, lambda listed: Broken(listed.name), workers=3)][-2:]
    ['38.png', '39.png']
    """

    def work_on(some: list[Listed]) -> list[Outcome]:
        return [work(listed) for listed in some]

    remaining = iter(files)
    waiting: deque[tuple[list[Listed], Future[list[Outcome]]]] = deque()
    pool = ThreadPoolExecutor(workers)
    try:
        while True:
            some = list(islice(remaining, _TOGETHER))
            if some:
                waiting.append((some, pool.submit(work_on, some)))
            elif not waiting:
                return
            if not some or len(waiting) > 2 * workers:
                done, future = waiting.popleft()
                yield from zip(done, future.result(), strict=True)
    finally:
        pool.shutdown(cancel_futures=True)


class _Draft:
    """The files of a cache while they grow by one example after the other."""

    def __init__(self, listing: Listing, examples: IO[bytes], index: IO[str]) -> None:
        self._listing, self._examples, self._index = listing, examples, index
        self._lines, self._labels = 0, array("q")
        self._first: tuple[str, tuple[int, ...]] | None = None
        self._broken: list[tuple[int, str, str, bool]] = []
        self._content = hashlib.blake2b(digest_size=16)
        examples.write(bytes(_HEADER))

    def add(self, listed: Listed, found: Outcome) -> None:
        """One more file, with its picture or without."""
        if isinstance(found, Broken):
            self._broken.append((self._lines, listed.name, found.reason, found.unread))
        else:
            self._check_shape(listed, found)
            self._examples.write(np.ascontiguousarray(found.pixels).data)
            self._content.update(f"{found.digest} {listed.label}\n".encode())
            if listed.label is not None:
                self._labels.append(listed.label)
        self._index.write(f"{index_line(listed, found)}\n")
        self._lines += 1

    def finish(self, place: Path, source: str, framing: Framing) -> About:
        """Put the number of examples in front of them, and everything on the disk."""
        if self._first is None:
            _, name, reason, _ = self._broken[0]
            raise InputError(
                f"{self._listing.place}: not one of its pictures ({self._lines}) can be read, such as {name} ({reason})"
                ": repair them, or give others"
            )
        shape = (self._lines - len(self._broken), *self._first[1])
        self._examples.seek(0)
        self._examples.write(_npy_header(shape))
        names = [EXAMPLES, INDEX]
        if self._labels:
            names.append(LABELS)
            with (place / LABELS).open("wb") as labels:
                np.save(labels, np.frombuffer(self._labels, np.int64))
                _to_disk(labels)
        self._content.update(f"{shape} {framing.how}".encode())
        _to_disk(self._examples)
        _to_disk(self._index)
        sizes = {name: (place / name).stat().st_size for name in names}
        hashes = {name: hash_of(place / name) for name in names if name != EXAMPLES}
        return About(source, shape, sizes, hashes, self._broken, self._content.hexdigest())

    def _check_shape(self, listed: Listed, found: Decoded) -> None:
        if self._first is None:
            self._first = listed.name, found.pixels.shape
        name, (height, width, _) = self._first
        if found.pixels.shape[:2] != (height, width):
            raise InputError(
                f"{self._listing.place}: {name} is {width} x {height} pixels, {listed.name} {found.pixels.shape[1]} x "
                f"{found.pixels.shape[0]} (width x height): give one size for all, such as size=32 (--size 32 32)"
            )


def _to_disk(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _write_listing(listing: Listing, path: Path) -> int:
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for listed in listing:
            file.write(f"{json.dumps(listed)}\n")
            count += 1
    return count


def _npy_header(shape: tuple[int, ...]) -> bytes:
    """The beginning of an .npy file of bytes, always of one length: numpy's own grows with the number of examples."""
    text = repr({"descr": "|u1", "fortran_order": False, "shape": shape})
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", _HEADER - 10) + text.ljust(_HEADER - 11).encode() + b"\n"


@contextmanager
def _bar(count: int) -> Iterator[Callable[[], None]]:
    """How far it is, if anybody can see it and wants to."""
    if count < _WITH_BAR or not sys.stderr.isatty() or logging.getLogger("wildood").level > logging.INFO:
        yield lambda: None
        return
    from rich.console import Console  # noqa: PLC0415 - only a terminal needs it
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (TextColumn("decoding"), BarColumn(), MofNCompleteColumn(), TextColumn("pictures"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("decoding", total=count)
        yield lambda: progress.advance(task)
