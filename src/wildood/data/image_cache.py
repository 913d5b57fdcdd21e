"""A cache of decoded images: each file is decoded once, into one memory-mapped array with an index.

A cache is a directory with `examples.npy`, `labels.npy` (if there are labels), `index.jsonl` (a line for each file) and
`about.json`. It is built in a draft directory beside it, under a lock, and renamed when it is complete.
"""

import hashlib
import json
import logging
import os
import shutil
import struct
import sys
from array import array
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice, zip_longest
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, overload
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from wildood.data.files import locked, write_atomically
from wildood.data.images import Broken, Decoded, Framing, Images, decode, pillow_warnings
from wildood.data.schema import Count, dump, parse
from wildood.data.sources import blocks
from wildood.errors import InputError

Numbers = npt.NDArray[np.int64]
Outcome = Decoded | Broken

_EXAMPLES, _LABELS, _INDEX, _ABOUT, _LISTING = "examples.npy", "labels.npy", "index.jsonl", "about.json", "listing.jsonl"
_FORMAT = 2  # of these files; those of another format are decoded again
_HEADER = 128  # bytes before the examples, written when their number is known
_BATCH = 16  # files that a thread takes at a time
_WITH_BAR = 500  # files from which on a progress bar is shown
_LOGGED = 1000  # names of broken files in the log; all of them are in Images.broken
_LOGGER = logging.getLogger("wildood")


class Listed(NamedTuple):
    """A file that should hold an image, and the state of the file."""

    name: str
    size: int  # -1: missing, or not a plain file
    changed: int  # mtime
    stamped: int  # ctime: rsync -t, cp -p and tar -x restore mtime, but not this
    label: int | None

    def index_prefix(self) -> str:
        """The beginning of the file's line in an index; another beginning means another file or another state."""
        return f"{json.dumps(self)[:-1]}, "


_STATE = Listed._fields.index("label")  # the fields before it are equal if a file has not changed


class Listing(Protocol):
    """Files that should hold images, in an order that depends only on their names or their manifest."""

    place: Path  # the folder or manifest, as the user named it
    root: Path  # the folder that file names are relative to
    classes: tuple[str, ...]  # the names of the classes, in the order of the labels
    unlabelled: str  # how to add labels, where there are none

    def __iter__(self) -> Iterator[Listed]: ...

    def remarks(self) -> None:
        """Log what the last whole iteration ignored."""


def open_cached(listing: Listing, framing: Framing, root: Path, *, skip_broken: bool, workers: int) -> Images:
    """The images of a listing, from the cache below `root`; the cache is built or updated if files are new or changed."""
    source = json.dumps({"format": _FORMAT, "place": os.path.realpath(listing.place), **asdict(framing)})
    place = root / "decoded" / hashlib.blake2b(source.encode(), digest_size=16).hexdigest()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        cache = _up_to_date(listing, framing, place, source, workers)
    except OSError as error:
        raise InputError(
            f"{listing.place} cannot be decoded into {place.parent} ({error.strerror or error}): make room there, or "
            "give another directory with cache= (--data-root) or WILDOOD_DATA"
        ) from error
    listing.remarks()
    _report_broken(cache.record.broken, listing, skip_broken=skip_broken)
    return cache.images(listing)


def _report_broken(broken: "list[BrokenFile]", listing: Listing, *, skip_broken: bool) -> None:
    if not broken:
        return
    if not skip_broken:
        _, name, reason, _ = broken[0]
        more = f", nor can {len(broken) - 1} more" if len(broken) > 1 else ""
        raise InputError(
            f"{listing.root / name} cannot be read as a picture ({reason}){more}: repair or remove such files, or "
            "leave them out with skip_broken=True (--skip-broken)"
        )
    _LOGGER.warning("%s: %d left out because they cannot be read:", listing.place, len(broken))
    for _, name, reason, _ in broken[:_LOGGED]:
        _LOGGER.warning("  %s (%s)", name, reason)
    if len(broken) > _LOGGED:
        _LOGGER.warning("  and %d others", len(broken) - _LOGGED)


def _up_to_date(listing: Listing, framing: Framing, place: Path, source: str, workers: int) -> "ImageCache":
    """The cache that agrees with the files; one process at a time builds it, readers need no lock."""
    cache = _read_cache(place, source)
    if cache is not None and cache.agrees(listing):
        return cache
    waiting = f"{listing.place}: waiting for another process that decodes these pictures"
    with locked(_lock_of(place), waiting=waiting) as alone:
        cache = _read_cache(place, source)
        if cache is not None and cache.agrees(listing):  # another process has built it meanwhile
            return cache
        _remove_leftovers(place, alone=alone)
        draft = _draft_of(place)
        try:
            draft.mkdir()
            _build(listing, framing, draft, source, cache, workers=workers)
            _publish(draft, place)
        finally:
            _remove(draft)
        cache = _read_cache(place, source)
    if cache is None:
        raise InputError(f"{listing.place}: another process changed {place} at the same time: open it again")
    return cache


BrokenFile = tuple[Count, str, str, bool]  # line in the index, name, reason, and whether its bytes could not be read


@dataclass(frozen=True)
class CacheRecord:
    """The content of about.json."""

    source: str  # the files and their framing, as JSON
    shape: tuple[int, ...]  # of the examples
    sizes: dict[str, int]  # of the other files of the cache, in bytes
    hashes: dict[str, str]  # of the index and the labels; to hash the examples would be to read them all
    broken: list[BrokenFile]  # the files without an example
    content: str  # a hash of the files' contents, their labels and the shape of the examples


class Index:
    """The lines of an index file, read on demand: for millions of files they would fill the memory.

    A line has the fields of `Listed`, then the digest of the file, or null, the reason and whether it could not be read.
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

    def row(self, number: int) -> list[Any]:
        """The content of a line."""
        start = self._ends[number - 1] + 1 if number else 0
        row: list[Any] = json.loads(self._bytes[start : self._ends[number]].tobytes())
        return row

    def finder(self) -> Callable[[Listed], int | None]:
        """A thread-safe function for the line of a file that has not changed; its label may have."""
        # 16 bytes for each file, where a dictionary of names takes ten times as much.
        hashes = np.fromiter((_hash(json.loads(line)) for line in self.lines()), np.int64, len(self._ends))
        numbers = np.argsort(hashes, kind="stable")
        hashes = hashes[numbers]

        def find(listed: Listed) -> int | None:
            place = int(np.searchsorted(hashes, _hash(listed)))
            while place < len(hashes) and hashes[place] == _hash(listed):
                if self.row(numbers[place])[:_STATE] == list(listed[:_STATE]):
                    return int(numbers[place])
                place += 1
            return None

        return find


def _hash(row: Sequence[Any]) -> int:
    return hash(tuple(row[:_STATE]))


def index_line(listed: Listed, outcome: Outcome) -> str:
    """The line of a file in an index."""
    fields = [outcome.digest] if isinstance(outcome, Decoded) else [None, outcome.reason, outcome.unread]
    return listed.index_prefix() + json.dumps(fields)[1:]


class Names(Sequence[str]):
    """The name of each example's file, read from the index on demand; the lines `broken` have no example."""

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
        name: str = self._index.row(int(self._lines[place]))[0]
        return name


@dataclass(frozen=True, eq=False)
class ImageCache:
    """A complete cache, opened."""

    record: CacheRecord
    examples: npt.NDArray[np.uint8]
    labels: Numbers | None
    index: Index

    @property
    def broken_lines(self) -> Numbers:
        """The lines of the index without an example."""
        return np.array([line for line, *_ in self.record.broken], np.int64)

    def agrees(self, listing: Listing) -> bool:
        """Whether no file is new, changed or gone, and none can be read now that could not be read before."""
        for listed, line in zip_longest(listing, self.index.lines()):
            if listed is None or line is None or not line.startswith(listed.index_prefix().encode()):
                return False
        return not any(unread and _can_be_read(listing.root / name) for _, name, _, unread in self.record.broken)

    def finder(self) -> Callable[[Listed], Outcome | None]:
        """A thread-safe function for the outcome of a file that has not changed."""
        find_line, broken_lines = self.index.finder(), self.broken_lines

        def find(listed: Listed) -> Outcome | None:
            number = find_line(listed)
            if number is None:
                return None
            digest, *broken = self.index.row(number)[len(listed) :]
            if digest is not None:
                return Decoded(digest, self.examples[number - int(np.searchsorted(broken_lines, number))])
            reason, unread = broken
            return None if unread else Broken(reason)

        return find

    def images(self, listing: Listing) -> Images:
        """The examples as a source."""
        return Images(
            self.examples,
            self.labels,
            where=str(listing.place),
            classes=listing.classes,
            names=Names(self.index, self.broken_lines, len(self.examples)),
            broken=tuple(name for _, name, _, _ in self.record.broken),
            content=self.record.content,
            unlabelled=listing.unlabelled,
        )


def _read_cache(place: Path, source: str) -> ImageCache | None:
    """The cache of this source; None if it is missing, torn, of another source or of another format."""
    try:
        about = (place / _ABOUT).read_bytes()
        record: CacheRecord = parse(about, CacheRecord)
        if record.source != source or {_EXAMPLES, *record.hashes} != {*record.sizes} or _INDEX not in record.hashes:
            return None
        has_sizes = all((place / name).stat().st_size == size for name, size in record.sizes.items())
        if not has_sizes or any(_hash_of(place / name) != known for name, known in record.hashes.items()):
            return None
        examples = np.load(place / _EXAMPLES, mmap_mode="r", allow_pickle=False)
        labels = np.load(place / _LABELS, allow_pickle=False) if _LABELS in record.sizes else None
        index = Index(place / _INDEX)
        if examples.shape != record.shape or examples.dtype != np.uint8:
            return None
        if labels is not None and (labels.shape != record.shape[:1] or labels.dtype != np.int64):
            return None
        # The same at the end: no other process has put another cache there in between.
        return ImageCache(record, examples, labels, index) if (place / _ABOUT).read_bytes() == about else None
    except (OSError, ValueError, EOFError):
        return None


def _hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _can_be_read(path: Path) -> bool:
    try:
        if not path.is_file():  # to open a pipe would wait for its other end
            return False
        with path.open("rb") as file:
            file.read(1)
    except OSError:
        return False
    return True


def _build(listing: Listing, framing: Framing, place: Path, source: str, old: ImageCache | None, *, workers: int) -> None:
    """Write a cache into an empty directory; the examples of files that have not changed are copied from `old`.

    Broken files are recorded: to refuse them here would throw away what was decoded.
    """
    find = old.finder() if old is not None else lambda _: None

    def outcome(listed: Listed) -> Outcome:
        known = find(listed)
        return known if known is not None else decode(os.path.join(listing.root, listed.name), framing)  # noqa: PTH118

    with (place / _LISTING).open("w", encoding="utf-8") as lines:
        count = 0
        for count, listed in enumerate(listing, start=1):  # noqa: B007 - used below
            lines.write(f"{json.dumps(listed)}\n")
    with (
        (place / _LISTING).open(encoding="utf-8") as lines,
        (place / _EXAMPLES).open("wb", buffering=1 << 20) as examples,
        (place / _INDEX).open("w", encoding="utf-8", buffering=1 << 20) as index,
        pillow_warnings(),
        _progress_bar(count) as advance,
    ):
        draft = _Draft(listing, examples, index)
        files = (Listed(*json.loads(line)) for line in lines)
        with closing(in_order(files, outcome, workers)) as outcomes:
            for listed, result in outcomes:
                draft.add(listed, result)
                advance()
        record = draft.finish(place, source, framing)
    (place / _LISTING).unlink()
    write_atomically(place / _ABOUT, dump(record))


def in_order(
    files: Iterable[Listed], work: Callable[[Listed], Outcome], workers: int
) -> Generator[tuple[Listed, Outcome], None, None]:
    """Each file with its outcome, in the order of the files; threads work a bounded number of files ahead."""

    def work_on(batch: list[Listed]) -> list[tuple[Listed, Outcome]]:
        return [(listed, work(listed)) for listed in batch]

    remaining = iter(files)
    waiting: deque[Future[list[tuple[Listed, Outcome]]]] = deque()
    pool = ThreadPoolExecutor(workers)
    try:
        while batch := list(islice(remaining, _BATCH)):
            waiting.append(pool.submit(work_on, batch))
            if len(waiting) > 2 * workers:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


class _Draft:
    """The files of a cache while examples are added."""

    def __init__(self, listing: Listing, examples: IO[bytes], index: IO[str]) -> None:
        self._listing, self._examples, self._index = listing, examples, index
        self._lines, self._labels = 0, array("q")
        self._first: tuple[str, tuple[int, ...]] | None = None
        self._broken: list[BrokenFile] = []
        self._content = hashlib.blake2b(digest_size=16)
        examples.write(bytes(_HEADER))

    def add(self, listed: Listed, outcome: Outcome) -> None:
        if isinstance(outcome, Broken):
            self._broken.append((self._lines, listed.name, outcome.reason, outcome.unread))
        else:
            self._check_shape(listed, outcome)
            self._examples.write(np.ascontiguousarray(outcome.pixels).data)
            self._content.update(f"{outcome.digest} {listed.label}\n".encode())
            if listed.label is not None:
                self._labels.append(listed.label)
        self._index.write(f"{index_line(listed, outcome)}\n")
        self._lines += 1

    def finish(self, place: Path, source: str, framing: Framing) -> CacheRecord:
        """Write the header and the labels, and flush everything to the disk."""
        if self._first is None:
            _, name, reason, _ = self._broken[0]
            raise InputError(
                f"{self._listing.place}: not one of its pictures ({self._lines}) can be read, such as {name} ({reason})"
                ": repair them, or give others"
            )
        shape = (self._lines - len(self._broken), *self._first[1])
        self._content.update(f"{shape} {framing.how}".encode())
        self._examples.seek(0)
        self._examples.write(_npy_header(shape))
        _flush(self._examples)
        _flush(self._index)
        names = [_INDEX]
        if self._labels:
            names.append(_LABELS)
            with (place / _LABELS).open("wb") as labels:
                np.save(labels, np.frombuffer(self._labels, np.int64))
                _flush(labels)
        sizes = {name: (place / name).stat().st_size for name in (_EXAMPLES, *names)}
        hashes = {name: _hash_of(place / name) for name in names}
        return CacheRecord(source, shape, sizes, hashes, self._broken, self._content.hexdigest())

    def _check_shape(self, listed: Listed, decoded: Decoded) -> None:
        if self._first is None:
            self._first = listed.name, decoded.pixels.shape
        name, (height, width, _) = self._first
        if decoded.pixels.shape[:2] != (height, width):
            raise InputError(
                f"{self._listing.place}: {name} is {width} x {height} pixels, {listed.name} {decoded.pixels.shape[1]} x "
                f"{decoded.pixels.shape[0]} (width x height): give one size for all, such as size=32 (--size 32 32)"
            )


def _flush(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _npy_header(shape: tuple[int, ...]) -> bytes:
    """The header of an .npy file of bytes, always of one length: numpy's own grows with the number of examples."""
    text = repr({"descr": "|u1", "fortran_order": False, "shape": shape})
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", _HEADER - 10) + text.ljust(_HEADER - 11).encode() + b"\n"


@contextmanager
def _progress_bar(count: int) -> Iterator[Callable[[], None]]:
    """A progress bar on a terminal, for many files, unless the log is quiet."""
    if count < _WITH_BAR or not sys.stderr.isatty() or _LOGGER.level > logging.INFO:
        yield lambda: None
        return
    from rich.console import Console  # noqa: PLC0415 - only a terminal needs it
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (TextColumn("decoding"), BarColumn(), MofNCompleteColumn(), TextColumn("pictures"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("decoding", total=count)
        yield lambda: progress.advance(task)


def _publish(draft: Path, place: Path) -> None:
    """Rename a complete draft; whatever has its name is removed."""
    while True:
        try:
            draft.rename(place)
        except OSError:
            if not place.is_symlink() and not place.exists():
                raise
            aside = _draft_of(place)
            with suppress(FileNotFoundError):
                place.rename(aside)
            _remove(aside)
        else:
            return


def _remove_leftovers(place: Path, *, alone: bool) -> None:
    """Remove the drafts of killed processes, whose locks are free; `alone` if this process holds the lock of `place`."""
    for draft in place.parent.glob("*.part"):
        owner = draft.with_name(draft.name.partition(".")[0])
        with nullcontext(alone) if owner == place else locked(_lock_of(owner)) as abandoned:
            if abandoned:
                _remove(draft)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _lock_of(place: Path) -> Path:
    return place.with_name(f"{place.name}.lock")


def _draft_of(place: Path) -> Path:
    return place.with_name(f"{place.name}.{uuid4().hex}.part")
