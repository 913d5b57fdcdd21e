"""Pictures are decoded once, by one process at a time, and only those that are new or changed again."""

import errno
import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from wildood.data import image_cache as decoded
from wildood.data.files import locked
from wildood.data.folders import open_images
from wildood.errors import InputError


def grey(number):
    return Image.new("RGB", (4, 3), (number, number, number))


def greys(images):
    return images.examples[:, 0, 0, 0].tolist()


def left_in(cache):
    """What lies in the cache beside whole caches and locks."""
    return [path.name for path in (cache / "decoded").iterdir() if len(path.stem) != 32]


def test_second_open_decodes_nothing_and_gives_the_same(photos, cache, decodings):
    first = open_images(photos, cache=cache)
    assert len(decodings) == 40
    decodings.clear()
    second = open_images(photos, cache=cache)
    assert decodings == []
    for images in (first, second):
        assert greys(images) == list(range(40))
        assert images.labels.tolist() == [0] * 20 + [1] * 20
        assert images.labels.dtype == np.int64
        assert images.examples.shape == (40, 3, 4, 3)
        assert isinstance(images.examples, np.memmap)
        assert images.names[19:21] == ["a/19.png", "b/20.png"]
    assert first.content == second.content == second.fingerprint() != ""


def test_new_files_alone_are_decoded(photos, cache, decodings):
    before = open_images(photos, cache=cache)
    decodings.clear()
    grey(200).save(photos / "a" / "05b.png")
    grey(201).save(photos / "b" / "zz.png")
    images = open_images(photos, cache=cache)
    assert sorted(decodings) == ["05b.png", "zz.png"]
    assert greys(images) == [*range(6), 200, *range(6, 40), 201]
    assert images.labels.tolist() == [0] * 21 + [1] * 21
    assert images.content != before.content
    assert greys(before) == list(range(40))
    assert before.names[6] == "a/06.png"


def test_changed_file_alone_is_decoded(photos, cache, decodings):
    open_images(photos, cache=cache)
    decodings.clear()
    grey(222).save(photos / "a" / "03.png")
    os.utime(photos / "a" / "03.png", ns=(0, 1))
    assert greys(open_images(photos, cache=cache)) == [0, 1, 2, 222, *range(4, 40)]
    assert decodings == ["03.png"]


def test_file_of_the_same_size_and_time_with_other_pixels_is_decoded_again(photos, cache, decodings):
    open_images(photos, cache=cache)
    decodings.clear()
    path = photos / "a" / "03.png"
    before = path.stat()
    grey(222).save(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # as rsync -t, cp -p and tar -x do
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert greys(open_images(photos, cache=cache)) == [0, 1, 2, 222, *range(4, 40)]
    assert decodings == ["03.png"]


@pytest.mark.parametrize("number", [0, 17, 39])
def test_deleted_file_is_gone_without_decoding(photos, cache, decodings, number):
    open_images(photos, cache=cache)
    decodings.clear()
    (photos / "ab"[number // 20] / f"{number:02}.png").unlink()
    assert greys(open_images(photos, cache=cache)) == [value for value in range(40) if value != number]
    assert decodings == []


def test_new_labels_need_no_decoding(photos, cache, decodings):
    manifest = photos / "set.csv"
    manifest.write_text("path,label\na/00.png,dog\nb/21.png,cat\na/00.png,cat\n")
    first = open_images(manifest, cache=cache)
    assert (first.classes, first.labels.tolist(), greys(first)) == (("cat", "dog"), [1, 0, 0], [0, 21, 0])
    decodings.clear()
    manifest.write_text("path,label\nb/21.png,5\na/00.png,6\n")
    second = open_images(manifest, cache=cache)
    assert (second.classes, second.labels.tolist(), greys(second)) == ((), [5, 6], [21, 0])
    manifest.write_text("path\nb/21.png\n")
    assert open_images(manifest, cache=cache).labels is None
    assert decodings == []


def test_each_framing_has_a_cache_of_its_own(photos, cache, decodings):
    for settings in ({}, {"size": 2}, {"size": 2, "how": "centre"}, {"size": 2, "channels": 1}):
        for _ in range(2):
            images = open_images(photos, cache=cache, **settings)
            assert greys(images) == list(range(40))
        assert len(decodings) == 40
        decodings.clear()


def test_content_is_that_of_pictures_labels_and_framing_wherever_they_lie(photos, cache, tmp_path):
    shutil.copytree(photos, tmp_path / "copy")
    whole, copied = open_images(photos, cache=cache), open_images(tmp_path / "copy", cache=tmp_path / "other")
    assert whole.content == copied.content
    lines = [f"{name},{label}" for name, label in zip(whole.names, whole.labels, strict=True)]
    manifest = photos / "set.csv"
    manifest.write_text("\n".join(["path,label", *lines]))
    assert open_images(manifest, cache=cache).content == whole.content
    others = set()
    for text in (["path,label", *lines[::-1]], ["path,label", *lines[:-1], "b/39.png,0"], ["path", *whole.names]):
        manifest.write_text("\n".join(text))
        others.add(open_images(manifest, cache=cache).content)
    others |= {open_images(photos, 2, cache=cache).content, open_images(photos, cache=cache, channels=1).content}
    assert len(others | {whole.content}) == 6


def test_cache_that_is_a_file_is_refused_in_one_line(photos, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError) as refused:
        open_images(photos, cache=tmp_path / "file")
    assert str(refused.value) == (
        f"{photos} cannot be decoded into {tmp_path}/file/decoded (Not a directory): make room there, or give another "
        "directory with cache= (--data-root) or WILDOOD_DATA"
    )


def test_read_only_cache_that_agrees_is_used(photos, cache, decodings, monkeypatch):
    open_images(photos, cache=cache)
    (lock,) = (cache / "decoded").glob("*.lock")
    lock.unlink()
    decodings.clear()
    really = Path.open

    def read_only(path, mode="r", *rest, **more):
        if "r" not in mode:
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return really(path, mode, *rest, **more)

    monkeypatch.setattr(Path, "open", read_only)
    assert greys(open_images(photos, cache=cache)) == list(range(40))
    assert decodings == []
    grey(41).save(photos / "b" / "41.png")
    with pytest.raises(InputError, match=r"\(Read-only file system\): make room there, or give another"):
        open_images(photos, cache=cache)


def test_lock_of_a_finished_open_is_free(photos, cache):
    open_images(photos, cache=cache)
    (lock,) = (cache / "decoded").glob("*.lock")
    with locked(lock) as held:
        assert held


OPEN = """
import logging, os, sys, time
from pathlib import Path
from wildood.data import image_cache as building
from wildood.data.folders import open_images
photos, cache, signals, stop = map(Path, sys.argv[1:])
logging.basicConfig(level=logging.INFO, format="%(message)s")
really, count = building.decode, 0
def decode(path, framing):
    global count
    count += 1
    if path.endswith("30.png"):
        (signals / "busy").touch()
        while not stop.exists():
            time.sleep(0.01)
    return really(path, framing)
building.decode = decode
images = open_images(photos, cache=cache, workers=2)
print(count, images.content, images.examples[:, 0, 0, 0].tolist() == list(range(40)))
"""


@contextmanager
def opening(*arguments):
    """Another process that opens the pictures, and stops in the middle until a file is there."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command, pipe = [sys.executable, "-c", OPEN, *map(str, arguments)], subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until_busy(process, signals):
    while not (signals / "busy").exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)


def test_killed_build_is_not_believed_and_its_leftovers_are_removed(photos, cache, tmp_path):
    with opening(photos, cache, tmp_path, tmp_path / "never") as process:
        wait_until_busy(process, tmp_path)
        process.kill()
    assert len(left_in(cache)) == 1
    assert greys(open_images(photos, cache=cache)) == list(range(40))
    assert left_in(cache) == []


def test_leftovers_of_a_killed_build_of_other_pictures_are_removed_too(photos, cache, tmp_path):
    with opening(photos, cache, tmp_path, tmp_path / "never") as process:
        wait_until_busy(process, tmp_path)
        process.kill()
    open_images(photos / "a", cache=cache)
    assert left_in(cache) == []


def test_second_process_waits_for_the_first_and_decodes_nothing(photos, cache, tmp_path):
    with opening(photos, cache, tmp_path, tmp_path / "go") as first:
        wait_until_busy(first, tmp_path)
        with opening(photos, cache, tmp_path, tmp_path / "go") as second:
            assert second.stderr.readline() == f"{photos}: waiting for another process that decodes these pictures\n"
            open_images(photos / "a", cache=cache)  # must leave the draft of the first alone
            (tmp_path / "go").touch()
            one, two = first.communicate()[0].split(), second.communicate()[0].split()
    assert (one[0], two[0]) == ("40", "0")
    assert one[1:] == two[1:]
    assert one[2] == "True"
    assert left_in(cache) == []


def test_processes_without_locks_both_succeed(photos, cache, tmp_path, monkeypatch):
    monkeypatch.setattr("wildood.data.files._lock", lambda *_, **__: False)
    with opening(photos, cache, tmp_path, tmp_path / "go") as other:
        wait_until_busy(other, tmp_path)
        ours = open_images(photos, cache=cache)
        (tmp_path / "go").touch()
        assert other.communicate()[0].split() == ["40", ours.content, "True"]
    assert greys(ours) == list(range(40))
    assert ours.names[39] == "b/39.png"
    assert left_in(cache) == []


def test_publishing_over_a_cache_that_comes_and_goes(tmp_path, monkeypatch):
    """Without locks, another process may put its own cache there between two steps."""
    draft, place = tmp_path / "draft.part", tmp_path / "place"
    for path in (draft, place):
        path.mkdir()
        (path / "text").write_text(path.name)
    really, rivals = Path.rename, iter([True, False])

    def rename(path, target):
        found = really(path, target)
        if path == place and next(rivals):
            place.mkdir()
            (place / "text").write_text("rival")
        return found

    monkeypatch.setattr(Path, "rename", rename)
    decoded._publish(draft, place)
    assert (place / "text").read_text() == "draft.part"
    assert [path.name for path in tmp_path.iterdir()] == ["place"]
