"""A cache of decoded pictures: each file is decoded once, into one memory-mapped array with an index."""

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
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice, zip_longest
from pathlib import Path
from typing import IO, Annotated, Any, NamedTuple, Protocol, overload
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from wildood.data.files import locked, write_atomically
from wildood.data.images import Broken, Decoded, Framing, Images, decode, pillow_kept_quiet
from wildood.data.schema import ArgumentsOf, Count, parse
from wildood.data.sources import blocks
from wildood.errors import InputError


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
    """A whole cache, opened; see `wildood.data.image_cache`, which makes one."""

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

    >>> from wildood.data.folders import Folder
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
    >>> from wildood.data.folders import Folder
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


_LOGGER = logging.getLogger("wildood")
_LISTED = 1000  # broken files by their names in the log; all of them are in Images.broken


def open_decoded(listing: Listing, framing: Framing, root: Path, *, skip_broken: bool, workers: int) -> Images:
    """The pictures of a listing, from the cache below `root` if it agrees with the files, else by way of it.

    >>> import tempfile
    >>> from PIL import Image
    >>> from wildood.data.folders import Folder
    >>> with tempfile.TemporaryDirectory() as place:
    ...     Image.new("RGB", (4, 4)).save(f"{place}/a.png")
    ...     images = open_decoded(Folder(Path(place)), Framing(), Path(place) / ".cache", skip_broken=False, workers=1)
    ...     images.examples.shape, images.names[0]
    ((1, 4, 4, 3), 'a.png')
    """
    place = root / "decoded" / key_of(source_of(listing, framing))
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        stored = _agreeing_or_built(listing, framing, place, workers)
    except OSError as error:
        raise InputError(
            f"{listing.place} cannot be decoded into {place.parent} ({error.strerror or error}): make room there, or "
            "give another directory with cache= (--data-root) or WILDOOD_DATA"
        ) from error
    listing.remarks()
    if stored.about.broken:
        (_, name, reason, _), count = stored.about.broken[0], len(stored.about.broken)
        if not skip_broken:
            more = f", nor can {count - 1} more" if count > 1 else ""
            raise InputError(
                f"{listing.root / name} cannot be read as a picture ({reason}){more}: repair or remove such files, or "
                "leave them out with skip_broken=True (--skip-broken)"
            )
        _LOGGER.warning("%s: %d left out because they cannot be read:", listing.place, count)
        for _, left_out, why, _ in stored.about.broken[:_LISTED]:
            _LOGGER.warning("  %s (%s)", left_out, why)
        if count > _LISTED:
            _LOGGER.warning("  and %d others", count - _LISTED)
    return stored.images(listing)


def _agreeing_or_built(listing: Listing, framing: Framing, place: Path, workers: int) -> Stored:
    source, lock = source_of(listing, framing), _lock_of(place)
    waiting = f"{listing.place}: waiting for another process that decodes these pictures"
    with locked(lock, shared=True, waiting=waiting):
        stored = open_stored(place, source)
        if stored is not None and stored.agrees(listing):
            return stored
    with locked(lock, waiting=waiting) as alone:
        stored = open_stored(place, source)
        if stored is not None and stored.agrees(listing):  # another process was faster
            return stored
        _remove_leftovers(place, alone=alone)
        draft = _draft_of(place)
        try:
            draft.mkdir()
            build(listing, framing, draft, source, stored, workers=workers)
            _publish(draft, place)
        finally:
            _remove(draft)
        stored = open_stored(place, source)
    if stored is None:
        raise InputError(f"{listing.place}: another process changed {place} at the same time: open it again")
    return stored


def _publish(draft: Path, place: Path) -> None:
    """Put a finished draft in the place of what is there."""
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
    """Remove the drafts of builds that were killed: nobody holds their lock."""
    for draft in place.parent.glob("*.part"):
        if draft.name.startswith(place.name):
            if alone:
                _remove(draft)
            continue
        with locked(_lock_of(draft.with_name(draft.name.partition(".")[0]))) as abandoned:
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
