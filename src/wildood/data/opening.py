"""Examples from a user's own files: folders of pictures, manifests and arrays."""

import os
import stat
from pathlib import Path
from typing import Literal

from wildood.data.array_files import names_arrays, open_arrays
from wildood.data.decoded import open_decoded
from wildood.data.images import Framing, How, Images
from wildood.data.listing import PICTURES, Folder, Listing
from wildood.data.manifests import KINDS, Manifest
from wildood.data.root import data_root
from wildood.errors import InputError
from wildood.settings import check_flag, check_integer, check_path

_ACCEPTED = "give a folder of pictures, a .csv or .jsonl manifest, or an .npy or .npz file of arrays"


def open_images(
    path: str | Path,
    size: tuple[int, int] | int | None = None,
    *,
    how: How = "cover",
    channels: Literal[1, 3] = 3,
    skip_broken: bool = False,
    cache: str | Path | None = None,
    workers: int | None = None,
) -> Images:
    """Open a folder of pictures, a manifest of pictures, or arrays.

    A folder holds pictures at any depth (.jpg, .png, .gif, .tiff, .webp and others, by their names). If all of them
    lie in subfolders, those right below the folder are the classes, numbered in the order of their names, or of their
    values if all names are integers; else there are no labels. A manifest is a .csv file with a header path,label (or
    path alone), or a .jsonl file with lines of {"path": ..., "label": ...}; paths are relative to it, labels are
    integers, or names, numbered in their order.

    Pictures of any size and mode become uint8 arrays in NHWC: upright, the first frame, without transparency, 16 bits
    scaled to 8 (32 bits, too, unless all values are below 256), floats scaled from 0..1 (or taken as 0..255). They are
    decoded once, in threads, into a cache; opened again, only files that are new or changed are decoded.

    Arrays come from FILE.npy (mapped into memory), FILE.npz, FILE.npz:x, FILE.npz:x,y, or - (standard input), and stay
    as they are, of any shape and type: the arguments below are for pictures only.

    Args:
        path: the folder, manifest or file of arrays.
        size: height and width to make of each picture, or one number for both; None takes them as they are.
        how: "cover" resizes and crops the centre, "centre" only crops; see `Framing`.
        channels: 3 for RGB, 1 for grey.
        skip_broken: leave out files that cannot be read, with a warning, and list them in `broken`.
        cache: the directory below which decoded pictures are kept; else that of WILDOOD_DATA, else the user's cache.
        workers: threads that decode; by default one for each processor.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as place:
    ...     for name in ("cat", "dog"):
    ...         Path(place, "pets", name).mkdir(parents=True)
    ...         Image.new("RGB", (40, 30), name == "dog" and "white" or "black").save(f"{place}/pets/{name}/1.png")
    ...     images = open_images(f"{place}/pets", size=16, cache=place)
    ...     images.examples.shape, images.labels, images.classes, list(images.names)
    ((2, 16, 16, 3), array([0, 1]), ('cat', 'dog'), ['cat/1.png', 'dog/1.png'])
    """
    framing = Framing(size, how, channels)
    threads = _processors() if workers is None else check_integer(workers, "workers", "at least 1, at most 1024", most=1024)
    skip_broken = check_flag(skip_broken, "skip_broken")
    check_path(path, "the path")
    if names_arrays(str(path)):
        return open_arrays(str(path))
    listing, root = listing_of(path), data_root(cache)
    if isinstance(listing, Folder) and listing.classes and _shows_in(root.resolve(), listing.root.resolve()):
        raise InputError(f"{root} lies in {path}, where it would count as a class: give another cache= (--data-root)")
    return open_decoded(listing, framing, root, skip_broken=skip_broken, workers=threads)


def listing_of(path: str | Path) -> Listing:
    """The files that a folder or a manifest names.

    >>> listing_of("")
    Traceback (most recent call last):
    wildood.errors.InputError: the path is empty: give a folder of pictures, a .csv or .jsonl manifest, or an .npy or ...
    """
    place = Path(path)
    if not str(path):
        raise InputError(f"the path is empty: {_ACCEPTED}")
    try:
        is_folder = stat.S_ISDIR(place.stat().st_mode)
    except FileNotFoundError as error:
        raise InputError(f"{place} does not exist: {_ACCEPTED}") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{place} cannot be opened ({getattr(error, 'strerror', error)}): {_ACCEPTED}") from error
    if is_folder:
        return Folder(place)
    if place.suffix.lower() in KINDS:
        return Manifest(place)
    if place.suffix.lower() in PICTURES:
        raise InputError(f"{place} is one picture: give the folder that it lies in")
    raise InputError(f"{place} is not of a kind that can be opened: {_ACCEPTED}")


def _shows_in(cache: Path, folder: Path) -> bool:
    return cache.is_relative_to(folder) and not any(part.startswith(".") for part in cache.relative_to(folder).parts)


def _processors() -> int:
    # Those that this process may use: a container often has fewer than the machine.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
