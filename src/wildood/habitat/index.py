"""The index of a habitat: one SQLite file, which several processes read and write at once."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from wildood.errors import InputError

PATIENCE = 5.0  # seconds that a process waits for another one's transaction
_BUSY, _DISK = (
    "another process is writing to it: try again",
    "the disk cannot be read or written to: make room, or repair it",
)
_DAMAGED, _CLOSED = "it is damaged: restore it from a copy", "it cannot be opened: make its directory readable and writable"
_REASONS = {
    sqlite3.SQLITE_BUSY: _BUSY,
    sqlite3.SQLITE_LOCKED: _BUSY,
    sqlite3.SQLITE_FULL: "the disk is full: make room",
    sqlite3.SQLITE_IOERR: _DISK,
    sqlite3.SQLITE_READONLY: "it cannot be written to: make its directory writable",
    sqlite3.SQLITE_CANTOPEN: _CLOSED,
    sqlite3.SQLITE_PERM: _CLOSED,
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _DAMAGED,
}
_DENIED = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM}
# The last is for a directory where not even the files of the log can be made beside the index.
_READABLE = ("mode=rw", "mode=ro", "immutable=1")
_TABLES = """
CREATE TABLE answers(
    id INTEGER PRIMARY KEY AUTOINCREMENT, request TEXT, time REAL, window REAL, detector TEXT, score REAL, class INTEGER,
    known INTEGER, p_value REAL, priority REAL, shard TEXT, row INTEGER, shadow TEXT, shadow_score REAL, shadow_known INTEGER
) STRICT;
CREATE INDEX answers_by_priority ON answers(window, priority);
CREATE INDEX answers_by_shard ON answers(shard);
CREATE TABLE windows(
    start REAL PRIMARY KEY, seen INTEGER, unknown INTEGER, sampled INTEGER, dropped INTEGER, below REAL, latest REAL
) STRICT;
CREATE TABLE shards(name TEXT PRIMARY KEY, layout TEXT, rows INTEGER, bytes INTEGER, digest TEXT, judged INTEGER) STRICT;
CREATE TABLE judgements(
    answer INTEGER PRIMARY KEY, answered REAL, time REAL, who TEXT, class INTEGER, shard TEXT, row INTEGER
) STRICT;
CREATE INDEX judgements_by_shard ON judgements(shard);
CREATE TABLE detectors(
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE, time REAL, parent TEXT, trained_until INTEGER
) STRICT;
CREATE TABLE promotions(
    number INTEGER PRIMARY KEY AUTOINCREMENT, time REAL, detector TEXT, former TEXT, who TEXT, why TEXT, forced INTEGER,
    evidence TEXT, newest INTEGER
) STRICT;
CREATE TABLE looks(number INTEGER PRIMARY KEY AUTOINCREMENT, time REAL, test TEXT, data TEXT) STRICT;
"""


class UnavailableError(InputError):
    """The index cannot be used at the moment; the message says why."""


class Index:
    """Connections to the index; each is made for one use, so that threads share nothing, and no error leaves one behind.

    >>> import tempfile
    >>> place = tempfile.TemporaryDirectory()
    >>> index = Index.create(Path(place.name) / "index.sqlite")
    >>> with index.writing() as connection:
    ...     _ = connection.execute("INSERT INTO looks(test) VALUES('daily')")
    >>> with index.reading() as connection:
    ...     connection.execute("SELECT test FROM looks").fetchone()["test"]
    'daily'
    >>> place.cleanup()
    """

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        self.path = path
        self.readonly = readonly
        self.patience = PATIENCE

    @classmethod
    def create(cls, path: Path) -> "Index":
        """An empty index."""
        index = cls(path)
        with index._connection("mode=rwc") as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.executescript(f"BEGIN; {_TABLES} COMMIT;")
        return index

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection whose statements all see one state of the index; also of one that cannot be written to."""
        with self._connection(*_READABLE[self.readonly :]) as connection:
            connection.execute("BEGIN")
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A connection in one transaction, while no other process writes; an error undoes all of it."""
        if self.readonly:
            raise UnavailableError(f"{self.path}: {_REASONS[sqlite3.SQLITE_READONLY]}")
        with self._connection("mode=rw") as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")

    @contextmanager
    def _connection(self, *modes: str) -> Iterator[sqlite3.Connection]:
        try:
            with closing(self._first(*modes)) as connection:
                connection.row_factory = sqlite3.Row
                yield connection
        except sqlite3.Error as error:
            reason = _REASONS.get(_code(error))
            if reason is None:
                raise
            raise UnavailableError(f"{self.path}: {reason}") from error

    def _first(self, mode: str, *others: str) -> sqlite3.Connection:
        """A connection in the first of some modes in which the index can be read."""
        try:
            return self._open(mode)
        except sqlite3.Error as error:
            if not others or _code(error) not in _DENIED:
                raise
        return self._first(*others)

    def _open(self, mode: str) -> sqlite3.Connection:
        address = f"{self.path.absolute().as_uri()}?{mode}"
        connection = sqlite3.connect(address, timeout=self.patience, isolation_level=None, uri=True)
        try:
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA schema_version").fetchone()  # reads the file
        except sqlite3.Error:
            connection.close()
            raise
        return connection


def _code(error: sqlite3.Error) -> int:
    """The primary code of an error."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
