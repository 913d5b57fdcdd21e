"""The named sets, opened: `cifar10:train`, `svhn:test`, `textures`, from the data root to images and labels."""

import csv
import io
import logging
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np

from wildood.data.files import data_root, write_atomically
from wildood.data.folders import Folder, open_images
from wildood.data.formats import SIDE, read_array, read_cifar, read_cifar_classes, read_svhn
from wildood.data.images import How, Images
from wildood.data.named_sets import IN_SCIKIT_LEARN, SETS, NamedSet, SetPart, find_set
from wildood.errors import InputError

DRAWN_LIST, DRAWN_SEED = "chosen.csv", 0
_DIGITS = tuple(map(str, range(10)))
_NO_CLASSES = "the set has no classes, give it as wild or test data"
_LOGGER = logging.getLogger("wildood")


def is_named_set(text: str) -> bool:
    """Whether a text names a set, with or without a part, rather than a file.

    >>> is_named_set("svhn:test"), is_named_set("svhn.npz")
    (True, False)
    """
    return text.partition(":")[0] in SETS


def open_set(text: str, root: str | Path | None = None, *, as_published: bool = False) -> Images:
    """The images of a named set, with their labels where it has classes.

    A count other than the official one is a warning in the log.

    Args:
        text: `name` or `name:part`; `wildood data list` shows the names.
        root: the data root; without it, that of WILDOOD_DATA, or the user's cache.
        as_published: frame pictures as the released code does.

    >>> digits = open_set("digits")
    >>> len(digits), digits.examples.shape[1:], digits.classes[7]
    (1797, (8, 8, 1), '7')
    """
    named, part_name = find_set(text)
    part = named.part(part_name)
    images = read_part(named, part, data_root(root), given=root is not None, as_published=as_published)
    if len(images) != part.count:
        _LOGGER.warning("%s has %s images, officially %s", text, f"{len(images):,}", f"{part.count:,}")
    return replace(images, where=text)


def read_part(named: NamedSet, part: SetPart, root: Path, *, given: bool = True, as_published: bool = False) -> Images:
    """A part of a set, however many images it has; `given` says whether the user chose the data root.

    >>> len(read_part(SETS["digits"], SETS["digits"].parts[0], Path("nowhere")))
    1797
    """
    place = named.place(part, root)
    if place is None:
        raise InputError(_missing(named, part, root, given=given))
    files = [place / file for file in part.files]
    match named.kind:
        case "pictures" | "drawn":
            how: How | None = "as_published" if as_published and named.as_published else named.how
            listed = _drawn(place, part.count, named.name) if named.kind == "drawn" else place
            return _pictures(listed, named, how, root)
        case "cifar10" | "cifar100":
            fine = "fine_" if named.kind == "cifar100" else ""
            classes = read_cifar_classes(place / named.meta, f"{fine}label_names")
            return Images(*read_cifar(files, f"{fine}labels", len(classes)), classes=classes)
        case "svhn":
            return Images(*read_svhn(files[0]), classes=_DIGITS)
        case "array":
            return Images(read_array(files[0]), unlabelled=_NO_CLASSES)
        case "digits":
            scans, labels = import_module("sklearn.datasets").load_digits(return_X_y=True)
            pixels = (scans.reshape(-1, 8, 8, 1) * (255 / 16)).round().astype(np.uint8)
            return Images(pixels, labels.astype(np.int64), classes=_DIGITS)


def _pictures(place: Path, named: NamedSet, how: How | None, root: Path) -> Images:
    images = open_images(place, None if how is None else (SIDE, SIDE), how=how or "cover", cache=root)
    if images.examples.shape[1:] != (SIDE, SIDE, 3):
        size = " x ".join(map(str, images.examples.shape[1:3]))
        raise InputError(f"{place} has pictures of {size} pixels where {named.name} has {SIDE} x {SIDE}: get it again")
    return images if named.labelled else replace(images, labels=None, classes=(), unlabelled=_NO_CLASSES)


def _drawn(place: Path, count: int, name: str) -> Path:
    """The list of the pictures that are used of a larger set: drawn once, the same from the same files, then kept.

    Where there are no more than are wanted, nothing is drawn, and all are used.
    """
    chosen = place / DRAWN_LIST
    if chosen.exists():
        return chosen
    names = sorted(file.name for file in Folder(place))
    if len(names) <= count:
        return place
    order = np.random.default_rng(DRAWN_SEED).choice(len(names), count, replace=False)
    drawn = [names[index] for index in np.sort(order)]
    odd = next((file for file in drawn if any("\ud800" <= letter <= "\udfff" for letter in file)), None)
    if odd is not None:  # the list is text
        raise InputError(f"{name}: {place} holds {odd!r}, a name that is not UTF-8: rename it")
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([("path",), *((file,) for file in drawn)])
    try:
        write_atomically(chosen, text.getvalue().encode())
    except OSError as error:
        raise InputError(
            f"{name}: the list of drawn pictures cannot be written to {chosen} ({error.strerror}): make it writable"
        ) from error
    return chosen


def _missing(named: NamedSet, part: SetPart, root: Path, *, given: bool) -> str:
    """What to do about a part that is nowhere."""
    if named.kind == "digits":
        return IN_SCIKIT_LEARN
    asked = f"{named.name}:{part.name}" if part.on_request else named.name
    get = f"wildood data get {asked}" + (f" --data-root {root}" if given else "")
    files = ", ".join((*part.files, named.meta) if named.meta else part.files) or "its pictures"
    by_hand = f"place {files} in {root / named.places[0]}"
    what = f"{named.name}:{part.name}" if len(named.parts) > 1 else named.name
    return f"{what} is not below {root}: {f'{get}, or ' if named.downloads else ''}{by_hand}"
