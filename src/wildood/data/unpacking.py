"""Archives from elsewhere, unpacked whole or not at all, and nowhere but into the directory that was meant."""

import errno
import os
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Literal

from wildood.errors import InputError

_TOGETHER = 1 << 20
_TORN = (
    tarfile.TarError,
    zlib.error,
    EOFError,
    UnicodeError,
    FileExistsError,  # two members of one name, or one that is a file and a directory
    IsADirectoryError,
    NotADirectoryError,
)


def unpack(archive: Path, target: Path, *, max_bytes: int, max_members: int) -> None:
    """Unpack a tar file, compressed by gzip or not, into a new directory, by way of a temporary one beside it.

    Only plain files and directories are taken, without their owners and permissions. Links, devices, absolute paths and
    paths with .. are refused, and so is what has more bytes or members than expected.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     archive, file = Path(place) / "a.tar.gz", Path(place) / "c.txt"
    ...     _ = file.write_text("hello")
    ...     with tarfile.open(archive, "w:gz") as tar:
    ...         tar.add(file, "b/c.txt")
    ...     unpack(archive, Path(place) / "a", max_bytes=100, max_members=10)
    ...     (Path(place) / "a/b/c.txt").read_text()
    'hello'
    """
    for leftover in target.parent.glob(f".{target.name}.*.unpacking"):  # of a call that was cut off
        shutil.rmtree(leftover)
    require_free(target)
    draft = target.with_name(f".{target.name}.{os.getpid()}.unpacking")
    draft.mkdir(parents=True)
    try:
        _unpack_into(draft, archive, max_bytes, max_members)
        if target.exists():
            target.rmdir()
        draft.replace(target)
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise
        raise InputError(f"{archive.name}: the disk is full, {target} needs up to {max_bytes:,} bytes") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def require_free(target: Path) -> None:
    """Refuse a directory that holds something.

    >>> require_free(Path("nowhere"))
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target} is there already, but not what it should hold: move it away")


def _unpack_into(draft: Path, archive: Path, max_bytes: int, max_members: int) -> None:
    left = max_bytes
    with _told_if_torn(archive), archive.open("rb") as file, tarfile.open(fileobj=file, mode=_mode(file)) as tar:
        for number, member in enumerate(tar, start=1):
            if number > max_members:
                raise InputError(f"{archive} has more than {max_members:,} members: it is not unpacked")
            place = draft / _safe(member, archive)
            if hasattr(tarfile, "data_filter"):  # from Python 3.11.4 on: a second opinion
                tarfile.data_filter(member, str(draft))
            if member.isdir():
                place.mkdir(parents=True, exist_ok=True)
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            with _content(tar, member) as source, place.open("xb") as copy:
                # What comes out is counted: a size that an archive states may be a lie.
                while block := source.read(min(_TOGETHER, left + 1)):
                    left -= len(block)
                    if left < 0:
                        raise InputError(f"{archive} unpacks to more than {max_bytes:,} bytes: it is not unpacked")
                    copy.write(block)
        while tar.fileobj is not None and tar.fileobj.read(_TOGETHER):  # gzip's checksum comes after the last member
            pass


@contextmanager
def _told_if_torn(archive: Path) -> Iterator[None]:
    """Whatever a torn archive leads its readers to, in one line."""
    try:
        yield
    except (*_TORN, OSError) as error:
        # gzip's own complaint is an OSError without a number.
        if not isinstance(error, _TORN) and error.errno is not None:
            raise
        raise InputError(f"{archive} is not a whole tar file ({error}): remove it and get it again") from error


def _mode(file: IO[bytes]) -> Literal["r:gz", "r:"]:
    compressed = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    return "r:gz" if compressed else "r:"


def _safe(member: tarfile.TarInfo, archive: Path) -> PurePosixPath:
    """The member's path, if it is a plain file or directory that stays below the target."""
    path, windows = PurePosixPath(member.name), PureWindowsPath(member.name)
    if path.is_absolute() or windows.anchor or ".." in windows.parts or "\0" in member.name:
        raise InputError(f"{archive} holds {member.name!r}, which lies outside of it: it is not unpacked")
    if not (member.isreg() or member.isdir()):
        kinds = {"link": member.issym() or member.islnk(), "device": member.isdev(), "thing of an unknown kind": True}
        kind = next(kind for kind, is_it in kinds.items() if is_it)
        raise InputError(f"{archive} holds {member.name!r}, which is a {kind}: it is not unpacked")
    return path


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    file = tar.extractfile(member)
    if file is None:
        raise tarfile.ReadError(f"{member.name} has no content")
    return file
