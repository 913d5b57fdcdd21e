"""Archives from elsewhere, unpacked whole or not at all, and nowhere but into the directory that was meant."""

import errno
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO

from wildood.errors import InputError

_TOGETHER = 1 << 20
_TORN = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    UnicodeError,
    NotImplementedError,  # a compression that Python does not have
    RuntimeError,  # an archive with a password
    FileExistsError,  # two members of one name, or one that is a file and a directory
    IsADirectoryError,
    NotADirectoryError,
)


@dataclass(frozen=True)
class _Member:
    """A file or a directory of an archive; `kind` says what else it is."""

    name: str
    kind: str
    open: Callable[[], IO[bytes]]


def unpack(archive: Path, target: Path, *, max_bytes: int, max_members: int) -> None:
    """Unpack a tar or zip file into a new directory, by way of a temporary one beside it.

    Only plain files and directories are taken, without their owners and permissions. Links, devices, absolute paths and
    paths with .. are refused, and so is what has more bytes or members than expected.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     archive = Path(place) / "a.zip"
    ...     with zipfile.ZipFile(archive, "w") as file:
    ...         file.writestr("b/c.txt", "hello")
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
    try:
        for number, member in enumerate(_members(archive, draft), start=1):
            if number > max_members:
                raise InputError(f"{archive} has more than {max_members:,} members: it is not unpacked")
            place = draft / _safe(member, archive)
            if member.kind == "directory":
                place.mkdir(parents=True, exist_ok=True)
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            with member.open() as source, place.open("xb") as copy:
                # What comes out is counted: a size that an archive states may be a lie.
                while block := source.read(min(_TOGETHER, left + 1)):
                    left -= len(block)
                    if left < 0:
                        raise InputError(f"{archive} unpacks to more than {max_bytes:,} bytes: it is not unpacked")
                    copy.write(block)
    except _TORN as error:
        raise InputError(f"{archive} is not a whole tar or zip file ({error}): remove it and get it again") from error
    except OSError as error:
        if error.errno is not None:  # gzip's own complaint has none
            raise
        raise InputError(f"{archive} is not a whole tar or zip file ({error}): remove it and get it again") from error


def _safe(member: _Member, archive: Path) -> PurePosixPath:
    """The member's path, if it is a plain file or directory that stays below the target."""
    path, windows = PurePosixPath(member.name), PureWindowsPath(member.name)
    if path.is_absolute() or windows.anchor or ".." in windows.parts or "\0" in member.name:
        raise InputError(f"{archive} holds {member.name!r}, which lies outside of it: it is not unpacked")
    if member.kind not in {"file", "directory"}:
        raise InputError(f"{archive} holds {member.name!r}, which is a {member.kind}: it is not unpacked")
    return path


def _members(archive: Path, draft: Path) -> Iterator[_Member]:
    with archive.open("rb") as file:
        magic = file.read(4)
    if magic.startswith(b"PK"):
        with zipfile.ZipFile(archive) as bundle:
            for entry in bundle.infolist():
                yield _Member(entry.filename, _zip_kind(entry), partial(bundle.open, entry))
        return
    with tarfile.open(archive, "r:gz" if magic.startswith(b"\x1f\x8b") else "r:") as tar:
        for info in tar:
            member = _Member(info.name, _tar_kind(info), partial(_tar_file, tar, info))
            _safe(member, archive)
            if hasattr(tarfile, "data_filter"):  # from Python 3.11.4 on: a second opinion
                tarfile.data_filter(info, str(draft))
            yield member
        while tar.fileobj is not None and tar.fileobj.read(_TOGETHER):  # gzip's checksum comes after the last member
            pass


def _tar_file(tar: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    file = tar.extractfile(info)
    if file is None:
        raise tarfile.ReadError(f"{info.name} has no content")
    return file


def _tar_kind(info: tarfile.TarInfo) -> str:
    link = info.issym() or info.islnk()
    kinds = {"link": link, "device": info.isdev(), "directory": info.isdir(), "file": info.isreg()}
    return next((kind for kind, is_it in kinds.items() if is_it), "thing of an unknown kind")


def _zip_kind(entry: zipfile.ZipInfo) -> str:
    mode = entry.external_attr >> 16
    if stat.S_ISLNK(mode):
        return "link"
    if stat.S_IFMT(mode) not in {0, stat.S_IFREG, stat.S_IFDIR}:
        return "device"
    return "directory" if entry.is_dir() else "file"
