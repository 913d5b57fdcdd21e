"""Texts in .csv and .jsonl files, as the numbers that a tokenizer makes of them.

The tokenizer is a `tokenizer.json` of the `tokenizers` library, which is imported only here, when it is used. It is set to
one length and kept beside a detector under the same name; the detector's record holds its checksum.
"""

import csv
import io
import json
import logging
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wildood.data.archives import Archive, Shard, ShardExamples
from wildood.data.files import digest, open_plain
from wildood.data.sources import ArraySource, StructuredSource
from wildood.errors import InputError, as_utf8
from wildood.settings import quoted

KINDS = (".csv", ".jsonl")
FILE = "tokenizer.json"
LONGEST = 256  # tokens of a text, unless more are asked for
_SHARD = 4096  # texts
_LABELS = ("label", "class")  # columns that hold the classes, by default
_INTEGER = re.compile(r"\d{1,9}")
_LOGGER = logging.getLogger("wildood")
Parts = dict[str, NDArray[np.int64]]


class Row(NamedTuple):
    """A line of a file: its number, its text, and its class if there is one."""

    line: int
    text: str
    label: str | None


@dataclass(frozen=True)
class TextColumns:
    r"""The columns of a file that hold the texts and, by default `label` or `class`, their classes.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     _ = Path(place, "a.csv").write_text("intent,text\ngreet,good morning\n")
    ...     list(TextColumns(label="intent").rows(Path(place, "a.csv")))
    [Row(line=2, text='good morning', label='greet')]
    """

    text: str = "text"
    label: str | None = None

    def rows(self, place: Path) -> Iterator[Row]:
        """The rows of a .csv file with a header, or of a .jsonl file of objects."""
        if place.suffix.lower() not in KINDS:
            raise InputError(f"{place} is no file of texts: give a .csv file with a header, or a .jsonl file of objects")
        read = _csv_rows if place.suffix.lower() == ".csv" else _json_rows
        try:
            # utf-8-sig: spreadsheets begin a file with a byte order mark.
            with io.TextIOWrapper(open_plain(place), encoding="utf-8-sig", newline="") as file:
                for line, row in read(file, place):
                    yield self._row(place, line, row)
        except OSError as error:
            raise InputError(f"{place} cannot be read ({error.strerror}): give a file of texts") from error
        except UnicodeDecodeError as error:
            raise InputError(f"{place} is not UTF-8 text: save it as UTF-8") from error

    def _row(self, place: Path, line: int, row: dict[str, Any]) -> Row:
        if self.text not in row:
            raise InputError(f"{place}: line {line} has no {self.text!r}, but {_listed(row)}: name one with --text-column")
        text = row[self.text]
        if not isinstance(text, str):
            raise InputError(f"{place}: line {line} has {quoted(text)} as {self.text!r}: give text")
        names = _LABELS if self.label is None else (self.label,)
        label = next((row[name] for name in names if name in row), None)
        if isinstance(label, bool | float | list | dict):
            raise InputError(f"{place}: line {line} has {quoted(label)} as its class: give an integer or a name")
        # JSON can hold halves of characters (\ud800), which tokenizers refuse.
        return Row(line, as_utf8(text), None if label in {None, ""} else str(label))


def _listed(row: dict[str, Any]) -> str:
    return ", ".join(map(repr, row)) or "nothing"


def _csv_rows(file: Any, place: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.reader(file)
    try:
        header = [name.strip() for name in next(reader, [])]
        for cells in reader:
            if cells and len(cells) != len(header):
                raise InputError(
                    f"{place}: line {reader.line_num} has {len(cells)} cells, line 1 has {len(header)}: quote a text that "
                    "holds a comma"
                )
            if cells:
                yield reader.line_num, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise InputError(f"{place}: line {reader.line_num} is not CSV ({error}): quote texts with commas") from error


def _json_rows(file: Any, place: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, text in enumerate(file, 1):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{place}: line {line} is not JSON: write one object on each line") from error
        if not isinstance(row, dict):
            raise InputError(f"{place}: line {line} is no object: write one on each line, as {{'text': 'hello'}}")
        yield line, row


class TextTokenizer:
    """A tokenizer that makes texts to `input_ids` and `attention_mask` of one length; longer texts are cut."""

    def __init__(self, content: str, where: str, length: int | None = None) -> None:
        try:
            from tokenizers import Tokenizer  # noqa: PLC0415 - an optional package
        except ImportError as error:
            raise InputError("text needs a package: pip install tokenizers (the extra [text])") from error
        try:
            self._tokenizer = Tokenizer.from_str(content)
        except Exception as error:  # the library raises nothing narrower
            raise InputError(f"{where} is no {FILE} of the tokenizers library ({error})") from error
        if length is not None:
            self.set_length(length)

    @classmethod
    def open(cls, place: str | Path, option: str = "--tokenizer") -> "TextTokenizer":
        """That of a `tokenizer.json`, or of a directory that holds one."""
        path = Path(place) / FILE if Path(place).is_dir() else Path(place)
        try:
            with open_plain(path) as file:
                return cls(file.read().decode(), str(path))
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8"
            raise InputError(
                f"{option} {place}: {path} cannot be read ({reason}): give a {FILE}, or its directory"
            ) from error

    def longest(self, texts: Sequence[str], most: int = LONGEST) -> int:
        """The tokens of the longest of some texts, at most the tokenizer's own limit or another."""
        limit = int((self._tokenizer.truncation or {}).get("max_length", most))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        return max(1, min(most, limit, max(len(each.ids) for each in self._tokenizer.encode_batch(list(texts)))))

    def set_length(self, length: int) -> None:
        """Pad and cut texts to this many tokens."""
        own = self._tokenizer.padding or {}
        names = [own.get("pad_token"), "[PAD]", "<pad>", "<|padding|>"]
        known = [name for name in names if name and self._tokenizer.token_to_id(name) is not None]
        pad = known[0] if known else ""
        number = self._tokenizer.token_to_id(pad) if known else 0  # it is masked
        direction = own.get("direction", "right")
        self._tokenizer.enable_truncation(length)
        self._tokenizer.enable_padding(length=length, pad_id=number, pad_token=pad, direction=direction)

    @property
    def length(self) -> int:
        """The tokens of each text."""
        return int((self._tokenizer.padding or {})["length"])

    def is_of(self, place: str | Path) -> bool:
        """Whether it is the tokenizer of a `tokenizer.json`, set to this length."""
        other = type(self).open(place)
        other.set_length(self.length)
        return other.content == self.content

    def encode(self, texts: Sequence[str]) -> tuple[Parts, int]:
        """The texts as arrays, and how many of them were cut."""
        encoded = self._tokenizer.encode_batch(list(texts))
        parts = {
            "input_ids": np.array([each.ids for each in encoded], np.int64),
            "attention_mask": np.array([each.attention_mask for each in encoded], np.int64),
        }
        return parts, sum(bool(each.overflowing) for each in encoded)

    @property
    def content(self) -> str:
        """The tokenizer as JSON, with its length."""
        return str(self._tokenizer.to_str())


@dataclass(frozen=True)
class TextReader:
    """How files of texts become examples."""

    columns: TextColumns
    tokenizer: TextTokenizer

    def read(self, place: Path, name: str, *, with_labels: bool = True) -> StructuredSource:
        """All texts of a file; integer classes are taken as they are, names are numbered in sorted order."""
        rows = list(self.columns.rows(place))
        if not rows:
            raise InputError(f"{place} is empty: give at least one text")
        parts, cut = self.tokenizer.encode([row.text for row in rows])
        _log_cut(name, cut, len(rows), parts)
        labels, classes = _labels(rows, place) if with_labels else (None, ())
        sources = {key: ArraySource(part) for key, part in parts.items()}
        return StructuredSource(sources, labels, where=str(place), classes=classes)

    def archive(self, place: Path) -> Archive:
        """The texts of a file, to be scored shard by shard."""
        status = place.stat() if place.exists() else None
        stamp = "" if status is None else f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
        return Archive(str(place), f"{os.path.realpath(place)} {stamp}", None, self._shards(place))

    def _shards(self, place: Path) -> Iterator[Shard]:
        rows, first, cut, parts = self.columns.rows(place), 0, 0, Parts()
        while some := list(islice(rows, _SHARD)):
            parts, more = self.tokenizer.encode([row.text for row in some])
            yield TextShard(first, len(some), parts=parts)
            first, cut = first + len(some), cut + more
        if not first:
            raise InputError(f"{place} is empty: give at least one text")
        _log_cut(str(place), cut, first, parts)

    def record(self) -> dict[str, Any]:
        """What a detector's record says of its texts."""
        checksum = digest(self.tokenizer.content.encode())
        return {"column": self.columns.text, "label_column": self.columns.label, "tokenizer": checksum}

    @classmethod
    def of_record(cls, record: Any, tokenizer: bytes) -> "TextReader":
        """The reader of a saved detector: its columns and its tokenizer."""
        return cls(TextColumns(record["column"], record["label_column"]), TextTokenizer(tokenizer.decode(), "its tokenizer"))


@dataclass(frozen=True, kw_only=True, eq=False)
class TextShard(Shard):
    """Consecutive texts, as token numbers."""

    parts: Parts

    @property
    def nbytes(self) -> int:
        """The bytes of its token numbers."""
        return sum(part.nbytes for part in self.parts.values())

    def read(self, threads: int) -> ShardExamples:  # noqa: ARG002 - only images are decoded in threads
        """The texts; they are called by their numbers."""
        return ShardExamples(self.parts, range(self.first, self.first + self.count))


def _log_cut(name: str, cut: int, count: int, parts: Parts) -> None:
    if cut:
        length = parts["input_ids"].shape[1]
        _LOGGER.info("%s: %d of %d texts have more than %d tokens and are cut", name, cut, count, length)


def _labels(rows: Sequence[Row], place: Path) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    """The classes of all rows and their names; none where no row has one."""
    names = sorted({row.label for row in rows if row.label is not None})
    if not names:
        return None, ()
    without = next((row.line for row in rows if row.label is None), None)
    if without is not None:
        raise InputError(f"{place}: line {without} has no class, others have one: label all or none")
    if all(_INTEGER.fullmatch(name) for name in names):
        return np.array([int(row.label or 0) for row in rows]), ()
    numbers = {name: number for number, name in enumerate(names)}
    return np.array([numbers[row.label or ""] for row in rows]), tuple(names)
