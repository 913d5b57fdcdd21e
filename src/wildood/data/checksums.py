"""Checksums of downloaded files: the published ones, and where there are none, those of the first download."""

import hashlib
import json
import re
from pathlib import Path
from typing import Annotated, Any, TypedDict

from wildood.data.files import write_atomically
from wildood.data.schema import Count, Limit, SchemaError, parse
from wildood.errors import InputError

RECORD = "checksums.json"
_TOGETHER = 1 << 20


class _Record(TypedDict, total=False):
    sha256: Annotated[str, Limit(lambda text: re.fullmatch("[0-9a-f]+", text) is not None, "hexadecimal digits")]
    etag: str | None
    total: Count | None


def read_record(root: Path, file: str) -> dict[str, Any]:
    """What `checksums.json` in the data root knows of a file: sha256, bytes, url; of one under way also etag and total.

    >>> read_record(Path("nowhere"), "a.tar.gz")
    {}
    """
    record: dict[str, Any] = _read(root / RECORD).get(file, {})
    return record


def write_record(root: Path, file: str, record: dict[str, Any]) -> None:
    """Put a file's record in the place of the one before.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     write_record(Path(place), "a.tar.gz", {"bytes": 7})
    ...     read_record(Path(place), "a.tar.gz")
    {'bytes': 7}
    """
    everything = _read(root / RECORD) | {file: record}
    write_atomically(root / RECORD, (json.dumps(everything, indent=1, sort_keys=True) + "\n").encode())


def digests(path: Path) -> tuple[str, str]:
    """The md5 and the sha256 of a file.

    >>> [len(digest) for digest in digests(Path(__file__))]
    [32, 64]
    """
    md5, sha256 = hashlib.md5(usedforsecurity=False), hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_TOGETHER):
            md5.update(block)
            sha256.update(block)
    return md5.hexdigest(), sha256.hexdigest()


def mismatch(found: tuple[str, str], record: dict[str, Any], md5: str | None) -> str:
    """What is wrong with a file that has these digests, or nothing; a published md5 goes before what is recorded.

    >>> mismatch(("aa", "bb"), {"sha256": "cc"}, md5="aa")
    ''
    >>> mismatch(("aa", "bb"), {"sha256": "cc"}, md5=None)
    'its sha256 is bb, that of the first download was cc'
    """
    if md5 is not None:
        return "" if found[0] == md5 else f"its md5 is {found[0]}, the published one is {md5}"
    first = record.get("sha256", found[1])
    return "" if found[1] == first else f"its sha256 is {found[1]}, that of the first download was {first}"


def _read(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = parse(path.read_bytes(), dict[str, _Record])
    except FileNotFoundError:
        return {}
    except SchemaError as error:
        raise InputError(f"{path} is damaged ({error}): remove it, and checksums are recorded anew") from error
    return content
