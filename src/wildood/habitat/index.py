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
        with index._connection("rwc") as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.executescript(f"BEGIN; {_TABLES} COMMIT;")
        return index

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection whose statements all see one state of the index."""
        with self._connection("ro" if self.readonly else "rw") as connection:
            connection.execute("BEGIN")
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A connection in one transaction, while no other process writes; an error undoes all of it."""
        if self.readonly:
            raise InputError(f"{self.path}: {_REASONS[sqlite3.SQLITE_READONLY]}")
        with self._connection("rw") as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")

    @contextmanager
    def _connection(self, mode: str) -> Iterator[sqlite3.Connection]:
        try:
            with closing(self._connect(mode)) as connection:
                connection.row_factory = sqlite3.Row
                yield connection
        except sqlite3.Error as error:
            reason = _REASONS.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
            if reason is None:
                raise
            raise InputError(f"{self.path}: {reason}") from error

    def _connect(self, mode: str) -> sqlite3.Connection:
        if mode == "ro":
            try:
                return self._open("mode=ro")
            except sqlite3.OperationalError:  # not even the files of the log can be made beside the index
                return self._open("immutable=1")
        connection = self._open(f"mode={mode}")
        connection.execute("PRAGMA synchronous=FULL")
        return connection

    def _open(self, how: str) -> sqlite3.Connection:
        address = f"{self.path.absolute().as_uri()}?{how}"
        connection = sqlite3.connect(address, timeout=self.patience, isolation_level=None, uri=True)
        try:
            connection.execute("PRAGMA schema_version").fetchone()  # reads the file
        except sqlite3.Error:
            connection.close()
            raise
        return connection
