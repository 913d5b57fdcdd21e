"""Random draws that can be repeated and resumed: named generators and the shuffled cycle."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

import torch
from torch import Tensor

from wildood.data.permutation import Indices, permutation

_GENERATOR = RLock()  # held by the thread that has torch's global generators


def generator(seed: int, stream: str) -> torch.Generator:
    """A generator of its own for each stream of draws, so that one more draw here changes nothing there.

    >>> a, b = generator(0, "labelled"), generator(0, "wild")
    >>> a.initial_seed() == b.initial_seed()
    False
    """
    digest = hashlib.blake2b(f"{seed}/{stream}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)


@contextmanager
def lent_generator(seed: int, stream: str, device: torch.device | str = "cpu") -> Iterator[None]:
    """Torch's global generators (dropout and new layers draw from them) seeded by the run; the user finds them as they were.

    A process has one for all threads, so one thread borrows it at a time and others that call this wait. A thread that draws
    from it without calling this changes the numbers of the run.

    >>> before = torch.get_rng_state()
    >>> with lent_generator(0, "doctest"):
    ...     first = torch.rand(1)
    >>> with lent_generator(0, "doctest"):
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


def split(length: int, share: float, rng: torch.Generator, most: int | None = None) -> tuple[Indices, Indices]:
    """Two disjoint random parts of range(length); the second holds `share` of it, rounded, or `most` if that is less.

    >>> kept, aside = split(10, 0.3, generator(0, "doctest"))
    >>> len(kept), len(aside), sorted(kept.tolist() + aside.tolist()) == list(range(10))
    (7, 3, True)
    """
    order = permutation(length, rng)
    aside = round(share * length) if most is None else min(round(share * length), most)
    return order[aside:], order[:aside]


class ShuffledCycle:
    """The numbers 0 .. length-1 in a shuffled order, again and again, reshuffled on each round.

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
            taken.append(self._here(self.length))
            count -= len(taken[-1])
            self._begin_round()
        return torch.cat([*taken, self._here(self._place + count)])

    def state_dict(self) -> dict[str, Any]:
        """Everything the cycle needs to go on where it was: small, whatever the length."""
        return {"round": self._round.clone(), "place": self._place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self._rng.set_state(state["round"])
        self._begin_round()
        self._place = state["place"]

    def _begin_round(self) -> None:
        self._round = self._rng.get_state()
        self._order = permutation(self.length, self._rng)
        self._place = 0

    def _here(self, end: int) -> Tensor:
        """The numbers from this place of the round to another one, which becomes this place."""
        places = torch.arange(self._place, end)
        self._place = end
        return self._order[places]
