"""A file that grows and may be cut off at any moment: its draft goes on where it was, and becomes the file when whole."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypedDict

from wildood.data.files import write_atomically
from wildood.data.locks import is_held, locked
from wildood.data.schema import Count, SchemaError, parse
from wildood.errors import InputError


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
