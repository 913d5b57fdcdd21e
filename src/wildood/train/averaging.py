"""The mean of the weights over the steps of a run."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

POWER = 8  # of T steps, the mean age is about T / 10


class WeightAverage:
    """The mean of a module's weights and buffers over the steps, in which step t counts as t (t + 1) ... (t + 7), about t^8.

    It needs no known end, and has what a falling learning rate gives: the noise of single steps is gone. It is the
    polynomial-decay averaging of Shamir and Zhang (2013), with eta = 8.

    >>> line = nn.Linear(1, 1, bias=False)
    >>> average = WeightAverage(line)
    >>> for step, value in enumerate([0.0, 10.0], 1):
    ...     _ = line.weight.data.fill_(value)
    ...     average.update(step)
    >>> with average.applied():
    ...     inside = line.weight.item()
    >>> inside, line.weight.item()
    (9.0, 10.0)
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.weights: dict[str, Tensor] = {}  # at least float32: small steps of a mean would be rounded away
        # Where each tensor is: state_dict() in each step would cost more than the mean, and a model may replace its buffers.
        places: dict[int, tuple[Any, str]] = {
            id(tensor): (held, name)
            for part in module.modules()
            for held in (part._parameters, part._buffers)  # noqa: SLF001 - named_parameters() gives tensors, not places
            for name, tensor in held.items()
        }
        state = module.state_dict(keep_vars=True).items()
        self._places = {name: places[id(value)] for name, value in state if value.is_floating_point()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after a step; the first is 1."""
        now = [_at_least_float32(held[name]) for held, name in self._places.values()]
        if not self.weights:
            self.weights = {name: value.clone() for name, value in zip(self._places, now, strict=True)}
            return
        torch._foreach_lerp_(list(self.weights.values()), now, (POWER + 1) / (POWER + step))

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the module its mean weights for the length of a block; before the first step, there are none."""
        own = {name: value.clone() for name, value in self.module.state_dict().items()}
        self.keep()
        try:
            yield
        finally:
            self.module.load_state_dict(own)

    def keep(self) -> None:
        """Give the module its mean weights for good; whole numbers, such as counts of batches, stay as they are."""
        self.module.load_state_dict(self.module.state_dict() | self.weights)


def _at_least_float32(value: Tensor) -> Tensor:
    return value.float() if value.element_size() < 4 else value
