"""Images that come from files: an array in a memory map, with labels, names and what could not be read."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from wildood.data.sources import ArraySource


@dataclass(frozen=True)
class Framing:
    """How a picture of any size and mode becomes an array of a fixed shape.

    Attributes:
        size: height and width; None takes pictures as they are, which must then all have one size.
        how: "cover" resizes until the shorter side fits (bilinear, antialiased) and crops the centre; "centre" crops the
            centre without resizing; "published" pads by 4 pixels of the mean colour and crops at a place that the file's
            name decides, as the released code does with LSUN-C.
        channels: 3 for RGB, 1 for grey.
    """

    size: tuple[int, int] | None = None
    how: Literal["cover", "centre", "published"] = "cover"
    channels: Literal[1, 3] = 3


@dataclass(frozen=True, eq=False)
class Images(ArraySource):
    """Examples from files: what `fit` takes as labelled (if it has labels), wild or holdout.

    Attributes:
        where: where they came from, as the user named it.
        classes: the names of the classes, in the order of the labels; empty where they have none.
        names: the file of each example; empty for arrays.
        broken: the files that were left out because they cannot be read.
        content: a text that is another one when the examples are, where it is known without reading them all.
    """

    where: str = ""
    classes: tuple[str, ...] = ()
    names: Sequence[str] = field(default=(), repr=False)
    broken: tuple[str, ...] = ()
    content: str = ""

    def fingerprint(self) -> str:
        """The content's text, or a hash of every byte."""
        return self.content or ArraySource.fingerprint(self)
