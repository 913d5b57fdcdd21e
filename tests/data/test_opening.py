"""One function opens whatever a user has, and says what it accepts of what it cannot open."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from wildood.data.folders import open_images
from wildood.data.validation import labelled_source, unlabelled_source
from wildood.errors import InputError

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
