"""Identical examples in data that should be apart: counted by their content."""

import hashlib

import numpy as np
import numpy.typing as npt
import torch

from wildood.data.sources import Source

LOOKED_AT = 1 << 20  # examples of a source, at most: evenly spread over it where there are more
_READ_TOGETHER = 1024


def contents(source: Source) -> npt.NDArray[np.bytes_]:
    """A hash of each example that is looked at; equal examples have equal ones.

    >>> from wildood.data.sources import ArraySource
    >>> first, second, third = contents(ArraySource(np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]])))
    >>> first == third, first == second
    (True, False)
    """
    which = torch.arange(len(source))
    if len(source) > LOOKED_AT:
        which = torch.linspace(0, len(source) - 1, LOOKED_AT, dtype=torch.float64).long()
    hashes: list[str] = []
    for some in torch.split(which, _READ_TOGETHER):
        rows = source.gather(some)[0].cpu().flatten(1).contiguous().view(torch.uint8).numpy()
        hashes += [hashlib.sha256(row.data).hexdigest()[:32] for row in rows]
    return np.array(hashes, dtype=np.bytes_)


def shared(one: npt.NDArray[np.bytes_], other: npt.NDArray[np.bytes_]) -> int:
    """How many examples of one have an equal example in the other.

    >>> shared(np.array([b"a", b"b", b"b"]), np.array([b"b", b"c"]))
    2
    """
    return int(np.isin(one, other).sum())
