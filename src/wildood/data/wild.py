"""Wild data: one pool of unlabelled traffic, or a mixture of ID and OOD that simulates one."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wildood.data.fingerprint import ExampleHashes
from wildood.data.sampling import Indices, ShuffledCycle, generator, permutation, split
from wildood.data.sources import Part, Source
from wildood.data.structures import Raw, concatenate, map_structure
from wildood.data.validation import unlabelled_source
from wildood.errors import InputError
from wildood.settings import check_number

MOST_ASIDE = 10_000  # examples: enough to know a rate to half a point, and each is scored after every epoch


@dataclass(frozen=True, eq=False)
class WildPool:
    """Unlabelled traffic, drawn in a shuffled cycle."""

    source: Source

    @property
    def pools(self) -> tuple[Source, ...]:
        """The sources that batches are drawn from."""
        return (self.source,)

    def sampler(self, seed: int, rank: int = 0, world: int = 1) -> "_PoolSampler":
        """An endless, resumable sampler; of `world` samplers, each draws its share of the same batches.

        The share is every `world`-th example, from the `rank`-th, of the batch that one sampler would draw.
        """
        return _PoolSampler(self.source, seed, rank, world)

    def set_aside(self, share: float, seed: int) -> tuple["WildPool", Source]:
        """The pool without `share` of it, and a source of that share."""
        kept, aside = _split_distinct(self.source, share, generator(seed, "wild-aside"))
        if len(aside) == 0:
            raise InputError(f"wild has {len(self.source)} examples, too few to set a share of it aside: give more")
        return WildPool(Part(self.source, kept)), Part(self.source, aside)

    def whole(self, seed: int) -> Source:  # noqa: ARG002 - a mixture needs it
        """All examples, as one source."""
        return self.source


class WildMixture:
    """A simulated wild source: each example is OOD with probability pi, else ID (the paper's Huber model).

    P_wild = (1 - pi) P_in + pi P_out. A batch of B holds exactly B examples, of which a Binomial(B, pi) number is OOD;
    nothing is read and thrown away.

    Args:
        id: unlabelled ID examples, as an array, tensor or dataset.
        ood: OOD examples of the same shape.
        pi: the share of OOD, from 0 to 1.

    >>> import numpy as np
    >>> wild = WildMixture(id=np.zeros((50, 2)), ood=np.ones((50, 2)), pi=0.1)
    >>> wild.sampler(seed=0).draw(1000)[:, 0].mean().item()
    0.094
    """

    def __init__(self, id: Any, ood: Any, pi: float) -> None:  # noqa: A002 - the field's own word
        self.pi = check_number(pi, "pi", "the share of OOD in the wild data, from 0 to 1", least=0, most=1)
        self.id = unlabelled_source(id, "wild id")
        self.ood = unlabelled_source(ood, "wild ood")

    @property
    def pools(self) -> tuple[Source, ...]:
        """The ID pool and the OOD pool."""
        return (self.id, self.ood)

    def sampler(self, seed: int, rank: int = 0, world: int = 1) -> "_MixtureSampler":
        """An endless, resumable sampler, as `WildPool.sampler`."""
        return _MixtureSampler(self, seed, rank, world)

    def set_aside(self, share: float, seed: int) -> tuple["WildMixture", Source]:
        """The mixture of the two pools without `share` of each, and one sample of the mixture from those shares."""
        rng = generator(seed, "wild-aside")
        kept_id, aside_id = _split_distinct(self.id, share, rng)
        kept_ood, aside_ood = _split_distinct(self.ood, share, rng)
        if (len(aside_ood) == 0 and self.pi > 0) or (len(aside_id) == 0 and self.pi < 1):
            raise InputError("wild is too small to set a share of it aside: give more ID and OOD examples")
        kept = WildMixture(Part(self.id, kept_id), Part(self.ood, kept_ood), self.pi)
        return kept, _mixture_sample(Part(self.id, aside_id), Part(self.ood, aside_ood), self.pi, rng)

    def whole(self, seed: int) -> Source:
        """One sample of the mixture, as large as the two pools allow."""
        rng = generator(seed, "wild-whole")
        known, unknown = (Part(pool, permutation(len(pool), rng)) for pool in self.pools)
        return _mixture_sample(known, unknown, self.pi, rng)


Wild = WildPool | WildMixture


def as_wild(data: Any) -> Wild:
    """A user's wild data, ready to draw from."""
    return data if isinstance(data, WildMixture | WildPool) else WildPool(unlabelled_source(data, "wild"))


def _split_distinct(source: Source, share: float, rng: torch.Generator) -> tuple[Indices, Indices]:
    """A random split that keeps all copies of an example on one side, so that what is set aside is unseen."""
    kept, aside = split(len(source), share, rng, MOST_ASIDE)
    hashes = ExampleHashes(source)
    if hashes.count < len(source) or not hashes.is_repeatable or not len(aside):
        return kept, aside
    copies = np.unique(hashes.values(), return_inverse=True)[1]
    groups = int(copies.max()) + 1
    if groups == len(source) or groups == 1:
        return kept, aside
    order = permutation(groups, rng)
    rank = np.empty(groups, np.int64)
    rank[order[torch.arange(groups)].numpy()] = np.arange(groups)
    before = np.cumsum(np.bincount(rank[copies], minlength=groups))  # examples in the groups up to each
    first = max(1, int(np.searchsorted(before, len(aside), side="right")))  # so many groups are set aside
    is_aside = torch.from_numpy(rank[copies] < min(first, groups - 1))
    return (~is_aside).nonzero()[:, 0], is_aside.nonzero()[:, 0]


@dataclass(frozen=True, eq=False)
class _Concatenation:
    """Two sources, concatenated."""

    first: Source
    second: Source

    def __len__(self) -> int:
        return len(self.first) + len(self.second)

    def gather(self, indices: Tensor) -> tuple[Raw, Tensor | None]:
        in_second = indices >= len(self.first)
        shares = ((self.first, indices[~in_second]), (self.second, indices[in_second] - len(self.first)))
        rows = concatenate([pool.gather(some)[0] for pool, some in shares if len(some)])
        order = torch.cat([(~in_second).nonzero()[:, 0], in_second.nonzero()[:, 0]])  # where each row belongs
        back = order.argsort()
        return map_structure(lambda part: part[back.to(part.device)], rows), None

    def fingerprint(self, *, labels: bool = True) -> str:
        return "+".join(pool.fingerprint(labels=labels) for pool in (self.first, self.second))


def _mixture_sample(id_part: Part, ood_part: Part, pi: float, rng: torch.Generator) -> Source:
    """As many draws of the mixture as the two parts allow without using an example twice."""
    most = len(id_part) + len(ood_part)
    is_ood = torch.rand(most, generator=rng, dtype=torch.float64) < pi
    enough = (is_ood.cumsum(0) <= len(ood_part)) & ((~is_ood).cumsum(0) <= len(id_part))
    is_ood = is_ood[: int(enough.cumprod(0).sum())]
    indices = torch.where(is_ood, len(id_part) + is_ood.cumsum(0) - 1, (~is_ood).cumsum(0) - 1)
    return Part(_Concatenation(id_part, ood_part), indices)


class _PoolSampler:
    """Draws batches from one pool in a shuffled cycle."""

    def __init__(self, pool: Source, seed: int, rank: int, world: int) -> None:
        self._pool = pool
        self._cycle = ShuffledCycle(len(pool), generator(seed, "wild-0"))
        self._rank, self._world = _shard(rank, world)

    def draw(self, count: int) -> Raw:
        return self._pool.gather(self._cycle.take(count)[self._rank :: self._world])[0]

    def state_dict(self) -> dict[str, Any]:
        return self._cycle.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._cycle.load_state_dict(state)


class _MixtureSampler:
    """Draws batches from two pools: a coin for each example."""

    def __init__(self, mixture: WildMixture, seed: int, rank: int, world: int) -> None:
        self._mixture = mixture
        self._coins = generator(seed, "wild-coins")
        self._id = ShuffledCycle(len(mixture.id), generator(seed, "wild-0"))
        self._ood = ShuffledCycle(len(mixture.ood), generator(seed, "wild-1"))
        self._rank, self._world = _shard(rank, world)

    def draw(self, count: int) -> Raw:
        ood = int((torch.rand(count, generator=self._coins, dtype=torch.float64) < self._mixture.pi).sum())
        known = count - ood
        # In the whole batch, the ID examples come before the OOD ones.
        id_share = self._id.take(known)[self._rank :: self._world]
        ood_share = self._ood.take(ood)[(self._rank - known) % self._world :: self._world]
        shares = ((self._mixture.id, id_share), (self._mixture.ood, ood_share))
        return concatenate([pool.gather(indices)[0] for pool, indices in shares if len(indices)])

    def state_dict(self) -> dict[str, Any]:
        return {"coins": self._coins.get_state(), "id": self._id.state_dict(), "ood": self._ood.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._coins.set_state(state["coins"])
        self._id.load_state_dict(state["id"])
        self._ood.load_state_dict(state["ood"])


def _shard(rank: int, world: int) -> tuple[int, int]:
    if not 0 <= rank < world:
        raise InputError(f"rank is {rank} of {world}: give one from 0 to {world - 1}")
    return rank, world
