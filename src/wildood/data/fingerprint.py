"""Which examples two sets share, and what a set of examples was to a detector."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset

from wildood.data.mapped import MappedSource, undivided
from wildood.data.sampling import generator, permutation
from wildood.data.sources import BLOCK_BYTES, DatasetSource, Part, Source
from wildood.data.structures import tensors_of

ARRAY_SAMPLE = 1 << 22  # examples of an array that are hashed at most, drawn at random: a minute
DATASET_SAMPLE = 10_000  # examples of a dataset that are hashed at most: each has to be read
TOLERATED = 0.01  # a smaller share of leaked examples hardly moves a threshold
_MOSTLY = 0.5  # where a larger share of examples repeats by nature, equal examples are no evidence of a leak
_SEVERAL = 5  # shared examples that are no coincidence where examples are unique
_HASHED: WeakKeyDictionary[Source, dict[torch.dtype, "Hashes"]] = WeakKeyDictionary()  # a source is compared with several
Hashes = npt.NDArray[np.uint64]
Items = npt.NDArray[np.int64]  # one row for each example: its dataset and its index there


@dataclass(frozen=True)
class Overlap:
    """How many examples of a source are also in another one.

    >>> Overlap(shared=30, compared=100, share_compared=1.0).is_leak
    True
    >>> Overlap(shared=30, compared=100, share_compared=1.0, by_chance=0.3).is_leak
    False
    """

    shared: int  # how many of the compared examples are
    compared: int  # how many were compared
    share_compared: float  # the share of the other source that they were compared with
    by_chance: float = 0.0  # the share of equal examples in two independent draws, where examples repeat by nature
    same_items: bool = False  # whether they are the same items of one dataset, not only equal ones
    repeatable: bool = True  # False where a source changes at each reading, so that values cannot be compared

    @property
    def is_leak(self) -> bool:
        """Whether more is shared than chance explains: by two standard errors, and by more than a single example.

        Where most examples occur more than once, equal values are no evidence; the same items always are.
        """
        if self.same_items:
            return self.shared > TOLERATED * self.compared
        expected = self.compared * (self.by_chance + TOLERATED * self.share_compared)
        return self.by_chance < _MOSTLY and self.shared > 1 + expected + 2 * math.sqrt(expected)

    @property
    def is_checked(self) -> bool:
        """Whether a source that is wholly part of the other would have shared several examples."""
        return self.repeatable and self.compared * self.share_compared >= _SEVERAL


@dataclass(frozen=True, eq=False)
class ExampleHashes:
    """A hash of each example of a source, to find examples that two sources share. Each source is hashed once."""

    source: Source

    def overlap(self, other: "ExampleHashes") -> Overlap:
        """How many of these examples are in the other source.

        Items of one dataset (through `Subset` and `ConcatDataset`) are compared by their index. Other examples are compared
        by their values: all of them in arrays of up to 4 million, a random 10,000 of a larger dataset.

        Equal values are a leak only where chance does not explain them. The chance that a new draw is already among n
        examples is about 1 - (examples that occur once) / n (Good and Turing).
        """
        repeatable = self.is_repeatable and other.is_repeatable
        mine, others = _items(self.source), _items(other.source)
        if mine is not None and others is not None and np.isin(mine[:, 0], others[:, 0]).any():
            overlap = Overlap(_count_shared(mine, others), len(mine), 1.0, same_items=True)
            one_dataset = bool(np.isin(mine[:, 0], others[:, 0]).all())
            if overlap.is_leak or (one_dataset and not repeatable):  # else values may show copies within or across datasets
                return overlap
        if not repeatable:
            return Overlap(0, 0, 0.0, repeatable=False)
        dtype = _common(self.dtype, other.dtype)
        my_hashes, other_hashes = self.values(dtype), other.values(dtype)
        counts = np.unique(other_hashes, return_counts=True)[1]
        return Overlap(
            shared=int(np.isin(my_hashes, other_hashes).sum()),
            compared=len(my_hashes),
            share_compared=len(other_hashes) / len(other.source),
            by_chance=1 - float(np.sum(counts == 1)) / len(other_hashes),
        )

    def values(self, dtype: torch.dtype | None = None) -> Hashes:
        """The hashes of the values in this dtype: of all examples in their order, or of a random sample of `count`."""
        dtype = self.dtype if dtype is None else dtype
        cache = _HASHED.setdefault(self.source, {})
        if dtype not in cache:
            cache[dtype] = self._hash(dtype)
        return cache[dtype]

    def _hash(self, dtype: torch.dtype) -> Hashes:
        source, count = self.source, self.count
        order = torch.arange(count) if count == len(source) else permutation(len(source), generator(0, "leaks"))
        indices = order[torch.arange(count)]
        size = sum(tensor.nbytes for tensor in tensors_of(source.gather(indices[:1])[0]))
        whole = undivided(source)  # padding depends on the batch
        is_padded = whole.is_padded if isinstance(whole, MappedSource) else getattr(whole, "collate", None) is not None
        batch = 1 if is_padded else max(1, BLOCK_BYTES // max(1, size))
        digests = []
        for some in torch.split(indices, batch):
            raw = source.gather(some)[0]
            parts = [_bytes_of_rows(tensor, dtype if isinstance(raw, Tensor) else None) for tensor in tensors_of(raw)]
            digests += [hashlib.sha256(b"".join(row)).digest()[:8] for row in zip(*parts, strict=True)]
        return np.frombuffer(b"".join(digests), dtype=np.uint64)

    @property
    def count(self) -> int:
        """How many examples are hashed."""
        return min(len(self.source), ARRAY_SAMPLE if self._dataset is None else DATASET_SAMPLE)

    @property
    def distinct(self) -> int:
        """How many of them are distinct."""
        return len(np.unique(self.values()))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the examples; float32 for float64, because a model takes no more."""
        own = tensors_of(self.source.gather(torch.arange(1))[0])[0].dtype
        return torch.float32 if own == torch.float64 else own

    @property
    def is_repeatable(self) -> bool:
        """Whether an example is the same at each reading."""
        return self._dataset is None or self._dataset.is_repeatable

    @property
    def _dataset(self) -> DatasetSource | None:
        """The dataset that is read; None where the examples are in an array."""
        source = undivided(self.source)
        return source if isinstance(source, DatasetSource) else None


def _bytes_of_rows(tensor: Tensor, dtype: torch.dtype | None) -> list[bytes]:
    """The bytes of each row in a dtype: by default its own, and float32 for float64."""
    if dtype is None:
        dtype = torch.float32 if tensor.dtype == torch.float64 else tensor.dtype
    rows = tensor.cpu().reshape(len(tensor), -1).to(dtype)
    rows = rows + 0.0 if rows.is_floating_point() else rows  # -0.0 is 0.0
    memory = rows.contiguous().view(torch.uint8).numpy().tobytes()
    width = len(memory) // len(rows)
    return [memory[at : at + width] for at in range(0, len(memory), width)] if width else [b""] * len(rows)


def _items(source: Source) -> Items | None:
    """Where each example of a dataset comes from, through subsets and concatenations; None for arrays."""
    if isinstance(source, Part):
        inner = _items(source.source)
        return None if inner is None else inner[source.indices[torch.arange(len(source))].numpy()]
    return _dataset_items(source.dataset) if isinstance(source, DatasetSource) else None


def _dataset_items(dataset: Any) -> Items:
    if isinstance(dataset, Subset):
        return _dataset_items(dataset.dataset)[np.asarray(dataset.indices, dtype=np.int64)]
    if isinstance(dataset, ConcatDataset):
        return np.concatenate([_dataset_items(part) for part in dataset.datasets])
    return np.stack([np.full(len(dataset), id(dataset)), np.arange(len(dataset))], axis=1)


def _count_shared(first: Items, second: Items) -> int:
    """How many rows of the first, each counted, are among the second."""
    numbers = np.unique(np.concatenate([first, second]), axis=0, return_inverse=True)[1].ravel()
    return int(np.isin(numbers[: len(first)], numbers[len(first) :]).sum())


def _common(first: torch.dtype, second: torch.dtype) -> torch.dtype:
    """The dtype in which values of two dtypes are compared: of floats the coarser one, so that rounded copies are equal."""
    if first == second:
        return first
    if first.is_floating_point and second.is_floating_point:
        return min(first, second, key=lambda each: torch.finfo(each).bits)
    return torch.float32 if first.is_floating_point or second.is_floating_point else torch.int64


NOT_FRESH = "these examples {}, so they are no sample of what the detector meets in service: give later traffic"
SEEN_HOLDOUT = "the classifier may have trained on the holdout of this detector, and fresh ID data scores higher"
_ROLES = {"threshold": "set the detector's threshold", "holdout": "were the detector's holdout"}


def role_of(record: Mapping[str, Any], source: Source) -> str:
    """What these examples were to the detector of this record: labelled, wild, ood, holdout, threshold, or nothing ("").

    Whole sets are recognised, with their labels or without, not single examples among others.
    """
    fingerprints = {source.fingerprint(), source.fingerprint(labels=False)}
    recorded: list[tuple[str, str]] = [
        ("holdout", record.get("chosen_by", "")),
        *record.get("data", {}).items(),
        *record.get("examples", {}).items(),
    ]
    return next((role for role, text in recorded if fingerprints & _fingerprints_in(text)), "")


def same_examples(first: Source, second: Source) -> bool:
    """Whether two sources hold the same examples in the same order; False where they change at each reading."""
    fingerprint = first.fingerprint(labels=False)
    return fingerprint == second.fingerprint(labels=False) and bool(_fingerprints_in(fingerprint))


def role_text(role: str) -> str:
    """What examples were to a detector, as the end of a sentence about them; empty if they were nothing."""
    return _ROLES.get(role, f"were the detector's {role} data") if role else ""


def _fingerprints_in(text: str) -> set[str]:
    """The fingerprints in a record's text: of each pool, and of the whole where a part of it was used."""
    pools = text.partition(" at pi = ")[0].split("+")
    either = {each for pool in pools for each in (pool, pool.partition("/")[0])}
    # A dataset that changes at each reading has only its type and length, which do not identify it.
    return {each for each in either if each and not each.endswith("]")}
