"""The named sets: what each consists of, where its files come from, and their checksums."""

import os
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from wildood.data.folders import PICTURES
from wildood.errors import InputError

IN_SCIKIT_LEARN = "the digits are inside scikit-learn: pip install scikit-learn"


@dataclass(frozen=True)
class Download:
    """A file to download.

    Attributes:
        url: where from.
        file: its name on disk.
        md5: its published checksum, or None where none is known.
        size: its bytes, or None where they are not known.
        unpacked: how many bytes an archive may have when it is unpacked; 0 for a file that is used as it is.
        members: how many members an archive may have.
        part: the one part it is for, or None where it holds all of the set.
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
        name: of the part.
        count: how many images it has officially.
        files: that hold it; none where it is a directory of pictures.
        on_request: downloaded only when it is asked for by name.
    """

    name: str
    count: int
    files: tuple[str, ...] = ()
    on_request: bool = False


@dataclass(frozen=True)
class NamedSet:
    """A set, as its source describes it.

    Attributes:
        name: by which it is asked for.
        what: it is.
        terms: of use, as far as they are publicly known.
        source: the page to read.
        kind: how its files are read.
        parts: in which it is divided.
        places: where its files may lie, below the data root: where wildood, torchvision or the released code puts them.
        downloads: its files.
        meta: the file beside the parts' own that names the classes.
        how: its pictures are framed to 32 x 32 pixels (see `Framing`); None where they are that already.
        as_published: whether the released code frames them in its own way, which is that of `Framing` by this name.
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
        """The part of this name; an only part needs none. There is no part that is meant when none is named.

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
        """The directory that holds a part, or None if it is nowhere.

        >>> named = NamedSet("a", "", "", "", "array", (SetPart("all", 2, ("a.npy",)),), places=("a", "."))
        >>> named.place(named.parts[0], Path("nowhere")) is None
        True
        """
        if self.kind == "digits":
            return Path() if find_spec("sklearn") else None
        files = (*part.files, self.meta) if self.meta else part.files
        for place in (root / place for place in self.places):
            whole = all((place / file).is_file() for file in files) if files else _holds_pictures(place)
            if whole:
                return place
        return None


def _holds_pictures(place: Path) -> bool:
    return any(Path(file).suffix.lower() in PICTURES for _, _, files in os.walk(place) for file in files)


_DROPBOX, _KRIZ = "https://www.dropbox.com/s", "https://www.cs.toronto.edu/~kriz"
_STANFORD, _ODIN = "http://ufldl.stanford.edu/housenumbers", "https://github.com/facebookresearch/odin"

_SETS = (
    NamedSet(
        "cifar10",
        "CIFAR-10: ten classes of animals and vehicles",
        "no licence stated; cite Krizhevsky 2009",
        f"{_KRIZ}/cifar.html",
        "cifar10",
        (
            SetPart("train", 50_000, tuple(f"data_batch_{number}" for number in range(1, 6))),
            SetPart("test", 10_000, ("test_batch",)),
        ),
        ("cifar10/cifar-10-batches-py", "cifar-10-batches-py", "cifarpy/cifar-10-batches-py"),
        (
            Download(
                f"{_KRIZ}/cifar-10-python.tar.gz",
                "cifar-10-python.tar.gz",
                "c58f30108f718f92721af3b95e74349a",
                170_498_071,
                unpacked=250_000_000,
                members=100,
            ),
        ),
        meta="batches.meta",
        labelled=True,
    ),
    NamedSet(
        "cifar100",
        "CIFAR-100: a hundred classes of things",
        "no licence stated; cite Krizhevsky 2009",
        f"{_KRIZ}/cifar.html",
        "cifar100",
        (SetPart("train", 50_000, ("train",)), SetPart("test", 10_000, ("test",))),
        ("cifar100/cifar-100-python", "cifar-100-python", "cifar-100-python/cifar-100-python"),
        (
            Download(
                f"{_KRIZ}/cifar-100-python.tar.gz",
                "cifar-100-python.tar.gz",
                "eb9058c3a382ffc7106e4002c42a8d85",
                169_001_437,
                unpacked=250_000_000,
                members=100,
            ),
        ),
        meta="meta",
        labelled=True,
    ),
    NamedSet(
        "svhn",
        "Street View House Numbers: cropped digits",
        "non-commercial use only",
        _STANFORD,
        "svhn",
        (
            SetPart("train", 73_257, ("train_32x32.mat",)),
            SetPart("test", 26_032, ("test_32x32.mat",)),
            SetPart("extra", 531_131, ("extra_32x32.mat",), on_request=True),
        ),
        ("svhn", "SVHN", "."),
        tuple(
            Download(f"{_STANFORD}/{part}_32x32.mat", f"{part}_32x32.mat", md5, size, part=part)
            for part, md5, size in (
                ("train", "e26dedcc434d2e4c54c9b2d4a06d8373", 182_040_794),
                ("test", "eb5a983be6a315427106f1b164d9cef3", 64_275_384),
                ("extra", "a93ce644f1a588dc4d68dda5feec44a7", 1_329_278_602),
            )
        ),
        labelled=True,
    ),
    NamedSet(
        "lsun-c",
        "LSUN scenes, crops (ODIN's)",
        "see the source",
        _ODIN,
        "pictures",
        (SetPart("all", 10_000),),
        ("lsun-c/LSUN", "LSUN_C", "LSUN"),
        (
            Download(
                f"{_DROPBOX}/fhtsw1m3qxlwj6h/LSUN.tar.gz?dl=1",
                "LSUN.tar.gz",
                "458a0a0ab8e5f1cb4516d7400568e460",
                unpacked=500_000_000,
                members=50_000,
            ),
        ),
        how="centre",
        as_published=True,
    ),
    NamedSet(
        "lsun-r",
        "LSUN scenes, resized (ODIN's)",
        "see the source",
        _ODIN,
        "pictures",
        (SetPart("all", 10_000),),
        ("lsun-r/LSUN_resize", "LSUN_resize"),
        (
            Download(
                f"{_DROPBOX}/moqh2wh8696c3yl/LSUN_resize.tar.gz?dl=1",
                "LSUN_resize.tar.gz",
                "278b7b31c8cb7e804a1465a8ce03a2dc",
                unpacked=500_000_000,
                members=50_000,
            ),
        ),
    ),
    NamedSet(
        "isun",
        "iSUN scenes, resized (ODIN's)",
        "see the source",
        _ODIN,
        "pictures",
        (SetPart("all", 8_925),),
        ("isun/iSUN", "iSUN"),
        (
            Download(
                f"{_DROPBOX}/ssz7qxfqae0cca5/iSUN.tar.gz?dl=1",
                "iSUN.tar.gz",
                "be77b0f2c26fda898afac5f99645ee70",
                unpacked=500_000_000,
                members=50_000,
            ),
        ),
    ),
    NamedSet(
        "textures",
        "Describable Textures: 47 kinds",
        "for research purposes",
        "https://www.robots.ox.ac.uk/~vgg/data/dtd/",
        "pictures",
        (SetPart("all", 5_640),),
        ("textures/dtd/images", "dtd/images", "dtd/dtd/images"),
        (
            Download(
                "https://www.robots.ox.ac.uk/~vgg/data/dtd/download/dtd-r1.0.1.tar.gz",
                "dtd-r1.0.1.tar.gz",
                "fff73e5086ae6bdbea199a49dfb8a4c1",
                625_239_812,
                unpacked=2_000_000_000,
                members=20_000,
            ),
        ),
        how="cover",
        labelled=True,
    ),
    NamedSet(
        "places365",
        "Places365 scenes: 10,000 drawn of 328,500",
        "non-commercial research and education; not to be passed on",
        "http://places2.csail.mit.edu/download.html",
        "drawn",
        (SetPart("all", 10_000),),
        ("places365/test_256", "places365"),
        (
            Download(
                "http://data.csail.mit.edu/places/places365/test_256.tar",
                "test_256.tar",
                "f532f6ad7b582262a2ec8009075e186b",
                unpacked=10_000_000_000,
                members=400_000,
            ),
        ),
        how="cover",
    ),
    NamedSet(
        "300k",
        "300K Random Images: a cleaned part of 80 Million Tiny Images",
        "see the source",
        "https://github.com/hendrycks/outlier-exposure",
        "array",
        (SetPart("all", 300_000, ("300K_random_images.npy",)),),
        ("300k", "."),
        (
            Download(
                "https://people.eecs.berkeley.edu/~hendrycks/300K_random_images.npy",
                "300K_random_images.npy",
                "64ca64357de98351f28454274a112dc3",
            ),
        ),
    ),
    NamedSet(
        "digits",
        "scikit-learn's digits: scans of 8 x 8 pixels",
        "CC BY 4.0 (UCI)",
        "https://scikit-learn.org/stable/datasets/toy_dataset.html",
        "digits",
        (SetPart("all", 1_797),),
        labelled=True,
    ),
)
SETS: dict[str, NamedSet] = {named.name: named for named in _SETS}


def find_set(text: str) -> tuple[NamedSet, str]:
    """The set that `name` or `name:part` names, and the part's name, empty where none is named.

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
    """How much there is to download of a set, as far as it is known; parts on request are left out.

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
