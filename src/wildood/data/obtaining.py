"""A named set brought to the data root: downloaded, checked, unpacked; what is there already is left alone."""

import logging
from pathlib import Path

from wildood.data.checksums import digests, mismatch, read_record
from wildood.data.downloading import download
from wildood.data.locks import locked
from wildood.data.named_set import IN_SCIKIT_LEARN, Download, NamedSet, SetPart
from wildood.data.unpacking import require_free, unpack
from wildood.errors import InputError

DOWNLOADS, LOCK = "downloads", "getting.lock"
_LOGGER = logging.getLogger("wildood")


def obtain(named: NamedSet, root: Path, part: SetPart | None = None, *, keep: bool = False) -> None:
    """Bring a part of a set to the data root; without a part, all but those that are there on request only.

    One process does so at a time: another one waits, and finds it done.

    Args:
        named: the set.
        root: the data root.
        part: of the set.
        keep: archives, too, once they are unpacked.

    >>> from wildood.data.published_sets import SETS
    >>> obtain(SETS["digits"], Path("nowhere"))  # nothing to do
    """
    wanted = [part] if part else [part for part in named.parts if not part.on_request]
    if all(named.place(each, root) for each in wanted):
        return
    if named.kind == "digits":
        raise InputError(IN_SCIKIT_LEARN)
    root.mkdir(parents=True, exist_ok=True)
    with locked(root / LOCK, waiting=f"another process brings data to {root}: waiting for it"):
        for each in wanted:
            for file in named.downloads:
                if file.part in {None, each.name} and named.place(each, root) is None:
                    _bring(named, file, root, keep=keep)
            if named.place(each, root) is None:
                raise InputError(f"{named.name}: {each.name} is not in what can be downloaded: see {named.source}")


def kept_file(file: Download, named: NamedSet, root: Path) -> Path | None:
    """Where a file of a set lies, or an archive that was kept or placed by hand; None if it is nowhere.

    >>> kept_file(Download("", "a.mat"), NamedSet("a", "", "", "", "svhn", (), ("a", ".")), Path("nowhere")) is None
    True
    """
    places = (DOWNLOADS, ".") if file.unpacked else named.places
    return next((root / place / file.file for place in places if (root / place / file.file).is_file()), None)


def wrong_content(path: Path, file: Download, root: Path) -> str:
    """What is wrong with the content of a file, or nothing.

    >>> wrong_content(Path(__file__), Download("", "a.mat"), Path("nowhere"))  # nobody has recorded a checksum
    ''
    """
    return mismatch(digests(path), read_record(root, file.file), file.md5)


def _bring(named: NamedSet, file: Download, root: Path, *, keep: bool) -> None:
    """Download a file, unless it is there, and unpack it, if it is an archive."""
    target = root / named.name
    if file.unpacked:
        require_free(target)
    found = kept_file(file, named, root)
    if found is None:
        _LOGGER.info("%s: downloading %s (terms: %s)", named.name, file.url, named.terms)
        place = (root / DOWNLOADS if file.unpacked else target) / file.file
        download(file.url, place, root, file.md5)
    else:
        place, wrong = found, wrong_content(found, file, root)
        if wrong:
            raise InputError(f"{found} is not the file that is expected: {wrong}. Remove it, and it is downloaded anew")
    if file.unpacked:
        _LOGGER.info("%s: unpacking %s", named.name, place)
        unpack(place, target, max_bytes=file.unpacked, max_members=file.members)
        if found is None and not keep:  # what a user placed by hand is theirs
            place.unlink()
