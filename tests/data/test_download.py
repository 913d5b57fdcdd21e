"""Files arrive whole and verified, archives are unpacked safely, and what is there is not downloaded again."""

import errno
import hashlib
import io
import json
import logging
import os
import pickle
import stat
import subprocess
import sys
import tarfile
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from wildood.data import download as download_module
from wildood.data.catalog import SETS, SetPart, open_set
from wildood.data.download import DownloadError, download, kept_file, obtain, unpack, wrong_content
from wildood.errors import InputError, WildoodError

CONTENT = np.random.default_rng(0).bytes(300_000)
OTHER = np.random.default_rng(1).bytes(300_000)


@pytest.fixture
def source(file_server):
    """A server of one file, a.npy."""
    file_server.files["a.npy"] = file_server.files["elsewhere"] = CONTENT
    return file_server


def md5_of(content):
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def names(place):
    return sorted(path.name for path in place.iterdir())


def test_a_file_arrives_whole_and_its_checksum_is_recorded(source, tmp_path):
    download(source.url("a.npy"), tmp_path / "set" / "a.npy", tmp_path, md5_of(CONTENT))
    assert (tmp_path / "set" / "a.npy").read_bytes() == CONTENT
    assert names(tmp_path / "set") == ["a.npy"]
    assert json.loads((tmp_path / "checksums.json").read_bytes()) == {
        "a.npy": {"bytes": 300_000, "sha256": hashlib.sha256(CONTENT).hexdigest(), "url": source.url("a.npy")}
    }


def test_a_dropped_connection_goes_on_from_where_it_was(source, tmp_path):
    source.cut_after = [100_000, 50_000]
    download(source.url("a.npy"), tmp_path / "a.npy", tmp_path, md5_of(CONTENT))
    assert source.ranges == [None, "bytes=100000-", "bytes=150000-"]
    assert (tmp_path / "a.npy").read_bytes() == CONTENT


def test_a_connection_that_always_drops_is_given_up_only_without_new_bytes(source, tmp_path):
    source.cut_after = [1_000] * 20 + [0] * download_module.ATTEMPTS
    with pytest.raises(DownloadError, match=r"a\.npy: the connection to 127\.0\.0\.1 failed .* it goes on$"):
        download(source.url("a.npy"), tmp_path / "a.npy", tmp_path)
    assert (tmp_path / "a.npy.part").read_bytes() == CONTENT[:20_000]
    assert not (tmp_path / "a.npy").exists()
    download(source.url("a.npy"), tmp_path / "a.npy", tmp_path)
    assert source.ranges[-1] == "bytes=20000-"
    assert (tmp_path / "a.npy").read_bytes() == CONTENT


def test_ctrl_c_leaves_what_was_downloaded_and_the_next_call_goes_on(source, tmp_path, monkeypatch):
    def interrupted(descriptor, block, blocks=[]):  # noqa: B006 - counts the calls
        blocks.append(block)
        if len(blocks) == 3:
            raise KeyboardInterrupt
        os.write(descriptor, block)

    with monkeypatch.context() as patched:
        patched.setattr(download_module, "_write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            download(source.url("a.npy"), tmp_path / "set" / "a.npy", tmp_path)
    assert names(tmp_path / "set") == ["a.npy.part"]
    have = (tmp_path / "set" / "a.npy.part").stat().st_size
    assert 0 < have < len(CONTENT)
    download(source.url("a.npy"), tmp_path / "set" / "a.npy", tmp_path)
    assert source.ranges == [None, f"bytes={have}-"]
    assert (tmp_path / "set" / "a.npy").read_bytes() == CONTENT
    assert names(tmp_path / "set") == ["a.npy"]


def test_a_server_without_ranges_is_asked_for_the_whole_again(source, tmp_path):
    source.knows_ranges, source.cut_after = False, [100_000]
    download(source.url("a.npy"), tmp_path / "a.npy", tmp_path, md5_of(CONTENT))
    assert source.ranges == [None, "bytes=100000-"]
    assert (tmp_path / "a.npy").read_bytes() == CONTENT


def test_a_server_that_does_not_say_how_long_the_file_is(source, tmp_path):
    source.says_length = False
    download(source.url("a.npy"), tmp_path / "a.npy", tmp_path, md5_of(CONTENT))
    assert (tmp_path / "a.npy").read_bytes() == CONTENT


def test_an_answer_that_begins_elsewhere_starts_over(source, tmp_path):
    source.offset_error = 7
    (tmp_path / "a.npy.part").write_bytes(CONTENT[:1_000])
    download(source.url("a.npy"), tmp_path / "a.npy", tmp_path, md5_of(CONTENT))
    assert source.ranges == ["bytes=1000-", None]
    assert (tmp_path / "a.npy").read_bytes() == CONTENT


@pytest.mark.parametrize(("content", "etag"), [(OTHER, '"2"'), (OTHER[:-1], '"1"')], ids=["etag", "size"])
def test_a_file_that_changed_at_its_source_starts_over_instead_of_being_mixed(source, tmp_path, content, etag):
    source.cut_after = [100_000, *[0] * download_module.ATTEMPTS]
    with pytest.raises(DownloadError):
        download(source.url("a.npy"), tmp_path / "a.npy", tmp_path)
    source.files["a.npy"], source.etag, source.ranges = content, etag, []
    source.cut_after = []
    download(source.url("a.npy"), tmp_path / "a.npy", tmp_path)
    assert source.ranges == ["bytes=100000-", None]
    assert (tmp_path / "a.npy").read_bytes() == content


def test_a_part_that_is_whole_already_is_not_downloaded_again(source, tmp_path):
    (tmp_path / "a.npy.part").write_bytes(CONTENT)
    download(source.url("a.npy"), tmp_path / "a.npy", tmp_path, md5_of(CONTENT))
    assert source.ranges == ["bytes=300000-"]
    assert (tmp_path / "a.npy").read_bytes() == CONTENT


def test_a_part_that_is_longer_than_the_file_starts_over(source, tmp_path):
    (tmp_path / "a.npy.part").write_bytes(OTHER + b"more")
    download(source.url("a.npy"), tmp_path / "a.npy", tmp_path, md5_of(CONTENT))
    assert source.ranges == ["bytes=300004-", None]
    assert (tmp_path / "a.npy").read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing_and_says_so(source, tmp_path):
    with pytest.raises(
        DownloadError, match=rf"a\.npy from http.*its md5 is {md5_of(CONTENT)}, the published one is {'0' * 32}"
    ):
        download(source.url("a.npy"), tmp_path / "set" / "a.npy", tmp_path, "0" * 32)
    assert names(tmp_path / "set") == []


def test_without_a_published_checksum_the_first_one_holds_for_later_downloads(source, tmp_path):
    download(source.url("a.npy"), tmp_path / "set" / "a.npy", tmp_path)
    (tmp_path / "set" / "a.npy").unlink()
    source.files["a.npy"], source.etag = OTHER, '"2"'
    first, second = (hashlib.sha256(content).hexdigest() for content in (CONTENT, OTHER))
    for _ in range(2):  # the refused file does not take the first one's place
        with pytest.raises(DownloadError, match=rf"its sha256 is {second}, that of the first download was {first}"):
            download(source.url("a.npy"), tmp_path / "set" / "a.npy", tmp_path)
        assert names(tmp_path / "set") == []
    source.files["a.npy"] = CONTENT
    download(source.url("a.npy"), tmp_path / "set" / "a.npy", tmp_path)
    assert (tmp_path / "set" / "a.npy").read_bytes() == CONTENT


def test_a_published_checksum_goes_before_a_recorded_one(source, tmp_path):
    download(source.url("a.npy"), tmp_path / "a.npy", tmp_path)
    source.files["a.npy"] = OTHER
    download(source.url("a.npy"), tmp_path / "a.npy", tmp_path, md5_of(OTHER))
    assert (tmp_path / "a.npy").read_bytes() == OTHER


def test_what_is_not_there_is_not_asked_for_twice(source, tmp_path):
    source.statuses = [404]
    with pytest.raises(DownloadError, match=r"^a\.npy: the source says 404 Not Found for http.*: get it elsewhere"):
        download(source.url("a.npy"), tmp_path / "set" / "a.npy", tmp_path)
    assert source.ranges == [None]
    assert names(tmp_path / "set") == []


def test_a_busy_server_is_asked_again(source, tmp_path):
    source.statuses = [503, 429]
    download(source.url("a.npy"), tmp_path / "a.npy", tmp_path)
    assert len(source.ranges) == 3
    assert (tmp_path / "a.npy").read_bytes() == CONTENT


def test_a_server_that_is_not_there_is_one_line(source, tmp_path):
    source.shutdown()
    source.server_close()
    with pytest.raises(DownloadError, match=rf"refused.*, {download_module.ATTEMPTS} times in a row") as raised:
        download(source.url("a.npy"), tmp_path / "a.npy", tmp_path)
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
            download(source.url("a.npy"), tmp_path / "a.npy", tmp_path)
    part = tmp_path / "a.npy.part"
    missing = len(CONTENT) - part.stat().st_size
    assert str(raised.value).startswith(f"{part}: the disk is full, and {missing:,} more bytes are needed: free some")
    download(source.url("a.npy"), tmp_path / "a.npy", tmp_path)
    assert (tmp_path / "a.npy").read_bytes() == CONTENT
    assert source.ranges == [None, f"bytes={300_000 - missing}-"]


def test_a_directory_that_cannot_be_written_is_not_taken_for_a_failed_connection(source, tmp_path):
    (tmp_path / "a.npy.part").mkdir()
    with pytest.raises(DownloadError, match=r"a\.npy\.part cannot be written: Is a directory"):
        download(source.url("a.npy"), tmp_path / "a.npy", tmp_path)


def test_redirects_are_followed_with_the_range(source, tmp_path):
    source.redirect = "/elsewhere"
    (tmp_path / "a.npy.part").write_bytes(CONTENT[:1_000])
    download(source.url("a.npy"), tmp_path / "a.npy", tmp_path, md5_of(CONTENT))
    assert source.ranges == ["bytes=1000-"]
    assert (tmp_path / "a.npy").read_bytes() == CONTENT


@pytest.mark.parametrize(("scheme", "refusal"), [("ftp", "ftp://.*: give a URL that begins"), ("file", "says 302")])
def test_redirects_lead_nowhere_but_the_web(source, tmp_path, scheme, refusal):
    source.redirect = f"{scheme}://127.0.0.1/etc/passwd"
    with pytest.raises((InputError, DownloadError), match=refusal):
        download(source.url("a.npy"), tmp_path / "set" / "a.npy", tmp_path)
    assert names(tmp_path / "set") == []


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/a", "/etc/passwd", "data:,a"])
def test_only_the_web_is_asked(tmp_path, url):
    with pytest.raises(InputError, match="give a URL that begins with http:// or https://"):
        download(url, tmp_path / "a.npy", tmp_path)
    assert names(tmp_path) == []


def test_a_torn_record_is_one_line(source, tmp_path):
    (tmp_path / "checksums.json").write_text("{")
    with pytest.raises(InputError, match=r"checksums\.json is damaged \(it is not JSON\): remove it"):
        download(source.url("a.npy"), tmp_path / "a.npy", tmp_path)


def test_progress_is_shown_on_a_terminal_only(source, tmp_path, monkeypatch, capsys):
    download(source.url("a.npy"), tmp_path / "a.npy", tmp_path)
    assert capsys.readouterr() == ("", "")

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    download(source.url("a.npy"), tmp_path / "a.npy", tmp_path)
    assert "a.npy" in terminal.getvalue()
    assert "300.0/300.0 kB" in terminal.getvalue()
    assert capsys.readouterr().out == ""


LIMITS = {"max_bytes": 1_000_000, "max_members": 100}
FILES = {"set/a.txt": b"one", "set/deep/b.txt": b"two" * 1000, "set/empty.txt": b""}


def tar_file(path, *members, mode="w:gz"):
    """Members are (name, content) or TarInfo."""
    with tarfile.open(path, mode) as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                tar.addfile(info, io.BytesIO(member[1]))
    return path


def special(name, kind, linked=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, linked
    return info


def tree(place):
    return {path.relative_to(place).as_posix(): path.read_bytes() for path in place.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", ["w", "w:gz"])
def test_files_come_out_as_they_went_in(tmp_path, kind):
    archive = tar_file(tmp_path / "a", special("set", tarfile.DIRTYPE), *FILES.items(), mode=kind)
    unpack(archive, tmp_path / "out", **LIMITS)
    assert tree(tmp_path / "out") == FILES
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "out"]


def test_owners_and_permissions_stay_behind(tmp_path):
    info = tarfile.TarInfo("a.sh")
    info.mode, info.size = 0o6777, 0
    unpack(tar_file(tmp_path / "a.tar", info, mode="w"), tmp_path / "out", **LIMITS)
    assert stat.S_IMODE((tmp_path / "out" / "a.sh").stat().st_mode) & 0o7111 == 0


MALICIOUS = {
    "parent": [("../outside.txt", b"x")],
    "parent in the middle": [("set/../../outside.txt", b"x")],
    "parent with backslashes": [("..\\outside.txt", b"x")],
    "absolute": [("/tmp/outside.txt", b"x")],  # noqa: S108 - never written
    "drive": [("C:/outside.txt", b"x")],
    "symbolic link": [special("link", tarfile.SYMTYPE, "/etc/passwd")],
    "symbolic link within": [("set/a.txt", b"x"), special("set/b", tarfile.SYMTYPE, "a.txt")],
    "a file through a link": [special("out", tarfile.SYMTYPE, "../.."), ("out/outside.txt", b"x")],
    "hard link": [("a", b"x"), special("link", tarfile.LNKTYPE, "a")],
    "hard link outside": [special("link", tarfile.LNKTYPE, "/etc/passwd")],
    "character device": [special("null", tarfile.CHRTYPE)],
    "block device": [special("disk", tarfile.BLKTYPE)],
    "pipe": [special("pipe", tarfile.FIFOTYPE)],
}


def assert_refused(archive, tmp_path, text):
    inside = tmp_path / "deep" / "deeper"
    inside.mkdir(parents=True)
    before = set(tmp_path.rglob("*"))
    with pytest.raises(InputError, match=text) as raised:
        unpack(archive, inside / "out", **LIMITS)
    assert str(archive) in str(raised.value)
    assert "\n" not in str(raised.value)
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("members", MALICIOUS.values(), ids=MALICIOUS)
def test_a_malicious_tar_file_is_refused_and_leaves_nothing(tmp_path, members):
    archive = tar_file(tmp_path / "a.tar.gz", ("fine.txt", b"fine"), *members)
    assert_refused(archive, tmp_path, "which lies outside of it|which is a (link|device)")


def test_a_zip_file_is_not_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr("fine.txt", b"fine")
    assert_refused(tmp_path / "a.zip", tmp_path, "is not a whole tar file")


def test_more_bytes_than_expected_are_refused(tmp_path):
    archive = tar_file(tmp_path / "a", ("a", bytes(600_000)), ("b", bytes(400_001)))
    assert_refused(archive, tmp_path, "unpacks to more than 1,000,000 bytes")


def test_as_many_bytes_and_members_as_expected_are_taken(tmp_path):
    empty = [(f"c{number}", b"") for number in range(98)]
    archive = tar_file(tmp_path / "a", ("a", bytes(600_000)), ("b", bytes(400_000)), *empty)
    unpack(archive, tmp_path / "out", **LIMITS)
    assert sum(map(len, tree(tmp_path / "out").values())) == 1_000_000


def test_more_members_than_expected_are_refused(tmp_path):
    archive = tar_file(tmp_path / "a", *[(f"{number}", b"") for number in range(101)])
    assert_refused(archive, tmp_path, "has more than 100 members")


@pytest.mark.parametrize("members", [[("a", b"1"), ("a", b"2")], [("a", b"1"), ("a/b", b"2")], [(".", b"1")]])
def test_members_in_each_others_way_are_refused(tmp_path, members):
    assert_refused(tar_file(tmp_path / "a.tar.gz", *members), tmp_path, "is not a whole tar file")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_torn_archive_is_refused_and_leaves_nothing(tmp_path, share):
    archive = tar_file(tmp_path / "a", *[(f"{number}.txt", os.urandom(5_000)) for number in range(20)])
    content = archive.read_bytes()
    archive.write_bytes(content[: int(share * len(content))])
    assert_refused(archive, tmp_path, "is not a whole tar file")


def test_a_changed_byte_in_a_compressed_archive_is_noticed(tmp_path):
    archive = tar_file(tmp_path / "a.tar.gz", ("a.txt", os.urandom(50_000)))
    content = bytearray(archive.read_bytes())
    content[30_000] ^= 1
    archive.write_bytes(content)
    assert_refused(archive, tmp_path, "is not a whole tar file")


def test_ctrl_c_leaves_nothing_half_made_and_the_next_call_works(tmp_path, monkeypatch):
    archive = tar_file(tmp_path / "a.tar.gz", *FILES.items())
    with monkeypatch.context() as patched:
        patched.setattr(download_module, "_content", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            unpack(archive, tmp_path / "out", **LIMITS)
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz"]
    unpack(archive, tmp_path / "out", **LIMITS)
    assert tree(tmp_path / "out") == FILES


def test_what_a_killed_call_left_is_removed_by_the_next(tmp_path):
    leftover = tmp_path / ".out.123.unpacking"
    leftover.mkdir()
    (leftover / "half").write_bytes(b"x")
    other = tmp_path / ".another.123.unpacking"
    other.mkdir()
    unpack(tar_file(tmp_path / "a.tar.gz", *FILES.items()), tmp_path / "out", **LIMITS)
    assert not leftover.exists()
    assert other.exists()
    assert tree(tmp_path / "out") == FILES


def test_what_is_there_already_is_never_overwritten(tmp_path):
    (tmp_path / "out").mkdir()
    unpack(tar_file(tmp_path / "a.tar.gz", *FILES.items()), tmp_path / "out", **LIMITS)  # an empty one is no loss
    (tmp_path / "out" / "mine.txt").write_bytes(b"mine")
    with pytest.raises(InputError, match=r"out is there already, but not what it should hold: move it away"):
        unpack(tmp_path / "a.tar.gz", tmp_path / "out", **LIMITS)
    assert tree(tmp_path / "out") == FILES | {"mine.txt": b"mine"}


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    class Full(io.BytesIO):
        def read(self, *_):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(download_module, "_content", lambda *_: Full())
    archive = tar_file(tmp_path / "a.tar.gz", *FILES.items())
    with pytest.raises(InputError, match=r"^a\.tar\.gz: the disk is full, .*out needs up to 1,000,000 bytes$"):
        unpack(archive, tmp_path / "out", **LIMITS)
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz"]


RNG = np.random.default_rng(0)


def archive(**files):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        for name, written in files.items():
            info = tarfile.TarInfo(f"cifar-100-python/{name}")
            info.size = len(written)
            tar.addfile(info, io.BytesIO(written))
    return content.getvalue()


def batch(count):
    rows = RNG.integers(0, 256, (count, 3072), dtype=np.uint8)
    return pickle.dumps({"data": rows, "fine_labels": list(range(count))}, protocol=2)


META = pickle.dumps({"fine_label_names": [f"class {number}" for number in range(100)]}, protocol=2)


@pytest.fixture
def cifar100(file_server, monkeypatch):
    content = archive(train=batch(6), test=batch(3), meta=META)
    file = file_server.publish("cifar-100-python.tar.gz", content, unpacked=100_000, members=10)
    parts = (SetPart("train", 6, ("train",)), SetPart("test", 3, ("test",)))
    named = replace(SETS["cifar100"], downloads=(file,), parts=parts)
    monkeypatch.setitem(SETS, "cifar100", named)
    return named


def files_below(place):
    files = (path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file())
    return sorted(file for file in files if file != "getting.lock")


UNPACKED = [f"cifar100/cifar-100-python/{name}" for name in ("meta", "test", "train")]


def test_an_archive_is_downloaded_unpacked_and_removed_and_then_opens(cifar100, file_server, tmp_path):
    obtain(cifar100, tmp_path)
    assert files_below(tmp_path) == ["checksums.json", *UNPACKED]
    assert len(open_set("cifar100:train", tmp_path)) == 6
    assert open_set("cifar100:test", tmp_path).labels.tolist() == [0, 1, 2]
    obtain(cifar100, tmp_path)
    assert file_server.asked == ["/cifar-100-python.tar.gz"]


def test_an_archive_may_be_kept(cifar100, tmp_path):
    obtain(cifar100, tmp_path, keep=True)
    assert files_below(tmp_path) == ["checksums.json", *UNPACKED, "downloads/cifar-100-python.tar.gz"]
    assert kept_file(cifar100.downloads[0], cifar100, tmp_path) == tmp_path / "downloads" / "cifar-100-python.tar.gz"


@pytest.mark.parametrize("place", ["downloads", "."])
def test_an_archive_that_was_placed_by_hand_is_used_and_left_alone(cifar100, file_server, tmp_path, place):
    (tmp_path / place).mkdir(exist_ok=True)
    by_hand = tmp_path / place / "cifar-100-python.tar.gz"
    by_hand.write_bytes(file_server.files["cifar-100-python.tar.gz"])
    obtain(cifar100, tmp_path)
    assert file_server.asked == []
    assert by_hand.exists()
    assert len(open_set("cifar100:train", tmp_path)) == 6


def test_a_wrong_archive_that_was_placed_by_hand_is_refused(cifar100, tmp_path):
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(b"something else")
    with pytest.raises(
        InputError, match=r"cifar-100-python\.tar\.gz is not the file that is expected: its md5 is .*Remove it"
    ):
        obtain(cifar100, tmp_path)
    assert files_below(tmp_path) == ["cifar-100-python.tar.gz"]


def test_what_is_there_elsewhere_is_not_downloaded(cifar100, file_server, tmp_path):
    place = tmp_path / "cifar-100-python" / "cifar-100-python"
    place.mkdir(parents=True)
    for name, content in (("train", batch(6)), ("test", batch(3)), ("meta", META)):
        (place / name).write_bytes(content)
    obtain(cifar100, tmp_path)
    assert file_server.asked == []


def test_a_directory_that_is_in_the_way_is_refused_before_anything_is_downloaded(cifar100, file_server, tmp_path):
    (tmp_path / "cifar100").mkdir()
    (tmp_path / "cifar100" / "mine.txt").touch()
    with pytest.raises(InputError, match=r"cifar100 is there already, but not what it should hold: move it away"):
        obtain(cifar100, tmp_path)
    assert file_server.asked == []
    assert files_below(tmp_path) == ["cifar100/mine.txt"]


def test_an_archive_with_other_files_is_told(cifar100, file_server, tmp_path):
    file = file_server.publish("other.tar.gz", archive(train=batch(6)), unpacked=100_000, members=10)
    with pytest.raises(InputError, match="cifar100: train is not in what can be downloaded: see https://"):
        obtain(replace(cifar100, downloads=(file,)), tmp_path)


def test_an_archive_larger_than_expected_leaves_nothing_unpacked(cifar100, tmp_path):
    small = replace(cifar100.downloads[0], unpacked=10_000)
    with pytest.raises(InputError, match="unpacks to more than 10,000 bytes"):
        obtain(replace(cifar100, downloads=(small,)), tmp_path)
    assert files_below(tmp_path) == ["checksums.json", "downloads/cifar-100-python.tar.gz"]


def test_a_wrong_checksum_leaves_nothing(cifar100, tmp_path):
    wrong = replace(cifar100.downloads[0], md5="0" * 32)
    with pytest.raises(WildoodError, match="the published one is 0000"):
        obtain(replace(cifar100, downloads=(wrong,)), tmp_path)
    assert files_below(tmp_path) == ["checksums.json"]


@pytest.fixture
def svhn(file_server):
    parts = [replace(part, count=1) for part in SETS["svhn"].parts]
    files = [file_server.publish(f"{part.name}_32x32.mat", part.name.encode(), part=part.name) for part in parts]
    return replace(SETS["svhn"], downloads=tuple(files), parts=tuple(parts))


def test_parts_on_request_are_downloaded_by_their_name_only(svhn, tmp_path):
    obtain(svhn, tmp_path)
    assert files_below(tmp_path / "svhn") == ["test_32x32.mat", "train_32x32.mat"]
    obtain(svhn, tmp_path, svhn.part("extra"))
    assert (tmp_path / "svhn" / "extra_32x32.mat").read_bytes() == b"extra"


def test_one_part_is_downloaded_alone(svhn, file_server, tmp_path):
    obtain(svhn, tmp_path, svhn.part("test"))
    assert files_below(tmp_path / "svhn") == ["test_32x32.mat"]
    obtain(svhn, tmp_path)
    assert file_server.asked == ["/test_32x32.mat", "/train_32x32.mat"]


def test_a_file_that_changed_on_disk_has_another_checksum(svhn, tmp_path):
    obtain(svhn, tmp_path)
    file = svhn.downloads[0]
    path = kept_file(file, svhn, tmp_path)
    assert wrong_content(path, file, tmp_path) == ""
    path.write_bytes(b"tampered")
    assert wrong_content(path, file, tmp_path).startswith("its md5 is ")
    assert wrong_content(path, replace(file, md5=None), tmp_path).startswith("its sha256 is ")


def test_nobody_brings_data_to_a_root_where_another_process_does(svhn, file_server, tmp_path, monkeypatch):
    told = threading.Event()
    monkeypatch.setattr(logging.getLogger("wildood"), "info", lambda text, *_: "waiting" in text and told.set())
    command = [sys.executable, Path(__file__).with_name("hold_lock.py"), tmp_path / "getting.lock"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "True\n"
        waiting = threading.Thread(target=obtain, args=(svhn, tmp_path))
        waiting.start()
        told.wait()
        assert file_server.asked == []
        other.stdin.close()
        waiting.join()
    assert files_below(tmp_path / "svhn") == ["test_32x32.mat", "train_32x32.mat"]


def test_the_record_has_every_download(svhn, tmp_path):
    obtain(svhn, tmp_path)
    record = json.loads((tmp_path / "checksums.json").read_bytes())
    assert {name: entry["sha256"] for name, entry in record.items()} == {
        f"{part}_32x32.mat": hashlib.sha256(part.encode()).hexdigest() for part in ("train", "test")
    }
