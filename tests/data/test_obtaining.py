import hashlib
import io
import json
import logging
import os
import pickle
import subprocess
import sys
import tarfile
import threading
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from wildood.data.catalog import open_set
from wildood.data.download import kept_file, obtain, wrong_content
from wildood.data.named_sets import SETS, Download, SetPart
from wildood.errors import InputError, WildoodError

RNG = np.random.default_rng(0)


class Quiet(SimpleHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        super().do_GET()

    def log_message(self, *_):
        pass


@pytest.fixture
def server(tmp_path_factory, monkeypatch):
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setattr("wildood.data.download.PAUSE", 0)
    place = tmp_path_factory.mktemp("served")
    found = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(place)))
    found.place, found.asked = place, []
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    found.shutdown()
    found.server_close()
    thread.join()


def md5_of(content):
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def served(server, file, content, **changes):
    (server.place / file).write_bytes(content)
    return Download(f"http://127.0.0.1:{server.server_port}/{file}", file, md5_of(content), len(content), **changes)


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
def cifar100(server, monkeypatch):
    content = archive(train=batch(6), test=batch(3), meta=META)
    file = served(server, "cifar-100-python.tar.gz", content, unpacked=100_000, members=10)
    parts = (SetPart("train", 6, ("train",)), SetPart("test", 3, ("test",)))
    named = replace(SETS["cifar100"], downloads=(file,), parts=parts)
    monkeypatch.setitem(SETS, "cifar100", named)
    return named


def files_below(place):
    files = (path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file())
    return sorted(file for file in files if file != "getting.lock")


UNPACKED = [f"cifar100/cifar-100-python/{name}" for name in ("meta", "test", "train")]


def test_an_archive_is_downloaded_unpacked_and_removed_and_then_opens(cifar100, server, tmp_path):
    obtain(cifar100, tmp_path)
    assert files_below(tmp_path) == ["checksums.json", *UNPACKED]
    assert len(open_set("cifar100:train", tmp_path)) == 6
    assert open_set("cifar100:test", tmp_path).labels.tolist() == [0, 1, 2]
    obtain(cifar100, tmp_path)
    assert server.asked == ["/cifar-100-python.tar.gz"]


def test_an_archive_may_be_kept(cifar100, tmp_path):
    obtain(cifar100, tmp_path, keep=True)
    assert files_below(tmp_path) == ["checksums.json", *UNPACKED, "downloads/cifar-100-python.tar.gz"]
    assert kept_file(cifar100.downloads[0], cifar100, tmp_path) == tmp_path / "downloads" / "cifar-100-python.tar.gz"


@pytest.mark.parametrize("place", ["downloads", "."])
def test_an_archive_that_was_placed_by_hand_is_used_and_left_alone(cifar100, server, tmp_path, place):
    (tmp_path / place).mkdir(exist_ok=True)
    by_hand = tmp_path / place / "cifar-100-python.tar.gz"
    by_hand.write_bytes((server.place / "cifar-100-python.tar.gz").read_bytes())
    obtain(cifar100, tmp_path)
    assert server.asked == []
    assert by_hand.exists()
    assert len(open_set("cifar100:train", tmp_path)) == 6


def test_a_wrong_archive_that_was_placed_by_hand_is_refused(cifar100, tmp_path):
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(b"something else")
    with pytest.raises(
        InputError, match=r"cifar-100-python\.tar\.gz is not the file that is expected: its md5 is .*Remove it"
    ):
        obtain(cifar100, tmp_path)
    assert files_below(tmp_path) == ["cifar-100-python.tar.gz"]


def test_what_is_there_elsewhere_is_not_downloaded(cifar100, server, tmp_path):
    place = tmp_path / "cifar-100-python" / "cifar-100-python"
    place.mkdir(parents=True)
    for name, content in (("train", batch(6)), ("test", batch(3)), ("meta", META)):
        (place / name).write_bytes(content)
    obtain(cifar100, tmp_path)
    assert server.asked == []


def test_a_directory_that_is_in_the_way_is_refused_before_anything_is_downloaded(cifar100, server, tmp_path):
    (tmp_path / "cifar100").mkdir()
    (tmp_path / "cifar100" / "mine.txt").touch()
    with pytest.raises(InputError, match=r"cifar100 is there already, but not what it should hold: move it away"):
        obtain(cifar100, tmp_path)
    assert server.asked == []
    assert files_below(tmp_path) == ["cifar100/mine.txt"]


def test_an_archive_with_other_files_is_told(cifar100, server, tmp_path):
    file = served(server, "other.tar.gz", archive(train=batch(6)), unpacked=100_000, members=10)
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
def svhn(server):
    parts = [replace(part, count=1) for part in SETS["svhn"].parts]
    files = [served(server, f"{part.name}_32x32.mat", part.name.encode(), part=part.name) for part in parts]
    return replace(SETS["svhn"], downloads=tuple(files), parts=tuple(parts))


def test_parts_on_request_are_downloaded_by_their_name_only(svhn, tmp_path):
    obtain(svhn, tmp_path)
    assert files_below(tmp_path / "svhn") == ["test_32x32.mat", "train_32x32.mat"]
    obtain(svhn, tmp_path, svhn.part("extra"))
    assert (tmp_path / "svhn" / "extra_32x32.mat").read_bytes() == b"extra"


def test_one_part_is_downloaded_alone(svhn, server, tmp_path):
    obtain(svhn, tmp_path, svhn.part("test"))
    assert files_below(tmp_path / "svhn") == ["test_32x32.mat"]
    obtain(svhn, tmp_path)
    assert server.asked == ["/test_32x32.mat", "/train_32x32.mat"]


def test_a_file_that_changed_on_disk_has_another_checksum(svhn, tmp_path):
    obtain(svhn, tmp_path)
    file = svhn.downloads[0]
    path = kept_file(file, svhn, tmp_path)
    assert wrong_content(path, file, tmp_path) == ""
    path.write_bytes(b"tampered")
    assert wrong_content(path, file, tmp_path).startswith("its md5 is ")
    assert wrong_content(path, replace(file, md5=None), tmp_path).startswith("its sha256 is ")


def test_nobody_brings_data_to_a_root_where_another_process_does(svhn, server, tmp_path, monkeypatch):
    told = threading.Event()
    monkeypatch.setattr(logging.getLogger("wildood"), "info", lambda text, *_: "waiting" in text and told.set())
    hold = (
        "import fcntl, os, sys\n"
        "fcntl.flock(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", hold, tmp_path / "getting.lock"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        waiting = threading.Thread(target=obtain, args=(svhn, tmp_path))
        waiting.start()
        told.wait()
        assert server.asked == []
        other.stdin.close()
        waiting.join()
    assert files_below(tmp_path / "svhn") == ["test_32x32.mat", "train_32x32.mat"]


def test_the_record_has_every_download(svhn, tmp_path):
    obtain(svhn, tmp_path)
    record = json.loads((tmp_path / "checksums.json").read_bytes())
    assert {name: entry["sha256"] for name, entry in record.items()} == {
        f"{part}_32x32.mat": hashlib.sha256(part.encode()).hexdigest() for part in ("train", "test")
    }
