"""Folders and manifests are listed in one order; array files are opened as they are; open_images opens all of them."""

import io
import json
import logging
import os
import sys
import zipfile
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from wildood.data.archives import open_archive
from wildood.data.folders import Folder, Manifest, open_arrays, open_images
from wildood.data.image_cache import Listed
from wildood.data.images import Framing
from wildood.data.validation import labelled_source, unlabelled_source
from wildood.errors import InputError

X, Y = np.arange(12.0).reshape(3, 2, 2), np.array([2, 0, 1])


@pytest.fixture(autouse=True)
def _there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def touched(place, *names):
    for name in names:
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return Folder(place)


def pairs(listing):
    return [(file.name, file.label) for file in listing]


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
    assert folder.ignored.count == 3


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
    assert folder.ignored.count == 3


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


@pytest.mark.slow
def test_folders_may_lie_deeper_in_each_other_than_python_calls_may(tmp_path):
    with nested(tmp_path, 1100) as folder:
        assert pairs(folder) == [(f"cat/{'d/' * 1100}1.png", 0)]


@pytest.mark.slow
def test_folders_deeper_than_a_path_may_be_long_are_left_alone(tmp_path):
    with (
        nested(tmp_path, 2100) as folder,
        pytest.raises(InputError, match=r"holds no pictures, but other files \(1, such as"),
    ):
        list(folder)


def manifest(place, text, name="set.csv"):
    (place / "a.png").write_bytes(b"aa")
    (place / "b c.png").write_bytes(b"b")
    (place / name).write_text(text, encoding="utf-8")
    return Manifest(place / name)


@pytest.mark.parametrize("header", ["path,label", "file,class", "image,label", " Path , LABEL ", "\ufeffpath,label"])
def test_header_names_the_columns(tmp_path, header):
    listing = manifest(tmp_path, f"{header}\nb c.png,7\na.png,0\n")
    assert pairs(listing) == [("b c.png", 7), ("a.png", 0)]
    assert listing.classes == ()
    assert listing.unlabelled == ""


def test_columns_may_stand_anywhere_beside_others(tmp_path):
    listing = manifest(tmp_path, 'id,label,path,note\n1,x,a.png,"one, two"\n2,y,b c.png,\n')
    assert pairs(listing) == [("a.png", 0), ("b c.png", 1)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.png\nb c.png\n", [("a.png", None), ("b c.png", None)]),
        ("a.png,3\r\n\r\nb c.png,4\r\n", [("a.png", 3), ("b c.png", 4)]),
    ],
)
def test_header_may_be_missing_if_the_first_line_names_a_file(tmp_path, text, expected):
    assert pairs(manifest(tmp_path, text)) == expected


def test_names_of_classes_are_numbered_in_their_order(tmp_path):
    listing = manifest(tmp_path, "path,label\na.png,zebra\nb c.png,ant\na.png,10\na.png,2\n")
    assert listing.classes == ("10", "2", "ant", "zebra")
    assert pairs(listing) == [("a.png", 3), ("b c.png", 2), ("a.png", 0), ("a.png", 1)]


def test_labels_with_leading_zeros_and_integers_count_as_they_are(tmp_path):
    assert pairs(manifest(tmp_path, "path,label\na.png,01\na.png,12\n")) == [("a.png", 1), ("a.png", 12)]


def test_json_lines(tmp_path):
    lines = [{"path": "b c.png", "label": 1}, {"file": "a.png", "class": 0}, {"image": "a.png", "label": 1, "more": []}]
    listing = manifest(tmp_path, "\n\n".join(map(json.dumps, lines)), "set.JSONL")
    assert pairs(listing) == [("b c.png", 1), ("a.png", 0), ("a.png", 1)]


def test_json_lines_with_names_and_without_labels(tmp_path):
    listing = manifest(tmp_path, '{"path": "a.png", "label": "dog"}\n{"path": "a.png", "label": "cat"}\n', "a.jsonl")
    assert (listing.classes, pairs(listing)) == (("cat", "dog"), [("a.png", 1), ("a.png", 0)])
    listing = manifest(tmp_path, '{"path": "a.png"}\n{"path": "a.png", "label": null}\n', "b.jsonl")
    assert pairs(listing) == [("a.png", None), ("a.png", None)]
    assert listing.unlabelled == "add a column label to it, with an integer or a name for each picture"


def test_paths_are_relative_to_the_manifest_or_absolute(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    listing = manifest(tmp_path, f"path\na.png\n{tmp_path}/b c.png\n../{tmp_path.name}/a.png\n")
    assert [file.size for file in listing] == [2, 1, 2]


def test_file_that_is_not_there_is_listed_as_such(tmp_path):
    assert [file.size for file in manifest(tmp_path, "path\na.png\ngone.png\n.\n")] == [2, -1, -1]


WRONG = {
    "empty": ("", "set.csv: line 1 is '': begin with a header path or path,label, or with a picture's path"),
    "header only": ("path,label\n", "names no pictures: write a path on each line, below a header path or path,label"),
    "unknown header": ("name;label\na.png;1\n", "line 1 is 'name;label': begin with a header path or path,label"),
    "label missing": ("path,label\na.png,1\nb c.png,\n", "line 3 has no label where lines before have one: label"),
    "label too many": ("path,label\na.png,\nb c.png,1\n", "line 3 has a label where lines before have none: label"),
    "no path": ("path,label\na.png,1\n,1\n", "line 3 has no path: give each row that of a picture"),
    "NUL": ("path\na.png\nb\0.png\n", "line 3"),
    "negative": ("path,label\na.png,-1\n", "line 2 has label -1: give integers from 0, or names"),
    "fraction": ("path,label\na.png,1.0\n", "line 2 has label 1.0: give integers from 0, or names"),
    "comma": ("path,label\na.png,1\nb, c.png,1\n", "line 3 has 3 cells, line 1 has 2: quote a path that holds a comma"),
    "too few": ("path,label\na.png,1\nb c.png\n", "line 3 has 1 cells, line 1 has 2"),
    "three without header": ("a.png,1,2\n", "line 1 is 'a.png,1,2'"),
    "open quote": ('path\n"' + "x" * 200_000, "is not CSV"),
}


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG)
def test_wrong_table_is_refused_with_its_line(tmp_path, text, message):
    with pytest.raises(InputError) as refused:
        manifest(tmp_path, text)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("line", ["{", "[]", "3", "{}", '{"path": 3}', '{"path": "a.png", "label": [1]}', "[" * 5000])
def test_wrong_json_line_is_refused_with_its_number(tmp_path, line):
    with pytest.raises(InputError, match=r'line 2 is not as {"path": "a.png", "label": 0}: write one .* texts need'):
        manifest(tmp_path, f'{{"path": "a.png"}}\n{line}\n', "set.jsonl")


@pytest.mark.parametrize("path", [r"a\u0000.png", r"\ud800.png", ""])
def test_json_path_that_no_file_can_have_is_refused(tmp_path, path):
    with pytest.raises(InputError, match="line 1 has no path"):
        manifest(tmp_path, f'{{"path": "{path}"}}\n', "set.jsonl")


@pytest.mark.parametrize("name", ["set.csv", "set.jsonl"])
def test_manifest_that_is_no_text_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"path\n\xff\xfe.png\n" if name == "set.csv" else b'{"path": "\xff"}')
    with pytest.raises(InputError, match="is not UTF-8 text: save it as UTF-8"):
        Manifest(tmp_path / name)


def test_label_that_appears_while_reading_is_refused(tmp_path):
    listing = manifest(tmp_path, "path,label\na.png,cat\n")
    (tmp_path / "set.csv").write_text("path,label\na.png,dog\n")
    with pytest.raises(InputError, match="changed while it was read: open it again"):
        list(listing)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_a_pipe_is_refused_instead_of_waiting_for_its_other_end(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match="is a pipe, a socket or a device: give a plain file"):
        Manifest(tmp_path / name)


def test_a_label_that_is_half_a_character_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"path": "a.png", "label": "\\ud800"}\n')
    with pytest.raises(InputError, match="line 1 has a label that is no text: give a name"):
        Manifest(path)


ACCEPTED = "give a folder of pictures, a .csv or .jsonl manifest, or an .npy or .npz file of arrays"


@pytest.fixture
def pets(tmp_path):
    for name, colour in (("cat/été 1.png", "red"), ("dog/鳥.jpg", "blue"), ("dog/more/3.gif", "lime")):
        path = tmp_path / "pets" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 30), colour).save(path)
    return tmp_path / "pets"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WILDOOD_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("kind", [str, Path])
def test_folder_of_classes(pets, kind):
    images = open_images(kind(pets), size=(8, 6))
    assert images.examples.shape == (3, 8, 6, 3)
    assert images.examples.dtype == np.uint8
    assert images.labels.tolist() == [0, 1, 1]
    assert images.classes == ("cat", "dog")
    assert list(images.names) == ["cat/été 1.png", "dog/more/3.gif", "dog/鳥.jpg"]
    assert images.examples[:2, 4, 3].tolist() == [[255, 0, 0], [0, 255, 0]]
    assert np.abs(images.examples[2, 4, 3].astype(int) - [0, 0, 255]).max() <= 2
    assert (images.where, images.broken, images.unlabelled) == (str(pets), (), "")


def test_pictures_are_a_source_of_labelled_and_of_wild_examples(pets):
    images = open_images(pets, 8)
    examples, labels = labelled_source(images, "labelled").gather(torch.tensor([2, 0]))
    assert examples.dtype == torch.uint8
    assert examples[1, 0, 0].tolist() == [255, 0, 0]
    assert labels.tolist() == [1, 0]
    assert len(unlabelled_source(images, "wild")) == 3


def test_relative_and_linked_paths_share_a_cache(pets, cache, monkeypatch, tmp_path):
    (tmp_path / "link").symlink_to(pets)
    monkeypatch.chdir(tmp_path)
    contents = {open_images(path, 8).content for path in (pets, "pets", "./pets/", "link")}
    assert len(contents) == 1
    assert len(list((cache / "decoded").glob("*.lock"))) == 1
    assert open_images("link", 8).where == "link"


def test_cache_lies_where_it_is_told_else_where_the_environment_says(pets, cache, tmp_path):
    open_images(pets, 8)
    assert (cache / "decoded").is_dir()
    open_images(pets, 8, cache=str(tmp_path / "other"))
    assert (tmp_path / "other" / "decoded").is_dir()


def test_cache_that_would_count_as_a_class_is_refused(pets, tmp_path):
    for cache in (pets, pets / "new", pets / "cat"):
        with pytest.raises(InputError, match=r"lies in .*pets, where it would count as a class: give another cache="):
            open_images(pets, 8, cache=cache)
    assert len(open_images(pets, 8, cache=pets / ".cache")) == 3
    assert open_images(pets, 8, cache=pets / ".cache").classes == ("cat", "dog")


def test_cache_may_lie_beside_a_manifest(pets):
    (pets / "set.csv").write_text("path,label\ndog/more/3.gif,dog\n")
    assert open_images(pets / "set.csv", 8, cache=pets).classes == ("dog",)


def test_number_of_threads_makes_no_difference(pets):
    contents = {open_images(pets, 8, workers=count, cache=pets.parent / str(count)).content for count in (1, 2, 7)}
    assert len(contents) == 1


def test_manifest_and_its_broken_files(pets, caplog):
    (pets / "set.jsonl").write_text('{"path": "dog/鳥.jpg", "label": 3}\n{"path": "gone.png", "label": 4}\n', "utf-8")
    with pytest.raises(InputError, match=r"pets/gone.png cannot be read as a picture \(No such file or directory\): "):
        open_images(pets / "set.jsonl", 8)
    images = open_images(pets / "set.jsonl", 8, skip_broken=True)
    assert (images.labels.tolist(), images.broken, list(images.names)) == ([3], ("gone.png",), ["dog/鳥.jpg"])


def test_absolute_paths_of_a_manifest_that_lies_elsewhere(pets, tmp_path):
    manifest = tmp_path / "elsewhere" / "set.csv"
    manifest.parent.mkdir()
    manifest.write_text(f"path\n{pets}/cat/été 1.png\n../pets/dog/more/3.gif\n", "utf-8")
    images = open_images(manifest, 8)
    assert images.examples[:, 0, 0].tolist() == [[255, 0, 0], [0, 255, 0]]
    assert images.labels is None


def test_arrays_stay_as_they_are(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 7), np.float16), y=np.array([0, 1, 2, 3]))
    images = open_images(f"{tmp_path}/a.npz:x,y", size=8)
    assert (images.examples.shape, images.examples.dtype) == ((4, 7), np.float16)
    assert images.labels.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["a.heic", "b.HEIF", "c.avif", "d.jp2"])
def test_pictures_of_kinds_that_cannot_be_read_stop_with_their_names(pets, name):
    (pets / "cat" / name).write_bytes(b"\0\0\0\x18ftypheic")
    with pytest.raises(InputError, match=rf"pets/cat/{name} cannot be read as a picture \(is no picture in JPEG, PNG"):
        open_images(pets, 8)
    assert open_images(pets, 8, skip_broken=True).broken == (f"cat/{name}",)


def test_jfif_is_jpeg(pets):
    Image.new("RGB", (40, 30), "white").save(pets / "cat" / "a.jfif", "JPEG")
    images = open_images(pets, 8)
    assert images.names[0] == "cat/a.jfif"
    assert images.examples[0].min() == 255


def test_left_alone_files_are_told_at_every_open(pets, caplog):
    (pets / "README").write_text("")
    for _ in range(2):
        with caplog.at_level(logging.INFO, logger="wildood"):
            open_images(pets, 8)
    message = f"{pets}: files left alone, hidden or not pictures by their names: 1, such as README"
    assert caplog.messages == [message, message]


def test_stray_picture_takes_the_labels_and_says_what_to_do(pets):
    Image.new("RGB", (9, 9)).save(pets / "stray.png")
    images = open_images(pets, 8)
    assert (len(images), images.labels, images.classes) == (4, None, ())
    assert images.unlabelled == "stray.png lies beside folders: put every picture into the folder of its class"


def test_folder_that_links_to_itself_is_opened(pets):
    (pets / "cat" / "again").symlink_to(pets)
    assert len(open_images(pets, 8)) == 3


def test_names_that_are_no_text_are_opened_twice(tmp_path):
    (tmp_path / "odd").mkdir()
    Image.new("RGB", (2, 2), "red").save(tmp_path / "odd" / "\udcff.png")
    for _ in range(2):
        assert list(open_images(tmp_path / "odd").names) == ["\udcff.png"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", f"the path is empty: {ACCEPTED}"),
        ("nowhere", f"nowhere does not exist: {ACCEPTED}"),
        ("no.csv", f"no.csv does not exist: {ACCEPTED}"),
        ("a.txt", f"a.txt is not of a kind that can be opened: {ACCEPTED}"),
        ("a.txt/b", f"a.txt/b cannot be opened (Not a directory): {ACCEPTED}"),
        ("a.PNG", "a.PNG is one picture: give the folder that it lies in"),
        ("n\0", "the path is 'n\\x00', which no file can be named: give another path"),
    ],
)
def test_what_cannot_be_opened_is_refused_with_what_can(tmp_path, monkeypatch, path, message):
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "a.PNG"):
        (tmp_path / name).write_text("")
    with pytest.raises(InputError) as refused:
        open_images(path)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 0}, "size is 0: give a number of pixels"),
        ({"how": "best"}, "how is 'best': give 'cover', 'centre' or 'as_published'"),
        ({"channels": 2}, "channels is 2: give 3 for colour or 1 for grey"),
        ({"workers": 0}, "workers is 0: give at least 1"),
    ],
)
def test_wrong_settings_are_refused(pets, settings, message):
    with pytest.raises(InputError, match=message):
        open_images(pets, **settings)


def from_standard_input(monkeypatch, text, save, *arrays, **named):
    content = io.BytesIO()
    save(content, *arrays, **named)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content.getvalue())))
    return open_arrays(text)


def test_npy_is_mapped_into_memory_as_it_is():
    np.save("a.npy", X)
    found = open_arrays("a.npy")
    assert isinstance(found.examples, np.memmap)
    assert found.examples.dtype == np.float64
    assert np.array_equal(found.examples, X)
    assert not found.examples.flags.writeable
    assert (found.labels, found.where) == (None, "a.npy")
    assert found.unlabelled == "save x and y together, as numpy.savez does"


@pytest.mark.parametrize("names", [("x", "y"), ("images", "labels"), ("inputs", "targets"), ("features", "y")])
def test_usual_names_are_found(names):
    np.savez("a.npz", other=np.zeros(7), **dict(zip(names, (X, Y), strict=True)))
    found = open_arrays("a.npz")
    assert np.array_equal(found.examples, X)
    assert np.array_equal(found.labels, Y)
    assert (found.names, found.broken, found.classes, found.content) == ((), (), (), "")


def test_names_are_given_behind_a_colon():
    np.savez("a.npz", p=X, q=Y, x=np.zeros(2), y=np.zeros(2))
    found = open_arrays("a.npz:p,q")
    assert np.array_equal(found.examples, X)
    assert np.array_equal(found.labels, Y)
    assert open_arrays("a.npz:p").labels is None
    assert open_arrays("a.npz:p").unlabelled == ("it holds p, q, x, y: name the inputs and the labels, as in a.npz:p,q")


def test_single_array_needs_no_name():
    np.savez("a.npz", whatever=X)
    assert np.array_equal(open_arrays("a.npz").examples, X)
    np.savez("a.npz", y=X)
    assert np.array_equal(open_arrays("a.npz").examples, X)
    assert open_arrays("a.npz").labels is None


def test_file_may_have_a_colon_in_its_name():
    np.save("a.npz:x.npy", X)
    assert np.array_equal(open_arrays("a.npz:x.npy").examples, X)


def test_standard_input(monkeypatch):
    assert np.array_equal(from_standard_input(monkeypatch, "-", np.save, X).examples, X)
    found = from_standard_input(monkeypatch, "-", np.savez, x=X, y=Y)
    assert np.array_equal(found.labels, Y)
    found = from_standard_input(monkeypatch, "-:p,q", np.savez, p=X, q=Y, r=Y)
    assert np.array_equal(found.examples, X)
    assert np.array_equal(found.labels, Y)


def test_only_what_is_asked_for_is_read_from_an_archive():
    np.savez("a.npz", x=X, z=np.arange(50.0, 59.0))
    content = bytearray(Path("a.npz").read_bytes())
    at = content.index(np.arange(50.0, 59.0).tobytes())
    content[at : at + 8] = b"torn now"
    Path("a.npz").write_bytes(content)
    assert np.array_equal(open_arrays("a.npz:x").examples, X)
    with pytest.raises(InputError, match=r"a.npz is not an .npz or .npy file of plain arrays: numpy.savez writes one"):
        open_arrays("a.npz:z")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no.npy", "no.npy: No such file or directory: give the path of a file that is there"),
        ("no.npz:x,y", "no.npz: No such file or directory: give the path of a file that is there"),
        ("a.npz:x,nope", "a.npz:x,nope: no array named nope, it holds x, y, z: name one, as in a.npz:x,y"),
        ("b.npz", "b.npz: no array named x or images or inputs or features, it holds p, q: name one, as in b.npz:p,q"),
        ("a.npz:", "a.npz:: name the inputs, or the inputs and the labels, as in a.npz:x or a.npz:x,y"),
        ("a.npz:x,y,z", "a.npz:x,y,z: name the inputs, or the inputs and the labels, as in a.npz:x or a.npz:x,y"),
        ("a.npz:x,z", "a.npz:x,z: 3 examples but 2 labels: give as many of one as of the other"),
        ("number.npy", "number.npy holds a single number: give at least one example, along the first axis"),
    ],
)
def test_wrong_names_are_refused(text, message):
    np.savez("a.npz", x=X, y=Y, z=np.zeros(2))
    np.savez("b.npz", p=X, q=Y)
    np.save("number.npy", np.float64(3))
    with pytest.raises(InputError) as refused:
        open_arrays(text)
    assert str(refused.value) == message


def torn_npy():
    np.save("whole.npy", X)
    return Path("whole.npy").read_bytes()[:-1]


def torn_npz():
    np.savez("whole.npz", x=X)
    return Path("whole.npz").read_bytes()[:-30]


def with_objects():
    np.save("objects.npy", np.array([{}, []], object), allow_pickle=True)
    return Path("objects.npy").read_bytes()


@pytest.mark.parametrize("content", [bytes, lambda: b"hello", lambda: b"\x80\x04N.", torn_npy, torn_npz, with_objects])
@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
def test_file_that_holds_no_plain_arrays_is_refused(content, name):
    Path(name).write_bytes(content())
    with pytest.raises(InputError, match=f"{name} is not an .npz or .npy file of plain arrays: numpy.savez writes one"):
        open_arrays(name)


def header(shape, descr="<f4", *, by_column=False):
    return f"{{'descr': {descr!r}, 'fortran_order': {by_column}, 'shape': {shape}, }}"


MADE_UP = {
    "36 TiB": header("(9895604649984, 4)"),
    "36 TiB in one example": header("(1, 9895604649984)"),
    "36 TiB by column": header("(9895604649984, 4)", by_column=True),
    "more than a number can say": header("(99999999999999999999999, 4)"),
    "none of a huge size": header("(0, 99999999999999999999999)"),
    "fewer than none": header("(-5, 4)"),
    "fewer than none, twice": header("(-6, -4)"),
    "70 axes": header(str((1,) * 70)),
    "no shape": header("None"),
    "no such type": header("(6, 4)", "zz"),
    "brackets without end": "[" * 4000,
    "nothing": "",
}


def read_whole(name):
    unlabelled_source(open_arrays(name), "a.npy or a.npz")


def read_shards(name):
    with open_archive(name, Framing()) as archive:
        for shard in archive.shards:
            unlabelled_source(shard.read(1).examples, "a.npy or a.npz")


@pytest.mark.parametrize("read", [read_whole, read_shards])
@pytest.mark.parametrize("kind", ["npy", "npz", "lzma"])
@pytest.mark.parametrize("text", MADE_UP.values(), ids=MADE_UP)
def test_a_file_that_claims_what_cannot_be_is_refused_by_its_name(text, kind, read):
    head = text.encode().ljust(max(117, len(text) + 1)) + b"\n"
    content = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + bytes(96)
    name = "a.npy" if kind == "npy" else "a.npz"
    if kind == "npy":
        Path(name).write_bytes(content)
    else:
        with zipfile.ZipFile(name, "w", zipfile.ZIP_LZMA if kind == "lzma" else zipfile.ZIP_STORED) as archive:
            archive.writestr("x.npy", content)
    with pytest.raises(InputError, match=r"a\.np[yz]") as refused:
        read(name)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_a_damaged_archive_is_refused_whatever_its_compression(compression):
    content = io.BytesIO()
    np.save(content, np.random.default_rng(0).normal(size=(50, 4)))
    with zipfile.ZipFile("a.npz", "w", compression) as archive:
        archive.writestr("x.npy", content.getvalue())
    whole = Path("a.npz").read_bytes()
    for place in range(60, 200, 7):
        Path("a.npz").write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
        with pytest.raises(InputError, match=r"a\.npz is not an \.npz or \.npy file of plain arrays"):
            open_arrays("a.npz")


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.npz:x"])
def test_a_pipe_is_refused_as_a_file_of_arrays(name):
    os.mkfifo(name.partition(":")[0])
    with pytest.raises(InputError, match="is a pipe, a socket or a device: give a plain file"):
        open_arrays(name)
    with pytest.raises(InputError, match="is a pipe, a socket or a device"), open_archive(name, Framing()):
        pass


@pytest.mark.parametrize("labels", [np.zeros(3), np.array(["a", "b", "c"]), Y[:, None], Y.astype("M8[s]"), Y.astype("g")])
def test_labels_that_are_no_classes_leave_examples_without_labels(labels):
    np.savez("a.npz", x=X, y=labels)
    found = open_arrays("a.npz")
    assert found.labels is None
    assert torch.equal(unlabelled_source(found, "wild").gather(torch.arange(3))[0], torch.from_numpy(X))
    with pytest.raises(InputError, match=r"a\.npz has no labels: its labels have dtype .*: give one integer class"):
        labelled_source(found, "labelled")


def test_names_of_too_few_classes_are_refused():
    np.savez("a.npz", x=X, y=Y, classes=np.array(["cat", "dog"]))
    with pytest.raises(InputError, match=r"a\.npz: a label is 2, but classes names 2: name every class"):
        open_arrays("a.npz")


@pytest.mark.parametrize("order", [">f4", ">f8", ">i2", ">u2"])
def test_numbers_in_the_other_byte_order_are_read_as_they_are_meant(order):
    np.save("a.npy", X.astype(order))
    np.savez("a.npz", x=X.astype(order), y=Y.astype(">i8"))
    for name in ("a.npy", "a.npz"):
        rows, _ = unlabelled_source(open_arrays(name), "x").gather(torch.arange(3))
        assert np.array_equal(rows.numpy(), X)
        with open_archive(name, Framing()) as archive:
            shard = next(archive.shards).read(1)
        assert np.array_equal(shard.examples, X)
    assert labelled_source(open_arrays("a.npz"), "labelled").gather(torch.arange(3))[1].tolist() == Y.tolist()
