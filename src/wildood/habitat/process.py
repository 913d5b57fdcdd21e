"""Settings of a process that serves: what allocator and garbage collector need not do again for each batch."""

import ctypes
import gc
import os
from typing import Final

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_KEPT: Final = 2**28  # bytes at the end of a heap that are not given back
_LARGEST: Final = 2**25  # bytes of an allocation that is not mapped by itself: the most that glibc takes


def keep_memory() -> None:
    """Let the allocator keep the memory of a batch for the next one.

    glibc gives large blocks back to the system at once, and with them the intermediate results of a model. To get them
    again, page by page, takes time in every batch. Where the environment says how memory is allocated, or where there
    is no glibc, nothing is changed.
    """
    if any(name == "GLIBC_TUNABLES" or name.startswith("MALLOC_") for name in os.environ):
        return
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    set_option(_TRIM_THRESHOLD, _KEPT)
    set_option(_MMAP_THRESHOLD, _LARGEST)


def freeze() -> None:
    """Leave the objects of now out of garbage collection, which would look through those of torch again and again.

    What an earlier call has left out and is garbage by now is collected.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def is_frozen() -> bool:
    """Whether `freeze` was called."""
    return gc.get_freeze_count() > 0
