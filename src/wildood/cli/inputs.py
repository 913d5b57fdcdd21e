"""Models, weights and data that the command line names: shipped or own models; folders, manifests, arrays, named sets."""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from wildood.data.archives import Archive, array_archive, open_archive
from wildood.data.catalog import SETS, is_named_set, open_set
from wildood.data.folders import open_images
from wildood.data.images import Framing, Images
from wildood.data.inputs import InputSpec
from wildood.data.sampling import seeded
from wildood.data.sources import blocks
from wildood.data.validation import align_classes
from wildood.detect.detector import Detector
from wildood.detect.storage import load
from wildood.errors import InputError
from wildood.models.shipped import MODELS
from wildood.settings import check_callable
from wildood.train.progress import logger

NAMES = {name.lower(): cls for name, cls in MODELS.items()}
SIDES = {"resnet20": 32, "wideresnet": 32}  # pixels that shipped networks are made for, without --size
MEASURED = 10_000  # images, at most, that the mean and the standard deviation of the channels are computed from


def read_model(text: str, seed: int = 0) -> nn.Module:
    """`resnet20`, `smallcnn:classes=7,width=32`, or `module:function`.

    >>> type(read_model("mlp:inputs=4,classes=3")).__name__
    'MLP'
    """
    name, _, rest = text.partition(":")
    with seeded(seed, "starting weights"):  # a resumed run starts from the same ones
        return _shipped_model(name.lower(), rest) if name.lower() in NAMES else _own_model(name, rest)


def read_detector(options: Any) -> Detector:
    """The saved detector that the options name, with the model of --model if there is one."""
    return load(options.detector, model=None if options.model is None else read_model(options.model))


def _with_classes(text: str, classes: int) -> str:
    """The text of a shipped model, with a number of classes unless it has one."""
    if text.partition(":")[0].lower() not in NAMES or "classes=" in text:
        return text
    return f"{text}{',' if ':' in text else ':'}classes={classes}"


def _shipped_model(name: str, settings: str) -> nn.Module:
    try:
        pairs = dict(pair.split("=", 1) for pair in settings.split(",")) if settings else {}
        return NAMES[name](**{key: float(value) if "." in value else int(value) for key, value in pairs.items()})
    except (TypeError, ValueError) as error:
        text = f"{name}:{settings}" if settings else name
        example = "smallcnn:classes=7,width=32 or mlp:inputs=4,classes=3"
        raise InputError(f"--model {text}: {error}; give settings as in {example}") from error


def _own_model(module: str, function: str) -> nn.Module:
    option = f"--model {module}:{function}"
    if not module or not function:
        raise InputError(f"{option.rstrip(':')}: give one of {', '.join(NAMES)}, or module:function for your own")
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as `python -m` does: the user's module is in the working directory
    try:
        build = getattr(import_module(module), function)
    except ModuleNotFoundError as error:
        hint = ": leave out .py" if module.endswith(".py") else ""
        raise InputError(f"{option}: no module named {error.name!r} here{hint}") from error
    except TypeError as error:
        raise InputError(f"{option}: give module:function without slashes, as in mymodel:build") from error
    except AttributeError as error:
        raise InputError(f"{option}: {module} has no {function!r}") from error
    model = check_callable(build, option)() if callable(build) and not isinstance(build, nn.Module) else build
    if not isinstance(model, nn.Module):
        raise InputError(f"{option} gave a {type(model).__name__}: it must build a torch.nn.Module")
    return model


def _read_weights(weights: Path) -> dict[str, Tensor]:
    if not weights.is_file():
        raise InputError(f"--weights {weights}: there is no such file")
    try:
        return load_file(weights)
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"--weights {weights} cannot be read as safetensors ({error}): "
            "safetensors.torch.save_file(model.state_dict(), FILE) writes such a file"
        ) from error


def adapt(labelled: Images, options: Any, model: nn.Module) -> tuple[Any, nn.Module]:
    """Options and model for labelled data: measured mean and std, the number of named classes, and the weights of --weights.

    Mean and std are measured for a network without weights; a shipped model gets its number of classes unless it has one.
    """
    weights = None if options.weights is None else _read_weights(options.weights)
    is_images = labelled.examples.dtype == np.uint8 and labelled.examples.ndim == 4 and options.layout == "NHWC"
    if is_images and weights is None and options.mean is None:
        mean, std = colours(labelled)
        texts = [" ".join(map(str, values)) for values in (mean, std)]
        logger.info("mean %s and std %s of each channel: measured on labelled", *texts)
        options = replace(options, mean=mean, std=std)
    text = _with_classes(options.model, len(labelled.classes)) if labelled.classes else options.model
    if text != options.model and (weights is None or _shapes(weights) != _shapes(model.state_dict())):
        options, model = replace(options, model=text), read_model(text, options.seed)
    if weights is not None:
        try:
            model.load_state_dict(weights)
        except RuntimeError as error:
            first = shorten(str(error).splitlines()[-1], 300, placeholder=" ...")
            raise InputError(f"--weights {options.weights} do not fit the model: {first}") from error
    return options, model


def _shapes(state: dict[str, Tensor]) -> dict[str, Any]:
    return {name: value.shape for name, value in state.items()}


def colours(images: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The mean and the standard deviation of each channel of uint8 images in NHWC, on a scale from 0 to 1."""
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


def input_spec(options: Any) -> InputSpec | None:
    """The input spec of --mean, --std, --layout and --size."""
    check_colours(options)
    if options.mean is None:
        for name, default in (("layout", "NHWC"), ("size", None)):
            if getattr(options, name) != default:
                raise InputError(f"--{name} is for images: give --mean and --std, too")
        return None
    return InputSpec(layout=options.layout, mean=options.mean, std=options.std, size=_side_of(options.size))


def check_colours(options: Any) -> None:
    """Refuse --mean without --std, and --std without --mean."""
    if (options.mean is None) != (options.std is None):
        raise InputError("--mean and --std belong together: give both, one number for each channel")


def _side_of(size: tuple[int, ...] | None) -> tuple[int, int] | None:
    """The height and width of --size; one number is both."""
    if size is None:
        return None
    if len(size) not in {1, 2}:
        raise InputError(f"--size has {len(size)} numbers: give a height and a width, or one number for both")
    return size[0], size[-1]


def read_labelled(text: str, option: str, options: Any, like: Images | None = None) -> Images:
    """The examples that an option names, refused without labels; named classes are numbered as in `like`."""
    images = _read(text, option, options, like)
    if images.labels is None:
        raise InputError(f"{option}: {text} has no labels: {images.unlabelled or 'give an array y of integers beside x'}")
    return _logged(images if like is None else align_classes(like, images, option), option)


def read_unlabelled(text: str, option: str, options: Any, like: Images | Detector) -> Images:
    """The examples that an option names, in the shape of other examples or of a detector's, without labels."""
    return _logged(replace(_read(text, option, options, like), labels=None, classes=()), option)


def read_test(text: str, option: str, options: Any, detector: Detector) -> Images:
    """As `read_unlabelled`, with labels if there are any."""
    images = _read(text, option, options, detector)
    if images.classes and not detector.record.get("classes"):
        message = "%s: the detector has no names for its classes, those of %s are numbered in their order"
        logger.info(message, option.lstrip("-"), images.where)
    return _logged(images, option)


@contextmanager
def open_unlabelled(text: str, option: str, options: Any, detector: Detector) -> Iterator[Archive]:
    """As `read_unlabelled`, chunk by chunk: no picture is decoded before its turn, and none is kept."""
    with ExitStack() as stack:
        with _naming_errors(text, option):
            if is_named_set(text) and not Path(text).exists():
                images = open_set(text, options.data_root)
                archive = array_archive(np.asarray(images.examples), images.names, text, f"{text} {images.fingerprint()}")
            else:
                size, channels = _picture_shape(options, detector)
                framing = Framing(size, channels=channels)
                archive = stack.enter_context(open_archive(text, framing, skip_broken=options.skip_broken))
        yield archive


def _read(text: str, option: str, options: Any, like: Images | Detector | None) -> Images:
    """The examples of a path, or else of a named set."""
    with _naming_errors(text, option):
        if is_named_set(text) and not Path(text).exists():
            return open_set(text, options.data_root, as_published=getattr(options, "as_published", False))
        size, channels = _picture_shape(options, like)
        return open_images(text, size, channels=channels, skip_broken=options.skip_broken, cache=options.data_root)


@contextmanager
def _naming_errors(text: str, option: str) -> Iterator[None]:
    """Begin errors with the option, and end them with the named set that was perhaps meant."""
    try:
        yield
    except InputError as error:
        elsewhere = Path(text).exists() or is_named_set(text)
        near = [] if elsewhere else get_close_matches(text.partition(":")[0].lower(), SETS, n=1)
        hint = f" (or did you mean the named set {near[0]}? See wildood data list)" if near else ""
        raise InputError(f"{option}: {error}{hint}") from error


def _picture_shape(options: Any, like: Images | Detector | None) -> tuple[Any, Any]:
    """The size and channels of pictures: those of other examples, or those of the options."""
    shape = () if like is None else like.example.shape if isinstance(like, Detector) else like.examples.shape[1:]
    if len(shape) == 3 and shape[-1] in {1, 3}:
        return shape[:2], shape[-1]
    if isinstance(like, Detector):
        return None, 3
    size = _side_of(options.size) or SIDES.get((options.model or "").partition(":")[0].lower())
    return size, 1 if options.mean is not None and len(options.mean) == 1 else 3


def _logged(images: Images, option: str) -> Images:
    """The images; the log says how many examples of how many classes they are."""
    classes = f" of {len(np.unique(images.labels))} classes" if images.labels is not None else ""
    logger.info("%s: %d examples%s from %s", option.lstrip("-"), len(images), classes, images.where)
    return images
