"""A cache is built in order, within bounds, and whole or not at all; what is wrong with a picture is told."""

import errno
import logging
import os
import sys
import warnings

import pytest
from PIL import Image

from wildood.data import image_cache as building
from wildood.data.folders import open_images
from wildood.errors import InputError


def grey(number):
    return Image.new("RGB", (4, 3), (number, number, number))


def greys(images):
    return images.examples[:, 0, 0, 0].tolist()


def left_in(cache):
    """What lies in the cache beside whole caches and locks."""
    return [path.name for path in (cache / "decoded").iterdir() if len(path.stem) != 32]


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

    really = building.decode
    with monkeypatch.context() as patch:
        patch.setattr(building, "decode", interrupt)
        with pytest.raises(KeyboardInterrupt):
            open_images(photos, cache=cache)
    assert left_in(cache) == []
    assert not [path for path in (cache / "decoded").iterdir() if path.is_dir()]
    assert greys(open_images(photos, cache=cache)) == list(range(40))


def test_interrupted_rebuild_leaves_the_old_cache(photos, cache, decodings, monkeypatch):
    open_images(photos, cache=cache)
    grey(50).save(photos / "b" / "50.png")
    with monkeypatch.context() as patch:
        patch.setattr(building, "decode", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            open_images(photos, cache=cache)
    decodings.clear()
    assert greys(open_images(photos, cache=cache)) == [*range(40), 50]
    assert decodings == ["50.png"]


def test_files_are_decoded_only_a_bounded_way_ahead():
    worked = []
    files = (building.Listed(str(number), 0, 0, 0, None) for number in range(5000))
    outcomes = building.in_order(files, lambda listed: worked.append(1) or building.Broken(""), workers=2)
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
    monkeypatch.setattr(building, "_WITH_BAR", files)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(logging.getLogger("wildood"), "level", level)
    open_images(photos, cache=cache)
    assert ("decoding" in terminal.text) == shown
