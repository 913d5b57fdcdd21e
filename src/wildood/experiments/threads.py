"""How many threads torch uses, for a while: runs on one thread give the same numbers however many processors there are."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Torch uses so many threads inside the block.

    >>> with using_threads(1):
    ...     torch.get_num_threads()
    1
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
