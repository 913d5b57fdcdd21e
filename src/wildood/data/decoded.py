"""Pictures decoded once: kept in a cache that is believed only as long as every file is as it was."""

import logging
import shutil
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from wildood.data.building import build
from wildood.data.images import Framing, Images
from wildood.data.listing import Listing
from wildood.data.locks import locked
from wildood.data.stored import Stored, key_of, open_stored, source_of
from wildood.errors import InputError

_LOGGER = logging.getLogger("wildood")
_LISTED = 1000  # broken files by their names in the log; all of them are in Images.broken


def open_decoded(listing: Listing, framing: Framing, root: Path, *, skip_broken: bool, workers: int) -> Images:
    """The pictures of a listing, from the cache below `root` if it agrees with the files, else by way of it.

    >>> import tempfile
    >>> from PIL import Image
    >>> from wildood.data.listing import Folder
    >>> with tempfile.TemporaryDirectory() as place:
    ...     Image.new("RGB", (4, 4)).save(f"{place}/a.png")
    ...     images = open_decoded(Folder(Path(place)), Framing(), Path(place) / ".cache", skip_broken=False, workers=1)
    ...     images.examples.shape, images.names[0]
    ((1, 4, 4, 3), 'a.png')
    """
    place = root / "decoded" / key_of(source_of(listing, framing))
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        stored = _agreeing_or_built(listing, framing, place, workers)
    except OSError as error:
        raise InputError(
            f"{listing.place} cannot be decoded into {place.parent} ({error.strerror or error}): make room there, or "
            "give another directory with cache= (--data-root) or WILDOOD_DATA"
        ) from error
    listing.remarks()
    if stored.about.broken:
        (_, name, reason, _), count = stored.about.broken[0], len(stored.about.broken)
        if not skip_broken:
            more = f", nor can {count - 1} more" if count > 1 else ""
            raise InputError(
                f"{listing.root / name} cannot be read as a picture ({reason}){more}: repair or remove such files, or "
                "leave them out with skip_broken=True (--skip-broken)"
            )
        _LOGGER.warning("%s: %d left out because they cannot be read:", listing.place, count)
        for _, left_out, why, _ in stored.about.broken[:_LISTED]:
            _LOGGER.warning("  %s (%s)", left_out, why)
        if count > _LISTED:
            _LOGGER.warning("  and %d others", count - _LISTED)
    return stored.images(listing)


def _agreeing_or_built(listing: Listing, framing: Framing, place: Path, workers: int) -> Stored:
    source, lock = source_of(listing, framing), _lock_of(place)
    waiting = f"{listing.place}: waiting for another process that decodes these pictures"
    with locked(lock, shared=True, waiting=waiting):
        stored = open_stored(place, source)
        if stored is not None and stored.agrees(listing):
            return stored
    with locked(lock, waiting=waiting) as alone:
        stored = open_stored(place, source)
        if stored is not None and stored.agrees(listing):  # another process was faster
            return stored
        _remove_leftovers(place, alone=alone)
        draft = _draft_of(place)
        try:
            draft.mkdir()
            build(listing, framing, draft, source, stored, workers=workers)
            _publish(draft, place)
        finally:
            _remove(draft)
        stored = open_stored(place, source)
    if stored is None:
        raise InputError(f"{listing.place}: another process changed {place} at the same time: open it again")
    return stored


def _publish(draft: Path, place: Path) -> None:
    """Put a finished draft in the place of what is there."""
    while True:
        try:
            draft.rename(place)
        except OSError:
            if not place.is_symlink() and not place.exists():
                raise
            aside = _draft_of(place)
            with suppress(FileNotFoundError):
                place.rename(aside)
            _remove(aside)
        else:
            return


def _remove_leftovers(place: Path, *, alone: bool) -> None:
    """Remove the drafts of builds that were killed: nobody holds their lock."""
    for draft in place.parent.glob("*.part"):
        if draft.name.startswith(place.name):
            if alone:
                _remove(draft)
            continue
        with locked(_lock_of(draft.with_name(draft.name.partition(".")[0]))) as abandoned:
            if abandoned:
                _remove(draft)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _lock_of(place: Path) -> Path:
    return place.with_name(f"{place.name}.lock")


def _draft_of(place: Path) -> Path:
    return place.with_name(f"{place.name}.{uuid4().hex}.part")
