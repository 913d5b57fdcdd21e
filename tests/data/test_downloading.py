import errno
import hashlib
import io
import json
import os
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from wildood.data import download as downloading
from wildood.data.download import DownloadError, download
from wildood.errors import InputError

CONTENT = np.random.default_rng(0).bytes(300_000)
OTHER = np.random.default_rng(1).bytes(300_000)


class Source(ThreadingHTTPServer):
    """A server on this machine that can misbehave, and remembers what it was asked."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.etag = CONTENT, '"1"'
        self.knows_ranges, self.says_length, self.offset_error = True, True, 0
        self.cut_after: list[int] = []  # how many bytes the next answers have before the connection drops
        self.statuses: list[int] = []  # what the next answers say instead of the file
        self.redirect = ""
        self.ranges: list[str | None] = []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/a.npy"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        source = self.server
        if source.redirect and self.path == "/a.npy":
            self.send_response(302)
            self.send_header("Location", source.redirect)
            self.end_headers()
            return
        asked = self.headers["Range"]
        source.ranges.append(asked)
        if source.statuses:
            self.send_error(source.statuses.pop(0))
            return
        start = int(re.fullmatch(r"bytes=(\d+)-", asked).group(1)) if asked and source.knows_ranges else 0
        total = len(source.content)
        if start >= total:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{total}")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            start += source.offset_error
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        if source.etag:
            self.send_header("ETag", source.etag)
        if source.says_length:
            self.send_header("Content-Length", str(total - start))
        self.end_headers()
        body = source.content[start:]
        self.wfile.write(body[: source.cut_after.pop(0)] if source.cut_after else body)

    def log_message(self, *_):
        pass


@pytest.fixture
def source(monkeypatch):
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(downloading, "PAUSE", 0)
    server = Source()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def md5_of(content):
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def names(place):
    return sorted(path.name for path in place.iterdir())


def test_a_file_arrives_whole_and_its_checksum_is_recorded(source, tmp_path):
    download(source.url, tmp_path / "set" / "a.npy", tmp_path, md5_of(CONTENT))
    assert (tmp_path / "set" / "a.npy").read_bytes() == CONTENT
    assert names(tmp_path / "set") == ["a.npy"]
    assert json.loads((tmp_path / "checksums.json").read_bytes()) == {
        "a.npy": {"bytes": 300_000, "sha256": hashlib.sha256(CONTENT).hexdigest(), "url": source.url}
    }


def test_a_dropped_connection_goes_on_from_where_it_was(source, tmp_path):
    source.cut_after = [100_000, 50_000]
    download(source.url, tmp_path / "a.npy", tmp_path, md5_of(CONTENT))
    assert source.ranges == [None, "bytes=100000-", "bytes=150000-"]
    assert (tmp_path / "a.npy").read_bytes() == CONTENT


def test_a_connection_that_always_drops_is_given_up_only_without_new_bytes(source, tmp_path):
    source.cut_after = [1_000] * 20 + [0] * downloading.ATTEMPTS
    with pytest.raises(DownloadError, match=r"a\.npy: the connection to 127\.0\.0\.1 failed .* it goes on$"):
        download(source.url, tmp_path / "a.npy", tmp_path)
    assert (tmp_path / "a.npy.part").read_bytes() == CONTENT[:20_000]
    assert not (tmp_path / "a.npy").exists()
    download(source.url, tmp_path / "a.npy", tmp_path)
    assert source.ranges[-1] == "bytes=20000-"
    assert (tmp_path / "a.npy").read_bytes() == CONTENT


def test_ctrl_c_leaves_what_was_downloaded_and_the_next_call_goes_on(source, tmp_path, monkeypatch):
    def interrupted(descriptor, block, blocks=[]):  # noqa: B006 - counts the calls
        blocks.append(block)
        if len(blocks) == 3:
            raise KeyboardInterrupt
        os.write(descriptor, block)

    with monkeypatch.context() as patched:
        patched.setattr(downloading, "_write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            download(source.url, tmp_path / "set" / "a.npy", tmp_path)
    assert names(tmp_path / "set") == ["a.npy.part"]
    have = (tmp_path / "set" / "a.npy.part").stat().st_size
    assert 0 < have < len(CONTENT)
    download(source.url, tmp_path / "set" / "a.npy", tmp_path)
    assert source.ranges == [None, f"bytes={have}-"]
    assert (tmp_path / "set" / "a.npy").read_bytes() == CONTENT
    assert names(tmp_path / "set") == ["a.npy"]


def test_a_server_without_ranges_is_asked_for_the_whole_again(source, tmp_path):
    source.knows_ranges, source.cut_after = False, [100_000]
    download(source.url, tmp_path / "a.npy", tmp_path, md5_of(CONTENT))
    assert source.ranges == [None, "bytes=100000-"]
    assert (tmp_path / "a.npy").read_bytes() == CONTENT


def test_a_server_that_does_not_say_how_long_the_file_is(source, tmp_path):
    source.says_length = False
    download(source.url, tmp_path / "a.npy", tmp_path, md5_of(CONTENT))
    assert (tmp_path / "a.npy").read_bytes() == CONTENT


def test_an_answer_that_begins_elsewhere_starts_over(source, tmp_path):
    source.offset_error = 7
    (tmp_path / "a.npy.part").write_bytes(CONTENT[:1_000])
    download(source.url, tmp_path / "a.npy", tmp_path, md5_of(CONTENT))
    assert source.ranges == ["bytes=1000-", None]
    assert (tmp_path / "a.npy").read_bytes() == CONTENT


@pytest.mark.parametrize(("content", "etag"), [(OTHER, '"2"'), (OTHER[:-1], '"1"')], ids=["etag", "size"])
def test_a_file_that_changed_at_its_source_starts_over_instead_of_being_mixed(source, tmp_path, content, etag):
    source.cut_after = [100_000, *[0] * downloading.ATTEMPTS]
    with pytest.raises(DownloadError):
        download(source.url, tmp_path / "a.npy", tmp_path)
    source.content, source.etag, source.ranges = content, etag, []
    source.cut_after = []
    download(source.url, tmp_path / "a.npy", tmp_path)
    assert source.ranges == ["bytes=100000-", None]
    assert (tmp_path / "a.npy").read_bytes() == content


def test_a_part_that_is_whole_already_is_not_downloaded_again(source, tmp_path):
    (tmp_path / "a.npy.part").write_bytes(CONTENT)
    download(source.url, tmp_path / "a.npy", tmp_path, md5_of(CONTENT))
    assert source.ranges == ["bytes=300000-"]
    assert (tmp_path / "a.npy").read_bytes() == CONTENT


def test_a_part_that_is_longer_than_the_file_starts_over(source, tmp_path):
    (tmp_path / "a.npy.part").write_bytes(OTHER + b"more")
    download(source.url, tmp_path / "a.npy", tmp_path, md5_of(CONTENT))
    assert source.ranges == ["bytes=300004-", None]
    assert (tmp_path / "a.npy").read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing_and_says_so(source, tmp_path):
    with pytest.raises(
        DownloadError, match=rf"a\.npy from http.*its md5 is {md5_of(CONTENT)}, the published one is {'0' * 32}"
    ):
        download(source.url, tmp_path / "set" / "a.npy", tmp_path, "0" * 32)
    assert names(tmp_path / "set") == []


def test_without_a_published_checksum_the_first_one_holds_for_later_downloads(source, tmp_path):
    download(source.url, tmp_path / "set" / "a.npy", tmp_path)
    (tmp_path / "set" / "a.npy").unlink()
    source.content, source.etag = OTHER, '"2"'
    first, second = (hashlib.sha256(content).hexdigest() for content in (CONTENT, OTHER))
    for _ in range(2):  # the refused file does not take the first one's place
        with pytest.raises(DownloadError, match=rf"its sha256 is {second}, that of the first download was {first}"):
            download(source.url, tmp_path / "set" / "a.npy", tmp_path)
        assert names(tmp_path / "set") == []
    source.content = CONTENT
    download(source.url, tmp_path / "set" / "a.npy", tmp_path)
    assert (tmp_path / "set" / "a.npy").read_bytes() == CONTENT


def test_a_published_checksum_goes_before_a_recorded_one(source, tmp_path):
    download(source.url, tmp_path / "a.npy", tmp_path)
    source.content = OTHER
    download(source.url, tmp_path / "a.npy", tmp_path, md5_of(OTHER))
    assert (tmp_path / "a.npy").read_bytes() == OTHER


def test_what_is_not_there_is_not_asked_for_twice(source, tmp_path):
    source.statuses = [404]
    with pytest.raises(DownloadError, match=r"^a\.npy: the source says 404 Not Found for http.*: get it elsewhere"):
        download(source.url, tmp_path / "set" / "a.npy", tmp_path)
    assert source.ranges == [None]
    assert names(tmp_path / "set") == []


def test_a_busy_server_is_asked_again(source, tmp_path):
    source.statuses = [503, 429]
    download(source.url, tmp_path / "a.npy", tmp_path)
    assert len(source.ranges) == 3
    assert (tmp_path / "a.npy").read_bytes() == CONTENT


def test_a_server_that_is_not_there_is_one_line(source, tmp_path):
    source.shutdown()
    source.server_close()
    with pytest.raises(DownloadError, match=rf"refused.*, {downloading.ATTEMPTS} times in a row") as raised:
        download(source.url, tmp_path / "a.npy", tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_names_the_file_and_the_bytes_and_keeps_what_is_there(source, tmp_path, monkeypatch, number):
    real, blocks = os.write, []

    def full(descriptor, block):
        if len(block) < 10_000:  # not the download
            return real(descriptor, block)
        blocks.append(block)
        if len(blocks) > 1:
            raise OSError(number, os.strerror(number))
        return real(descriptor, block)

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(DownloadError) as raised:
            download(source.url, tmp_path / "a.npy", tmp_path)
    part = tmp_path / "a.npy.part"
    missing = len(CONTENT) - part.stat().st_size
    assert str(raised.value).startswith(f"{part}: the disk is full, and {missing:,} more bytes are needed: free some")
    download(source.url, tmp_path / "a.npy", tmp_path)
    assert (tmp_path / "a.npy").read_bytes() == CONTENT
    assert source.ranges == [None, f"bytes={300_000 - missing}-"]


def test_a_directory_that_cannot_be_written_is_not_taken_for_a_failed_connection(source, tmp_path):
    (tmp_path / "a.npy.part").mkdir()
    with pytest.raises(DownloadError, match=r"a\.npy\.part cannot be written: Is a directory"):
        download(source.url, tmp_path / "a.npy", tmp_path)


def test_redirects_are_followed_with_the_range(source, tmp_path):
    source.redirect = "/elsewhere"
    (tmp_path / "a.npy.part").write_bytes(CONTENT[:1_000])
    download(source.url, tmp_path / "a.npy", tmp_path, md5_of(CONTENT))
    assert source.ranges == ["bytes=1000-"]
    assert (tmp_path / "a.npy").read_bytes() == CONTENT


@pytest.mark.parametrize(("scheme", "refusal"), [("ftp", "ftp://.*: give a URL that begins"), ("file", "says 302")])
def test_redirects_lead_nowhere_but_the_web(source, tmp_path, scheme, refusal):
    source.redirect = f"{scheme}://127.0.0.1/etc/passwd"
    with pytest.raises((InputError, DownloadError), match=refusal):
        download(source.url, tmp_path / "set" / "a.npy", tmp_path)
    assert names(tmp_path / "set") == []


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/a", "/etc/passwd", "data:,a"])
def test_only_the_web_is_asked(tmp_path, url):
    with pytest.raises(InputError, match="give a URL that begins with http:// or https://"):
        download(url, tmp_path / "a.npy", tmp_path)
    assert names(tmp_path) == []


def test_a_torn_record_is_one_line(source, tmp_path):
    (tmp_path / "checksums.json").write_text("{")
    with pytest.raises(InputError, match=r"checksums\.json is damaged \(it is not JSON\): remove it"):
        download(source.url, tmp_path / "a.npy", tmp_path)


def test_progress_is_shown_on_a_terminal_only(source, tmp_path, monkeypatch, capsys):
    download(source.url, tmp_path / "a.npy", tmp_path)
    assert capsys.readouterr() == ("", "")

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    download(source.url, tmp_path / "a.npy", tmp_path)
    assert "a.npy" in terminal.getvalue()
    assert "300.0/300.0 kB" in terminal.getvalue()
    assert capsys.readouterr().out == ""
