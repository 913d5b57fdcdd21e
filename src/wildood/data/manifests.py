"""Manifests: a table of pictures and their classes, as .csv or .jsonl; paths are relative to the manifest."""

import csv
import io
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from wildood.data.files import open_plain
from wildood.data.listing import Listed, listed
from wildood.errors import InputError

KINDS = (".csv", ".jsonl")
_PATHS, _LABELS = ("path", "file", "image"), ("label", "class")
_INTEGER, _FRACTION = re.compile(r"\d{1,9}"), re.compile(r"-\d+|-?\d+\.\d*")


class _Row(NamedTuple):
    line: int
    path: str
    label: str | None


class Manifest:
    r"""The pictures that a manifest names, in its order; integer labels count as they are, names by their sorted place.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     path = Path(place) / "pets.csv"
    ...     _ = path.write_text("path,label\nb.png,dog\na.png,cat\n")
    ...     manifest = Manifest(path)
    ...     manifest.classes, [(file.name, file.label) for file in manifest]
    (('cat', 'dog'), [('b.png', 1), ('a.png', 0)])
    """

    def __init__(self, place: Path) -> None:
        self.place, self.root = place, place.parent
        found: set[str | None] = set()
        for row in self._rows():
            if found and (row.label is None) != (None in found):
                has, others = ("no label", "have one") if row.label is None else ("a label", "have none")
                raise InputError(f"{place}: line {row.line} has {has} where lines before {others}: label all or none")
            found.add(row.label)
        if not found:
            raise InputError(f"{place} names no pictures: write a path on each line, below a header path or path,label")
        names = sorted(name for name in found if name is not None)
        self._labels: dict[str | None, int | None] = {None: None}
        if all(_INTEGER.fullmatch(name) for name in names):
            self.classes: tuple[str, ...] = ()
            self._labels |= {name: int(name) for name in names}
        else:
            self.classes = tuple(names)
            self._labels |= {name: label for label, name in enumerate(names)}
        self.unlabelled = "" if names else "add a column label to it, with an integer or a name for each picture"

    def __iter__(self) -> Iterator[Listed]:
        for row in self._rows():
            if row.label not in self._labels:
                raise InputError(f"{self.place} changed while it was read: open it again")
            try:
                status = os.stat(self.root / row.path)  # noqa: PTH116 - there may be millions
            except OSError:
                status = None
            yield listed(row.path, status, self._labels[row.label])

    def remarks(self) -> None:
        """A manifest leaves nothing alone."""

    def _rows(self) -> Iterator[_Row]:
        """Every row, checked."""
        read = _csv_rows if self.place.suffix.lower() == ".csv" else _json_rows
        try:
            # Spreadsheets put a byte order mark in front.
            with io.TextIOWrapper(open_plain(self.place), encoding="utf-8-sig", newline="") as file:
                for row in read(file, self.place):
                    if not _may_be_a_file(row.path):
                        raise InputError(f"{self.place}: line {row.line} has no path: give each row that of a picture")
                    if row.label is not None and not _may_be_a_file(row.label):
                        raise InputError(f"{self.place}: line {row.line} has a label that is no text: give a name")
                    if row.label is not None and _FRACTION.fullmatch(row.label):
                        raise InputError(
                            f"{self.place}: line {row.line} has label {row.label}: give integers from 0, or names"
                        )
                    yield row
        except OSError as error:
            raise InputError(f"{self.place} cannot be read ({error.strerror}): give one that you may read") from error
        except UnicodeDecodeError as error:
            raise InputError(f"{self.place} is not UTF-8 text: save it as UTF-8") from error


def _may_be_a_file(path: str) -> bool:
    try:
        return bool(path) and b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def _csv_rows(file: Any, place: Path) -> Iterator[_Row]:
    reader = csv.reader(file)
    try:
        first = next(reader, [])
        names = [name.strip().lower() for name in first]
        at, label_at = _column(names, _PATHS), _column(names, _LABELS)
        if at is None:
            if not (0 < len(first) <= 2 and first[0] and (place.parent / first[0]).is_file()):
                raise InputError(
                    f"{place}: line 1 is {','.join(first)[:80]!r}: begin with a header path or path,label, or with a "
                    "picture's path"
                )
            at, label_at = 0, 1 if len(first) == 2 else None
            yield _csv_row(1, first, at, label_at)
        for cells in reader:
            if len(cells) not in {0, len(first)}:
                raise InputError(
                    f"{place}: line {reader.line_num} has {len(cells)} cells, line 1 has {len(first)}: quote a path "
                    "that holds a comma"
                )
            if cells:
                yield _csv_row(reader.line_num, cells, at, label_at)
    except csv.Error as error:
        raise InputError(f"{place}: line {reader.line_num} is not CSV ({error}): write path,label on each") from error


def _csv_row(line: int, cells: list[str], at: int, label_at: int | None) -> _Row:
    return _Row(line, cells[at], (cells[label_at].strip() or None) if label_at is not None else None)


def _column(names: list[str], accepted: tuple[str, ...]) -> int | None:
    return next((names.index(name) for name in accepted if name in names), None)


def _json_rows(file: Any, place: Path) -> Iterator[_Row]:
    for line, text in enumerate(file, 1):
        if not text.strip():
            continue
        wrong = InputError(f'{place}: line {line} is not as {{"path": "a.png", "label": 0}}: write one on each line')
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise wrong from error
        if not isinstance(row, dict):
            raise wrong
        path = next((row[name] for name in _PATHS if name in row), None)
        label = next((row[name] for name in _LABELS if name in row), None)
        if not isinstance(path, str) or isinstance(label, bool | list | dict):
            raise wrong
        yield _Row(line, path, None if label in {None, ""} else str(label))
