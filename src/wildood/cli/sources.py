"""Data named on the command line: folders, manifests, arrays and named sets; each says how many examples it gave."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from wildood.data.catalog import is_named_set, open_set
from wildood.data.images import Images
from wildood.data.opening import open_images
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
    return _told(images if like is None else _numbered_like(images, like, option), option)


def read_wild(text: str, option: str, options: Any, like: Images) -> Images:
    """What an option names, in the shape of `like`, and without labels."""
    return _told(_unlabelled(_read(text, option, options, _shape(options, like))), option)


def read_like(detector: Detector, text: str, option: str, options: Any) -> Images:
    """What an option names, in the shape that a detector's examples have, and without labels."""
    return _told(_unlabelled(_read(text, option, options, _picture_shape(detector.example.shape) or (None, 3))), option)


def _read(text: str, option: str, options: Any, shape: tuple[Any, Any]) -> Images:
    """The examples that a text names: a path, or else a named set."""
    try:
        if is_named_set(text) and not Path(text).exists():
            return open_set(text, options.data_root)
        size, channels = shape
        return open_images(text, size, channels=channels, skip_broken=options.skip_broken, cache=options.data_root)
    except InputError as error:
        raise InputError(f"{option}: {error}") from error


def _shape(options: Any, like: Images | None) -> tuple[Any, int]:
    """The height, width and channels that pictures get: those of other examples, or those that the options say."""
    given = options.size or SIDES.get((options.model or "").partition(":")[0].lower())
    said = given, 1 if options.mean is not None and len(options.mean) == 1 else 3
    return said if like is None else _picture_shape(like.examples.shape[1:]) or said


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
    step = -(-len(images) // MEASURED)
    pixels: npt.NDArray[Any] = np.asarray(images.examples[::step]).reshape(-1, images.examples.shape[-1]) / np.float32(255)
    mean, std = (tuple(round(float(value), 4) for value in found) for found in (pixels.mean(0), pixels.std(0)))
    return mean, tuple(max(value, 0.01) for value in std)


def _numbered_like(images: Images, like: Images, option: str) -> Images:
    if not images.classes or not like.classes or images.classes == like.classes:
        return images
    others = [name for name in images.classes if name not in like.classes]
    if others:
        raise InputError(
            f"{option}: {images.where} has a class {others[0]!r} that {like.where} has not: give the same classes"
        )
    numbers = np.array([like.classes.index(name) for name in images.classes])
    content = images.content and f"{images.content}/{'/'.join(map(str, numbers))}"
    return replace(images, labels=numbers[np.asarray(images.labels)], classes=like.classes, content=content)
