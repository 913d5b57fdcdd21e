"""Images from files: decoding, framing to a fixed shape, and the source that holds the result."""

import hashlib
import io
import os
import stat
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import BinaryIO, Literal, get_args

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile

from wildood.data.inputs import check_size
from wildood.data.sources import ArraySource
from wildood.errors import InputError
from wildood.settings import check_choice, check_integer

How = Literal["cover", "centre", "as_published"]
Pixels = npt.NDArray[np.uint8]

_PADDING = 4
# (125.3, 123.0, 113.9), where the released code's normalised values are 0; it pads after it has normalised.
_MEAN_COLOUR = {3: (125, 123, 114), 1: (123,)}
_MOST_PIXELS = 100_000_000  # of a resized image: one of 1 x 1,000,000 pixels would fill the memory
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM")  # no others: for EPS, Pillow starts a program
_TURNS = ("FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90")
_TRANSPOSE = {number: Image.Transpose[name] for number, name in enumerate(_TURNS, start=2)}  # by EXIF orientation
_WARNING_FILTERS = threading.Lock()


@dataclass(frozen=True)
class Framing:
    """How an image of any size and mode becomes an array of a fixed shape.

    Attributes:
        size: height and width, or one number for both; None takes images as they are, if they all have one size.
        how: "cover" resizes until the image just covers the size (bilinear, antialiased) and crops the centre;
            "centre" crops the centre without resizing; "as_published" pads by 4 pixels of the mean colour and crops at
            a place that depends on the file's name, as the released code does with LSUN-C.
        channels: 3 for RGB, 1 for grey.
    """

    size: tuple[int, int] | int | None = None
    how: How = "cover"
    channels: Literal[1, 3] = 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", check_size(self.size))
        check_choice(self.how, "how", get_args(How))
        if self.how == "as_published" and self.size is None:
            raise InputError("how is 'as_published' but there is no size: give a height and width, such as size=32")
        channels = check_integer(self.channels, "channels", "3 for colour or 1 for grey", most=3)
        object.__setattr__(self, "channels", channels)
        if channels == 2:
            raise InputError("channels is 2: give 3 for colour or 1 for grey")


@dataclass(frozen=True, eq=False)
class Images(ArraySource):
    """Examples from files: what `fit` takes as labelled (if it has labels), wild or holdout."""

    where: str = ""  # the files, as the user named them
    classes: tuple[str, ...] = ()  # the names of the classes, in the order of the labels; empty if there are none
    names: Sequence[str] = field(default=(), repr=False)  # the file of each example; empty for arrays
    broken: tuple[str, ...] = ()  # the files that were left out because they cannot be read
    content: str = ""  # a hash of the examples, if it is known without reading them all
    unlabelled: str = ""  # how to add labels, if there are none

    def fingerprint(self, *, labels: bool = True) -> str:
        """The content's text, or that of the arrays."""
        return self.content if labels and self.content else ArraySource.fingerprint(self, labels=labels)


class ImageError(Exception):
    """An image that cannot be used, for a reason that lies in the image."""


@dataclass(frozen=True, eq=False)
class Decoded:
    """The pixels of a file, and a digest of its bytes."""

    digest: str
    pixels: Pixels


@dataclass(frozen=True)
class Broken:
    """Why a file gives no image; `unread` if its bytes could not be read, which may change while the file does not."""

    reason: str
    unread: bool = False


@contextmanager
def pillow_warnings() -> Iterator[None]:
    """Around decoding in any threads: makes Pillow's warning of decompression bombs an error, and ignores its others."""
    # Filters belong to the process: if two threads changed them at the same time, one change would stay for ever.
    with _WARNING_FILTERS, warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        Image.init()  # or each thread would begin with it
        yield


def decode(path: str, framing: Framing) -> Decoded | Broken:
    """The image in a file: upright, in 8 bits, framed."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - paths would be slow for millions of files
            return Broken("is not a plain file")
        with open(path, "rb") as file:  # noqa: PTH123 - same
            digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16))
            file.seek(0)
            image = _read_image(file, framing.channels)
        if framing.how == "as_published":
            digest.update(_base_name(path))
        return Decoded(digest.hexdigest(), frame(image, framing, path))
    except ImageError as error:
        return Broken(str(error))
    except OSError as error:
        return Broken(error.strerror or str(error), unread=True)


def decode_bytes(content: bytes | bytearray, framing: Framing, formats: tuple[str, ...], most_pixels: int) -> Pixels:
    """The image in the content of a file, upright, in 8 bits, framed; `ImageError` if there is none, or too large a one.

    Its size is read from its header: one of more pixels is refused before it is decoded.
    """
    try:
        return frame(_read_image(io.BytesIO(content), framing.channels, formats, most_pixels), framing, "the picture")
    except InputError as error:  # too small to be cropped
        raise ImageError(str(error)) from error


def _read_image(
    file: BinaryIO, channels: int, formats: tuple[str, ...] = _FORMATS, most_pixels: int | None = None
) -> Image.Image:
    """The first frame, upright, as RGB or grey of 8 bits."""
    try:
        with Image.open(file, formats=formats) as image:
            _check_pixels(image, most_pixels)
            image.load()
            bits = _bits(image)
            return _in_8_bits(_upright(image), bits).convert("RGB" if channels == 3 else "L")
    except ImageError:
        raise
    except UnidentifiedImageError as error:
        reason = f"is no picture in {', '.join(formats)}" if file.seek(0, os.SEEK_END) else "is empty"
        raise ImageError(reason) from error
    except Exception as error:  # Pillow's parsers raise anything for a torn file
        raise ImageError(" ".join(str(error).split()) or type(error).__name__) from error


def _check_pixels(image: Image.Image, most: int | None) -> None:
    if most is not None and image.width * image.height > most:
        raise ImageError(f"has {image.width} x {image.height} pixels: give at most {most:,}")


def _upright(image: Image.Image) -> Image.Image:
    try:
        turn = _TRANSPOSE.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # noqa: BLE001 - the pixels are whole even if the EXIF data is damaged
        return image
    return image if turn is None else image.transpose(turn)


def _bits(image: Image.Image) -> int:
    """The bits of a grey image of integers; Pillow's mode I stands for 32 bits, and for 16 in some formats."""
    if isinstance(image, TiffImageFile) and image.mode == "I":
        return int(max(image.tag_v2[ExifTags.Base.BitsPerSample]))
    return 16


def _in_8_bits(image: Image.Image, bits: int) -> Image.Image:
    """Grey images of more bits scaled to 8; Pillow itself would clip them at 255."""
    if not image.mode.startswith(("I", "F")):
        return image
    values = np.asarray(image)
    low, high = values.min(), values.max()
    if image.mode == "F":
        # Values may overshoot a little, as those of a resized image do.
        scale = 1 if high <= 2 else 255
        if not (-scale / 2 <= low and high <= 2 * scale):
            raise ImageError(f"has float values from {low:g} to {high:g}: 0 to 1 or 0 to 255 are read")
        return Image.fromarray(np.rint(values * (255 / scale)).clip(0, 255).astype(np.uint8))
    if low < 0 or high > 65535:
        raise ImageError(f"has integer values from {low} to {high}: those of 8 and 16 bits are read")
    # Images of 32 bits often hold values of 8 bits, which would all become 0.
    return Image.fromarray((values if bits == 32 and high <= 255 else values >> 8).astype(np.uint8))


def frame(image: Image.Image, framing: Framing, name: str) -> Pixels:
    """The pixels of an RGB or grey image, resized and cropped."""
    if isinstance(framing.size, tuple):
        height, width = framing.size
        if framing.how == "as_published":
            return _cropped_by_name(_pixels(image), framing.size, name)
        if framing.how == "cover":
            image = image.resize(covering_size(image.size, (width, height)), Image.Resampling.BILINEAR)
        elif image.width < width or image.height < height:
            raise _too_small(image.size, framing.size, name)
        # Half a pixel is rounded to even, as in torchvision's CenterCrop.
        left, top = round((image.width - width) / 2), round((image.height - height) / 2)
        image = image.crop((left, top, left + width, top + height))
    return _pixels(image)


def covering_size(size: tuple[int, int], target: tuple[int, int]) -> tuple[int, int]:
    """The width and height at which an image just covers the target: one side is exact, the other rounded down.

    For a square target, that is torchvision's `Resize(int)`.

    >>> covering_size((50, 33), (32, 32)), covering_size((33, 50), (32, 32)), covering_size((50, 33), (64, 32))
    ((48, 32), (32, 48), (64, 42))
    """
    (width, height), (target_width, target_height) = size, target
    if target_width * height >= target_height * width:
        covered = target_width, target_width * height // width
    else:
        covered = target_height * width // height, target_height
    if covered[0] * covered[1] > _MOST_PIXELS:
        raise ImageError(f"its {width} x {height} pixels are too long and thin to be resized")
    return covered


def _pixels(image: Image.Image) -> Pixels:
    pixels = np.asarray(image)
    return pixels if pixels.ndim == 3 else pixels[..., None]


def _cropped_by_name(pixels: Pixels, size: tuple[int, int], name: str) -> Pixels:
    height, width, channels = pixels.shape
    canvas = np.full((height + 2 * _PADDING, width + 2 * _PADDING, channels), _MEAN_COLOUR[channels], np.uint8)
    canvas[_PADDING:-_PADDING, _PADDING:-_PADDING] = pixels
    tops, lefts = canvas.shape[0] - size[0] + 1, canvas.shape[1] - size[1] + 1
    if min(tops, lefts) < 1:
        raise _too_small((width, height), size, name)
    number = int.from_bytes(hashlib.blake2b(_base_name(name), digest_size=8).digest(), "big")
    top, left = number % tops, number // tops % lefts
    return canvas[top : top + size[0], left : left + size[1]]


def _base_name(path: str) -> bytes:
    return os.fsencode(os.path.basename(path))  # noqa: PTH119 - a name may be no text, and there may be millions


def _too_small(size: tuple[int, int], wanted: tuple[int, int], name: str) -> InputError:
    return InputError(
        f"{name} is {size[0]} x {size[1]} pixels, too small to cut {wanted[1]} x {wanted[0]} (width x height) "
        "from: give a smaller size, or how='cover'"
    )
