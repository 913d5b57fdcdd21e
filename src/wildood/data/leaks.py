"""Identical examples in data that should be apart: counted by their content."""

import hashlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch

from wildood.data.sources import Source

LOOKED_AT = 1 << 22  # examples of a source, at most, evenly spread over it: a minute of hashing
_BYTES_TOGETHER = 1 << 24
Hashes = npt.NDArray[np.uint64]


def contents(source: Source) -> Hashes:
    """A hash of each example that is looked at; equal examples have equal ones.

    >>> from wildood.data.sources import ArraySource
    >>> first, second, third = contents(ArraySource(np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]])))
    >>> bool(first == third), bool(first == second)
    (True, False)
    """
    return np.concatenate(list(_hashes(source)))


def found_in(held: Hashes, source: Source) -> npt.NDArray[np.bool_]:
    """Which of some examples, given by their hashes, are in a source that may be much larger: it is never held.

    >>> from wildood.data.sources import ArraySource
    >>> found_in(contents(ArraySource(np.array([[1], [2], [2]]))), ArraySource(np.array([[2], [3]])))
    array([False,  True,  True])
    """
    distinct, of_each = np.unique(held, return_inverse=True)
    found = np.zeros(len(distinct), dtype=bool)
    for some in _hashes(source):
        found |= np.isin(distinct, some)
    return found[of_each]


def looked_at(source: Source) -> int:
    """How many examples of a source are compared.

    >>> from wildood.data.sources import ArraySource
    >>> looked_at(ArraySource(np.zeros((3, 1))))
    3
    """
    return min(len(source), LOOKED_AT)


def _hashes(source: Source) -> Iterator[Hashes]:
    which = torch.linspace(0, len(source) - 1, looked_at(source), dtype=torch.float64).long()  # all of them, if few enough
    together = max(1, _BYTES_TOGETHER // max(1, source.gather(which[:1])[0].nbytes))
    for some in torch.split(which, together):
        rows = source.gather(some)[0].cpu().flatten(1).contiguous().view(torch.uint8).numpy()
        yield np.frombuffer(b"".join(hashlib.sha256(row.data).digest()[:8] for row in rows), dtype=np.uint64)
