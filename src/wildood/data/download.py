"""Download, verify and unpack the files of a named set."""

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

from wildood.data.files import locked, write_atomically
from wildood.data.named_sets import IN_SCIKIT_LEARN, Download, NamedSet, SetPart
from wildood.data.schema import Count, Limit, SchemaError, parse
from wildood.errors import InputError, WildoodError

RECORD = "checksums.json"
_TOGETHER = 1 << 20


class _Record(TypedDict, total=False):
    sha256: Annotated[str, Limit(lambda text: re.fullmatch("[0-9a-f]+", text) is not None, "hexadecimal digits")]
    etag: str | None
    total: Count | None


def read_record(root: Path, file: str) -> dict[str, Any]:
    """What `checksums.json` in the data root knows of a file: sha256, bytes, url; of one under way also etag and total.

    >>> read_record(Path("nowhere"), "a.tar.gz")
    {}
    """
    record: dict[str, Any] = _read(root / RECORD).get(file, {})
    return record


def write_record(root: Path, file: str, record: dict[str, Any]) -> None:
    """Put a file's record in the place of the one before.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     write_record(Path(place), "a.tar.gz", {"bytes": 7})
    ...     read_record(Path(place), "a.tar.gz")
    {'bytes': 7}
    """
    everything = _read(root / RECORD) | {file: record}
    write_atomically(root / RECORD, (json.dumps(everything, indent=1, sort_keys=True) + "\n").encode())


def digests(path: Path) -> tuple[str, str]:
    """The md5 and the sha256 of a file.

    >>> [len(digest) for digest in digests(Path(__file__))]
    [32, 64]
    """
    md5, sha256 = hashlib.md5(usedforsecurity=False), hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_TOGETHER):
            md5.update(block)
            sha256.update(block)
    return md5.hexdigest(), sha256.hexdigest()


def mismatch(found: tuple[str, str], record: dict[str, Any], md5: str | None) -> str:
    """What is wrong with a file that has these digests, or nothing; a published md5 goes before what is recorded.

    >>> mismatch(("aa", "bb"), {"sha256": "cc"}, md5="aa")
    ''
    >>> mismatch(("aa", "bb"), {"sha256": "cc"}, md5=None)
    'its sha256 is bb, that of the first download was cc'
    """
    if md5 is not None:
        return "" if found[0] == md5 else f"its md5 is {found[0]}, the published one is {md5}"
    first = record.get("sha256", found[1])
    return "" if found[1] == first else f"its sha256 is {found[1]}, that of the first download was {first}"


def _read(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = parse(path.read_bytes(), dict[str, _Record])
    except FileNotFoundError:
        return {}
    except SchemaError as error:
        raise InputError(f"{path} is damaged ({error}): remove it, and checksums are recorded anew") from error
    return content


ATTEMPTS, PAUSE = 5, 1.0  # how often in a row without a new byte, and seconds before the second attempt
_TIMEOUT, _TOGETHER = 60, 1 << 16
_PASSING = {408, 425, 429, 500, 502, 503, 504}  # what a server says when it may answer later
_SOME, _BEYOND_THE_END = 206, 416


class DownloadError(WildoodError):
    """A file that cannot be had from its source.

    >>> raise DownloadError("a.tar.gz: the source says 404 Not Found")
    Traceback (most recent call last):
    wildood.data.download.DownloadError: a.tar.gz: the source says 404 Not Found
    """


def download(url: str, target: Path, root: Path, md5: str | None = None) -> None:
    """Download a file to its place, by way of FILE.part beside it.

    Its sha256 is recorded in the data root. Where no md5 is published, a later download must have the recorded one.

    >>> download("ftp://example.org/a.npy", Path("a.npy"), Path("."))
    Traceback (most recent call last):
    wildood.errors.InputError: ftp://example.org/a.npy: give a URL that begins with http:// or https://
    """
    _require_web(url)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    _fetch_until_whole(url, part, root, target.name)
    found = digests(part)
    wrong = mismatch(found, read_record(root, target.name), md5)
    if wrong:
        part.unlink()
        raise DownloadError(
            f"{target.name} from {url} is not the file that is expected: {wrong}. It was removed; "
            f"try again, or place the right file at {target}"
        )
    write_record(root, target.name, {"sha256": found[1], "bytes": part.stat().st_size, "url": url})
    part.replace(target)


def _fetch_until_whole(url: str, part: Path, root: Path, file: str) -> None:
    failures = 0
    while True:
        before = _size(part)
        try:
            _fetch(url, part, root, file)
        except HTTPError as error:
            error.close()
            problem = f"the source says {error.code} {error.reason}"
            if error.code not in _PASSING:
                raise DownloadError(f"{file}: {problem} for {url}: get it elsewhere and place it by hand") from error
        except (OSError, HTTPException) as error:  # of the network: those of the disk are refused where they happen
            problem = f"the connection to {urlsplit(url).hostname} failed ({getattr(error, 'reason', error)})"
        else:
            return
        failures = 1 if _size(part) > before else failures + 1
        if failures >= ATTEMPTS:
            raise DownloadError(f"{file}: {problem}, {failures} times in a row; called again, it goes on")
        time.sleep(PAUSE * 2 ** (failures - 1))


def _fetch(url: str, part: Path, root: Path, file: str) -> None:
    """One request: the whole file, or what is missing of it."""
    have = _size(part)
    with _disk(root / RECORD):
        record = read_record(root, file)
    try:
        response = _request(url, have)
    except HTTPError as error:
        if error.code != _BEYOND_THE_END or not have:
            raise
        error.close()
        whole = _total(error.headers) if "Content-Range" in error.headers else record.get("total")
        if whole != have:
            _start_over(url, part, root, file)
        return
    with response:
        etag, total = response.headers.get("ETag"), _total(response.headers)
        if response.status == _SOME:
            begins = response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
            if not begins or (record.get("etag", etag), record.get("total", total)) != (etag, total):
                response.close()
                _start_over(url, part, root, file)
                return
        else:  # the server does not know parts, or none was asked for
            have = 0
            with _disk(root / RECORD):
                write_record(root, file, record | {"etag": etag, "total": total})
        _receive(response, part, have, total)


def _start_over(url: str, part: Path, root: Path, file: str) -> None:
    part.unlink()
    _fetch(url, part, root, file)


def _receive(response: HTTPResponse, part: Path, have: int, total: int | None) -> None:
    """Append what comes to the bytes that are there, and see it safely on the disk."""
    with _disk(part):
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
    try:
        os.ftruncate(descriptor, have)
        os.lseek(descriptor, have, os.SEEK_SET)
        with _bar(part.name.removesuffix(".part"), have, total) as at:
            while block := response.read(_TOGETHER):
                with _disk(part, None if total is None else total - have):
                    _write(descriptor, block)
                have += len(block)
                at(have)
        with _disk(part, 0):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if total is not None and have < total:
        raise ConnectionResetError(f"it ended after {have:,} of {total:,} bytes")


def _write(descriptor: int, block: bytes) -> None:
    rest = memoryview(block)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


@contextmanager
def _disk(path: Path, needed: int | None = None) -> Iterator[None]:
    """What the disk refuses, in one line, so that it is not taken for a connection that failed."""
    try:
        yield
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise DownloadError(f"{path} cannot be written: {error.strerror}") from error
        amount = "more bytes" if needed is None else f"{needed:,} more bytes"
        raise DownloadError(
            f"{path}: the disk is full, and {amount} are needed: free some; called again, it goes on from where it was"
        ) from error


class _WebRedirects(HTTPRedirectHandler):
    """Follows redirects on the web, and nowhere else."""

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Request | None:
        _require_web(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _request(url: str, have: int) -> HTTPResponse:
    request = Request(url, headers={"Range": f"bytes={have}-"} if have else {})  # noqa: S310 - the scheme is checked
    response: HTTPResponse = build_opener(_WebRedirects).open(request, timeout=_TIMEOUT)
    return response


def _require_web(url: str) -> None:
    if urlsplit(url).scheme not in {"http", "https"}:
        raise InputError(f"{url}: give a URL that begins with http:// or https://")


def _total(headers: Message) -> int | None:
    """How many bytes the whole file has, if the server says so."""
    text: str = headers.get("Content-Range", "").rpartition("/")[2] or headers.get("Content-Length", "")
    return int(text) if text.isdigit() else None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@contextmanager
def _bar(file: str, have: int, total: int | None) -> Iterator[Callable[[int], None]]:
    """Bytes and speed on standard error, if anybody can see it."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich import progress  # noqa: PLC0415 - only a terminal needs it
    from rich.console import Console  # noqa: PLC0415 - same

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(file, total=total, completed=have)
        yield lambda done: shown.update(task, completed=done)


_ENTRIES = 1 << 20
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
                while block := source.read(min(_ENTRIES, left + 1)):
                    left -= len(block)
                    if left < 0:
                        raise InputError(f"{archive} unpacks to more than {max_bytes:,} bytes: it is not unpacked")
                    copy.write(block)
        while tar.fileobj is not None and tar.fileobj.read(_ENTRIES):  # gzip's checksum comes after the last member
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


DOWNLOADS, LOCK = "downloads", "getting.lock"
_LOGGER = logging.getLogger("wildood")


def obtain(named: NamedSet, root: Path, part: SetPart | None = None, *, keep: bool = False) -> None:
    """Bring a part of a set to the data root; without a part, all but those that are there on request only.

    One process does so at a time: another one waits, and finds it done.

    Args:
        named: the set.
        root: the data root.
        part: of the set.
        keep: archives, too, once they are unpacked.

    >>> from wildood.data.named_sets import SETS
    >>> obtain(SETS["digits"], Path("nowhere"))  # nothing to do
    """
    wanted = [part] if part else [part for part in named.parts if not part.on_request]
    if all(named.place(each, root) for each in wanted):
        return
    if named.kind == "digits":
        raise InputError(IN_SCIKIT_LEARN)
    root.mkdir(parents=True, exist_ok=True)
    with locked(root / LOCK, waiting=f"another process brings data to {root}: waiting for it"):
        for each in wanted:
            for file in named.downloads:
                if file.part in {None, each.name} and named.place(each, root) is None:
                    _bring(named, file, root, keep=keep)
            if named.place(each, root) is None:
                raise InputError(f"{named.name}: {each.name} is not in what can be downloaded: see {named.source}")


def kept_file(file: Download, named: NamedSet, root: Path) -> Path | None:
    """Where a file of a set lies, or an archive that was kept or placed by hand; None if it is nowhere.

    >>> kept_file(Download("", "a.mat"), NamedSet("a", "", "", "", "svhn", (), ("a", ".")), Path("nowhere")) is None
    True
    """
    places = (DOWNLOADS, ".") if file.unpacked else named.places
    return next((root / place / file.file for place in places if (root / place / file.file).is_file()), None)


def wrong_content(path: Path, file: Download, root: Path) -> str:
    """What is wrong with the content of a file, or nothing.

    >>> wrong_content(Path(__file__), Download("", "a.mat"), Path("nowhere"))  # nobody has recorded a checksum
    ''
    """
    return mismatch(digests(path), read_record(root, file.file), file.md5)


def _bring(named: NamedSet, file: Download, root: Path, *, keep: bool) -> None:
    """Download a file, unless it is there, and unpack it, if it is an archive."""
    target = root / named.name
    if file.unpacked:
        require_free(target)
    found = kept_file(file, named, root)
    if found is None:
        _LOGGER.info("%s: downloading %s (terms: %s)", named.name, file.url, named.terms)
        place = (root / DOWNLOADS if file.unpacked else target) / file.file
        download(file.url, place, root, file.md5)
    else:
        place, wrong = found, wrong_content(found, file, root)
        if wrong:
            raise InputError(f"{found} is not the file that is expected: {wrong}. Remove it, and it is downloaded anew")
    if file.unpacked:
        _LOGGER.info("%s: unpacking %s", named.name, place)
        unpack(place, target, max_bytes=file.unpacked, max_members=file.members)
        if found is None and not keep:  # what a user placed by hand is theirs
            place.unlink()
