"""Bulk scoring: archives of any size in, one line or row per example out; a killed run goes on."""

import csv
import hashlib
import io
import json
import logging
import math
import os
import platform
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, fields
from itertools import count as numbers
from itertools import islice
from math import prod
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, BinaryIO, Literal, NamedTuple, Protocol, TypedDict

import numpy as np

from wildood.data.array_files import (
    DAMAGED,
    X_NAMES,
    name_in,
    names_arrays,
    no_arrays,
    not_read,
    open_arrays,
    place_and_names,
    too_large,
)
from wildood.data.files import digest, is_held, locked, open_plain, write_atomically
from wildood.data.folders import listing_of
from wildood.data.image_cache import Listed, Listing, in_order
from wildood.data.images import Broken, Decoded, Framing, decode, pillow_kept_quiet
from wildood.data.schema import Count, SchemaError, parse
from wildood.data.sources import memory_of
from wildood.data.validation import unlabelled_source
from wildood.detect.detector import Detector
from wildood.errors import InputError

Array = np.ndarray[Any, Any]
_MAGIC = 8  # bytes


class ArrayStream:
    """The rows of one array, once.

    Attributes:
        shape: of the whole array.
        row_bytes: of one example.
    """

    def __init__(self, file: IO[bytes], begin: bytes, where: str) -> None:
        self._file, self._where = file, where
        version = np.lib.format.read_magic(io.BytesIO(begin))
        read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        self.shape, by_column, self._dtype = read_header(file)
        if self._dtype.hasobject:
            raise no_arrays(where)
        if not self.shape:
            raise InputError(f"{where} holds a single number: give at least one example, along the first axis")
        self.row_bytes = self._dtype.itemsize * prod(self.shape[1:])
        self._whole: Array | None = None
        if by_column and len(self.shape) > 1:  # rows are scattered over all of it
            self._whole = self._read(self.shape[0]).reshape(self.shape[::-1]).T

    def rows(self, together: int) -> Iterator[Array]:
        """All of them, so many together; an array without any gives one empty one."""
        for start in range(0, max(1, self.shape[0]), together):
            count = min(together, self.shape[0] - start)
            yield self._read(count) if self._whole is None else self._whole[start : start + count]

    def _read(self, count: int) -> Array:
        try:
            content = self._file.read(count * self.row_bytes)
            if len(content) == count * self.row_bytes:
                return np.frombuffer(content, self._dtype).reshape(count, *self.shape[1:])
        except MemoryError as error:
            raise too_large(self._where) from error
        except (OSError, *DAMAGED) as error:
            raise no_arrays(self._where) from error
        raise InputError(f"{self._where} ends in the middle of an array: give the whole of it")


@contextmanager
def open_stream(text: str) -> Iterator[ArrayStream]:
    """The inputs that FILE.npz, FILE.npz:x or - names, to be read row by row.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     np.savez(f"{place}/a.npz", x=np.zeros((3, 2)))
    ...     with open_stream(f"{place}/a.npz") as stream:
    ...         [rows.shape for rows in stream.rows(2)]
    [(2, 2), (1, 2)]
    """
    place, names = place_and_names(text)
    with ExitStack() as after:
        try:
            file: IO[bytes] = sys.stdin.buffer if place == "-" else after.enter_context(open_plain(place))
            begin = file.read(_MAGIC)
            if begin.startswith(b"PK"):
                archive = after.enter_context(zipfile.ZipFile(_seekable(file, begin, after)))
                held = [name.removesuffix(".npy") for name in archive.namelist()]
                name = name_in(held, names[:1] or (held if len(held) == 1 else X_NAMES), place, text)
                file = after.enter_context(archive.open(f"{name}.npy"))
                begin = file.read(_MAGIC)
            stream = ArrayStream(file, begin, text)
        except InputError:
            raise
        except OSError as error:
            raise not_read(place, error) from error
        except DAMAGED as error:
            raise no_arrays(place) from error
        yield stream


def _seekable(file: IO[bytes], begin: bytes, after: ExitStack) -> IO[bytes]:
    """A file whose end, where an archive has its list, can be looked at first: the disk keeps what comes through a pipe."""
    if file.seekable():
        file.seek(0)
        return file
    kept = after.enter_context(TemporaryFile())  # noqa: SIM115 - closed with the others
    kept.write(begin)
    shutil.copyfileobj(file, kept)
    kept.seek(0)
    return kept


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


@dataclass(frozen=True)
class Archive:
    """Examples, to be gone through once.

    Attributes:
        where: what the user named.
        identity: a text that is another one when the examples are, as far as that is known before they are read.
        count: how many there are, where that is known.
        chunks: all of them, in their order.
    """

    where: str
    identity: str
    count: int | None
    chunks: Iterator[Chunk]


@contextmanager
def open_archive(text: str, framing: Framing, *, skip_broken: bool = False) -> Iterator[Archive]:
    """The examples that a path, or - for standard input, names: what `open_images` opens, in the same order.

    >>> import tempfile, numpy as np
    >>> with tempfile.TemporaryDirectory() as place:
    ...     np.save(f"{place}/a.npy", np.zeros((5000, 3)))
    ...     with open_archive(f"{place}/a.npy", Framing()) as archive:
    ...         archive.count, [(chunk.first, chunk.count) for chunk in archive.chunks]
    (5000, [(0, 4096), (4096, 904)])
    """
    if not names_arrays(text):
        listing = listing_of(text)
        identity = f"{os.path.realpath(listing.place)} {framing}"
        yield Archive(text, identity, None, _pictures(listing, framing, skip_broken=skip_broken))
    elif _is_one_array(text):
        array = open_arrays(text).examples
        path, found = Path(text).absolute(), Path(text).stat()
        size, total = chunk_size(array.nbytes // max(1, len(array))), len(array)
        pieces = (
            FileRows(path, start, min(size, total - start), found.st_size, found.st_mtime_ns)
            for start in range(0, max(1, total), size)
        )
        yield Archive(text, _identity(text), total, pieces)
    else:
        with open_stream(text) as stream:
            piped = place_and_names(text)[0] == "-"
            rows = stream.rows(chunk_size(stream.row_bytes))
            yield Archive(text, text if piped else _identity(text), stream.shape[0], _numbered(rows, hashed=piped))


def archive_of(examples: Array, names: Sequence[str], where: str, identity: str) -> Archive:
    """The examples of an array that is at hand, such as a named set's.

    >>> import numpy as np
    >>> [chunk.count for chunk in archive_of(np.zeros((5000, 3)), (), "a set", "c0ffee").chunks]
    [4096, 904]
    """
    size = chunk_size(examples.nbytes // max(1, len(examples)))
    pieces = (
        Rows(examples[start : start + size], start, names[start : start + size]) for start in range(0, len(examples), size)
    )
    return Archive(where, identity, len(examples), pieces)


def _pictures(listing: Listing, framing: Framing, *, skip_broken: bool) -> Iterator[Chunk]:
    size = chunk_size(prod(framing.size) * framing.channels if isinstance(framing.size, tuple) else 1 << 20)
    root, files = listing.root.absolute(), iter(listing)
    for first, some in zip(numbers(0, size), iter(lambda: tuple(islice(files, size)), ()), strict=False):
        yield Pictures(root, first, some, framing, skip_broken)
    listing.remarks()


def _numbered(pieces: Iterator[Array], *, hashed: bool) -> Iterator[Chunk]:
    first = 0
    for piece in pieces:
        yield Rows(piece, first, hashed=hashed)
        first += len(piece)


def _is_one_array(text: str) -> bool:
    """Whether it is an .npy file by its content, which can be read from any row on."""
    place, names = place_and_names(text)
    if place == "-" or names:
        return False
    try:
        with open_plain(place) as file:
            return file.read(6) == b"\x93NUMPY"
    except OSError:
        return False


def _identity(text: str) -> str:
    place, names = place_and_names(text)
    status = Path(place).stat()
    return f"{os.path.realpath(place)} {names} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"


class _About(TypedDict):
    made_of: dict[str, str]
    bytes: Count
    note: dict[str, Any]


class Draft:
    """What is known of a file so far, in FILE.part; FILE.part.json says how much of it counts, and what was noted then.

    Attributes:
        note: what came with the last text that was added; empty if there is none.
    """

    def __init__(self, path: Path, made_of: Mapping[str, str], elsewhere: str) -> None:
        self.path, self.part, self.about = (
            path,
            path.with_name(f"{path.name}.part"),
            path.with_name(f"{path.name}.part.json"),
        )
        self.note: dict[str, Any] = {}
        self._made_of, self._elsewhere, self._bytes = dict(made_of), elsewhere, 0
        self._file: BinaryIO | None = None

    def find(self) -> None:
        """Go on with what is there already; refuse what was begun from something else."""
        size = self.part.stat().st_size
        try:
            found: _About = parse(self.about.read_bytes(), _About)
            counts, made_of, note = found["bytes"], found["made_of"], found["note"]
        except FileNotFoundError:
            counts, made_of, note = size, {}, {}
        except SchemaError as error:
            raise InputError(f"{self.about} is damaged ({error}): {self._to_begin_anew}") from error
        if size == 0 or counts == 0:  # nobody has put anything into it
            return
        if not made_of or counts > size:
            raise InputError(f"{self.part} is there, but is no draft that can go on: {self._to_begin_anew}")
        others = [name for name in {**made_of, **self._made_of} if made_of.get(name) != self._made_of.get(name)]
        if others:
            raise InputError(f"{self.part} was begun with {' and '.join(others)} other than now: {self._to_begin_anew}")
        self._bytes, self.note = counts, note

    def refuse(self, why: str) -> InputError:
        """An error that says why this draft cannot go on, and what to do."""
        return InputError(f"{self.part} {why}: {self._to_begin_anew}")

    def add(self, text: str, note: Mapping[str, Any]) -> None:
        """One more piece: after this call it is on the disk, whatever happens."""
        if self._file is None:
            self._save()  # first, so that a draft is never without what it was made of
            self._file = self.part.open("r+b")
            self._file.truncate(self._bytes)  # what was written but not noted may be half of a line
            self._file.seek(self._bytes)
        content = text.encode(errors="surrogateescape")  # names of files as the disk has them
        self._file.write(content)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._bytes, self.note = self._bytes + len(content), dict(note)
        self._save()

    def close(self) -> None:
        """Leave it for later; without anything in it, it goes."""
        if self._file is not None:
            self._file.close()
        if not self._bytes:
            self.part.unlink(missing_ok=True)
            self.about.unlink(missing_ok=True)

    def publish(self) -> None:
        """Give it the file's name, in the place of what is there."""
        self.close()
        if self._bytes:
            self.part.replace(self.path)
            self.about.unlink(missing_ok=True)

    @property
    def _to_begin_anew(self) -> str:
        return f"remove {self.part.name} and {self.about.name} to begin anew, or {self._elsewhere}"

    def _save(self) -> None:
        content = {"made_of": self._made_of, "bytes": self._bytes, "note": self.note}
        write_atomically(self.about, json.dumps(content).encode())


@contextmanager
def draft_of(path: Path, made_of: Mapping[str, str], elsewhere: str = "give another file") -> Iterator[Draft]:
    """The draft of a file, which becomes the file at the end of the block; an exception leaves it as it is.

    Args:
        path: the file.
        made_of: what decides its content, by names for people: a draft of something else is refused.
        elsewhere: how the user gives another file, for messages.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     file = Path(place) / "a.csv"
    ...     try:
    ...         with draft_of(file, {"letters": "latin"}) as draft:
    ...             draft.add("a", {"letters": 1})
    ...             raise KeyboardInterrupt
    ...     except KeyboardInterrupt:
    ...         print(file.exists())
    ...     with draft_of(file, {"letters": "latin"}) as draft:
    ...         print(draft.note)
    ...         draft.add("b", {"letters": 2})
    ...     file.read_bytes(), len(list(Path(place).iterdir()))
    False
    {'letters': 1}
    (b'ab', 1)
    """
    draft = Draft(path, made_of, elsewhere)
    draft.part.touch()  # which says why, where nothing can be written
    with locked(draft.part) as mine:
        if not mine and is_held(draft.part):
            raise InputError(f"another process is writing {draft.part}: wait for it, or {elsewhere}")
        draft.find()
        try:
            yield draft
        except BaseException:
            draft.close()
            raise
        draft.publish()


COLUMNS = ("example", "score", "decision", "class")
Format = Literal["csv", "jsonl"]
_LISTED = 1000  # broken files by their names in the log; all of them are counted
_LOGGER = logging.getLogger("wildood")


@dataclass(frozen=True)
class Lines:
    """What a chunk gave: its text, for how many examples, and the files that were left out, each with the reason."""

    text: str
    examples: int
    broken: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Progress:
    """How far an archive was gone through.

    Attributes:
        listed: examples or files, those included that cannot be read.
        examples: lines that were written.
        broken: files that were left out.
        state: a hash of the states of all chunks up to here.

    >>> import numpy as np
    >>> from wildood.detect.bulk import Rows
    >>> Progress(listed=4096, examples=4096).after(Rows(np.zeros((3, 2)), first=4096), Lines("", 3)).examples
    4099
    """

    listed: int = 0
    examples: int = 0
    broken: int = 0
    state: str = ""

    @classmethod
    def of(cls, output: "Output") -> "Progress":
        """How far an output came; one whose note says something else is refused."""
        try:
            found = cls(**output.note)
        except TypeError:
            found = None
        if found is None or any(type(getattr(found, part.name)) is not part.type for part in fields(cls)):
            raise output.refuse("has a damaged note of how far it came")
        return found

    def after(self, chunk: Chunk, lines: Lines) -> "Progress":
        """After one more chunk."""
        return Progress(
            self.listed + chunk.count,
            self.examples + lines.examples,
            self.broken + len(lines.broken),
            _chained(self.state, chunk),
        )


class Output(Protocol):
    """Where lines go.

    Attributes:
        note: the progress that came with the last lines, if there are any already.
    """

    note: dict[str, Any]

    def add(self, text: str, note: Mapping[str, Any]) -> None:
        """More lines, and the progress with them."""
        ...

    def refuse(self, why: str) -> InputError:
        """An error that says why it cannot go on with what is there already."""
        ...


Answer = Callable[[Iterator[Chunk]], Iterator[tuple[Chunk, Lines]]]


def lines_of(detector: Detector, chunk: Chunk, form: Format, threads: int = 1) -> Lines:
    """One line for each example of a chunk: its file or number, score, decision and class; a header before the first.

    >>> import numpy as np, torch, wildood
    >>> from wildood.detect.bulk import Rows
    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <...>
    >>> x = np.random.default_rng(0).normal(size=(50, 2)).astype("float32")
    >>> detector = wildood.posthoc(torch.nn.Linear(2, 3), wildood.EnergyScore(), holdout=x, alpha=0.1)
    >>> print(lines_of(detector, Rows(np.zeros((1, 2), "float32")), "csv").text)
    example,score,decision,class
    0,-1...,known,...
    """
    found = chunk.read(threads)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if form == "csv" and chunk.first == 0:
        writer.writerow(COLUMNS)
    if not len(found.examples) and found.broken:
        return Lines(text.getvalue(), 0, tuple(found.broken))
    scores, classes = detector.score_and_classify(found.examples)
    decisions = ("known" if accepted else "unknown" for accepted in detector.accepts(scores, classes))
    said = [detector.class_name(number) for number in classes.tolist()]
    rows = zip(found.names, (json_number(float(score)) for score in scores), decisions, said, strict=True)
    if form == "csv":
        writer.writerows(rows)
    else:
        text.writelines(json.dumps(dict(zip(COLUMNS, row, strict=True))) + "\n" for row in rows)
    return Lines(text.getvalue(), len(scores), tuple(found.broken))


def json_number(value: float) -> float | str:
    """A number as JSON can hold it, which has no infinity.

    >>> json_number(-1.5), json_number(float("inf"))
    (-1.5, 'inf')
    """
    return value if math.isfinite(value) else str(value)


def write_lines(archive: Archive, answer: Answer, output: Output, told: Callable[[Progress], None]) -> Progress:
    """Every line of an archive that is not written yet; what was done, all in all.

    A chunk's lines are written as soon as they are known, and are forgotten then.

    Args:
        archive: the examples.
        answer: gives the lines of chunks, in their order; it may be some chunks ahead.
        output: where they go.
        told: hears how far it is, at first and after each chunk.
    """
    at, text = Progress.of(output), ""
    told(at)
    for chunk, lines in answer(_remaining(archive, at, output)):
        for name, why in lines.broken[: max(0, _LISTED - at.broken)]:
            _LOGGER.warning("left out, because it cannot be read: %s (%s)", name, why)
        at = at.after(chunk, lines)
        text += lines.text
        if at.examples:  # a file without any is none to go on from
            output.add(text, asdict(at))
            text = ""
        told(at)
    if not at.examples:
        raise InputError(f"{archive.where}: not one of its pictures ({at.broken}) can be read: repair them, or give others")
    if at.broken:
        _LOGGER.warning("%s: %d left out because they cannot be read", archive.where, at.broken)
    return at


def _remaining(archive: Archive, at: Progress, output: Output) -> Iterator[Chunk]:
    """The chunks that are not done; those that are must be as they were."""
    listed, state = 0, ""
    for chunk in archive.chunks:
        if listed >= at.listed:
            yield chunk
            continue
        listed, state = listed + chunk.count, _chained(state, chunk)
        if listed >= at.listed and (listed, state) != (at.listed, at.state):
            raise output.refuse(f"was begun with other examples than {archive.where} has now")
    if listed < at.listed:
        raise output.refuse(f"was begun with more examples than {archive.where} has now")


def _chained(state: str, chunk: Chunk) -> str:
    return digest(f"{state} {chunk.state}".encode())
