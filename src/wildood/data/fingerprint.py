"""Fingerprints of examples: what a detector has used, and which examples two sets share."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import ConcatDataset, Subset

from wildood.data.sampling import generator, permutation
from wildood.data.sources import ArraySource, DatasetSource, Part, Source

LOOKED_AT = 1 << 22  # examples of an array, at most, drawn at random: a minute of hashing
DATASET_LOOKED_AT = 10_000  # examples of a dataset, at most: each is read for it
MOSTLY = 0.5  # where a larger share of examples repeats by nature, equal examples are no evidence of a leak
SEVERAL = 5  # shared examples that are no coincidence where examples are unique
TOLERATED = 0.01  # a smaller share of leaked examples hardly moves a threshold
_BYTES_TOGETHER = 1 << 24
_HASHED: WeakKeyDictionary[Source, dict[torch.dtype, "Hashes"]] = WeakKeyDictionary()  # a source is compared with several
Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Overlap:
    """How many examples of a source another one has, too.

    Attributes:
        shared: of the examples that were compared.
        compared: how many were compared.
        share_compared: the share of the other source that they were compared with.
        by_chance: the share of equal examples that two independent draws would have, where examples repeat by nature.
        same_items: whether these are the same items of one dataset, not only equal ones.
        repeatable: False where equal content says nothing: a source gives other values at each reading.

    >>> Overlap(shared=30, compared=100, share_compared=1.0).is_leak
    True
    >>> Overlap(shared=30, compared=100, share_compared=1.0, by_chance=0.3).is_leak
    False
    """

    shared: int
    compared: int
    share_compared: float
    by_chance: float = 0.0
    same_items: bool = False
    repeatable: bool = True

    @property
    def is_leak(self) -> bool:
        """Whether more is shared than chance explains: by two standard errors, and by more than a single example.

        Where most examples occur more than once, equal content is no evidence. The same items are more than chance.
        """
        if self.same_items:
            return self.shared > TOLERATED * self.compared
        expected = self.compared * (self.by_chance + TOLERATED * self.share_compared)
        return self.by_chance < MOSTLY and self.shared > 1 + expected + 2 * math.sqrt(expected)

    @property
    def is_checked(self) -> bool:
        """Whether a holdout that is wholly part of the other source would share several examples with what was read."""
        return self.repeatable and self.compared * self.share_compared >= SEVERAL


@dataclass(frozen=True, eq=False)
class Content:
    """What the examples of a source are: items of a dataset, or values.

    >>> from wildood.data.sources import ArraySource
    >>> x = np.arange(50.0)[:, None]
    >>> Content(ArraySource(x[40:])).overlap(Content(ArraySource(x))).shared
    10
    >>> Content(ArraySource(x % 3)).overlap(Content(ArraySource(x % 3))).by_chance
    1.0
    """

    source: Source

    def overlap(self, other: "Content") -> Overlap:
        """How many of these examples the other source has.

        Items of one dataset (through `Subset` and `ConcatDataset`) are compared by their index. Other examples are compared
        by their values: all of them in arrays of up to 4 million, a random 10,000 of a larger dataset.

        Equal values are a leak only where chance does not explain them. The chance that a new draw is already among n
        examples is about 1 - (examples that occur once) / n (Good and Turing).
        """
        mine, others = self.items, other.items
        if mine is not None and others is not None and np.isin(mine.datasets, others.datasets).any():
            found = Overlap(mine.shared(others), len(self.source), 1.0, same_items=True)
            only = np.isin(mine.datasets, others.datasets).all() and not (self.is_repeatable and other.is_repeatable)
            if found.is_leak or only:  # else one dataset may hold an example twice, or another dataset a copy
                return found
        if not (self.is_repeatable and other.is_repeatable):
            return Overlap(0, 0, 0.0, repeatable=False)
        dtype = _common(self.dtype, other.dtype)
        mine_hashed, others_hashed = self.hashes(dtype), other.hashes(dtype)
        return Overlap(
            shared=int(np.isin(mine_hashed, others_hashed).sum()),
            compared=len(mine_hashed),
            share_compared=len(others_hashed) / len(other.source),
            by_chance=_repeated(others_hashed),
        )

    def hashes(self, dtype: torch.dtype | None = None) -> Hashes:
        """A hash of each example that is looked at: all of them in their order, or a random sample of them.

        Examples are equal if their values are equal in this type, their own unless given.
        """
        dtype = self.dtype if dtype is None else dtype
        kept = _HASHED.setdefault(self.source, {})
        if dtype not in kept:
            kept[dtype] = self._hash(dtype)
        return kept[dtype]

    def _hash(self, dtype: torch.dtype) -> Hashes:
        source, count = self.source, self.looked_at
        which = torch.arange(count) if count == len(source) else permutation(len(source), generator(0, "leaks"))[:count]
        which = which[torch.arange(count)]  # as a tensor
        together = max(1, _BYTES_TOGETHER // max(1, source.gather(which[:1])[0].nbytes))
        digests = []
        for some in torch.split(which, together):
            rows = source.gather(some)[0].cpu().flatten(1).to(dtype)
            rows = rows + 0.0 if rows.is_floating_point() else rows  # -0.0 is 0.0
            numbers = rows.contiguous().view(torch.uint8).numpy()
            digests.append(b"".join(hashlib.sha256(row.data).digest()[:8] for row in numbers))
        return np.frombuffer(b"".join(digests), dtype=np.uint64)

    @property
    def dtype(self) -> torch.dtype:
        """The type of its values; of float64 no more than float32 is compared, which is what a model takes."""
        own = self.source.gather(torch.arange(1))[0].dtype
        return torch.float32 if own == torch.float64 else own

    @property
    def distinct(self) -> int:
        """How many of the examples that are looked at are distinct."""
        return len(np.unique(self.hashes()))

    @property
    def looked_at(self) -> int:
        """How many examples are compared by their values."""
        return min(len(self.source), LOOKED_AT if self.dataset is None else DATASET_LOOKED_AT)

    @cached_property
    def is_repeatable(self) -> bool:
        """Whether an example is the same at each reading; augmentation, for one, makes others of it."""
        return self.dataset is None or self.dataset.is_repeatable()

    @property
    def dataset(self) -> DatasetSource | None:
        """The dataset that is read; None where the examples are in an array."""
        source = self.source
        while isinstance(source, Part):
            source = source.source
        return source if isinstance(source, DatasetSource) else None

    @cached_property
    def items(self) -> "_Items | None":
        """Where each example of a dataset comes from, through subsets and concatenations; None for arrays."""
        return _items(self.source)


@dataclass(frozen=True)
class _Items:
    """For each example, the dataset it comes from and its index there."""

    datasets: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int64]

    def at(self, places: npt.NDArray[np.int64]) -> "_Items":
        return _Items(self.datasets[places], self.indices[places])

    def shared(self, other: "_Items") -> int:
        """How many of these, each counted, are among the others."""
        both = np.concatenate([np.stack([items.datasets, items.indices], 1) for items in (self, other)])
        numbers = np.unique(both, axis=0, return_inverse=True)[1].ravel()
        return int(np.isin(numbers[: len(self.indices)], numbers[len(self.indices) :]).sum())


def _items(source: Source) -> _Items | None:
    if isinstance(source, Part):
        inner = _items(source.source)
        return None if inner is None else inner.at(source.indices[torch.arange(len(source))].numpy())
    return _items_of(source.dataset) if isinstance(source, DatasetSource) else None


def _items_of(dataset: Any) -> _Items:
    if isinstance(dataset, Subset):
        return _items_of(dataset.dataset).at(np.asarray(dataset.indices, dtype=np.int64))
    if isinstance(dataset, ConcatDataset):
        parts = [_items_of(part) for part in dataset.datasets]
        return _Items(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("datasets", "indices")))
    return _Items(np.full(len(dataset), id(dataset)), np.arange(len(dataset)))


def _common(first: torch.dtype, second: torch.dtype) -> torch.dtype:
    """The type in which values of two types are compared: of floats the coarser one, so that a copy in it is found."""
    if first == second:
        return first
    if first.is_floating_point and second.is_floating_point:
        return min(first, second, key=lambda each: torch.finfo(each).bits)
    return torch.float32 if first.is_floating_point or second.is_floating_point else torch.int64


def _repeated(hashes: Hashes) -> float:
    """The share of examples that occur more than once: about the chance that a new draw is among them, too."""
    counts = np.unique(hashes, return_counts=True)[1]
    return 1 - float(np.sum(counts == 1)) / len(hashes)


NOT_FRESH = "these examples {}, and what a detector was made from is no sample of what it meets: give later traffic"
SEEN_HOLDOUT = (
    "the ID scores of this detector are of examples that the classifier may have trained on, and fresh ID data scores higher"
)
USES = {"threshold": "set the detector's threshold", "holdout": "were the detector's holdout"}


def role_of(record: Mapping[str, Any], source: Source) -> str:
    """What exactly these examples were to the detector of this record: labelled, wild, holdout, threshold, or nothing ("").

    Whole sets are recognised, with their labels or without, not single examples among others.

    >>> import numpy as np, torch, wildood
    >>> x = np.random.default_rng(0).normal(size=(50, 4)).astype("float32")
    >>> detector = wildood.posthoc(torch.nn.Linear(4, 3), wildood.MaxSoftmax(), holdout=x, alpha=0.1)
    >>> role_of(detector.record, ArraySource(x)), role_of(detector.record, ArraySource(x[:40]))
    ('threshold', '')
    """
    given = {source.fingerprint(), unlabelled_fingerprint(source)}
    known: list[tuple[str, str]] = [
        ("holdout", record.get("chosen_by", "")),
        *record.get("data", {}).items(),
        *record.get("examples", {}).items(),
    ]
    return next((name for name, text in known if given & _recorded(text)), "")


def role_text(used: str) -> str:
    """What examples were to a detector, as the end of a sentence about them; empty if they were nothing.

    >>> role_text("wild"), role_text("threshold"), role_text("")
    ("were the detector's wild data", "set the detector's threshold", '')
    """
    return USES.get(used, f"were the detector's {used} data") if used else ""


def unlabelled_fingerprint(source: Source) -> str:
    """The fingerprint that examples have whether or not labels come with them, and wherever they were read from.

    >>> import numpy as np
    >>> x, y = np.zeros((3, 2)), np.array([0, 1, 0])
    >>> unlabelled_fingerprint(ArraySource(x, y)) == ArraySource(x).fingerprint() != ArraySource(x, y).fingerprint()
    True
    """
    return _unlabelled(source).fingerprint()


def unlabelled_fingerprints(given: Mapping[str, Sequence[Source]]) -> dict[str, str]:
    """For a record's `examples`: the fingerprints without labels, where they differ from those with them.

    >>> import numpy as np
    >>> x, y = np.zeros((3, 2)), np.array([0, 1, 0])
    >>> list(unlabelled_fingerprints({"labelled": [ArraySource(x, y)], "wild": [ArraySource(x)]}))
    ['labelled']
    """
    return {
        name: "+".join(map(unlabelled_fingerprint, sources))
        for name, sources in given.items()
        if any(_unlabelled(source) is not source for source in sources)
    }


def _unlabelled(source: Source) -> Source:
    if isinstance(source, Part):
        inner = _unlabelled(source.source)
        return source if inner is source.source else Part(inner, source.indices)
    if isinstance(source, DatasetSource):
        return replace(source, labelled=False) if source.labelled else source
    if isinstance(source, ArraySource) and (type(source) is not ArraySource or source.labels is not None):
        return ArraySource(source.examples)
    return source


def _recorded(text: str) -> set[str]:
    """The fingerprints in a record's text: of each pool, and of the whole where a part of it was used."""
    prints = text.partition(" at pi = ")[0].split("+")
    whole = {each for one in prints for each in (one, one.partition("/")[0])}
    # A dataset whose examples are others at each reading is known by its type and length: that tells it from nothing.
    return {each for each in whole if each and not each.endswith("]")}
