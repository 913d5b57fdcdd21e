"""A lock that processes or threads hold on a file or a directory; the system frees it when its process ends in any way."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

if sys.platform != "win32":
    import fcntl

_LOGGER = logging.getLogger("wildood")


@contextmanager
def locked(path: Path, *, shared: bool = False, waiting: str | None = None, create: bool = True) -> Iterator[bool]:
    """Hold a lock, alone or shared; gives False if it is not to be had, as where a file system knows no locks.

    If another process has it, the lock is waited for where `waiting` is a text, which goes to the log unless it is empty. A
    file that is not there is made, unless `create` is False.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place, locked(Path(place) / "lock") as first:
    ...     with locked(Path(place) / "lock") as second:
    ...         first, second
    (True, False)
    """
    number = _opened(path, create=create)
    try:
        yield number is not None and _lock(number, waiting, shared=shared)
    finally:
        if number is not None:
            os.close(number)


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


def _opened(path: Path, *, create: bool) -> int | None:
    if sys.platform == "win32":  # without locks, an open file would only be in the way of those who rename it
        return None
    readable = (os.O_RDONLY,)  # a directory, or a file in a read-only place, can only be read
    for flags in (os.O_WRONLY | os.O_CREAT, *readable) if create else readable:
        with suppress(OSError):
            return os.open(path, flags, 0o666)
    return None


def _lock(number: int, waiting: str | None, *, shared: bool) -> bool:
    if sys.platform == "win32":
        return False
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(number, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        if waiting is None:
            return False
        if waiting:
            _LOGGER.info(waiting)
        fcntl.flock(number, kind)
    except OSError:
        return False
    return True
