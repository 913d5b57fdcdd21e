"""A cache is believed only if it is whole and its own, and every file is as it was."""

import errno
import json
import math
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from wildood.data import image_cache as stored
from wildood.data.folders import open_images
from wildood.data.image_cache import Index


def grey(number):
    return Image.new("RGB", (4, 3), (number, number, number))


def greys(images):
    return images.examples[:, 0, 0, 0].tolist()


def place_of(cache):
    (place,) = [path for path in (cache / "decoded").iterdir() if path.is_dir()]
    return place


def left_in(cache):
    """What lies in the cache beside whole caches and locks."""
    return [path.name for path in (cache / "decoded").iterdir() if len(path.stem) != 32]


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
        patch.setattr(stored, "_can_be_read", lambda _: False)
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
