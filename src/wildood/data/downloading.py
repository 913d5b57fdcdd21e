"""Downloads that go on where they were cut off, and end as a whole file with the right checksum or not at all."""

import errno
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from wildood.data.checksums import RECORD, digests, mismatch, read_record, write_record
from wildood.errors import InputError, WildoodError

ATTEMPTS, PAUSE = 5, 1.0  # how often in a row without a new byte, and seconds before the second attempt
_TIMEOUT, _TOGETHER = 60, 1 << 16
_PASSING = {408, 425, 429, 500, 502, 503, 504}  # what a server says when it may answer later
_SOME, _BEYOND_THE_END = 206, 416


class DownloadError(WildoodError):
    """A file that cannot be had from its source.

    >>> raise DownloadError("a.tar.gz: the source says 404 Not Found")
    Traceback (most recent call last):
    wildood.data.downloading.DownloadError: a.tar.gz: the source says 404 Not Found
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
