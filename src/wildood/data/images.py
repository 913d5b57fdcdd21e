"""Images that come from files: an array in a memory map, with labels, names and what could not be read."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from wildood.data.inputs import check_size
from wildood.data.sources import ArraySource
from wildood.errors import InputError
from wildood.settings import check_choice, check_integer

How = Literal["cover", "centre", "as_published"]


@dataclass(frozen=True)
class Framing:
    """How a picture of any size and mode becomes an array of a fixed shape.

    Attributes:
        size: height and width, or one number for both; None takes pictures as they are, if they all have one size.
        how: "cover" resizes until the picture just covers the size (bilinear, antialiased) and crops the centre;
            "centre" crops the centre without resizing; "as_published" pads by 4 pixels of the mean colour and crops at
            a place that the file's name decides, as the released code does with LSUN-C.
        channels: 3 for RGB, 1 for grey.

    >>> Framing(32).size
    (32, 32)
    >>> Framing(32, "stretch")
    Traceback (most recent call last):
    wildood.errors.InputError: how is 'stretch': give 'cover', 'centre' or 'as_published'
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
    """Examples from files: what `fit` takes as labelled (if it has labels), wild or holdout.

    Attributes:
        where: where they came from, as the user named it.
        classes: the names of the classes, in the order of the labels; empty where they have none.
        names: the file of each example, below the folder or as the manifest has it; empty for arrays.
        broken: the files that were left out because they cannot be read.
        content: a text that is another one when the examples are, where it is known without reading them all.
        unlabelled: what to do to get labels, where there are none.

    >>> import numpy as np
    >>> images = Images(np.zeros((2, 4, 4, 3), np.uint8), np.array([0, 1]), where="pets", classes=("cat", "dog"))
    >>> len(images), images.classes[images.labels[1]]
    (2, 'dog')
    """

    where: str = ""
    classes: tuple[str, ...] = ()
    names: Sequence[str] = field(default=(), repr=False)
    broken: tuple[str, ...] = ()
    content: str = ""
    unlabelled: str = ""

    def fingerprint(self) -> str:
        """The content's text, or that of the arrays.

        >>> import numpy as np
        >>> Images(np.zeros((2, 3)), content="c0ffee").fingerprint()
        'c0ffee'
        """
        return self.content or ArraySource.fingerprint(self)
