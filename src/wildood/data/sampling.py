"""Seeded generators, permutations, splits and shuffled cycles."""

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

IN_MEMORY = 1 << 20  # numbers: 8 MB
_ROUNDS = 8
_GENERATOR = RLock()  # held by the thread that has torch's global generators
_Words = npt.NDArray[np.uint64]


def generator(seed: int, stream: str) -> torch.Generator:
    """A generator for each stream of draws, so that more draws from one stream do not change another.

    >>> a, b = generator(0, "labelled"), generator(0, "wild")
    >>> a.initial_seed() == b.initial_seed()
    False
    """
    digest = hashlib.blake2b(f"{seed}/{stream}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)


@contextmanager
def seeded(seed: int, stream: str, device: torch.device | str = "cpu") -> Iterator[None]:
    """Seed torch's global generators, which dropout and new layers draw from, and restore them afterwards.

    All threads of a process share them, so other threads that call this wait. A thread that draws from them without calling
    this changes the numbers of the run.

    >>> before = torch.get_rng_state()
    >>> with seeded(0, "doctest"):
    ...     first = torch.rand(1)
    >>> with seeded(0, "doctest"):
    ...     bool(torch.rand(1) == first), bool(torch.equal(torch.get_rng_state(), before))
    (True, False)
    >>> torch.equal(torch.get_rng_state(), before)
    True
    """
    with _GENERATOR, torch.random.fork_rng(devices=[device] if torch.device(device).type == "cuda" else []):
        start = generator(seed, stream).initial_seed()
        torch.default_generator.manual_seed(start)  # not torch.manual_seed: that would seed devices that are not forked
        if torch.device(device).type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(start)
        yield


@dataclass(frozen=True)
class Permutation:
    """A part of a random permutation of range(length), computed on demand: a Feistel network with cycle walking.

    A place is written as (a, b) on a nearly square grid. Each round adds to one coordinate a hash of the other, which can be
    undone, so no number comes twice. A result beyond the length goes through the network again.

    >>> order = Permutation(length=5, key=0, start=0, stop=5)
    >>> sorted(order[torch.arange(5)].tolist())
    [0, 1, 2, 3, 4]
    """

    length: int  # of the whole permutation
    key: int  # seeds the hashes
    start: int  # of the part
    stop: int  # of the part

    def __len__(self) -> int:
        return self.stop - self.start

    @overload
    def __getitem__(self, places: Tensor) -> Tensor: ...
    @overload
    def __getitem__(self, places: slice) -> "Permutation": ...
    def __getitem__(self, places: Tensor | slice) -> "Tensor | Permutation":
        """The numbers at these places; a slice is a part of the permutation, computed on demand, too."""
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
    """A random permutation of range(length): a tensor, or computed on demand if it would take more than 8 MB.

    >>> sorted(permutation(3, torch.Generator().manual_seed(0)).tolist())
    [0, 1, 2]
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


def split(length: int, share: float, rng: torch.Generator, most: int | None = None) -> tuple[Indices, Indices]:
    """Two disjoint random parts of range(length); the second has `share` of it, rounded, but not more than `most`.

    >>> kept, aside = split(10, 0.3, generator(0, "doctest"))
    >>> len(kept), len(aside), sorted(kept.tolist() + aside.tolist()) == list(range(10))
    (7, 3, True)
    """
    order = permutation(length, rng)
    aside = round(share * length) if most is None else min(round(share * length), most)
    return order[aside:], order[:aside]


class ShuffledCycle:
    """The numbers 0 .. length-1 in a shuffled order, endlessly, reshuffled in each round.

    >>> cycle = ShuffledCycle(3, generator(0, "doctest"))
    >>> sorted(cycle.take(3).tolist()), len(cycle.take(5))
    ([0, 1, 2], 5)
    """

    def __init__(self, length: int, rng: torch.Generator) -> None:
        self.length = length
        self._rng = rng
        self._begin_round()

    def take(self, count: int) -> Tensor:
        """The next `count` numbers of the cycle."""
        taken = []
        while count > self.length - self._place:
            taken.append(self._take_until(self.length))
            count -= len(taken[-1])
            self._begin_round()
        last = self._take_until(self._place + count)
        return torch.cat([*taken, last]) if taken else last

    def state_dict(self) -> dict[str, Any]:
        """The position in the cycle; its size does not depend on the length."""
        return {"round": self._round.clone(), "place": self._place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        self._rng.set_state(state["round"])
        self._begin_round()
        self._place = state["place"]

    def _begin_round(self) -> None:
        self._round = self._rng.get_state()
        self._order = permutation(self.length, self._rng)
        self._place = 0

    def _take_until(self, end: int) -> Tensor:
        part = self._order[self._place : end]
        self._place = end
        return part if isinstance(part, Tensor) else part[torch.arange(len(part))]
