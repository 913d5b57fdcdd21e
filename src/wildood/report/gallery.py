"""Examples as small pictures in a page."""

import base64
import io
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from wildood.data.inputs import InputSpec
from wildood.report.page import Panel

SHOWN = 16
LARGEST = 64  # pixels of the longer side that are kept


class Pictures(NamedTuple):
    """Raw images as an input spec takes them, the numbers of those to show, and a caption for every image."""

    images: npt.NDArray[Any]
    numbers: npt.NDArray[np.intp]
    captions: Sequence[str]
    spec: InputSpec


def gallery(title: str, says: str, chosen: Pictures) -> Panel:
    """The chosen images as pictures with captions, as many as fit; the title says how many there are.

    >>> images = np.zeros((3, 8, 8, 1), np.uint8)
    >>> panel = gallery("Rejected", "", Pictures(images, np.array([2, 0]), ["a", "b", "c"], InputSpec()))
    >>> panel.title, panel.body.count("data:image/png;base64,")
    ('Rejected: 2 of 3', 2)
    """
    count = f"{len(chosen.numbers)} of {len(chosen.images)}"
    count += f", {SHOWN} are shown" if len(chosen.numbers) > SHOWN else ""
    pictures = [
        f'<figure><img src="{_data_uri(chosen.images[number], chosen.spec)}" alt="{escape(chosen.captions[number])}">'
        f"<figcaption>{escape(chosen.captions[number])}</figcaption></figure>"
        for number in chosen.numbers[:SHOWN]
    ]
    body = f'<div class="pictures">{"".join(pictures)}</div>' if pictures else "<p>None.</p>"
    return Panel(f"{title}: {count}", says, body)


def can_be_shown(shape: tuple[int, ...], spec: InputSpec | None) -> bool:
    """Whether raw examples of this shape are pictures: grey, or red, green and blue.

    >>> can_be_shown((8, 8, 1), InputSpec()), can_be_shown((3, 8, 8), InputSpec(layout="NCHW")), can_be_shown((4,), None)
    (True, True, False)
    """
    return spec is not None and len(shape) == 3 and shape[-1 if spec.layout == "NHWC" else 0] in {1, 3}


def _data_uri(image: npt.NDArray[Any], spec: InputSpec) -> str:
    values = image if spec.layout == "NHWC" else np.moveaxis(image, 0, -1)
    if values.dtype != np.uint8:
        values = (np.clip(values, 0, 1) * 255).round().astype(np.uint8)
    picture = Image.fromarray(values[..., 0] if values.shape[-1] == 1 else values)
    picture.thumbnail((LARGEST, LARGEST))
    content = io.BytesIO()
    picture.save(content, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"
