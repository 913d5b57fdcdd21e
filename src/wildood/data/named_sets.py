"""The named sets: what each consists of, where its files come from, and their checksums."""

import os
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Literal
from urllib.parse import urlsplit

from wildood.data.files import IMAGE_SUFFIXES
from wildood.errors import InputError

IN_SCIKIT_LEARN = "the digits are inside scikit-learn: pip install scikit-learn"


@dataclass(frozen=True)
class Download:
    """A file to download.

    Attributes:
        url: its address.
        file: its name on disk.
        md5: its published checksum; None if it is not known.
        size: its bytes; None if they are not known.
        unpacked: the most bytes that an archive may unpack to; 0 for a file that is used as it is.
        members: the most members that an archive may have.
        part: the part that it holds; None if it holds the whole set.
    """

    url: str
    file: str
    md5: str | None = None
    size: int | None = None
    unpacked: int = 0
    members: int = 0
    part: str | None = None


@dataclass(frozen=True)
class SetPart:
    """A part of a set, such as train or test.

    Attributes:
        name: such as "train".
        count: its official number of images.
        files: its files; none for a directory of pictures.
        on_request: whether it is downloaded only by its own name.
    """

    name: str
    count: int
    files: tuple[str, ...] = ()
    on_request: bool = False


@dataclass(frozen=True)
class NamedSet:
    """A set, as its source describes it.

    Attributes:
        name: such as "cifar10".
        what: a short description.
        terms: of use, as far as they are publicly known.
        source: its web page.
        kind: how its files are read.
        parts: its parts.
        places: directories below the data root where wildood, torchvision or the released code puts its files.
        downloads: its files on the web.
        meta: the file that names the classes.
        how: how its pictures are made 32 x 32 pixels (see `Framing`); None if they have that size.
        as_published: whether the released code crops them differently (`Framing.how` "as_published").
        labelled: whether it has classes.
    """

    name: str
    what: str
    terms: str
    source: str
    kind: Literal["cifar10", "cifar100", "svhn", "pictures", "drawn", "array", "digits"]
    parts: tuple[SetPart, ...]
    places: tuple[str, ...] = ()
    downloads: tuple[Download, ...] = ()
    meta: str = ""
    how: Literal["cover", "centre"] | None = None
    as_published: bool = False
    labelled: bool = False

    def part(self, name: str) -> SetPart:
        """The part of this name; the name may be empty if there is only one.

        >>> NamedSet("a", "", "", "", "array", (SetPart("train", 2), SetPart("test", 1))).part("")
        Traceback (most recent call last):
        wildood.errors.InputError: a has several parts: give a:train or a:test
        """
        if not name and len(self.parts) == 1:
            return self.parts[0]
        for part in self.parts:
            if part.name == name:
                return part
        *others, last = [f"{self.name}:{part.name}" for part in self.parts]
        problem = f"has no part {name!r}" if name else "has several parts"
        raise InputError(f"{self.name} {problem}: give " + (f"{', '.join(others)} or {last}" if others else self.name))

    def place(self, part: SetPart, root: Path) -> Path | None:
        """The directory that holds a part; None if it is not below the data root.

        >>> named = NamedSet("a", "", "", "", "array", (SetPart("all", 2, ("a.npy",)),), places=("a", "."))
        >>> named.place(named.parts[0], Path("nowhere")) is None
        True
        """
        if self.kind == "digits":
            return Path() if find_spec("sklearn") else None
        files = (*part.files, self.meta) if self.meta else part.files
        for place in (root / place for place in self.places):
            if all((place / file).is_file() for file in files) if files else _holds_pictures(place):
                return place
        return None


def _holds_pictures(place: Path) -> bool:
    return any(Path(file).suffix.lower() in IMAGE_SUFFIXES for _, _, files in os.walk(place) for file in files)


def _archive(url: str, md5: str, size: int | None = None, *, limits: tuple[int, int]) -> tuple[Download]:
    return (Download(url, PurePosixPath(urlsplit(url).path).name, md5, size, *limits),)


def _svhn_file(part: str, md5: str, size: int) -> Download:
    return Download(f"{_STANFORD}/{part}_32x32.mat", f"{part}_32x32.mat", md5, size, part=part)


_KRIZ, _STANFORD = "https://www.cs.toronto.edu/~kriz", "http://ufldl.stanford.edu/housenumbers"
_ODIN, _DROPBOX = "https://github.com/facebookresearch/odin", "https://www.dropbox.com/s"
_DTD, _PLACES = "https://www.robots.ox.ac.uk/~vgg/data/dtd", "http://data.csail.mit.edu/places/places365"
_HENDRYCKS, _300K = "https://people.eecs.berkeley.edu/~hendrycks", "300K_random_images.npy"
# The most bytes and members of an unpacked archive.
_CIFAR, _SCENES = (250_000_000, 100), (500_000_000, 50_000)
_TEXTURES, _MANY = (2_000_000_000, 20_000), (10_000_000_000, 400_000)

_SETS = (
    NamedSet(
        name="cifar10",
        what="CIFAR-10: ten classes of animals and vehicles",
        terms="no licence stated; cite Krizhevsky 2009",
        source=f"{_KRIZ}/cifar.html",
        kind="cifar10",
        parts=(
            SetPart("train", 50_000, tuple(f"data_batch_{number}" for number in range(1, 6))),
            SetPart("test", 10_000, ("test_batch",)),
        ),
        places=("cifar10/cifar-10-batches-py", "cifar-10-batches-py", "cifarpy/cifar-10-batches-py"),
        downloads=_archive(
            f"{_KRIZ}/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", 170_498_071, limits=_CIFAR
        ),
        meta="batches.meta",
        labelled=True,
    ),
    NamedSet(
        name="cifar100",
        what="CIFAR-100: a hundred classes of things",
        terms="no licence stated; cite Krizhevsky 2009",
        source=f"{_KRIZ}/cifar.html",
        kind="cifar100",
        parts=(SetPart("train", 50_000, ("train",)), SetPart("test", 10_000, ("test",))),
        places=("cifar100/cifar-100-python", "cifar-100-python", "cifar-100-python/cifar-100-python"),
        downloads=_archive(
            f"{_KRIZ}/cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", 169_001_437, limits=_CIFAR
        ),
        meta="meta",
        labelled=True,
    ),
    NamedSet(
        name="svhn",
        what="Street View House Numbers: cropped digits",
        terms="non-commercial use only",
        source=_STANFORD,
        kind="svhn",
        parts=(
            SetPart("train", 73_257, ("train_32x32.mat",)),
            SetPart("test", 26_032, ("test_32x32.mat",)),
            SetPart("extra", 531_131, ("extra_32x32.mat",), on_request=True),
        ),
        places=("svhn", "SVHN", "."),
        downloads=(
            _svhn_file("train", "e26dedcc434d2e4c54c9b2d4a06d8373", 182_040_794),
            _svhn_file("test", "eb5a983be6a315427106f1b164d9cef3", 64_275_384),
            _svhn_file("extra", "a93ce644f1a588dc4d68dda5feec44a7", 1_329_278_602),
        ),
        labelled=True,
    ),
    NamedSet(
        name="lsun-c",
        what="LSUN scenes, crops (ODIN's)",
        terms="see the source",
        source=_ODIN,
        kind="pictures",
        parts=(SetPart("all", 10_000),),
        places=("lsun-c/LSUN", "LSUN_C", "LSUN"),
        downloads=_archive(
            f"{_DROPBOX}/fhtsw1m3qxlwj6h/LSUN.tar.gz?dl=1", "458a0a0ab8e5f1cb4516d7400568e460", limits=_SCENES
        ),
        how="centre",
        as_published=True,
    ),
    NamedSet(
        name="lsun-r",
        what="LSUN scenes, resized (ODIN's)",
        terms="see the source",
        source=_ODIN,
        kind="pictures",
        parts=(SetPart("all", 10_000),),
        places=("lsun-r/LSUN_resize", "LSUN_resize"),
        downloads=_archive(
            f"{_DROPBOX}/moqh2wh8696c3yl/LSUN_resize.tar.gz?dl=1", "278b7b31c8cb7e804a1465a8ce03a2dc", limits=_SCENES
        ),
    ),
    NamedSet(
        name="isun",
        what="iSUN scenes, resized (ODIN's)",
        terms="see the source",
        source=_ODIN,
        kind="pictures",
        parts=(SetPart("all", 8_925),),
        places=("isun/iSUN", "iSUN"),
        downloads=_archive(
            f"{_DROPBOX}/ssz7qxfqae0cca5/iSUN.tar.gz?dl=1", "be77b0f2c26fda898afac5f99645ee70", limits=_SCENES
        ),
    ),
    NamedSet(
        name="textures",
        what="Describable Textures: 47 kinds",
        terms="for research purposes",
        source=f"{_DTD}/",
        kind="pictures",
        parts=(SetPart("all", 5_640),),
        places=("textures/dtd/images", "dtd/images", "dtd/dtd/images"),
        downloads=_archive(
            f"{_DTD}/download/dtd-r1.0.1.tar.gz", "fff73e5086ae6bdbea199a49dfb8a4c1", 625_239_812, limits=_TEXTURES
        ),
        how="cover",
        labelled=True,
    ),
    NamedSet(
        name="places365",
        what="Places365 scenes: 10,000 drawn of 328,500",
        terms="non-commercial research and education; not to be passed on",
        source="http://places2.csail.mit.edu/download.html",
        kind="drawn",
        parts=(SetPart("all", 10_000),),
        places=("places365/test_256", "places365"),
        downloads=_archive(f"{_PLACES}/test_256.tar", "f532f6ad7b582262a2ec8009075e186b", limits=_MANY),
        how="cover",
    ),
    NamedSet(
        name="300k",
        what="300K Random Images: a cleaned part of 80 Million Tiny Images",
        terms="see the source",
        source="https://github.com/hendrycks/outlier-exposure",
        kind="array",
        parts=(SetPart("all", 300_000, (_300K,)),),
        places=("300k", "."),
        downloads=(Download(f"{_HENDRYCKS}/{_300K}", _300K, "64ca64357de98351f28454274a112dc3"),),
    ),
    NamedSet(
        name="digits",
        what="scikit-learn's digits: scans of 8 x 8 pixels",
        terms="CC BY 4.0 (UCI)",
        source="https://scikit-learn.org/stable/datasets/toy_dataset.html",
        kind="digits",
        parts=(SetPart("all", 1_797),),
        labelled=True,
    ),
)
SETS: dict[str, NamedSet] = {named.name: named for named in _SETS}


def find_set(text: str) -> tuple[NamedSet, str]:
    """The set of `name` or `name:part`, and the name of the part, empty if there is none.

    >>> named, part = find_set("svhn:test")
    >>> named.what, part
    ('Street View House Numbers: cropped digits', 'test')
    >>> find_set("cifar")
    Traceback (most recent call last):
    wildood.errors.InputError: no set is named 'cifar': did you mean cifar10?
    """
    name, _, part = text.partition(":")
    if name in SETS:
        return SETS[name], part
    near = get_close_matches(name.lower(), SETS, n=1)
    raise InputError(
        f"no set is named {name!r}: " + (f"did you mean {near[0]}?" if near else f"give one of {', '.join(SETS)}")
    )


def readable_size(named: NamedSet) -> str:
    """The size of a set's downloads, without the parts that are downloaded on request only.

    >>> readable_size(SETS["svhn"]), readable_size(SETS["isun"]), readable_size(SETS["digits"])
    ('246 MB', 'not stated', 'nothing')
    """
    left_out = {part.name for part in named.parts if part.on_request}
    sizes = [download.size for download in named.downloads if download.part not in left_out]
    known = [size for size in sizes if size is not None]
    if not sizes:
        return "nothing"
    return f"{sum(known) / 1e6:.0f} MB" if len(known) == len(sizes) else "not stated"


def sets_table() -> str:
    """The named sets as the Markdown table of docs/data.md.

    >>> print(sets_table().splitlines()[0])
    | name | what it is | images | download | framed to 32 x 32 by | terms |
    """
    rows = ["| name | what it is | images | download | framed to 32 x 32 by | terms |", "|---" * 6 + "|"]
    for named in SETS.values():
        parts = ", ".join(f"{part.name} {part.count:,}" for part in named.parts)
        framed = (named.how or "") + (" (or `as_published`)" if named.as_published else "")
        cells = (f"`{named.name}`", f"[{named.what}]({named.source})", parts, readable_size(named), framed, named.terms)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)
