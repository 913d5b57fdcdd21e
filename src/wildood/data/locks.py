"""A lock that processes hold on a file; the system lets go of it when a process ends, however it ends."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

if sys.platform != "win32":
    import fcntl

_LOGGER = logging.getLogger("wildood")


@contextmanager
def locked(path: Path, *, shared: bool = False, waiting: str | None = None) -> Iterator[bool]:
    """Hold a lock, alone or shared; gives False if it is not to be had, as where a file system knows no locks.

    If another process has it, the lock is waited for where `waiting` is a text, which goes to the log unless it is empty.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place, locked(Path(place) / "lock") as first:
    ...     with locked(Path(place) / "lock") as second:
    ...         first, second
    (True, False)
    """
    file = _opened(path)
    try:
        yield file is not None and _lock(file, waiting, shared=shared)
    finally:
        if file is not None:
            file.close()


def is_held(path: Path) -> bool:
    """Whether another process has the lock; no, where a file system knows none.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place, locked(Path(place) / "lock"):
    ...     is_held(Path(place) / "lock"), is_held(Path(place) / "other")
    (True, False)
    """
    if sys.platform != "win32" and path.exists():
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            except OSError:
                return False
    return False


def _opened(path: Path) -> IO[bytes] | None:
    if sys.platform == "win32":  # without locks, an open file would only be in the way of those who rename it
        return None
    for mode in ("ab", "rb"):  # in a read-only place, readers may share a lock that is there
        with suppress(OSError):
            return path.open(mode)
    return None


def _lock(file: IO[bytes], waiting: str | None, *, shared: bool) -> bool:
    if sys.platform == "win32":
        return False
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        if waiting is None:
            return False
        if waiting:
            _LOGGER.info(waiting)
        fcntl.flock(file, kind)
    except OSError:
        return False
    return True
