"""Download, verify and unpack the files of named sets."""

import errno
import hashlib
import json
import logging
import os
import re
import shutil
import sys
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from http.client import HTTPException, HTTPResponse
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Annotated, Any, Literal, TypedDict
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from wildood.data.catalog import IN_SCIKIT_LEARN, Download, NamedSet, SetPart
from wildood.data.files import locked, write_atomically
from wildood.data.schema import Count, Limit, SchemaError, parse
from wildood.errors import InputError, WildoodError

DOWNLOADS, CHECKSUMS, LOCK = "downloads", "checksums.json", "getting.lock"  # in the data root
ATTEMPTS, PAUSE = 5, 1.0  # in a row without a new byte; seconds before the second attempt
_TIMEOUT, _BLOCK = 60, 1 << 16
_TEMPORARY = {408, 425, 429, 500, 502, 503, 504}  # statuses after which a server may answer later
_PARTIAL_CONTENT, _RANGE_NOT_SATISFIABLE = 206, 416
_FULL = {errno.ENOSPC, errno.EDQUOT}
_DAMAGED = (  # what tarfile and gzip raise for a damaged archive
    *(tarfile.TarError, zlib.error, EOFError, UnicodeError),
    *(FileExistsError, IsADirectoryError, NotADirectoryError),  # members that are in each other's way
)
_LOGGER = logging.getLogger("wildood")


class DownloadError(WildoodError):
    """A file that cannot be downloaded."""


def obtain(named: NamedSet, root: Path, part: SetPart | None = None, *, keep: bool = False) -> None:
    """Download and unpack what is missing of a part of a set; without a part, of all parts that are not on request only.

    One process does so at a time; another one waits.
    """
    parts = [part] if part else [part for part in named.parts if not part.on_request]
    if all(named.place(each, root) for each in parts):
        return
    if named.kind == "digits":
        raise InputError(IN_SCIKIT_LEARN)
    root.mkdir(parents=True, exist_ok=True)
    with locked(root / LOCK, waiting=f"another process brings data to {root}: waiting for it"):
        for each in parts:
            for file in named.downloads:
                if file.part in {None, each.name} and named.place(each, root) is None:
                    _obtain_file(named, file, root, keep=keep)
            if named.place(each, root) is None:
                raise InputError(f"{named.name}: {each.name} is not in what can be downloaded: see {named.source}")


def _obtain_file(named: NamedSet, file: Download, root: Path, *, keep: bool) -> None:
    target = root / named.name
    if file.unpacked:
        _require_empty(target)
    existing = kept_file(file, named, root)
    path = existing or (root / DOWNLOADS if file.unpacked else target) / file.file
    if existing is None:
        _LOGGER.info("%s: downloading %s (terms: %s)", named.name, file.url, named.terms)
        download(file.url, path, root, file.md5)
    elif wrong := wrong_content(path, file, root):
        raise InputError(f"{path} is not the file that is expected: {wrong}. Remove it, and it is downloaded anew")
    if file.unpacked:
        _LOGGER.info("%s: unpacking %s", named.name, path)
        unpack(path, target, max_bytes=file.unpacked, max_members=file.members)
        if existing is None and not keep:  # an archive that the user placed there stays
            path.unlink()


def kept_file(file: Download, named: NamedSet, root: Path) -> Path | None:
    """The path of a downloaded file, or of an archive that was kept or placed by hand; None if there is none."""
    places = (DOWNLOADS, ".") if file.unpacked else named.places
    return next((root / place / file.file for place in places if (root / place / file.file).is_file()), None)


def wrong_content(path: Path, file: Download, root: Path) -> str:
    """How the checksum of a file differs from the published or the recorded one; empty if it does not."""
    return _mismatch(_digests(path), _read_records(root).get(file.file, {}), file.md5)


def download(url: str, target: Path, root: Path, md5: str | None = None) -> None:
    """Download a file by way of FILE.part; an interrupted download continues at the next call.

    The sha256 of the file is recorded in the data root. If no md5 is published, later downloads must have that sha256.
    """
    _require_web(url)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    _fetch_until_complete(url, part, root, target.name)
    digests = _digests(part)
    if wrong := _mismatch(digests, _read_records(root).get(target.name, {}), md5):
        part.unlink()
        raise DownloadError(
            f"{target.name} from {url} is not the file that is expected: {wrong}. It was removed; "
            f"try again, or place the right file at {target}"
        )
    _write_record(root, target.name, {"sha256": digests[1], "bytes": part.stat().st_size, "url": url})
    part.replace(target)


class _Record(TypedDict, total=False):
    """Of a file in `checksums.json`: sha256, bytes and url; of an unfinished download, etag and total."""

    sha256: Annotated[str, Limit(lambda text: re.fullmatch("[0-9a-f]+", text) is not None, "hexadecimal digits")]
    etag: str | None
    total: Count | None


def _read_records(root: Path) -> dict[str, Any]:
    path = root / CHECKSUMS
    try:
        records: dict[str, Any] = parse(path.read_bytes(), dict[str, _Record])
    except FileNotFoundError:
        return {}
    except SchemaError as error:
        raise InputError(f"{path} is damaged ({error}): remove it, and checksums are recorded anew") from error
    return records


def _write_record(root: Path, file: str, record: dict[str, Any]) -> None:
    records = _read_records(root) | {file: record}
    write_atomically(root / CHECKSUMS, (json.dumps(records, indent=1, sort_keys=True) + "\n").encode())


def _digests(path: Path) -> tuple[str, str]:
    """The md5 and the sha256 of a file."""
    md5, sha256 = hashlib.md5(usedforsecurity=False), hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            md5.update(block)
            sha256.update(block)
    return md5.hexdigest(), sha256.hexdigest()


def _mismatch(digests: tuple[str, str], record: dict[str, Any], published_md5: str | None) -> str:
    md5, sha256 = digests
    if published_md5 is not None:
        return "" if md5 == published_md5 else f"its md5 is {md5}, the published one is {published_md5}"
    first = record.get("sha256", sha256)
    return "" if sha256 == first else f"its sha256 is {sha256}, that of the first download was {first}"


def _fetch_until_complete(url: str, part: Path, root: Path, file: str) -> None:
    failures = 0
    while True:
        before = _size(part)
        try:
            _fetch(url, part, root, file)
        except HTTPError as error:
            error.close()
            problem = f"the source says {error.code} {error.reason}"
            if error.code not in _TEMPORARY:
                raise DownloadError(f"{file}: {problem} for {url}: get it elsewhere and place it by hand") from error
        except (OSError, HTTPException) as error:  # of the network; those of the disk are DownloadErrors
            problem = f"the connection to {urlsplit(url).hostname} failed ({getattr(error, 'reason', error)})"
        else:
            return
        failures = 1 if _size(part) > before else failures + 1
        if failures >= ATTEMPTS:
            raise DownloadError(f"{file}: {problem}, {failures} times in a row; called again, it goes on")
        time.sleep(PAUSE * 2 ** (failures - 1))


def _fetch(url: str, part: Path, root: Path, file: str) -> None:
    """One request, for the whole file or for what is missing of it."""
    have = _size(part)
    with _disk_errors(root / CHECKSUMS):
        record = _read_records(root).get(file, {})
    request = Request(url, headers={"Range": f"bytes={have}-"} if have else {})  # noqa: S310 - the scheme is checked
    try:
        response: HTTPResponse = build_opener(_WebRedirects).open(request, timeout=_TIMEOUT)
    except HTTPError as error:
        if error.code != _RANGE_NOT_SATISFIABLE or not have:
            raise
        error.close()
        total = _total(error.headers) if "Content-Range" in error.headers else record.get("total")
        if total != have:
            part.unlink()
            _fetch(url, part, root, file)
        return
    with response:
        etag, total = response.headers.get("ETag"), _total(response.headers)
        if response.status == _PARTIAL_CONTENT:
            continues = response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
            if not continues or (record.get("etag", etag), record.get("total", total)) != (etag, total):
                response.close()
                part.unlink()
                _fetch(url, part, root, file)
                return
        else:  # the server does not support ranges, or none was asked for
            have = 0
            with _disk_errors(root / CHECKSUMS):
                _write_record(root, file, record | {"etag": etag, "total": total})
        _receive(response, part, have, total)


def _receive(response: HTTPResponse, part: Path, have: int, total: int | None) -> None:
    """Write what arrives behind the first `have` bytes, and flush it to the disk."""
    with _disk_errors(part):
        file = part.open("ab", buffering=0)
    with file, _progress_bar(part.name.removesuffix(".part"), have, total) as update:
        file.truncate(have)
        while block := response.read(_BLOCK):
            with _disk_errors(part, None if total is None else total - have):
                _write(file.fileno(), block)
            have += len(block)
            update(have)
        with _disk_errors(part, 0):
            os.fsync(file.fileno())
    if total is not None and have < total:
        raise ConnectionResetError(f"it ended after {have:,} of {total:,} bytes")


def _write(descriptor: int, block: bytes) -> None:
    rest = memoryview(block)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


@contextmanager
def _disk_errors(path: Path, needed: int | None = None) -> Iterator[None]:
    """Make errors of the disk DownloadErrors, to tell them from failed connections."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise DownloadError(f"{path} cannot be written: {error.strerror}") from error
        amount = "more bytes" if needed is None else f"{needed:,} more bytes"
        raise DownloadError(
            f"{path}: the disk is full, and {amount} are needed: free some; called again, it goes on from where it was"
        ) from error


class _WebRedirects(HTTPRedirectHandler):
    """Follows redirects to http and https only."""

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Request | None:
        _require_web(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _require_web(url: str) -> None:
    if urlsplit(url).scheme not in {"http", "https"}:
        raise InputError(f"{url}: give a URL that begins with http:// or https://")


def _total(headers: Message) -> int | None:
    """The bytes of the whole file, if the server states them."""
    text: str = headers.get("Content-Range", "").rpartition("/")[2] or headers.get("Content-Length", "")
    return int(text) if text.isdigit() else None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@contextmanager
def _progress_bar(file: str, have: int, total: int | None) -> Iterator[Callable[[int], None]]:
    """Bytes and speed on standard error, if it is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich import progress  # noqa: PLC0415 - only a terminal needs it
    from rich.console import Console  # noqa: PLC0415 - same

    columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), progress.DownloadColumn())
    speed = (progress.TransferSpeedColumn(), progress.TimeRemainingColumn())
    with progress.Progress(*columns, *speed, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(file, total=total, completed=have)
        yield lambda done: bar.update(task, completed=done)


def unpack(archive: Path, target: Path, *, max_bytes: int, max_members: int) -> None:
    """Unpack a tar file, compressed by gzip or not, into a new directory, by way of a temporary one beside it.

    Only plain files and directories are unpacked, without their owners and permissions. Links, devices, absolute paths and
    paths with .. are refused, and so are archives with more bytes or members than expected.
    """
    for leftover in target.parent.glob(f".{target.name}.*.unpacking"):  # of a killed process
        shutil.rmtree(leftover)
    _require_empty(target)
    draft = target.with_name(f".{target.name}.{os.getpid()}.unpacking")
    draft.mkdir(parents=True)
    try:
        _unpack_into(draft, archive, max_bytes, max_members)
        if target.exists():
            target.rmdir()
        draft.replace(target)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise InputError(f"{archive.name}: the disk is full, {target} needs up to {max_bytes:,} bytes") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _require_empty(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target} is there already, but not what it should hold: move it away")


def _unpack_into(draft: Path, archive: Path, max_bytes: int, max_members: int) -> None:
    left = max_bytes
    with _damage_errors(archive), archive.open("rb") as file, tarfile.open(fileobj=file, mode=_mode(file)) as tar:
        for number, member in enumerate(tar, start=1):
            if number > max_members:
                raise InputError(f"{archive} has more than {max_members:,} members: it is not unpacked")
            place = draft / _checked_path(member, archive)
            if member.isdir():
                place.mkdir(parents=True, exist_ok=True)
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            with _content(tar, member) as source, place.open("xb") as copy:
                # The bytes are counted as they come: the size that an archive states may be false.
                while block := source.read(min(1 << 20, left + 1)):
                    left -= len(block)
                    if left < 0:
                        raise InputError(f"{archive} unpacks to more than {max_bytes:,} bytes: it is not unpacked")
                    copy.write(block)
        while tar.fileobj is not None and tar.fileobj.read(1 << 20):  # gzip's checksum is behind the last member
            pass


@contextmanager
def _damage_errors(archive: Path) -> Iterator[None]:
    try:
        yield
    except (*_DAMAGED, OSError) as error:
        if not isinstance(error, _DAMAGED) and error.errno is not None:  # gzip's own error is an OSError without a number
            raise
        raise InputError(f"{archive} is not a whole tar file ({error}): remove it and get it again") from error


def _mode(file: IO[bytes]) -> Literal["r:gz", "r:"]:
    is_compressed = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    return "r:gz" if is_compressed else "r:"


def _checked_path(member: tarfile.TarInfo, archive: Path) -> PurePosixPath:
    """The path of a plain file or directory that stays below the target. Stricter than `tarfile.data_filter`."""
    path, windows = PurePosixPath(member.name), PureWindowsPath(member.name)
    if path.is_absolute() or windows.anchor or ".." in windows.parts or "\0" in member.name:
        raise InputError(f"{archive} holds {member.name!r}, which lies outside of it: it is not unpacked")
    if not (member.isreg() or member.isdir()):
        is_link = member.issym() or member.islnk()
        kind = "link" if is_link else "device" if member.isdev() else "thing of an unknown kind"
        raise InputError(f"{archive} holds {member.name!r}, which is a {kind}: it is not unpacked")
    return path


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    file = tar.extractfile(member)
    if file is None:
        raise tarfile.ReadError(f"{member.name} has no content")
    return file
