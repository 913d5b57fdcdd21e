import errno
import io
import os
import stat
import tarfile
import zipfile

import pytest

from wildood.data import download as unpacking
from wildood.data.download import unpack
from wildood.errors import InputError

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
@pytest.mark.parametrize("opinions", ["both", "own"])
def test_a_malicious_tar_file_is_refused_and_leaves_nothing(tmp_path, monkeypatch, members, opinions):
    if opinions == "own":  # as before Python 3.11.4
        monkeypatch.delattr(tarfile, "data_filter")
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
        patched.setattr(unpacking, "_content", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
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

    monkeypatch.setattr(unpacking, "_content", lambda *_: Full())
    archive = tar_file(tmp_path / "a.tar.gz", *FILES.items())
    with pytest.raises(InputError, match=r"^a\.tar\.gz: the disk is full, .*out needs up to 1,000,000 bytes$"):
        unpack(archive, tmp_path / "out", **LIMITS)
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz"]
