"""Images are decoded once, by one process at a time; a cache is used only if it is whole and every file is as it was."""

import copy
import errno
import json
import logging
import math
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
import warnings
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from wildood.data import image_cache
from wildood.data.files import locked
from wildood.data.folders import open_images
from wildood.data.image_cache import Index, Listed, Names, index_line
from wildood.data.images import Broken, Decoded
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


PROGRAM = Path(__file__).with_name("open_and_wait.py")


@contextmanager
def opening(*arguments):
    """Another process that opens the pictures, and stops in the middle until a file is there."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command, pipe = [sys.executable, PROGRAM, *map(str, arguments)], subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until_busy(process, signals):
    while not (signals / "busy").exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)


@pytest.mark.slow
def test_killed_build_is_not_believed_and_its_leftovers_are_removed(photos, cache, tmp_path):
    with opening(photos, cache, tmp_path, tmp_path / "never") as process:
        wait_until_busy(process, tmp_path)
        process.kill()
    assert len(left_in(cache)) == 1
    assert greys(open_images(photos, cache=cache)) == list(range(40))
    assert left_in(cache) == []


@pytest.mark.slow
def test_leftovers_of_a_killed_build_of_other_pictures_are_removed_too(photos, cache, tmp_path):
    with opening(photos, cache, tmp_path, tmp_path / "never") as process:
        wait_until_busy(process, tmp_path)
        process.kill()
    open_images(photos / "a", cache=cache)
    assert left_in(cache) == []


@pytest.mark.slow
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


@pytest.mark.slow
def test_processes_without_locks_both_succeed(photos, cache, tmp_path, monkeypatch):
    monkeypatch.setattr("wildood.data.files._lock", lambda *_: None)
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
    image_cache._publish(draft, place)
    assert (place / "text").read_text() == "draft.part"
    assert [path.name for path in tmp_path.iterdir()] == ["place"]


def place_of(cache):
    (place,) = [path for path in (cache / "decoded").iterdir() if path.is_dir()]
    return place


def truncate(path):
    os.truncate(path, path.stat().st_size - 1)


def lengthen(path):
    with path.open("ab") as file:
        file.write(b"x")


def damage(path):
    content = path.read_bytes()
    path.write_bytes(content[:100] + b"\xff" + content[101:])


@pytest.mark.parametrize("harm", [Path.unlink, truncate, lengthen])
@pytest.mark.parametrize("name", ["examples.npy", "labels.npy", "index.jsonl", "about.json"])
def test_torn_cache_is_decoded_anew(photos, cache, decodings, name, harm):
    open_images(photos, cache=cache)
    decodings.clear()
    harm(place_of(cache) / name)
    images = open_images(photos, cache=cache)
    assert (greys(images), images.labels.tolist()) == (list(range(40)), [0] * 20 + [1] * 20)
    assert len(decodings) == 40
    decodings.clear()
    open_images(photos, cache=cache)
    assert decodings == []
    assert left_in(cache) == []


@pytest.mark.parametrize("name", ["index.jsonl", "about.json"])
def test_cache_of_the_right_size_with_another_text_is_decoded_anew(photos, cache, decodings, name):
    open_images(photos, cache=cache)
    decodings.clear()
    damage(place_of(cache) / name)
    assert greys(open_images(photos, cache=cache)) == list(range(40))
    assert len(decodings) == 40


def test_cache_with_a_label_that_was_changed_is_decoded_anew(photos, cache, decodings):
    open_images(photos, cache=cache)
    decodings.clear()
    path = place_of(cache) / "labels.npy"
    labels = np.load(path)
    labels[3] = 1
    np.save(path, labels)
    assert open_images(photos, cache=cache).labels.tolist() == [0] * 20 + [1] * 20
    assert len(decodings) == 40


@pytest.mark.parametrize("text", ["[]", "{}", "null", '{"source": 3}'])
def test_about_that_says_nothing_is_not_believed(photos, cache, decodings, text):
    open_images(photos, cache=cache)
    decodings.clear()
    (place_of(cache) / "about.json").write_text(text)
    assert greys(open_images(photos, cache=cache)) == list(range(40))
    assert len(decodings) == 40


@pytest.mark.parametrize(
    "wrong", [{"content": ["x"]}, {"broken": [[math.inf, "a", "b", False]]}, {"shape": [40, "3", 4, 3]}]
)
def test_about_with_a_wrong_value_is_not_believed(photos, cache, decodings, wrong):
    open_images(photos, cache=cache)
    decodings.clear()
    path = place_of(cache) / "about.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | wrong))
    images = open_images(photos, cache=cache)
    assert (greys(images), images.fingerprint() != "") == (list(range(40)), True)
    assert len(decodings) == 40


def test_cache_of_other_pictures_is_not_believed(photos, cache, decodings, tmp_path):
    shutil.copytree(photos, tmp_path / "other")
    grey(9).save(tmp_path / "other" / "a" / "00.png")
    open_images(photos, cache=cache)
    open_images(tmp_path / "other", cache=tmp_path / "foreign")
    ours = place_of(cache)
    shutil.rmtree(ours)
    shutil.copytree(place_of(tmp_path / "foreign"), ours)
    decodings.clear()
    assert greys(open_images(photos, cache=cache)) == list(range(40))
    assert len(decodings) == 40


@pytest.mark.parametrize("kind", ["file", "link", "empty folder"])
def test_whatever_lies_in_the_place_of_a_cache_gives_way(photos, cache, tmp_path, kind):
    open_images(photos, cache=cache)
    place = place_of(cache)
    shutil.rmtree(place)
    if kind == "file":
        place.write_text("mine")
    elif kind == "link":
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "kept.txt").write_text("kept")
        place.symlink_to(tmp_path / "mine")
    else:
        place.mkdir()
    assert greys(open_images(photos, cache=cache)) == list(range(40))
    assert left_in(cache) == []
    if kind == "link":
        assert (tmp_path / "mine" / "kept.txt").read_text() == "kept"


def test_file_that_could_not_be_read_is_tried_again_when_it_can(photos, cache, decodings, monkeypatch):
    really = open
    path = photos / "a" / "07.png"

    def refuse(file, *rest, **more):
        if os.fspath(file) == str(path):
            raise PermissionError(errno.EACCES, "Permission denied", file)
        return really(file, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", refuse)
        patch.setattr(image_cache, "_can_be_read", lambda _: False)
        for _ in range(2):
            assert open_images(photos, cache=cache, skip_broken=True).broken == ("a/07.png",)
        assert len(decodings) == 40
    decodings.clear()
    images = open_images(photos, cache=cache)
    assert (images.broken, greys(images)) == ((), list(range(40)))
    assert decodings == ["07.png"]


def test_pipe_and_dangling_link_are_broken_again_at_the_second_open(photos, cache, decodings):
    os.mkfifo(photos / "a" / "pipe.png")
    (photos / "b" / "gone.png").symlink_to(photos / "nowhere.png")
    for expected in (42, 0):
        assert open_images(photos, cache=cache, skip_broken=True).broken == ("a/pipe.png", "b/gone.png")
        assert len(decodings) == expected
        decodings.clear()
    grey(40).save(photos / "nowhere.png")
    images = open_images(photos / "b", cache=cache)
    assert greys(images) == [*range(20, 40), 40]


def test_what_is_known_of_files_is_made_once_before_the_threads_ask(photos, cache, monkeypatch):
    open_images(photos, cache=cache)
    grey(100).save(photos / "b" / "zz.png")
    readers, really = [], Index.lines

    def lines(index):
        readers.append(threading.current_thread())
        return really(index)

    monkeypatch.setattr(Index, "lines", lines)
    open_images(photos, cache=cache, workers=4)
    # Twice to see whether the cache agrees, once to know its files by their hashes.
    assert readers == [threading.main_thread()] * 3


def test_array_of_the_cache_is_a_plain_npy_file(photos, cache):
    open_images(photos, cache=cache)
    array = np.load(place_of(cache) / "examples.npy")
    assert array[:, 0, 0, 0].tolist() == list(range(40))
    about = json.loads((place_of(cache) / "about.json").read_text())
    assert about["shape"] == [40, 3, 4, 3]
    assert about["sizes"]["examples.npy"] == 128 + array.nbytes


def break_some(photos):
    (photos / "a" / "07.png").write_bytes(b"")
    (photos / "b" / "33.png").write_bytes((photos / "b" / "33.png").read_bytes()[:-30])


def test_broken_file_stops_with_its_name_and_a_way_out(photos, cache):
    (photos / "a" / "07.png").write_bytes(b"")
    with pytest.raises(InputError) as refused:
        open_images(photos, cache=cache)
    assert str(refused.value) == (
        f"{photos}/a/07.png cannot be read as a picture (is empty): repair or remove such files, or leave them out "
        "with skip_broken=True (--skip-broken)"
    )
    assert left_in(cache) == []


def test_pictures_beside_a_broken_one_are_decoded_once_however_often_it_stops(photos, cache, decodings):
    break_some(photos)
    for expected in (40, 0):
        with pytest.raises(InputError, match=r"a/07.png cannot be read as .* \(is empty\), nor can 1 more: repair"):
            open_images(photos, cache=cache)
        assert len(decodings) == expected
        decodings.clear()
    assert len(open_images(photos, cache=cache, skip_broken=True)) == 38
    assert decodings == []
    for number, name in ((7, "a/07.png"), (33, "b/33.png")):
        grey(number).save(photos / name)
    assert greys(open_images(photos, cache=cache)) == list(range(40))
    assert sorted(decodings) == ["07.png", "33.png"]


def test_broken_files_are_left_out_listed_and_remembered(photos, cache, decodings, caplog):
    break_some(photos)
    for expected in (40, 0):
        with caplog.at_level(logging.WARNING, logger="wildood"):
            images = open_images(photos, cache=cache, skip_broken=True)
        assert images.broken == ("a/07.png", "b/33.png")
        assert greys(images) == [value for value in range(40) if value not in {7, 33}]
        assert [int(name[2:4]) for name in images.names] == greys(images)
        assert images.labels.tolist() == [0] * 19 + [1] * 19
        counted, first, second = caplog.messages
        assert counted == f"{photos}: 2 left out because they cannot be read:"
        assert first == "  a/07.png (is empty)"
        assert second.startswith("  b/33.png (")
        assert len(decodings) == expected
        decodings.clear()
        caplog.clear()
    with pytest.raises(InputError, match=r"a/07.png cannot be read as a picture \(is empty\), nor can 1 more: repair"):
        open_images(photos, cache=cache)
    assert decodings == []


def test_broken_file_is_not_tried_again_when_others_come_but_when_it_is_repaired(photos, cache, decodings):
    break_some(photos)
    open_images(photos, cache=cache, skip_broken=True)
    decodings.clear()
    grey(100).save(photos / "b" / "zz.png")
    images = open_images(photos, cache=cache, skip_broken=True)
    assert decodings == ["zz.png"]
    assert images.broken == ("a/07.png", "b/33.png")
    grey(7).save(photos / "a" / "07.png")
    images = open_images(photos, cache=cache, skip_broken=True)
    assert decodings == ["zz.png", "07.png"]
    assert images.broken == ("b/33.png",)
    assert greys(images) == [*range(33), *range(34, 40), 100]


def test_folder_of_broken_files_alone_is_refused(tmp_path, cache):
    (tmp_path / "photos").mkdir()
    for name in ("a.png", "b.png"):
        (tmp_path / "photos" / name).write_bytes(b"")
    with pytest.raises(InputError) as refused:
        open_images(tmp_path / "photos", cache=cache, skip_broken=True)
    assert str(refused.value) == (
        f"{tmp_path}/photos: not one of its pictures (2) can be read, such as a.png (is empty): repair them, or give others"
    )


def test_a_thousand_broken_files_are_told_by_their_names_and_the_others_counted(tmp_path, cache, caplog):
    (tmp_path / "photos").mkdir()
    grey(1).save(tmp_path / "photos" / "fine.png")
    names = [f"{number:04}.png" for number in range(1003)]
    for name in names:
        (tmp_path / "photos" / name).touch()
    images = open_images(tmp_path / "photos", cache=cache, skip_broken=True)
    assert images.broken == tuple(names)
    assert caplog.messages[1:] == [*(f"  {name} (is empty)" for name in names[:1000]), "  and 3 others"]


@pytest.mark.parametrize("skip_broken", [True, False])
def test_pictures_of_several_sizes_need_a_size(photos, cache, skip_broken):
    Image.new("RGB", (7, 5)).save(photos / "b" / "zz.png")
    with pytest.raises(InputError) as refused:
        open_images(photos, cache=cache, skip_broken=skip_broken)
    assert str(refused.value) == (
        f"{photos}: a/00.png is 4 x 3 pixels, b/zz.png 7 x 5 (width x height): give one size for all, such as size=32 "
        "(--size 32 32)"
    )
    assert open_images(photos, 2, cache=cache).examples.shape == (41, 2, 2, 3)


def test_picture_of_another_size_is_found_beside_those_decoded_before(photos, cache):
    open_images(photos, cache=cache)
    Image.new("RGB", (7, 5)).save(photos / "a" / "00.png")
    with pytest.raises(InputError, match=r"a/00.png is 7 x 5 pixels, a/01.png 4 x 3 \(width x height\)"):
        open_images(photos, cache=cache)


def test_pictures_that_all_have_another_size_now_are_taken(photos, cache):
    open_images(photos, cache=cache)
    for path in photos.rglob("*.png"):
        Image.new("RGB", (7, 5)).save(path)
    assert open_images(photos, cache=cache).examples.shape == (40, 5, 7, 3)


def test_picture_too_small_to_crop_is_refused_even_if_broken_ones_are_not(photos, cache):
    with pytest.raises(InputError, match=r"a/00.png is 4 x 3 pixels, too small to cut 4 x 4 .* or how='cover'"):
        open_images(photos, 4, how="centre", cache=cache, skip_broken=True)


def test_full_disk_is_told_in_one_line_and_leaves_nothing(photos, cache, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(InputError, match=r"cannot be decoded into .*decoded \(No space left on device\): make"):
            open_images(photos, cache=cache)
    assert left_in(cache) == []
    assert greys(open_images(photos, cache=cache)) == list(range(40))


def test_interrupted_build_leaves_nothing_and_the_next_one_is_whole(photos, cache, monkeypatch):
    def interrupt(path, framing):
        if path.endswith("30.png"):
            raise KeyboardInterrupt
        return really(path, framing)

    really = image_cache.decode
    with monkeypatch.context() as patch:
        patch.setattr(image_cache, "decode", interrupt)
        with pytest.raises(KeyboardInterrupt):
            open_images(photos, cache=cache)
    assert left_in(cache) == []
    assert not [path for path in (cache / "decoded").iterdir() if path.is_dir()]
    assert greys(open_images(photos, cache=cache)) == list(range(40))


def test_interrupted_rebuild_leaves_the_old_cache(photos, cache, decodings, monkeypatch):
    open_images(photos, cache=cache)
    grey(50).save(photos / "b" / "50.png")
    with monkeypatch.context() as patch:
        patch.setattr(image_cache, "decode", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            open_images(photos, cache=cache)
    decodings.clear()
    assert greys(open_images(photos, cache=cache)) == [*range(40), 50]
    assert decodings == ["50.png"]


def test_files_are_decoded_only_a_bounded_way_ahead():
    worked = []
    files = (image_cache.Listed(str(number), 0, 0, 0, None) for number in range(5000))
    outcomes = image_cache.in_order(files, lambda listed: worked.append(1) or image_cache.Broken(""), workers=2)
    for taken in range(1, 200):
        next(outcomes)
        assert len(worked) <= taken + 6 * 16
    outcomes.close()
    assert len(worked) < 500


def test_warning_filters_are_left_as_they_were(photos, cache, monkeypatch):
    before = list(warnings.filters)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 7)
    with pytest.raises(InputError, match="could be decompression bomb"):
        open_images(photos, cache=cache)
    assert list(warnings.filters) == before


class Terminal:
    def __init__(self):
        self.text = ""

    def isatty(self):
        return True

    def write(self, text):
        self.text += text

    def flush(self):
        pass


@pytest.mark.parametrize(("files", "level", "shown"), [(30, 0, True), (50, 0, False), (30, logging.WARNING, False)])
def test_bar_is_shown_on_a_terminal_for_many_files_unless_quiet(photos, cache, monkeypatch, files, level, shown):
    terminal = Terminal()
    monkeypatch.setattr(image_cache, "_WITH_BAR", files)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(logging.getLogger("wildood"), "level", level)
    open_images(photos, cache=cache)
    assert ("decoding" in terminal.text) == shown


PIXELS = np.zeros((1, 1, 3), np.uint8)
FILES = [Listed(f"é {number}\n.png", number, 10 * number, 5, number % 2) for number in range(50)]


@pytest.fixture
def index(tmp_path):
    lines = [index_line(file, Broken("torn") if file.size % 10 == 3 else Decoded("d" * 32, PIXELS)) for file in FILES]
    path = tmp_path / "index.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return Index(path)


@pytest.fixture
def names(index):
    return Names(index, np.array([3, 13, 23, 33, 43]), 45)


def test_every_file_is_found_in_its_line(index):
    assert [*map(index.finder(), FILES)] == list(range(50))


def test_label_may_change_but_nothing_else(index):
    find = index.finder()
    assert find(FILES[7]._replace(label=None)) == 7
    for other in ({"size": 0}, {"changed": 0}, {"stamped": 0}, {"name": "other.png"}):
        assert find(FILES[7]._replace(**other)) is None


def test_files_whose_hashes_are_equal_are_told_apart(index, monkeypatch):
    monkeypatch.setattr(image_cache, "_hash", lambda record: 0)
    find = index.finder()
    assert [*map(find, FILES)] == list(range(50))
    assert find(FILES[7]._replace(size=0)) is None


def test_names_are_those_of_examples_in_order(names):
    expected = [file.name for file in FILES if file.size % 10 != 3]
    assert list(names) == expected
    assert len(names) == 45
    assert names[-1] == expected[-1]
    assert names[10:40:7] == expected[10:40:7]
    assert expected[20] in names
    with pytest.raises(IndexError):
        names[45]


def test_names_survive_a_copy_and_another_process(names):
    assert list(copy.deepcopy(names)) == list(names)
    assert list(pickle.loads(pickle.dumps(names))) == list(names)  # noqa: S301 - our own
