"""A pass over data in evaluation mode, divided among the processes of a run."""

import torch
from torch import Tensor

from wildood.data.sources import Part, Source
from wildood.models.outputs import EVAL_BATCH
from wildood.train.processes import this_process, total


class Divided:
    """This process's batches of a source: whole batches of the pass of one process, so that all numbers are the same.

    Attributes:
        part: what this process looks at; it may be empty.

    >>> import numpy as np
    >>> from wildood.data.sources import ArraySource
    >>> divided = Divided(ArraySource(np.zeros((5, 2))))
    >>> divided.whole([torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0, 5.0])])
    tensor([1., 2., 3., 4., 5.])
    """

    def __init__(self, source: Source) -> None:
        rank, world = this_process()
        self.part, self._length = source, len(source)
        self._places: Tensor | None = None
        if world > 1:
            places = torch.arange(len(source))
            self._places = places[places // EVAL_BATCH % world == rank]
            self.part = Part(source, self._places)

    def whole(self, found: list[Tensor]) -> Tensor:
        """What all processes found, batch by batch, in the order of the source."""
        if self._places is None:
            return torch.cat(found)
        values = torch.zeros(self._length, dtype=torch.float64)
        values[self._places] = torch.cat([*found, torch.zeros(0)]).double()
        return total(values)
