"""Random draws that can be repeated and resumed: named generators and the shuffled cycle."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


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

    >>> before = torch.get_rng_state()
    >>> with lent_generator(0, "doctest"):
    ...     first = torch.rand(1)
    >>> with lent_generator(0, "doctest"):
    ...     bool(torch.rand(1) == first), bool(torch.equal(torch.get_rng_state(), before))
    (True, False)
    >>> torch.equal(torch.get_rng_state(), before)
    True
    """
    with torch.random.fork_rng(devices=[device] if torch.device(device).type == "cuda" else []):
        start = generator(seed, stream).initial_seed()
        torch.default_generator.manual_seed(start)  # not torch.manual_seed: that would seed devices that are not forked
        if torch.device(device).type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(start)
        yield


def split(length: int, share: float, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two disjoint random parts of range(length); the second holds `share` of it, rounded.

    >>> kept, aside = split(10, 0.3, generator(0, "doctest"))
    >>> len(kept), len(aside), sorted(kept.tolist() + aside.tolist()) == list(range(10))
    (7, 3, True)
    """
    order = torch.randperm(length, generator=rng)
    aside = round(share * length)
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
        self._left = torch.empty(0, dtype=torch.long)

    def take(self, count: int) -> Tensor:
        """The next `count` numbers of the cycle."""
        while len(self._left) < count:
            self._left = torch.cat([self._left, torch.randperm(self.length, generator=self._rng)])
        taken, self._left = self._left[:count], self._left[count:]
        return taken

    def state_dict(self) -> dict[str, Any]:
        """Everything the cycle needs to go on where it was."""
        return {"left": self._left.clone(), "rng": self._rng.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self._left = state["left"].clone()
        self._rng.set_state(state["rng"])
