import os
import pickle

import numpy as np
import pytest
from scipy.io import savemat

from wildood.data import formats
from wildood.data.formats import read_array, read_cifar, read_cifar_classes, read_svhn
from wildood.errors import InputError

RNG = np.random.default_rng(0)
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
    images, labels = read_cifar([batch, batch], "labels", classes=10)
    assert (images.shape, images.dtype, labels.dtype) == ((14, 32, 32, 3), np.uint8, np.int64)
    assert labels.tolist() == LABELS * 2
    for image, row, column, channel in ((0, 0, 0, 0), (6, 31, 30, 2), (13, 5, 17, 1)):
        assert images[image, row, column, channel] == PIXELS[image % 7, 1024 * channel + 32 * row + column]


@pytest.mark.parametrize("order", ["C", "F"])
def test_cifar_that_python_3_wrote_again_is_read_too(batch, order):
    content = {b"data": np.array(PIXELS, order=order), "fine_labels": LABELS, b"filenames": [], b"batch_label": b""}
    batch.write_bytes(pickle.dumps(content, protocol=2))
    images, labels = read_cifar([batch], "fine_labels", classes=10)
    assert np.array_equal(images.transpose(0, 3, 1, 2).reshape(7, 3072), PIXELS)
    assert labels.tolist() == LABELS


def test_the_names_of_the_classes_are_text(batch):
    batch.write_bytes(python2_pickle({"label_names": [b"airplane", b"cat"]}))
    assert read_cifar_classes(batch, "label_names") == ("airplane", "cat")
    with pytest.raises(InputError, match="data_batch_1 has no fine_label_names"):
        read_cifar_classes(batch, "fine_label_names")


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
    "a class of the reader itself": b"\x80\x02cwildood.data.formats\nimport_module\nU\x02os\x85R.",
    "an extension": b"\x80\x02\x82\x01.",
    "numpy's own loader": b"\x80\x02cnumpy\nload\nU\x01a\x85R.",
    "a persistent identity": b"\x80\x02U\x01aQ.",
}


@pytest.mark.parametrize("content", EVIL.values(), ids=EVIL)
def test_a_malicious_pickle_is_refused_without_running_it(batch, monkeypatch, content):
    monkeypatch.chdir(batch.parent)
    batch.write_bytes(content)
    with pytest.raises(InputError, match=r"data_batch_1 is not one of CIFAR's Python files \(.*\): ") as raised:
        read_cifar([batch], "labels", classes=10)
    assert "\n" not in str(raised.value)
    assert [path.name for path in batch.parent.iterdir()] == ["data_batch_1"]


def changeable():
    """Every attribute that a pickle could set of what it may ask for."""
    return {name: (vars(found).copy(), getattr(found, "__defaults__", None)) for name, found in formats._ALLOWED.items()}


@pytest.mark.parametrize("asked", sorted(formats._ALLOWED))
def test_a_pickle_cannot_change_what_reads_it(batch, asked):
    """BUILD with a pair sets attributes of whatever lies on the stack."""
    module, name = (part.encode() for part in asked)
    defaults = b"}(X\x0c\0\0\0__defaults__X\x01\0\0\0aX\x01\0\0\0b\x86u"
    batch.write_bytes(b"\x80\x02c" + module + b"\n" + name + b"\nN" + defaults + b"\x86b.")
    before = changeable()
    with pytest.raises(InputError, match="data_batch_1 is not one of CIFAR's Python files"):
        read_cifar([batch], "labels", classes=10)
    assert changeable() == before


def test_an_array_that_was_never_filled_is_one_line(batch):
    batch.write_bytes(b"\x80\x02}U\x04datacnumpy\nndarray\n)\x81s.")
    with pytest.raises(InputError, match="data_batch_1"):
        read_cifar([batch], "labels", classes=10)


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
        read_cifar([batch], "labels", classes=10)
    assert "\n" not in str(raised.value)


def svhn(path, count=5, **changes):
    images = RNG.integers(0, 256, (32, 32, 3, count), dtype=np.uint8)
    labels = np.arange(1, count + 1, dtype=np.uint8)[:, None]
    savemat(path, {"X": images, "y": labels} | changes)
    return images


def test_svhn_has_its_images_first_and_its_zeros_as_0(tmp_path):
    original = svhn(tmp_path / "train_32x32.mat", count=10)
    images, labels = read_svhn(tmp_path / "train_32x32.mat")
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
        read_svhn(tmp_path / "test_32x32.mat")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_torn_svhn_file_is_one_line_with_its_name(tmp_path, share):
    path = tmp_path / "test_32x32.mat"
    svhn(path)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(InputError, match=r"test_32x32\.mat is not a whole Matlab file with X and y: remove it"):
        read_svhn(path)


def test_random_images_stay_on_disk(tmp_path):
    images = RNG.integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    np.save(tmp_path / "a.npy", images)
    read = read_array(tmp_path / "a.npy")
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
        read_array(tmp_path / "a.npy")


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5])
def test_torn_random_images_are_one_line(tmp_path, share):
    path = tmp_path / "a.npy"
    np.save(path, np.zeros((40, 32, 32, 3), np.uint8))
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(InputError, match=r"a\.npy is not a whole \.npy file: remove it and get it again"):
        read_array(path)
