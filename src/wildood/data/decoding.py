"""One file becomes the pixels of one example, or a reason why it cannot."""

import hashlib
import os
import stat
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile

from wildood.data.framing import PictureError, Pixels, framed, own_name
from wildood.data.images import Framing

# Nothing else that Pillow knows: for EPS it starts a program.
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
_TOGETHER = 1 << 18
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_QUIET = threading.Lock()


@dataclass(frozen=True, eq=False)
class Decoded:
    """The pixels of a file, and a digest of its bytes.

    >>> Decoded("c0ffee", np.zeros((2, 4, 3), np.uint8)).pixels.shape
    (2, 4, 3)
    """

    digest: str
    pixels: Pixels


@dataclass(frozen=True)
class Broken:
    """Why a file gives no picture; `unread` if its bytes were not to be had, which may pass while the file stays.

    >>> Broken("Permission denied", unread=True).reason
    'Permission denied'
    """

    reason: str
    unread: bool = False


@contextmanager
def pillow_kept_quiet() -> Iterator[None]:
    """Around decoding, in any threads: what Pillow warns of is an error if it may fill the memory, else nothing.

    >>> with pillow_kept_quiet():
    ...     warnings.warn_explicit("corrupt EXIF", UserWarning, "Image.py", 1, module="PIL.Image")
    """
    # Filters belong to the process: of two that come and go crosswise, one would stay for ever.
    with _QUIET, warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        Image.init()  # or each thread would begin with it
        yield


def decode(path: str, framing: Framing) -> Decoded | Broken:
    """The picture in a file: upright, in 8 bits, framed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     Image.new("L", (4, 2), 7).save(f"{place}/grey.png")
    ...     decode(f"{place}/grey.png", Framing()).pixels.shape
    (2, 4, 3)
    >>> decode("gone.png", Framing())
    Broken(reason='No such file or directory', unread=True)
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - there may be millions
            return Broken("is not a plain file")
        with open(path, "rb") as file:  # noqa: PTH123 - same
            digest = _digest(file)
            picture = _picture(file, framing.channels)
        if framing.how == "as_published":
            digest.update(own_name(path))
        return Decoded(digest.hexdigest(), framed(picture, framing, path))
    except PictureError as error:
        return Broken(str(error))
    except OSError as error:
        return Broken(error.strerror or str(error), unread=True)


def _digest(file: BinaryIO) -> hashlib.blake2b:
    digest = hashlib.blake2b(digest_size=16)
    while block := file.read(_TOGETHER):
        digest.update(block)
    file.seek(0)
    return digest


def _picture(file: BinaryIO, channels: int) -> Image.Image:
    """The first frame, upright, as RGB or grey of 8 bits."""
    try:
        with Image.open(file, formats=_FORMATS) as image:
            image.load()
            bits = _bits(image)
            return _in_8_bits(_upright(image), bits).convert("RGB" if channels == 3 else "L")
    except PictureError:
        raise
    except UnidentifiedImageError as error:
        reason = f"is no picture in {', '.join(_FORMATS)}" if os.fstat(file.fileno()).st_size else "is empty"
        raise PictureError(reason) from error
    except Exception as error:  # Pillow lets out whatever a torn file leads its parsers to
        raise PictureError(" ".join(str(error).split()) or type(error).__name__) from error


def _upright(image: Image.Image) -> Image.Image:
    try:
        turn = _UPRIGHT.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # noqa: BLE001 - damaged EXIF data says nothing, and the pixels are whole
        return image
    return image if turn is None else image.transpose(turn)


def _bits(image: Image.Image) -> int:
    """The bits of a grey picture of integers; Pillow's mode I is for 32 of them, and for 16 in some formats."""
    if isinstance(image, TiffImageFile) and image.mode == "I":
        return int(max(image.tag_v2[ExifTags.Base.BitsPerSample]))
    return 16


def _in_8_bits(image: Image.Image, bits: int) -> Image.Image:
    """Grey pictures of more bits scaled to 8; Pillow itself would clip them at 255."""
    if not image.mode.startswith(("I", "F")):
        return image
    values = np.asarray(image)
    low, high = values.min(), values.max()
    if image.mode == "F":
        # Values may overshoot a little, as those of a resized picture do.
        scale = 1 if high <= 2 else 255
        if not (-scale / 2 <= low and high <= 2 * scale):
            raise PictureError(f"has float values from {low:g} to {high:g}: 0 to 1 or 0 to 255 are read")
        return Image.fromarray(np.rint(values * (255 / scale)).clip(0, 255).astype(np.uint8))
    if low < 0 or high > 65535:
        raise PictureError(f"has integer values from {low} to {high}: those of 8 and 16 bits are read")
    # 32 bits say nothing of the range: 8 bits are often kept in them, and would all become 0.
    return Image.fromarray((values if bits == 32 and high <= 255 else values >> 8).astype(np.uint8))
