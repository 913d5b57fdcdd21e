"""Bulk scoring: an archive is scored shard by shard, and a killed run continues where it stopped.

Each scored shard is one file in the directory FILE.part, written atomically. A run scores the shards that have no file yet.
When all have one, they are joined into FILE, and the directory is removed.
"""

import csv
import io
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from wildood.data.archives import Archive, Shard
from wildood.data.files import digest, is_held, locked
from wildood.data.schema import Count, SchemaError, dump, parse
from wildood.detect.detector import Detector
from wildood.errors import InputError
from wildood.train.progress import logger, progress_bar

COLUMNS = ("example", "score", "decision", "class")
Format = Literal["csv", "jsonl"]
_LOGGED = 1000  # unreadable files that are named in the log; all of them are counted


@dataclass(frozen=True)
class ShardScores:
    """The lines of a shard: their text, their number, and the files left out, each with the reason."""

    text: str
    lines: int
    broken: Sequence[tuple[str, str]] = ()


def score_shard(detector: Detector, shard: Shard, form: Format, threads: int = 1) -> ShardScores:
    """One line per example: its file or number, score, decision and class; the first shard begins with the header."""
    examples, names, broken = shard.read(threads)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if form == "csv" and shard.first == 0:
        writer.writerow(COLUMNS)
    if not len(names) and broken:
        return ShardScores(text.getvalue(), 0, broken)
    scores, classes = detector.score_and_classify(examples)
    decisions = ("known" if accepted else "unknown" for accepted in detector.accepts(scores, classes))
    class_names = [detector.class_name(number) for number in classes.tolist()]
    rows = zip(names, (json_number(float(score)) for score in scores), decisions, class_names, strict=True)
    if form == "csv":
        writer.writerows(rows)
    else:
        text.writelines(json.dumps(dict(zip(COLUMNS, row, strict=True))) + "\n" for row in rows)
    return ShardScores(text.getvalue(), len(scores), broken)


def json_number(value: float) -> float | str:
    """A number as JSON can hold it, which has no infinity.

    >>> json_number(-1.5), json_number(float("inf"))
    (-1.5, 'inf')
    """
    return value if math.isfinite(value) else str(value)


@dataclass(frozen=True)
class Totals:
    """Sums over shards: examples or files, lines of output, files left out because they cannot be read."""

    count: Count = 0
    lines: Count = 0
    broken: Count = 0

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(self.count + other.count, self.lines + other.lines, self.broken + other.broken)


@dataclass(frozen=True)
class _Header(Totals):
    """The first line of a shard's file; its text follows."""

    fingerprint: str = ""
    digest: str = ""


class ShardDirectory:
    """FILE.part: the finished shards of FILE, one file each, and a record of what they were made from."""

    def __init__(self, output: Path) -> None:
        self.path = output.with_name(f"{output.name}.part")
        self._output, self._shards = output, 0

    def check_record(self, provenance: Mapping[str, str]) -> None:
        """Refuse to continue with shards that were made from something else."""
        record = self.path / "record.json"
        if self._files():
            try:
                recorded = parse(record.read_bytes(), dict[str, str])
            except (FileNotFoundError, SchemaError) as error:
                raise self._refuse("has no record, or a damaged one, of what its shards were made from") from error
            others = [name for name in {**recorded, **provenance} if recorded.get(name) != provenance.get(name)]
            if others:
                raise self._refuse(f"was begun with {' and '.join(others)} other than now")
        self._write(record, [json.dumps(dict(provenance)).encode()])

    def totals(self) -> Totals:
        """The sums over all finished shards."""
        totals = Totals()
        for path in self._files():
            with path.open("rb") as file, suppress(SchemaError):
                totals += parse(file.readline(), _Header)
        return totals

    def finished(self, shard: Shard) -> Totals | None:
        """The counts of a finished shard; None if its file is missing or damaged, and it must be scored."""
        try:
            header_line, _, text = self._file(shard).read_bytes().partition(b"\n")
            header: _Header = parse(header_line, _Header)
        except (FileNotFoundError, SchemaError):
            return None
        if header.digest != digest(text):
            return None
        if (header.count, header.fingerprint) != (shard.count, shard.fingerprint):
            raise self._refuse("was begun with other examples than now")
        self._shards += 1
        return header

    def write(self, shard: Shard, scores: ShardScores) -> None:
        """Write the file of a shard atomically; after this call it is on the disk."""
        text = scores.text.encode(errors="surrogateescape")  # names of files as the disk has them
        header = _Header(shard.count, scores.lines, len(scores.broken), shard.fingerprint, digest(text))
        self._write(self._file(shard), [dump(header), b"\n", text])
        self._shards += 1

    def join(self) -> None:
        """Join the texts of all shards into the output, which replaces an older one; then remove the shards."""
        files = self._files()
        if len(files) != self._shards:
            raise self._refuse("was begun with more examples than now")
        self._write(self._output, (path.read_bytes().partition(b"\n")[2] for path in files))
        for path in files:
            path.unlink()

    def remove(self) -> None:
        """Remove the directory, and nothing in it that is not ours."""
        for path in (*self._files(), *(self.path / name for name in ("record.json", "lock", "draft"))):
            path.unlink(missing_ok=True)
        with suppress(OSError):
            self.path.rmdir()

    def _write(self, path: Path, content: Iterable[bytes]) -> None:
        # Not write_atomically, which looks for leftovers: here may be many files, and the lock keeps other writers out.
        with (self.path / "draft").open("wb") as file:
            file.writelines(content)
            file.flush()
            os.fsync(file.fileno())
        (self.path / "draft").replace(path)

    def _file(self, shard: Shard) -> Path:
        return self.path / f"{shard.first:015}.shard"  # which sort by their names

    def _files(self) -> list[Path]:
        return sorted(self.path.glob("*.shard"))

    def _refuse(self, why: str) -> InputError:
        return InputError(f"{self.path} {why}: remove it to begin anew, or give another --out")


@contextmanager
def shard_directory(output: Path, provenance: Mapping[str, str], *, skip_broken: bool = False) -> Iterator[ShardDirectory]:
    """The directory of a file's shards, which are joined into the file at the end of the block; an exception keeps them.

    Shards of another `provenance` (everything that decides their content, by names for messages) are refused, and without
    `skip_broken` those that left out unreadable files.
    """
    directory = ShardDirectory(output)
    path, lock = directory.path, directory.path / "lock"
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is in the way, where finished shards are kept: remove it, or give another --out")
    path.mkdir(exist_ok=True)
    with locked(lock) as acquired:
        if not acquired and is_held(lock):
            raise InputError(f"another process is writing {path}: wait for it, or give another --out")
        directory.check_record(provenance)
        before = directory.totals()
        if before.broken and not skip_broken:
            raise InputError(f"{path} was begun with --skip-broken, and left out {before.broken}: give it again")
        if before.lines:
            logger.info("%s has %d lines already: continuing from there", path, before.lines)
        try:
            yield directory
            directory.join()
        except BaseException:
            if kept := directory.totals().lines:
                logger.info("%s keeps %d lines: the same command continues from there", path, kept)
            raise
        finally:
            if not directory.totals().lines:
                directory.remove()


Scorer = Callable[[Iterator[Shard]], Iterator[tuple[Shard, ShardScores]]]


def score_archive(archive: Archive, scorer: Scorer, directory: ShardDirectory | None) -> Totals:
    """Score the shards of an archive that are not finished, into the directory or, without one, to standard output.

    Memory holds one shard, and those that the scorer takes ahead.
    """
    totals, unprinted = Totals(), ""

    def unfinished() -> Iterator[Shard]:
        nonlocal totals
        for shard in archive.shards:
            finished = directory.finished(shard) if directory is not None else None
            if finished is None:
                yield shard
            else:
                totals += finished

    done = directory.totals().count if directory is not None else 0
    with progress_bar(archive.count, done, "scoring", "examples") as bar:
        for shard, scores in scorer(unfinished()):
            for name, reason in scores.broken[: max(0, _LOGGED - totals.broken)]:
                logger.warning("left out, because it cannot be read: %s (%s)", name, reason)
            totals += Totals(shard.count, scores.lines, len(scores.broken))
            if directory is not None:
                directory.write(shard, scores)
            else:
                unprinted += scores.text
                if totals.lines:  # a header alone is not printed
                    sys.stdout.write(unprinted)
                    sys.stdout.flush()
                    unprinted = ""
            bar.at(totals.count)
    if not totals.lines:
        raise InputError(f"{archive.where}: none of its {totals.broken} pictures can be read: repair them, or give others")
    if totals.broken:
        logger.warning("%s: %d left out because they cannot be read", archive.where, totals.broken)
    return totals
