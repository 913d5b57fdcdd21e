"""Buffers that a forward pass moves, such as running statistics: after each step the same on all processes."""

import torch
from torch import Tensor, nn

from wildood.train.processes import this_process, total


class Buffers:
    """The buffers of a module that processes share: of floating ones the mean over the batch, of others the first's.

    Attributes:
        moving: the names of those that some process has moved so far, the same on all of them. Only these are sent: a mask
            of a million numbers that never changes is not.

    >>> norm = nn.BatchNorm1d(2)
    >>> buffers = Buffers(norm, share=1.0)
    >>> buffers.heard(buffers.told())
    >>> buffers.moving
    []
    >>> _ = norm(torch.randn(4, 2))
    >>> buffers.heard(buffers.told())
    >>> buffers.moving
    ['running_mean', 'running_var', 'num_batches_tracked']
    """

    def __init__(self, module: nn.Module, share: float) -> None:
        self.module, self.share = module, share
        self.moving: list[str] = []
        # By their values: torch's own BatchNorm moves its statistics without a new version of the tensor.
        self._start = {name: buffer.detach().clone() for name, buffer in self._all().items()}

    def told(self) -> Tensor:
        """After a forward pass: for each buffer whether it has moved; then this process's part of those that do."""
        moved = [float(self._has_moved(name, buffer)) for name, buffer in self._all().items()]
        return torch.cat([torch.tensor(moved, dtype=torch.float64), self._parts(self.moving)])

    def heard(self, everyones: Tensor) -> None:
        """Take over what the processes told, summed."""
        names = list(self._all())
        moved, sums = everyones[: len(names)].tolist(), everyones[len(names) :]
        self._put(self.moving, sums)
        new = [name for name, count in zip(names, moved, strict=True) if count]
        if new:
            self._put(new, total(self._parts(new)))
            self.moving += new
            for name in new:
                self._start.pop(name, None)

    def _all(self) -> dict[str, Tensor]:
        return {name: buffer for name, buffer in self.module.named_buffers() if not buffer.is_complex()}

    def _has_moved(self, name: str, buffer: Tensor) -> bool:
        """For the first time."""
        if name in self.moving:
            return False
        return name not in self._start or not torch.equal(buffer, self._start[name])

    def _parts(self, names: list[str]) -> Tensor:
        if not names:
            return torch.zeros(0, dtype=torch.float64)
        buffers, first = self._all(), float(this_process().rank == 0)
        parts = [
            (self.share if buffers[name].is_floating_point() else first) * buffers[name].detach().double().flatten()
            for name in names
        ]
        return torch.cat(parts).cpu()

    def _put(self, names: list[str], sums: Tensor) -> None:
        if not names:
            return
        every = self._all()
        buffers = [every[name] for name in names]
        parts = torch.split(sums.to(buffers[0].device), [buffer.numel() for buffer in buffers])
        for buffer, value in zip(buffers, parts, strict=True):
            buffer.data.copy_(value.view_as(buffer))  # the backward pass has noted the buffer, but does not read it
