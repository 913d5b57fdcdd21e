"""A folder is listed in one order, whatever is in it, and nothing that looks like a picture is dropped in silence."""

import logging
import os
from contextlib import contextmanager

import pytest

from wildood.data.folders import Folder
from wildood.data.image_cache import Listed
from wildood.errors import InputError


def touched(place, *names):
    for name in names:
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return Folder(place)


def pairs(folder):
    return [(file.name, file.label) for file in folder]


def test_class_folders_are_numbered_by_name_and_hold_files_at_any_depth(tmp_path):
    folder = touched(tmp_path, "dog/b.png", "cat/deep/er/a.JPG", "cat/z.webp", "dog/a.tiff")
    assert folder.classes == ("cat", "dog")
    assert folder.unlabelled == ""
    assert pairs(folder) == [("cat/deep/er/a.JPG", 0), ("cat/z.webp", 0), ("dog/a.tiff", 1), ("dog/b.png", 1)]


def test_every_kind_of_picture_is_found_by_its_name(tmp_path):
    kinds = ["jpg", "jpeg", "jfif", "png", "bmp", "gif", "tif", "tiff", "webp", "ppm", "pgm"]
    kinds += ["heic", "heif", "avif", "jp2"]  # which cannot be read, and are to be refused by name
    folder = touched(tmp_path, *(f"a.{kind}" for kind in kinds), *(f"b.{kind.upper()}" for kind in kinds))
    assert sorted(file.name.lower()[2:] for file in folder) == sorted(kinds * 2)


def test_pictures_alone_have_no_labels(tmp_path):
    folder = touched(tmp_path, "b.png", "a.png")
    assert pairs(folder) == [("a.png", None), ("b.png", None)]
    assert folder.classes == ()
    assert folder.unlabelled == "put the pictures of each class into a folder of their own"


def test_pictures_beside_class_folders_are_kept_and_take_the_labels_away(tmp_path):
    folder = touched(tmp_path, "cat/1.png", "stray.png", "dog/1.png")
    assert pairs(folder) == [("cat/1.png", None), ("dog/1.png", None), ("stray.png", None)]
    assert folder.classes == ()
    assert folder.unlabelled == "stray.png lies beside folders: put every picture into the folder of its class"


def test_order_is_that_of_the_names_level_by_level(tmp_path):
    folder = touched(tmp_path, "a/2.png", "a/1/9.png", "a/10.png", "a.b/1.png", "B/1.png")
    assert [file.name for file in folder] == ["B/1.png", "a/1/9.png", "a/10.png", "a/2.png", "a.b/1.png"]


def test_other_and_hidden_files_are_left_alone_and_counted(tmp_path, caplog):
    names = ("cat/notes.txt", ".thumbs/1.png", "cat/.2.png", "labels.csv", "cat/Thumbs.db", "cat/.DS_Store")
    folder = touched(tmp_path, "cat/1.png", *names)
    assert pairs(folder) == [("cat/1.png", 0)]
    with caplog.at_level(logging.INFO, logger="wildood"):
        folder.remarks()
    message = "files left alone, hidden or not pictures by their names: 6, such as .thumbs"
    assert caplog.record_tuples == [("wildood", logging.INFO, f"{tmp_path}: {message}")]


def test_folders_that_archivers_leave_behind_are_no_classes(tmp_path):
    folder = touched(tmp_path, "cat/1.png", "dog/1.png", "__MACOSX/cat/1.png", ".git/1.png", "dog/__MACOSX/1.png")
    assert folder.classes == ("cat", "dog")
    assert pairs(folder) == [("cat/1.png", 0), ("dog/1.png", 1)]
    assert folder.left_alone.count == 3


@pytest.mark.parametrize(
    ("names", "classes"),
    [
        (["0", "1", "10", "2"], ("0", "1", "2", "10")),
        (["10", "009", "9", "8"], ("8", "009", "9", "10")),
        (["0", "1", "10", "2", "other"], ("0", "1", "10", "2", "other")),
        (["-1", "10", "2"], ("-1", "10", "2")),
        (["²", "10", "2"], ("10", "2", "²")),
    ],
)
def test_classes_are_numbered_by_value_if_all_are_integers_else_by_name(tmp_path, names, classes):
    folder = touched(tmp_path, *(f"{name}/a.png" for name in names))
    assert folder.classes == classes
    assert dict(pairs(folder)) == {f"{name}/a.png": at for at, name in enumerate(classes)}


def test_class_without_pictures_keeps_its_number_and_is_warned_of(tmp_path, caplog):
    (tmp_path / "bird").mkdir()
    folder = touched(tmp_path, "ant/1.png", "cat/1.png")
    assert folder.classes == ("ant", "bird", "cat")
    assert pairs(folder) == [("ant/1.png", 0), ("cat/1.png", 2)]
    folder.remarks()
    message = f"{tmp_path}: classes without pictures: 1, such as bird"
    assert caplog.record_tuples == [("wildood", logging.WARNING, message)]


def test_nothing_is_said_where_nothing_is_left_alone(tmp_path, caplog):
    folder = touched(tmp_path, "ant/1.png")
    list(folder)
    with caplog.at_level(logging.INFO, logger="wildood"):
        folder.remarks()
    assert caplog.messages == []


def test_links_to_folders_are_followed_and_loops_are_not(tmp_path):
    folder = touched(tmp_path / "set", "cat/1.png")
    touched(tmp_path / "elsewhere", "2.png")
    (tmp_path / "set" / "cat" / "more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "set" / "cat" / "up").symlink_to(tmp_path / "set")
    (tmp_path / "elsewhere" / "self").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "set" / "dog").symlink_to(tmp_path / "elsewhere")
    folder = Folder(tmp_path / "set")
    assert pairs(folder) == [("cat/1.png", 0), ("cat/more/2.png", 0), ("dog/2.png", 1)]
    assert folder.left_alone.count == 3


def test_names_may_hold_spaces_any_letters_and_even_no_text(tmp_path):
    names = ["été/photo 1.png", "日本/鳥 (2).png", 'q"uo\\te/a\nb.png']
    folder = touched(tmp_path, *names)
    strange = os.fsencode(tmp_path) + b"/\xff/\xfe.png"
    os.mkdir(os.path.dirname(strange))  # noqa: PTH102, PTH120 - pathlib has no paths of bytes
    with open(strange, "wb"):  # noqa: PTH123
        pass
    folder = Folder(tmp_path)
    assert {file.name for file in folder} == {*names, "\udcff/\udcfe.png"}


def test_what_only_looks_like_a_picture_is_listed_all_the_same(tmp_path):
    (tmp_path / "gone.png").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.png")
    assert list(Folder(tmp_path)) == [Listed("gone.png", -1, 0, 0, None), Listed("pipe.png", -1, 0, 0, None)]


def test_size_and_times_of_change_are_those_of_the_file(tmp_path):
    folder = touched(tmp_path, "a.png")
    os.utime(tmp_path / "a.png", ns=(1, 1_700_000_000_123_456_789))
    stamped = (tmp_path / "a.png").stat().st_ctime_ns
    assert list(folder) == [Listed("a.png", 1, 1_700_000_000_123_456_789, stamped, None)]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), "holds no pictures: give a folder with .bmp, .gif, "),
        (("a.svg", "b/c.txt"), "holds no pictures, but other files (2, such as a.svg): give a folder with .bmp"),
    ],
)
def test_folder_without_pictures_is_refused(tmp_path, names, message):
    with pytest.raises(InputError) as refused:
        list(touched(tmp_path, *names))
    assert str(refused.value).startswith(f"{tmp_path} {message}")


def test_folder_that_may_not_be_listed_is_refused_by_its_name(tmp_path, monkeypatch):
    folder = touched(tmp_path, "cat/1.png", "dog/1.png")
    really = os.listdir

    def listdir(path):
        if os.fspath(path).rstrip("/").endswith("dog"):
            raise PermissionError(13, "Permission denied", path)
        return really(path)

    monkeypatch.setattr(os, "listdir", listdir)
    with pytest.raises(InputError, match=r"dog cannot be listed \(Permission denied\): give a folder that you"):
        list(folder)


def test_class_that_appears_while_listing_is_refused(tmp_path):
    folder = touched(tmp_path, "cat/1.png")
    touched(tmp_path, "dog/1.png")
    with pytest.raises(InputError, match="dog appeared while it was listed: open it again"):
        list(folder)


@contextmanager
def nested(place, depth):
    """A picture in so many folders, one in the other; afterwards two are left, as pytest could not remove more."""
    (place / "cat").mkdir()
    open_folders = [os.open(place / "cat", os.O_RDONLY)]
    try:
        for _ in range(depth):
            os.mkdir("d", dir_fd=open_folders[-1])
            open_folders.append(os.open("d", os.O_RDONLY, dir_fd=open_folders[-1]))
            if len(open_folders) > 2:
                os.close(open_folders.pop(0))
        os.close(os.open("1.png", os.O_CREAT, dir_fd=open_folders[-1]))
        yield Folder(place)
    finally:
        for folder in open_folders:
            os.close(folder)
        while (place / "cat/d/d").exists():  # shutil.rmtree calls itself for each of them
            (place / "cat/d/d").rename(place / "cat/e")
            (place / "cat/d").rmdir()
            (place / "cat/e").rename(place / "cat/d")


def test_folders_may_lie_deeper_in_each_other_than_python_calls_may(tmp_path):
    with nested(tmp_path, 1500) as folder:
        assert pairs(folder) == [(f"cat/{'d/' * 1500}1.png", 0)]


def test_folders_deeper_than_a_path_may_be_long_are_left_alone(tmp_path):
    with (
        nested(tmp_path, 2500) as folder,
        pytest.raises(InputError, match=r"holds no pictures, but other files \(1, such as"),
    ):
        list(folder)
