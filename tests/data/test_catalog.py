"""Named sets: their table, where their files are found, and how each published format is read."""

import logging
import os
import pickle
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from wildood.data import catalog
from wildood.data.catalog import (
    SETS,
    _read_array,
    _read_cifar,
    _read_cifar_classes,
    _read_svhn,
    is_named_set,
    open_set,
    readable_size,
)
from wildood.data.files import data_root
from wildood.data.images import Images
from wildood.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
RNG = np.random.default_rng(0)


def pixels(count):
    return RNG.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)


def cifar(place, files, labels_key, names_key, meta, classes):
    """Tiny sets in the official format: what was written, by file."""
    place.mkdir(parents=True)
    names = [f"class {number}".encode() for number in range(classes)]
    (place / meta).write_bytes(pickle.dumps({names_key: names}, protocol=2))
    written = {}
    for file in files:
        images, labels = pixels(4), RNG.integers(0, classes, 4)
        rows = images.transpose(0, 3, 1, 2).reshape(4, 3072)
        (place / file).write_bytes(pickle.dumps({b"data": rows, labels_key.encode(): labels.tolist()}, protocol=2))
        written[file] = images, labels
    return written


def cifar10(place):
    batches = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    return cifar(place, batches, "labels", b"label_names", "batches.meta", 10)


def cifar100(place):
    return cifar(place, ["train", "test"], "fine_labels", b"fine_label_names", "meta", 100)


def pictures(place, *names, size=(32, 32)):
    """Pictures without loss, by name."""
    written = {}
    for name in names:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        array = RNG.integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
        Image.fromarray(array).save(place / name)
        written[name] = array
    return written


@pytest.fixture
def few(monkeypatch):
    """Official counts that tiny sets can have."""

    def change(name, **counts):
        parts = tuple(replace(part, count=counts.get(part.name, part.count)) for part in SETS[name].parts)
        monkeypatch.setitem(SETS, name, replace(SETS[name], parts=parts))

    return change


@pytest.mark.parametrize("place", SETS["cifar10"].places)
def test_cifar10_is_found_where_others_put_it_and_joined_in_order(tmp_path, few, caplog, place):
    few("cifar10", train=20, test=4)
    written = cifar10(tmp_path / place)
    batches = [written[f"data_batch_{number}"] for number in range(1, 6)]
    train = open_set("cifar10:train", tmp_path)
    assert isinstance(train, Images)
    assert np.array_equal(train.examples, np.concatenate([images for images, _ in batches]))
    assert np.array_equal(train.labels, np.concatenate([labels for _, labels in batches]))
    assert train.labels.dtype == np.int64
    assert (train.where, len(train.classes), train.classes[3]) == ("cifar10:train", 10, "class 3")
    assert np.array_equal(open_set("cifar10:test", tmp_path).examples, written["test_batch"][0])
    assert caplog.messages == []


@pytest.mark.parametrize("place", SETS["cifar100"].places)
def test_cifar100_has_its_fine_labels(tmp_path, few, place):
    few("cifar100", train=4, test=4)
    written = cifar100(tmp_path / place)
    test = open_set("cifar100:test", tmp_path)
    assert np.array_equal(test.examples, written["test"][0])
    assert np.array_equal(test.labels, written["test"][1])
    assert len(test.classes) == 100


@pytest.mark.parametrize("place", SETS["svhn"].places)
def test_svhn_opens_each_part_that_is_there(tmp_path, few, place):
    few("svhn", train=5, test=3)
    (tmp_path / place).mkdir(exist_ok=True)
    for part, count in (("train", 5), ("test", 3)):
        images = RNG.integers(0, 256, (32, 32, 3, count), dtype=np.uint8)
        savemat(tmp_path / place / f"{part}_32x32.mat", {"X": images, "y": np.full((count, 1), 10)})
        found = open_set(f"svhn:{part}", tmp_path)
        assert np.array_equal(found.examples[count - 1], images[..., count - 1])
        assert (found.labels.tolist(), found.classes) == ([0] * count, tuple("0123456789"))
    with pytest.raises(InputError, match=r"^svhn:extra is not below .*: wildood data get svhn:extra "):
        open_set("svhn:extra", tmp_path)


@pytest.mark.parametrize("place", SETS["300k"].places)
def test_random_images_are_mapped_and_have_no_labels(tmp_path, few, place):
    few("300k", all=6)
    images = pixels(6)
    (tmp_path / place).mkdir(exist_ok=True)
    np.save(tmp_path / place / "300K_random_images.npy", images)
    found = open_set("300k", tmp_path)
    assert isinstance(found.examples, np.memmap)
    assert np.array_equal(found.examples, images)
    assert (found.labels, found.classes, found.where) == (None, (), "300k")


RESIZED = [(name, place) for name in ("lsun-r", "isun") for place in SETS[name].places]


@pytest.mark.parametrize(("name", "place"), RESIZED)
def test_resized_scenes_are_taken_as_they_are_without_labels(tmp_path, few, name, place):
    few(name, all=2)
    written = pictures(tmp_path / place, "sub/1.png", "sub/2.png")
    found = open_set(name, tmp_path)
    assert np.array_equal(found.examples, np.stack(list(written.values())))
    assert (found.labels, found.classes) == (None, ())
    assert found.unlabelled == "the set has no classes, give it as wild or test data"


def test_scenes_of_another_size_are_refused(tmp_path):
    pictures(tmp_path / "iSUN", "1.png", size=(40, 40))
    with pytest.raises(InputError, match="iSUN has pictures of 40 x 40 pixels where isun has 32 x 32: get it again"):
        open_set("isun", tmp_path)


def test_cropped_scenes_are_cut_at_the_centre_and_otherwise_as_published(tmp_path, few):
    few("lsun-c", all=3)
    written = pictures(tmp_path / "LSUN_C", "test/1.png", "test/2.png", "test/3.png", size=(36, 36))
    found = open_set("lsun-c", tmp_path)
    assert np.array_equal(found.examples, np.stack([array[2:34, 2:34] for array in written.values()]))
    assert found.labels is None
    published = open_set("lsun-c", tmp_path, as_published=True)
    assert published.examples.shape == (3, 32, 32, 3)
    assert not np.array_equal(published.examples, found.examples)
    assert np.array_equal(published.examples, open_set("lsun-c", tmp_path, as_published=True).examples)


@pytest.mark.parametrize("place", SETS["textures"].places)
def test_textures_cover_the_frame_and_have_classes(tmp_path, few, place):
    few("textures", all=3)
    pictures(tmp_path / place, "banded/1.png", "banded/2.png", "zigzagged/1.png", size=(60, 40))
    found = open_set("textures", tmp_path)
    assert found.examples.shape == (3, 32, 32, 3)
    assert (found.labels.tolist(), found.classes) == ([0, 0, 1], ("banded", "zigzagged"))
    assert found.labels.dtype == np.int64


def test_places_are_drawn_once_by_a_fixed_seed_and_the_list_is_kept(tmp_path, few):
    few("places365", all=10)
    names = [f"{number:03}.png" for number in range(40)]
    written = pictures(tmp_path / "places365" / "test_256", *names)
    found = open_set("places365", tmp_path)
    drawn = np.sort(np.random.default_rng(0).choice(40, 10, replace=False))
    assert list(found.names) == [names[index] for index in drawn]
    assert np.array_equal(found.examples, np.stack([written[names[index]] for index in drawn]))
    assert found.labels is None
    chosen = tmp_path / "places365" / "test_256" / "chosen.csv"
    assert chosen.read_text().splitlines() == ["path", *found.names]
    pictures(tmp_path / "places365" / "test_256", "000a.png")  # would change a draw
    assert list(open_set("places365", tmp_path).names) == list(found.names)
    chosen.write_text(f"path\n{names[3]}\n")
    assert list(open_set("places365", tmp_path).names) == [names[3]]


def test_places_with_a_name_that_is_no_text_are_refused_in_one_line(tmp_path, few):
    few("places365", all=3)
    pictures(tmp_path / "places365", "a.png", "b.png", "c\udcff.png", "d.png")
    with pytest.raises(InputError) as raised:
        open_set("places365", tmp_path)
    assert str(raised.value) == (
        f"places365: {tmp_path}/places365 holds 'c\\udcff.png', a name that is not UTF-8: rename it"
    )
    assert not (tmp_path / "places365" / "chosen.csv").exists()


def test_places_do_not_depend_on_the_order_in_which_a_directory_lists_them(tmp_path, few):
    few("places365", all=3)
    drawn = []
    for place, order in (("a", 1), ("b", -1)):
        pictures(tmp_path / place / "places365", *[f"{letter}/{letter}.png" for letter in "abcdefgh"[::order]])
        drawn.append(list(open_set("places365", tmp_path / place).names))
    assert drawn[0] == drawn[1]
    assert len(drawn[0]) == 3


def test_fewer_places_than_are_drawn_are_all_used_with_a_warning_and_no_list(tmp_path, caplog):
    pictures(tmp_path / "places365", "sub/1.png", "sub/2.png")
    assert list(open_set("places365", tmp_path).names) == ["sub/1.png", "sub/2.png"]
    assert caplog.messages == ["places365 has 2 images, officially 10,000"]
    assert not (tmp_path / "places365" / "chosen.csv").exists()


def test_digits_are_as_scikit_learn_has_them():
    from sklearn.datasets import load_digits  # noqa: PLC0415 - as the reader does

    scans, labels = load_digits(return_X_y=True)
    found = open_set("digits")
    assert (found.examples.shape, found.examples.dtype) == ((1797, 8, 8, 1), np.uint8)
    assert np.allclose(found.examples.reshape(1797, 64) * (16 / 255), scans, atol=0.04)
    assert np.array_equal(found.labels, labels)


def test_digits_without_scikit_learn_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setattr("wildood.data.catalog.find_spec", lambda _: None)
    with pytest.raises(InputError, match="inside scikit-learn: pip install scikit-learn"):
        open_set("digits")


def test_another_count_than_the_official_one_is_a_warning(tmp_path, caplog):
    cifar10(tmp_path / "cifar-10-batches-py")
    with caplog.at_level(logging.WARNING, logger="wildood"):
        assert len(open_set("cifar10:test", tmp_path)) == 4
    assert caplog.messages == ["cifar10:test has 4 images, officially 10,000"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cifar", "no set is named 'cifar': did you mean cifar10?"),
        ("SVHN:test", "no set is named 'SVHN': did you mean svhn?"),
        ("elephants", f"no set is named 'elephants': give one of {', '.join(SETS)}"),
        ("cifar10", "cifar10 has several parts: give cifar10:train or cifar10:test"),
        ("svhn:val", "svhn has no part 'val': give svhn:train, svhn:test or svhn:extra"),
        ("textures:train", "textures has no part 'train': give textures"),
    ],
)
def test_a_name_that_is_not_one_is_told_the_right_ones(tmp_path, text, message):
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        open_set(text, tmp_path)


def test_an_only_part_may_be_named(few):
    assert len(open_set("digits:all")) == 1797


@pytest.mark.parametrize(
    ("text", "get", "by_hand"),
    [
        ("cifar100:train", "cifar100", "train, meta in {root}/cifar100/cifar-100-python"),
        ("svhn:test", "svhn", "test_32x32.mat in {root}/svhn"),
        ("textures", "textures", "its pictures in {root}/textures/dtd/images"),
        ("300k", "300k", "300K_random_images.npy in {root}/300k"),
    ],
)
def test_a_set_that_is_missing_says_how_to_get_it(tmp_path, monkeypatch, text, get, by_hand):
    with pytest.raises(InputError) as raised:
        open_set(text, tmp_path)
    hand = by_hand.format(root=tmp_path)
    assert (
        str(raised.value)
        == f"{text} is not below {tmp_path}: wildood data get {get} --data-root {tmp_path}, or place {hand}"
    )
    monkeypatch.setenv("WILDOOD_DATA", str(tmp_path))
    with pytest.raises(InputError) as raised:
        open_set(text)
    assert str(raised.value) == f"{text} is not below {tmp_path}: wildood data get {get}, or place {hand}"


def test_a_set_that_cannot_be_downloaded_says_where_its_files_go(tmp_path, monkeypatch):
    monkeypatch.setitem(SETS, "300k", replace(SETS["300k"], downloads=()))
    with pytest.raises(InputError) as raised:
        open_set("300k", tmp_path)
    assert str(raised.value) == f"300k is not below {tmp_path}: place 300K_random_images.npy in {tmp_path}/300k"


def test_a_set_without_its_meta_file_is_missing(tmp_path):
    cifar10(tmp_path / "cifar-10-batches-py")
    (tmp_path / "cifar-10-batches-py" / "batches.meta").unlink()
    with pytest.raises(InputError, match=r"^cifar10:test is not below .*place test_batch, batches\.meta in"):
        open_set("cifar10:test", tmp_path)


def test_an_empty_directory_is_no_set_of_pictures(tmp_path):
    (tmp_path / "iSUN" / "deep").mkdir(parents=True)
    (tmp_path / "iSUN" / "deep" / "notes.txt").touch()
    with pytest.raises(InputError, match=r"^isun is not below"):
        open_set("isun", tmp_path)


def test_the_data_root_is_what_is_given_then_the_variable_then_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WILDOOD_DATA", str(tmp_path))
    assert (data_root("a"), data_root(), data_root(tmp_path / "b")) == (Path("a"), tmp_path, tmp_path / "b")
    monkeypatch.setenv("WILDOOD_DATA", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_root().name == "wildood"


def test_names_of_sets_are_told_from_files():
    assert all(map(is_named_set, [*SETS, "svhn:test"]))
    assert not any(map(is_named_set, ["a.npz", "pictures/", "svhn.npz:x", ""]))


def test_every_set_is_described():
    for named in SETS.values():
        assert named.what
        assert named.terms
        assert named.source.startswith("http")
        for download in named.downloads:
            assert re.fullmatch("[0-9a-f]{32}", download.md5)
            assert download.url.startswith("http")
            assert download.url.partition("?")[0].endswith(download.file)
            assert (download.unpacked > 0) == (download.members > 0)
            assert download.part is None or named.part(download.part)
    files = [download.file for named in SETS.values() for download in named.downloads]
    assert len(files) == len(set(files))  # checksums are recorded by the file's name


def test_every_archive_is_a_tar_file():
    """The only kind that is unpacked."""
    for download in (download for named in SETS.values() for download in named.downloads):
        assert bool(download.unpacked) == download.file.endswith((".tar", ".tar.gz"))


def sets_table() -> str:
    """The named sets as the Markdown table of docs/data.md."""
    rows = ["| name | what it is | images | download | framed to 32 x 32 by | terms |", "|---" * 6 + "|"]
    for named in SETS.values():
        parts = ", ".join(f"{part.name} {part.count:,}" for part in named.parts)
        framed = (named.how or "") + (" (or `as_published`)" if named.as_published else "")
        cells = (f"`{named.name}`", f"[{named.what}]({named.source})", parts, readable_size(named), framed, named.terms)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def test_the_documentation_has_the_table_of_the_named_sets():
    assert sets_table() in (ROOT / "docs" / "data.md").read_text(encoding="utf-8")


PIXELS = RNG.integers(0, 256, (7, 3072), dtype=np.uint8)
LABELS = [0, 3, 9, 1, 1, 2, 5]


def python2_pickle(content, module="numpy.core.multiarray"):
    """A pickle as the official files have it: protocol 2 of Python 2, with byte strings and numpy's module of then."""
    out = [b"\x80\x02}("]

    def text(value):
        out.append(
            b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + len(value).to_bytes(4, "little") + value
        )

    def integer(value):
        out.append(b"J" + value.to_bytes(4, "little", signed=True))

    for key, value in content.items():
        text(key.encode())
        if isinstance(value, np.ndarray):
            out.append(b"c" + module.encode() + b"\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01")
            for side in value.shape:
                integer(side)
            out.append(
                b"\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
            )
            text(value.tobytes())
            out.append(b"tb")
        else:
            out.append(b"](")
            for item in value:
                text(item) if isinstance(item, bytes) else integer(item)
            out.append(b"e")
    return b"".join(out) + b"u."


@pytest.fixture
def batch(tmp_path):
    return tmp_path / "data_batch_1"


def test_the_pickle_of_these_tests_is_the_one_that_numpy_reads():
    written = python2_pickle({"data": PIXELS, "labels": LABELS, "names": [b"cat"]}, "numpy._core.multiarray")
    content = pickle.loads(written, encoding="bytes")  # noqa: S301 - our own
    assert np.array_equal(content[b"data"], PIXELS)
    assert (content[b"labels"], content[b"names"]) == (LABELS, [b"cat"])


@pytest.mark.parametrize("module", ["numpy.core.multiarray", "numpy._core.multiarray"])
def test_cifar_of_python_2_is_read_row_by_row_and_channel_by_channel(batch, module):
    batch.write_bytes(python2_pickle({"data": PIXELS, "labels": LABELS}, module))
    images, labels = _read_cifar([batch, batch], "labels", classes=10)
    assert (images.shape, images.dtype, labels.dtype) == ((14, 32, 32, 3), np.uint8, np.int64)
    assert labels.tolist() == LABELS * 2
    for image, row, column, channel in ((0, 0, 0, 0), (6, 31, 30, 2), (13, 5, 17, 1)):
        assert images[image, row, column, channel] == PIXELS[image % 7, 1024 * channel + 32 * row + column]


@pytest.mark.parametrize("order", ["C", "F"])
def test_cifar_that_python_3_wrote_again_is_read_too(batch, order):
    content = {b"data": np.array(PIXELS, order=order), "fine_labels": LABELS, b"filenames": [], b"batch_label": b""}
    batch.write_bytes(pickle.dumps(content, protocol=2))
    images, labels = _read_cifar([batch], "fine_labels", classes=10)
    assert np.array_equal(images.transpose(0, 3, 1, 2).reshape(7, 3072), PIXELS)
    assert labels.tolist() == LABELS


def test_the_names_of_the_classes_are_text(batch):
    batch.write_bytes(python2_pickle({"label_names": [b"airplane", b"cat"]}))
    assert _read_cifar_classes(batch, "label_names") == ("airplane", "cat")
    with pytest.raises(InputError, match="data_batch_1 has no fine_label_names"):
        _read_cifar_classes(batch, "fine_label_names")


class Evil:
    def __reduce__(self):
        return os.system, ("echo > ran",)


class Evaluates:
    def __reduce__(self):
        return eval, ("open('ran', 'w')",)


EVIL = {
    "a system call": pickle.dumps({"data": Evil()}, protocol=2),
    "a builtin": pickle.dumps({"data": Evaluates()}, protocol=2),
    "an attribute through a dotted name": b"\x80\x04\x8c\x05numpy\x8c\x0ef2py.os.system\x93\x8c\x0aecho > ran\x85R.",
    "a class of the reader itself": b"\x80\x02cwildood.data.catalog\nimport_module\nU\x02os\x85R.",
    "an extension": b"\x80\x02\x82\x01.",
    "numpy's own loader": b"\x80\x02cnumpy\nload\nU\x01a\x85R.",
    "a persistent identity": b"\x80\x02U\x01aQ.",
}


@pytest.mark.parametrize("content", EVIL.values(), ids=EVIL)
def test_a_malicious_pickle_is_refused_without_running_it(batch, monkeypatch, content):
    monkeypatch.chdir(batch.parent)
    batch.write_bytes(content)
    with pytest.raises(InputError, match=r"data_batch_1 is not one of CIFAR's Python files \(.*\): ") as raised:
        _read_cifar([batch], "labels", classes=10)
    assert "\n" not in str(raised.value)
    assert [path.name for path in batch.parent.iterdir()] == ["data_batch_1"]


def changeable():
    """Every attribute that a pickle could set of what it may ask for."""
    return {name: (vars(found).copy(), getattr(found, "__defaults__", None)) for name, found in catalog._ALLOWED.items()}


@pytest.mark.parametrize("asked", sorted(catalog._ALLOWED))
def test_a_pickle_cannot_change_what_reads_it(batch, asked):
    """BUILD with a pair sets attributes of whatever lies on the stack."""
    module, name = (part.encode() for part in asked)
    defaults = b"}(X\x0c\0\0\0__defaults__X\x01\0\0\0aX\x01\0\0\0b\x86u"
    batch.write_bytes(b"\x80\x02c" + module + b"\n" + name + b"\nN" + defaults + b"\x86b.")
    before = changeable()
    with pytest.raises(InputError, match="data_batch_1 is not one of CIFAR's Python files"):
        _read_cifar([batch], "labels", classes=10)
    assert changeable() == before


def test_an_array_that_was_never_filled_is_one_line(batch):
    batch.write_bytes(b"\x80\x02}U\x04datacnumpy\nndarray\n)\x81s.")
    with pytest.raises(InputError, match="data_batch_1"):
        _read_cifar([batch], "labels", classes=10)


def test_the_malicious_pickle_of_these_tests_would_run_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pickle.loads(EVIL["a system call"])  # noqa: S301 - to see that the refusal is what stops it
    assert (tmp_path / "ran").exists()


WHOLE = python2_pickle({"data": PIXELS, "labels": LABELS})
BAD = {
    "empty": b"",
    "torn": WHOLE[:-100],
    "not a pickle": b"<html>not found</html>",
    "not a dict": pickle.dumps([1, 2], protocol=2),
    "no data": python2_pickle({"labels": LABELS}),
    "no labels": python2_pickle({"data": PIXELS}),
    "too few labels": python2_pickle({"data": PIXELS, "labels": LABELS[:-1]}),
    "another shape": python2_pickle({"data": PIXELS[:, :100], "labels": LABELS}),
    "a label beyond the classes": python2_pickle({"data": PIXELS, "labels": [*LABELS[:-1], 10]}),
    "a negative label": python2_pickle({"data": PIXELS, "labels": [*LABELS[:-1], -1]}),
    "labels that are text": python2_pickle({"data": PIXELS, "labels": [b"a"] * 7}),
    "floats": pickle.dumps({"data": PIXELS.astype(np.float64), "labels": LABELS}, protocol=2),
    "a shape that the bytes do not fill": WHOLE.replace((3072).to_bytes(4, "little"), (3073).to_bytes(4, "little")),
    "more images than there are bytes": python2_pickle({"data": PIXELS, "labels": [*LABELS, 0]}).replace(
        b"J\x07\0\0\0J\0\x0c\0\0", b"J\x08\0\0\0J\0\x0c\0\0"
    ),
    "a shape that would fill the memory": WHOLE.replace((3072).to_bytes(4, "little"), b"\xff\xff\xff\x7f"),
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_a_torn_or_wrong_cifar_file_is_one_line_with_its_name(batch, content):
    batch.write_bytes(content)
    with pytest.raises(InputError, match="data_batch_1") as raised:
        _read_cifar([batch], "labels", classes=10)
    assert "\n" not in str(raised.value)


def svhn(path, count=5, **changes):
    images = RNG.integers(0, 256, (32, 32, 3, count), dtype=np.uint8)
    labels = np.arange(1, count + 1, dtype=np.uint8)[:, None]
    savemat(path, {"X": images, "y": labels} | changes)
    return images


def test_svhn_has_its_images_first_and_its_zeros_as_0(tmp_path):
    original = svhn(tmp_path / "train_32x32.mat", count=10)
    images, labels = _read_svhn(tmp_path / "train_32x32.mat")
    assert (images.shape, images.dtype, labels.dtype) == ((10, 32, 32, 3), np.uint8, np.int64)
    assert images.flags["C_CONTIGUOUS"]
    assert np.array_equal(images[7], original[:, :, :, 7])
    assert labels.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]


@pytest.mark.parametrize(
    "changes",
    [
        {"X": np.zeros((32, 32, 3, 5))},
        {"X": np.zeros((28, 28, 3, 5), np.uint8)},
        {"X": np.zeros((32, 32, 3, 4), np.uint8)},
        {"y": np.array([1, 2, 3, 4, 11])},
        {"y": np.array([1, 2, 3, 4, 2.5])},
        {"y": np.array(["a", "b", "c", "d", "e"])},
    ],
    ids=["dtype", "size", "count", "label", "fraction", "text"],
)
def test_a_wrong_svhn_file_is_one_line_with_its_name(tmp_path, changes):
    svhn(tmp_path / "test_32x32.mat", **changes)
    with pytest.raises(InputError, match=r"test_32x32\.mat: [Xy] ") as raised:
        _read_svhn(tmp_path / "test_32x32.mat")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_torn_svhn_file_is_one_line_with_its_name(tmp_path, share):
    path = tmp_path / "test_32x32.mat"
    svhn(path)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(InputError, match=r"test_32x32\.mat is not a whole Matlab file with X and y: remove it"):
        _read_svhn(path)


def test_random_images_stay_on_disk(tmp_path):
    images = RNG.integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    np.save(tmp_path / "a.npy", images)
    read = _read_array(tmp_path / "a.npy")
    assert isinstance(read, np.memmap)
    assert np.array_equal(read, images)


@pytest.mark.parametrize(
    "array",
    [np.zeros((4, 32, 32, 3)), np.zeros((4, 3, 32, 32), np.uint8), np.array([{}, None])],
    ids=["dtype", "layout", "objects"],
)
def test_random_images_of_another_kind_are_one_line(tmp_path, array):
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    with pytest.raises(InputError, match=r"a\.npy .*: remove it and get it again"):
        _read_array(tmp_path / "a.npy")


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5])
def test_torn_random_images_are_one_line(tmp_path, share):
    path = tmp_path / "a.npy"
    np.save(path, np.zeros((40, 32, 32, 3), np.uint8))
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(InputError, match=r"a\.npy is not a whole \.npy file: remove it and get it again"):
        _read_array(path)
