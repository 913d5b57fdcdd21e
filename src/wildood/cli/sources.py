"""Data named on the command line: folders, manifests, arrays and named sets; each says how many examples it gave."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from wildood.data.archives import Archive, array_archive, open_archive
from wildood.data.catalog import is_named_set, open_set
from wildood.data.folders import open_images
from wildood.data.images import Framing, Images
from wildood.data.named_sets import SETS
from wildood.data.sources import blocks
from wildood.data.validation import align_classes
from wildood.detect.detector import Detector
from wildood.errors import InputError
from wildood.train.progress import logger

MEASURED = 10_000  # images, at most, from which the mean and the standard deviation of the channels are taken
SIDES = {"resnet20": 32, "wideresnet": 32}  # pixels that shipped networks are made for, if --size says nothing else


def read_labelled(text: str, option: str, options: Any, like: Images | None = None) -> Images:
    """What an option names, refused without labels; classes with names have the numbers that they have in `like`."""
    images = _read(text, option, options, _shape(options, like))
    if images.labels is None:
        raise InputError(f"{option}: {text} has no labels: {images.unlabelled or 'give an array y of integers beside x'}")
    return _told(images if like is None else align_classes(like, images, option), option)


def read_wild(text: str, option: str, options: Any, like: Images) -> Images:
    """What an option names, in the shape of `like`, and without labels."""
    return _told(_unlabelled(_read(text, option, options, _shape(options, like))), option)


def read_like(detector: Detector, text: str, option: str, options: Any) -> Images:
    """What an option names, in the shape that a detector's examples have, and without labels."""
    return _told(_unlabelled(_read(text, option, options, _picture_shape(detector.example.shape) or (None, 3))), option)


@contextmanager
def archive_like(detector: Detector, text: str, option: str, options: Any) -> Iterator[Archive]:
    """What `read_like` reads, to be gone through once, chunk by chunk: no picture is decoded or kept before its turn."""
    shape: tuple[Any, Any] = _picture_shape(detector.example.shape) or (None, 3)
    with ExitStack() as after:
        try:
            if is_named_set(text) and not Path(text).exists():
                images = open_set(text, options.data_root)
                archive = array_archive(np.asarray(images.examples), images.names, text, f"{text} {images.fingerprint()}")
            else:
                framing = Framing(shape[0], channels=shape[1])
                archive = after.enter_context(open_archive(text, framing, skip_broken=options.skip_broken))
        except InputError as error:
            raise _named_otherwise(text, option, error) from error
        yield archive


def read_test(detector: Detector, text: str, option: str, options: Any) -> Images:
    """What `read_like` reads, with labels where there are any; classes with names have the detector's numbers."""
    images = _read(text, option, options, _picture_shape(detector.example.shape) or (None, 3))
    names = detector.record.get("classes")
    if images.classes and names:
        images = align_classes(replace(images, where="the detector", classes=tuple(names)), images, option)
    elif images.classes:
        said = "%s: the detector has no names for its classes, those of %s are numbered in their order"
        logger.info(said, option.lstrip("-"), images.where)
    return _told(images, option)


def _read(text: str, option: str, options: Any, shape: tuple[Any, Any]) -> Images:
    """The examples that a text names: a path, or else a named set."""
    try:
        if is_named_set(text) and not Path(text).exists():
            return open_set(text, options.data_root, as_published=getattr(options, "as_published", False))
        size, channels = shape
        return open_images(text, size, channels=channels, skip_broken=options.skip_broken, cache=options.data_root)
    except InputError as error:
        raise _named_otherwise(text, option, error) from error


def _named_otherwise(text: str, option: str, error: InputError) -> InputError:
    """The error, with the option it is about, and a named set that was perhaps meant."""
    elsewhere = Path(text).exists() or is_named_set(text)
    near = [] if elsewhere else get_close_matches(text.partition(":")[0].lower(), SETS, n=1)
    hint = f" (or did you mean the named set {near[0]}? See wildood data list)" if near else ""
    return InputError(f"{option}: {error}{hint}")


def _shape(options: Any, like: Images | None) -> tuple[Any, int]:
    """The height, width and channels that pictures get: those of other examples, or those that the options say."""
    given = side_of(options.size) or SIDES.get((options.model or "").partition(":")[0].lower())
    said = given, 1 if options.mean is not None and len(options.mean) == 1 else 3
    return said if like is None else _picture_shape(like.examples.shape[1:]) or said


def side_of(size: tuple[int, ...] | None) -> tuple[int, int] | None:
    """The height and width that --size says; one number is both.

    >>> side_of((32,)), side_of((32, 48))
    ((32, 32), (32, 48))
    """
    if size is None:
        return None
    if len(size) not in {1, 2}:
        raise InputError(f"--size has {len(size)} numbers: give a height and a width, or one number for both")
    return size[0], size[-1]


def _picture_shape(shape: tuple[int, ...]) -> tuple[tuple[int, ...], int] | None:
    return (shape[:2], shape[-1]) if len(shape) == 3 and shape[-1] in {1, 3} else None


def _unlabelled(images: Images) -> Images:
    return replace(images, labels=None, classes=())


def _told(images: Images, option: str) -> Images:
    logger.info("%s: %s", option.lstrip("-"), described(images))
    return images


def described(images: Images) -> str:
    """How many examples a source gave, of how many classes.

    >>> described(Images(np.zeros((3, 2, 2, 3)), np.array([0, 1, 1]), where="photos", classes=("cat", "dog")))
    '3 examples of 2 classes from photos'
    """
    kinds = f" of {len(np.unique(images.labels))} classes" if images.labels is not None else ""
    return f"{len(images)} examples{kinds} from {images.where}"


def colours(images: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The mean and the standard deviation of each channel of uint8 images in NHWC, on a scale from 0 to 1.

    >>> colours(Images(np.array([0, 255], np.uint8).reshape(2, 1, 1, 1)))
    ((0.5,), (0.5,))
    """
    some = images.examples[:: -(-len(images) // MEASURED)]
    channels = some.shape[-1]
    counts = np.zeros((channels, 256), dtype=np.int64)  # how often each channel has each value: exact, and small
    for _, block in blocks(some):
        pixels = np.asarray(block).reshape(-1, channels)
        counts += np.stack([np.bincount(pixels[:, channel], minlength=256) for channel in range(channels)])
    values = np.arange(256) / 255
    shares = counts / counts.sum(1, keepdims=True)
    mean = shares @ values
    std = np.sqrt((shares @ values**2 - mean**2).clip(min=0))
    return tuple(mean.round(4).tolist()), tuple(std.round(4).clip(min=0.01).tolist())
