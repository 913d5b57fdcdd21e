"""Random orders of any length with bounded memory: drawn whole while they are short, computed place by place beyond."""

import math
from dataclasses import dataclass
from typing import overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

IN_MEMORY = 1 << 20  # numbers: 8 MB
_ROUNDS = 8
_Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Permutation:
    """A part of a random order of range(length) that is never held in memory: places in, numbers out.

    A number is written as (a, b) on a grid that is nearly square, and each round adds to one of the two a hash of the other:
    each round can be undone, so that no number comes twice (a Feistel network). A place that lands beyond the length
    goes through the network again until it lands within it.

    Attributes:
        length: of the whole order.
        key: decides the order.
        start: where the part begins.
        stop: where it ends.

    >>> order = Permutation(length=5, key=0, start=0, stop=5)
    >>> sorted(order[torch.arange(5)].tolist())
    [0, 1, 2, 3, 4]
    """

    length: int
    key: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    @overload
    def __getitem__(self, places: Tensor) -> Tensor: ...

    @overload
    def __getitem__(self, places: slice) -> "Permutation": ...

    def __getitem__(self, places: Tensor | slice) -> "Tensor | Permutation":
        """The numbers at these places; a slice is a part of the order, still not held in memory."""
        if isinstance(places, slice):
            start, stop, _ = places.indices(len(self))
            return Permutation(self.length, self.key, self.start + start, self.start + max(start, stop))
        numbers = self._once(places.numpy().astype(np.uint64) + np.uint64(self.start))
        while (outside := numbers >= self.length).any():
            numbers[outside] = self._once(numbers[outside])
        return torch.from_numpy(numbers.astype(np.int64))

    def _once(self, numbers: _Words) -> _Words:
        rows = np.uint64(math.isqrt(max(self.length - 1, 0)) + 1)
        columns = np.uint64(-(-self.length // int(rows)))
        first, second = numbers // columns, numbers % columns
        for turn in range(0, _ROUNDS, 2):
            first = (first + _hashed(second, self.key, turn)) % rows
            second = (second + _hashed(first, self.key, turn + 1)) % columns
        return first * columns + second


Indices = Tensor | Permutation


def permutation(length: int, rng: torch.Generator) -> Indices:
    """A random order of range(length).

    >>> sorted(permutation(3, torch.Generator().manual_seed(0)).tolist())
    [0, 1, 2]
    >>> permutation(IN_MEMORY + 1, torch.Generator().manual_seed(0))[torch.tensor([0, 1, 2])].shape
    torch.Size([3])
    """
    if length <= IN_MEMORY:
        return torch.randperm(length, generator=rng)
    key = int(torch.randint(0, 1 << 62, (), generator=rng))
    return Permutation(length, key, 0, length)


def _hashed(values: _Words, key: int, turn: int) -> _Words:
    """A 64-bit hash of each value (the finaliser of splitmix64), below 2^63 so that a sum with a coordinate cannot wrap."""
    mixed = values + np.uint64((key + (turn + 1) * 0x9E3779B97F4A7C15) % (1 << 64))
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed ^ (mixed >> np.uint64(31))) >> np.uint64(1)
