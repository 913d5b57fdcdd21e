"""Pages: jinja2 templates filled with data, each a single HTML file for screens, phones and paper, light and dark."""

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import numpy.typing as npt
import torch
from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image

import wildood
from wildood.data.files import write_text
from wildood.data.inputs import InputSpec, Spec
from wildood.data.sources import Source
from wildood.data.structures import one_tensor
from wildood.errors import InputError
from wildood.evaluate.intervals import in_percent
from wildood.experiments.run import code_version
from wildood.report.figures import COLOURS, plots_installed
from wildood.settings import check_path
from wildood.train.progress import logger

SHOWN = 16  # pictures of a gallery
LARGEST = 64  # pixels of the longer side of a picture
_TEMPLATES = Environment(loader=PackageLoader("wildood.report"), autoescape=True, undefined=StrictUndefined)
_TEMPLATES.globals["colours"] = COLOURS
_TEMPLATES.filters["in_percent"] = in_percent  # as in the tables of an evaluation
_TEMPLATES.filters["percent"] = lambda share, decimals=1: f"{100 * share:.{decimals}f} %"
_TEMPLATES.filters["count"] = lambda number: f"{number:,}"


def render(template: str, **context: Any) -> str:
    """A template of `templates/`, filled in. Texts are escaped; tables and figures are HTML already.

    >>> from wildood.report.table import Column, Row, Table
    >>> print(render("table.html", table=Table([Column("a & b")], [Row.of("<1>")])))
    <div class="table"><table>
    <thead><tr><th scope="col">a &amp; b</th></tr></thead>
    <tbody>
    <tr><th scope="row">&lt;1&gt;</th></tr></tbody></table></div>
    """
    return _TEMPLATES.get_template(template).render(context)


@cache
def generator() -> str:
    """What made a page: one that says otherwise was made by another version."""
    files = sorted((Path(__file__).parent / "templates").iterdir())
    templates = sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
    return f"wildood {wildood.__version__}, code {code_version()}, templates {templates}"


def check_directory(directory: str | Path) -> Path:
    """A directory to save to, which need not exist."""
    place = check_path(directory, "the directory")
    if place.exists() and not place.is_dir():
        raise InputError(f"{place} is a file: give a directory to save to")
    return place


def save_page(draw: Callable[[], str], directory: Path) -> None:
    """Write what `draw` returns to `report.html`; a warning says so if it cannot be drawn."""
    if plots_installed():
        write_text(directory / "report.html", draw())
    else:
        logger.warning("%s has no report.html, which needs matplotlib: pip install matplotlib, then save again", directory)


class Picture(NamedTuple):
    """An image as a data URI, and its caption."""

    source: str
    caption: str


class Gallery(NamedTuple):
    """Some of a number of images: those that are shown, how many were chosen, and of how many."""

    pictures: Sequence[Picture]
    chosen: int
    total: int


def gallery(
    images: npt.NDArray[Any] | Source,
    numbers: npt.NDArray[np.intp],
    captions: Sequence[str] | Mapping[int, str],
    spec: InputSpec,
    most: int = SHOWN,
) -> Gallery:
    """The chosen ones of raw images as pictures, `most` of them at most, with their captions; no others are read."""
    shown = numbers[:most]
    chosen = zip(_read(images, shown), shown, strict=True)
    pictures = [Picture(_data_uri(png(image, spec)), captions[number]) for image, number in chosen]
    return Gallery(pictures, len(numbers), len(images))


def _read(images: npt.NDArray[Any] | Source, numbers: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
    if not len(numbers):
        return np.empty(0)
    if isinstance(images, np.ndarray):
        return np.asarray(images[numbers])
    return one_tensor(images.gather(torch.from_numpy(numbers))[0], "a picture").cpu().numpy()


def is_picture(spec: Spec | None, shape: tuple[int, ...]) -> TypeGuard[InputSpec]:
    """Whether raw examples of this shape can be shown: grey, or red, green and blue."""
    return isinstance(spec, InputSpec) and len(shape) == 3 and shape[-1 if spec.layout == "NHWC" else 0] in {1, 3}


def png(image: npt.NDArray[Any], spec: InputSpec, largest: int = LARGEST) -> bytes:
    """A raw image as a PNG file, with at most so many pixels on its longer side."""
    values = image if spec.layout == "NHWC" else np.moveaxis(image, 0, -1)
    if values.dtype != np.uint8:
        values = (np.clip(values, 0, 1) * 255).round().astype(np.uint8)
    picture = Image.fromarray(values[..., 0] if values.shape[-1] == 1 else values)
    picture.thumbnail((largest, largest))
    content = io.BytesIO()
    picture.save(content, format="PNG")
    return content.getvalue()


def _data_uri(picture: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(picture).decode()}"
