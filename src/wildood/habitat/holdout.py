"""What chooses, what sets the threshold and what compares: parts of the holdout, or judged known examples after a change."""

from dataclasses import dataclass

import numpy as np
import torch

from wildood.data.fingerprint import ExampleHashes
from wildood.data.sampling import generator, permutation
from wildood.data.sources import Part, Source
from wildood.detect.split import TAIL, SplitHoldout
from wildood.errors import InputError
from wildood.evaluate.thresholds import examples_needed
from wildood.habitat.answers import Integers, Judged
from wildood.habitat.drift import KnownToday
from wildood.habitat.judged import JudgedCounts, Mask, is_choice, is_evidence, is_random
from wildood.habitat.summary import count_text


@dataclass(frozen=True)
class HoldoutParts:
    """A holdout in three parts, each example by a hash of its content: so it has the same part in every refresh.

    Attributes:
        choice: half: `fit` chooses an epoch and a score with it, and may train on some of it.
        threshold: a quarter: it sets thresholds and does nothing else, so that the promise is exact although a refresh
            starts from the classifier of an earlier one.
        comparison: a quarter: it compares champion and challenger, and no fit sees it.
    """

    choice: Part
    threshold: Part
    comparison: Part

    @classmethod
    def of(cls, holdout: Source) -> "HoldoutParts":
        """Those of a holdout. Examples of a dataset that changes at each reading are split by their number.

        >>> from wildood.data.sources import ArraySource
        >>> parts = HoldoutParts.of(ArraySource(np.arange(800.0)[:, None]))
        >>> len(parts.choice), len(parts.threshold), len(parts.comparison)
        (387, 209, 204)
        """
        hashes = ExampleHashes(holdout)
        if hashes.is_repeatable and hashes.count == len(holdout):
            quarter = hashes.values() % np.uint64(4)
        else:
            order = permutation(len(holdout), generator(0, "habitat-holdout"))
            quarter = np.asarray(order[torch.arange(len(holdout))]).astype(np.uint64) % np.uint64(4)
        masks = (quarter < 2, quarter == 2, quarter == 3)
        return cls(*(Part(holdout, torch.from_numpy(np.flatnonzero(mask))) for mask in masks))


def trains(answers: Integers) -> Mask:
    """Which answers of the random sample are for training."""
    return is_random(answers) & ~is_evidence(answers) & ~is_choice(answers)


@dataclass(frozen=True, eq=False)
class ChangedParts:
    """What takes the place of the holdout where known data has changed: judged known examples since the change.

    Attributes:
        halves: those for choosing, and the newest evidence for the threshold.
        fresh: a mask over the judgements: those of the random sample that train.
        measured: the id of the last evidence.
    """

    halves: SplitHoldout
    fresh: Mask
    measured: int

    @classmethod
    def of(cls, judged: Judged, today: KnownToday, since: int, alpha: float, confidence: float | None) -> "ChangedParts":
        """Those of these judgements; an error says how many are missing."""
        missing = missing_answers(JudgedCounts.of(judged, since), today.alike, alpha, confidence)
        if missing:
            raise InputError(
                "known data has changed since the holdout, and a refresh needs about "
                f"{count_text(missing, 'more known answer')} of the random sample: wildood habitat review lists them"
            )
        assert judged.known is not None and today.examples is not None  # noqa: S101, PT018 - there are enough of them
        later = (judged.class_ >= 0) & (judged.answer >= since)
        choice, known = later & is_choice(judged.answer), judged.class_ >= 0
        most = max(examples_needed(alpha, confidence), round(TAIL / alpha))
        threshold = today.newest(min(today.alike, most))
        assert threshold is not None  # noqa: S101 - see above
        halves = SplitHoldout(judged.known, torch.from_numpy(np.flatnonzero(choice[known])), threshold.indices)
        return cls(halves, later & trains(judged.answer), int(today.answers[-1]))


def missing_answers(since_change: JudgedCounts, evidence: int, alpha: float, confidence: float | None) -> int:
    """How many more known answers of the random sample a refresh after a change needs, about.

    A half of them is evidence, which sets the threshold. A quarter chooses and a quarter trains; each must make ten false
    alarms (200 examples at 5 %). With fewer that choose, training could hardly be shown to help; with fewer that train, they
    would be memorised.
    """
    each = round(TAIL / alpha)
    missing = 4 * (each - since_change.choice), 4 * (each - since_change.fresh)
    return max(0, *missing, 2 * (examples_needed(alpha, confidence) - evidence))
