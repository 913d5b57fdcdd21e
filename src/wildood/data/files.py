"""Files: the data root, locks, atomic writes, and tensors and states as safetensors."""

import hashlib
import io
import json
import logging
import lzma
import os
import platform
import re
import stat
import struct
import sys
import time
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from filelock import lock_descriptor
from platformdirs import user_cache_dir
from safetensors import SafetensorError

from wildood.errors import InputError, as_utf8
from wildood.settings import check_path

if TYPE_CHECKING:  # `wildood data list` starts without torch
    from torch import Tensor

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"})
DAMAGED_ARRAY = (  # what numpy and zipfile raise for damaged files
    *(ValueError, TypeError, KeyError, EOFError, RuntimeError, OverflowError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, tokenize.TokenError),
)
_LOGGER = logging.getLogger("wildood")


def data_root(path: str | Path | None = None) -> Path:
    """The directory for downloads and caches: `path`, else the environment variable WILDOOD_DATA, else the user's cache."""
    if path is not None:
        return check_path(path, "the data root (cache=, root= or --data-root)")
    return Path(os.environ.get("WILDOOD_DATA") or user_cache_dir("wildood"))


@contextmanager
def locked(path: Path, *, waiting: str | None = None, create: bool = True) -> Iterator[bool]:
    """Lock a file or a directory; yields False if another process holds the lock, or the file system has no locks.

    If `waiting` is a text, the lock is waited for, and the text is logged unless it is empty.
    """
    with _lock_file(path, create=create) as descriptor:
        yield descriptor is not None and bool(_lock(descriptor, waiting))


def is_held(path: Path) -> bool:
    """Whether another process holds the lock; False where the file system has no locks."""
    with _lock_file(path, create=False) as descriptor:
        return descriptor is not None and _lock(descriptor) is False


@contextmanager
def _lock_file(path: Path, *, create: bool) -> Iterator[int | None]:
    if sys.platform == "win32":  # where an open file can be neither replaced nor removed
        yield None
        return
    descriptor = None
    for flags in (os.O_WRONLY | os.O_CREAT, os.O_RDONLY) if create else (os.O_RDONLY,):
        if descriptor is None:
            with suppress(OSError):  # a directory, or a file in a read-only place, can only be opened for reading
                descriptor = os.open(path, flags, 0o666)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _lock(descriptor: int, waiting: str | None = None) -> bool | None:
    """True with the lock, False if another process holds it, None if there are no locks."""
    # Not filelock.FileLock, whose lock is a file of its own: a saved detector, a read-only cache and a draft have none.
    try:
        if lock_descriptor(descriptor, blocking=False):
            return True
        if waiting is None:
            return False
        if waiting:
            _LOGGER.info(waiting)
        return lock_descriptor(descriptor)
    except OSError:
        return None


_HOST = hashlib.sha256(platform.node().encode()).hexdigest()[:8]  # this machine, in the names of its drafts
_LEFTOVER = re.compile(r"\..+\.(?P<host>[0-9a-f]{8})[0-9a-f]{8}\.part", re.DOTALL)
_DAY = 24 * 60 * 60


class DamagedFileError(ValueError):
    """A file that is torn, changed, or not one of ours."""


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file through a draft beside it: after a crash or a power failure it has the old content or the new."""
    write_together({path: content})


def write_together(files: Mapping[Path, bytes]) -> None:
    """Write files through drafts beside them; none takes its name before all are on the disk, and then they do in order."""
    with ExitStack() as stack:
        drafts = [stack.enter_context(drafted(path, content)) for path, content in files.items()]
        for draft, path in zip(drafts, files, strict=True):
            if draft != path:
                draft.replace(path)


@contextmanager
def drafted(path: Path, content: bytes) -> Iterator[Path]:
    """A file beside another one with this content, removed in the end; a device has none and is written to."""
    if path.is_char_device():  # /dev/null and the like: they must not be replaced
        path.write_bytes(content)
        yield path
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent)
    while True:
        draft = path.with_name(f".{path.name}.{_HOST}{token_hex(4)}.part")
        with locked(draft, waiting="") as mine:  # until it has its final name: a draft without a lock is a leftover
            if mine and not draft.exists():  # removed as a leftover before it was locked
                continue
            try:
                with draft.open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                yield draft
            finally:
                draft.unlink(missing_ok=True)
            return


def sync_directory(path: Path) -> None:
    """Let the names of the files in a directory survive a power failure; Windows cannot be told to."""
    if sys.platform != "win32":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_leftovers(directory: Path) -> None:
    """Remove the drafts of killed writers from a directory: those that nobody locks.

    Drafts of another machine must be a day old, because some network file systems do not share locks between machines. Where
    the file system has no locks, drafts stay.
    """
    names: list[str] = []
    with suppress(OSError):
        names = os.listdir(directory)  # noqa: PTH208 - names alone: there may be many
    for match in filter(None, map(_LEFTOVER.fullmatch, names)):
        path = directory / match.string
        with suppress(OSError):  # another process removed it, or another user owns it
            if match["host"] == _HOST or time.time() - path.stat().st_mtime > _DAY:
                with locked(path, create=False) as abandoned:
                    if abandoned:
                        path.unlink()


def write_text(path: Path, text: str) -> None:
    r"""Write a text file in UTF-8 atomically; bytes of file names that are not UTF-8 are written as \udcff.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     write_text(Path(place) / "a.txt", "caf\udce9")
    ...     (Path(place) / "a.txt").read_bytes()
    b'caf\\udce9'
    """
    write_atomically(path, as_utf8(text).encode())


def open_plain(path: str | Path) -> BinaryIO:
    """Open a file for reading; a pipe, a socket or a device is refused, because reading it may never end."""
    mode = Path(path).stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # opening a directory raises an error of its own
        raise InputError(f"{path} is a pipe, a socket or a device: give a plain file")
    return Path(path).open("rb")


def write_array_file(path: Path, **arrays: np.ndarray[Any, Any]) -> None:
    """Write named arrays as an `.npz` file, atomically."""
    content = io.BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]
    write_atomically(path, content.getvalue())


def digest(content: bytes | memoryview) -> str:
    """The SHA-256 checksum of some bytes."""
    return hashlib.sha256(content).hexdigest()


def dump_tensors(tensors: dict[str, "Tensor"], metadata: dict[str, str] | None = None) -> bytes:
    """Named tensors as a safetensors file; tensors that share memory are written separately."""
    from safetensors.torch import save  # noqa: PLC0415 - imports torch

    copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    return save(copies, metadata)


def load_tensors(content: bytes) -> dict[str, "Tensor"]:
    """The tensors of a safetensors file; a torn file is refused."""
    from safetensors.torch import load  # noqa: PLC0415 - imports torch

    try:
        return load(content)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise DamagedFileError("not a whole safetensors file") from error


def dump_state(state: Any) -> bytes:
    """Nested dicts and lists of tensors and plain values as one safetensors file; no pickle."""
    tensors: dict[str, Tensor] = {}
    skeleton = json.dumps(_take_tensors(state, tensors))
    return dump_tensors(tensors, {"skeleton": skeleton, "digest": _digest(skeleton, tensors)})


def load_state(content: bytes) -> Any:
    """The state that `dump_state` wrote; a damaged or changed file is refused."""
    tensors = load_tensors(content)
    try:
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
        skeleton, expected = header["skeleton"], header["digest"]
        parsed = json.loads(skeleton)
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFileError("not a file that wildood wrote") from error
    if _digest(skeleton, tensors) != expected:
        raise DamagedFileError("its checksum does not agree with its content")
    try:
        return _put_tensors(parsed, tensors)
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFileError("not a file that wildood wrote") from error


def _digest(skeleton: str, tensors: dict[str, "Tensor"]) -> str:
    return digest(skeleton.encode() + dump_tensors(tensors))


def _take_tensors(state: Any, tensors: dict[str, "Tensor"]) -> Any:
    """The state with each tensor replaced by its number; the tensors go into `tensors`."""
    from torch import Tensor  # noqa: PLC0415 - slow to import

    if isinstance(state, Tensor):
        tensors[str(len(tensors))] = state
        return {"tensor": len(tensors) - 1}
    if isinstance(state, dict):
        return {"items": [[key, _take_tensors(value, tensors)] for key, value in state.items()]}
    if isinstance(state, list | tuple):
        return [_take_tensors(value, tensors) for value in state]
    return state


def _put_tensors(skeleton: Any, tensors: dict[str, "Tensor"]) -> Any:
    if isinstance(skeleton, dict):
        if "tensor" in skeleton:
            return tensors[str(skeleton["tensor"])]
        return {key: _put_tensors(value, tensors) for key, value in skeleton["items"]}
    if isinstance(skeleton, list):
        return [_put_tensors(value, tensors) for value in skeleton]
    return skeleton
