"""A picture cut to a fixed shape: resized and cropped by its framing, as uint8 pixels in HWC."""

import hashlib
import os

import numpy as np
import numpy.typing as npt
from PIL import Image

from wildood.data.images import Framing
from wildood.errors import InputError

Pixels = npt.NDArray[np.uint8]
_PADDING = 4
# (125.3, 123.0, 113.9), where the released code's normalised values are 0; it pads after it has normalised.
_MEAN_COLOUR = {3: (125, 123, 114), 1: (123,)}
_LARGEST = 100_000_000  # pixels of a resized picture: one of 1 x 1,000,000 pixels would fill the memory


class PictureError(Exception):
    """A picture that cannot be used, for a reason that lies in the picture.

    >>> raise PictureError("is empty")
    Traceback (most recent call last):
    wildood.data.framing.PictureError: is empty
    """


def framed(picture: Image.Image, framing: Framing, name: str) -> Pixels:
    """The pixels of a picture that is RGB or grey already, as the framing wants them.

    >>> wide = Image.new("RGB", (40, 20), (255, 0, 0))
    >>> framed(wide, Framing(10), "wide.png").shape
    (10, 10, 3)
    >>> framed(wide, Framing(30, "centre"), "wide.png")
    Traceback (most recent call last):
    wildood.errors.InputError: wide.png is 40 x 20 pixels, too small to cut 30 x 30 (width x height) from: ...
    """
    if isinstance(framing.size, tuple):
        height, width = framing.size
        if framing.how == "as_published":
            return _cropped_by_name(_pixels(picture), framing.size, name)
        if framing.how == "cover":
            picture = picture.resize(covering(picture.size, (width, height)), Image.Resampling.BILINEAR)
        elif picture.width < width or picture.height < height:
            raise _too_small(picture.size, framing.size, name)
        # Half a pixel goes to the even side, as round() does it and torchvision's CenterCrop with it.
        left, top = round((picture.width - width) / 2), round((picture.height - height) / 2)
        picture = picture.crop((left, top, left + width, top + height))
    return _pixels(picture)


def covering(size: tuple[int, int], target: tuple[int, int]) -> tuple[int, int]:
    """The width and height at which a picture just covers the target: one side is exact, the other rounded down.

    For a square target that is torchvision's `Resize(int)`.

    >>> covering((50, 33), (32, 32)), covering((33, 50), (32, 32)), covering((50, 33), (64, 32))
    ((48, 32), (32, 48), (64, 42))
    """
    (width, height), (target_width, target_height) = size, target
    if target_width * height >= target_height * width:
        covered = target_width, target_width * height // width
    else:
        covered = target_height * width // height, target_height
    if covered[0] * covered[1] > _LARGEST:
        raise PictureError(f"its {width} x {height} pixels are too long and thin to be resized")
    return covered


def own_name(path: str) -> bytes:
    """A file's name without its folders, which decides where "as_published" crops.

    >>> own_name("LSUN_C/test/7.png")
    b'7.png'
    """
    return os.fsencode(os.path.basename(path))  # noqa: PTH119 - a name may be no text, and there may be millions


def _pixels(picture: Image.Image) -> Pixels:
    pixels = np.asarray(picture)
    return pixels if pixels.ndim == 3 else pixels[..., None]


def _cropped_by_name(pixels: Pixels, wanted: tuple[int, int], name: str) -> Pixels:
    height, width, channels = pixels.shape
    canvas = np.full((height + 2 * _PADDING, width + 2 * _PADDING, channels), _MEAN_COLOUR[channels], np.uint8)
    canvas[_PADDING:-_PADDING, _PADDING:-_PADDING] = pixels
    tops, lefts = canvas.shape[0] - wanted[0] + 1, canvas.shape[1] - wanted[1] + 1
    if min(tops, lefts) < 1:
        raise _too_small((width, height), wanted, name)
    number = int.from_bytes(hashlib.blake2b(own_name(name), digest_size=8).digest(), "big")
    top, left = number % tops, number // tops % lefts
    return canvas[top : top + wanted[0], left : left + wanted[1]]


def _too_small(size: tuple[int, int], wanted: tuple[int, int], name: str) -> InputError:
    return InputError(
        f"{name} is {size[0]} x {size[1]} pixels, too small to cut {wanted[1]} x {wanted[0]} (width x height) "
        "from: give a smaller size, or how='cover'"
    )
