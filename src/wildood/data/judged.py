"""Judged examples: wild ones that a person has called known or unknown, and which of them train or measure."""

import hashlib
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from wildood.data.fingerprint import ExampleHashes
from wildood.data.inputs import Spec
from wildood.data.sources import Part, Source
from wildood.data.validation import rows_of, unlabelled_source
from wildood.data.wild import Wild, WildPool
from wildood.errors import InputError
from wildood.evaluate.intervals import FEWEST_UNKNOWN

UNCHECKED = "whether wild holds judged unknowns that measure what is caught could not be checked"


class Judged(NamedTuple):
    """Examples with a person's answers.

    Attributes:
        examples: the judged ones.
        is_ood: whether each was called unknown.
    """

    examples: Source
    is_ood: Tensor

    @classmethod
    def of(cls, data: Any, spec: Spec | None = None) -> "Judged":
        """What a user gives as `(x, is_ood)`: one true or false, or 1 or 0, for each example.

        >>> Judged.of((np.zeros((3, 2)), [True, False, True])).is_ood.tolist()
        [True, False, True]
        """
        if isinstance(data, Judged):
            return data
        if not isinstance(data, tuple | list) or len(data) != 2:
            raise InputError(f"judged is a {type(data).__name__}: give judged=(x, is_ood), with one answer for each example")
        examples = unlabelled_source(rows_of(data[0], spec, "judged", labels=False), "judged")
        answers = np.asarray(data[1])
        if answers.shape != (len(examples),):
            raise InputError(f"judged has {len(examples)} examples but is_ood has shape {answers.shape}: give one for each")
        if answers.dtype.kind not in "biuf" or not np.isin(answers, (0, 1)).all():
            raise InputError("judged: is_ood is neither true nor false somewhere: give 1 for unknown and 0 for known")
        return cls(examples, torch.from_numpy(answers.astype(bool)))

    def fingerprint(self) -> str:
        """That of the examples, and a hash of the answers."""
        answers = hashlib.blake2b(self.is_ood.numpy().tobytes(), digest_size=8).hexdigest()
        return f"{self.examples.fingerprint(labels=False)}/{answers}"

    def split(self, seed: int) -> tuple["Judged", Source | None]:
        """Those that train, and the unknown ones that measure what is caught, where there are enough of these.

        Half of the unknown ones measure, if that is at least `FEWEST_UNKNOWN`. Copies of an example are on one side.

        >>> judged = Judged.of((np.arange(60.0)[:, None], np.arange(60) % 2))
        >>> trains, measures = judged.split(seed=0)
        >>> int(trains.is_ood.sum()), len(trains.is_ood), len(measures)
        (15, 45, 15)
        """
        unknown = self.is_ood.nonzero()[:, 0]
        if len(unknown) < 2 * FEWEST_UNKNOWN:
            return self, None
        _, aside = WildPool(Part(self.examples, unknown)).set_aside(0.5, seed)
        assert isinstance(aside, Part)  # noqa: S101 - of the unknown ones
        if len(aside) < FEWEST_UNKNOWN:  # many copies of few
            return self, None
        measures = unknown[torch.as_tensor(aside.indices[torch.arange(len(aside))])]
        trains = torch.ones(len(self.is_ood), dtype=torch.bool)
        trains[measures] = False
        kept = trains.nonzero()[:, 0]
        return Judged(Part(self.examples, kept), self.is_ood[kept]), Part(self.examples, measures)


def without(traffic: Wild, measures: Source) -> tuple[Wild, str]:
    """Wild data without the examples that measure, which must not train; and what is to be said if that is not sure."""
    theirs = ExampleHashes(measures)
    for pool in traffic.pools:
        mine = ExampleHashes(pool)
        shared = mine.overlap(theirs).shared
        if not mine.is_repeatable or not theirs.is_repeatable or mine.count < len(pool):
            return traffic, UNCHECKED
        if shared and not isinstance(traffic, WildPool):
            raise InputError(f"{shared} examples of the wild mixture are judged unknowns that measure: leave these out")
        if shared:
            kept = ~np.isin(mine.values(theirs.dtype), theirs.values())
            return WildPool(Part(pool, torch.from_numpy(kept.nonzero()[0]))), ""
    return traffic, ""
