"""Which answers are a random sample that people judge, and what each judgement serves."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from wildood.data.sources import Part
from wildood.habitat.answers import Judged

RANDOM = 10  # one answer of so many is in the random sample
Mask = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]


def is_random(answers: npt.ArrayLike) -> Mask:
    """Which answers are in the random sample: about a tenth, by a hash of the id, whatever their examples are.

    No list of examples chosen by their scores may hold one of these: so whoever judges the random part of a list judges a
    random sample, without remembering which list an example was on.

    >>> round(float(is_random(np.arange(100_000)).mean()), 2)
    0.1
    """
    return np.asarray(_hashed(answers) % np.uint64(RANDOM) == 0)


def is_evidence(answers: npt.ArrayLike) -> Mask:
    """Which answers are evidence: half of the random sample. They never train and choose nothing, judged or not.

    Once judged known, evidence measures the drift of known scores, calibrates after a drift, and compares champion and
    challenger.

    >>> round(float(is_evidence(np.arange(100_000)).mean()), 2)
    0.05
    """
    return np.asarray(_hashed(answers) % np.uint64(2 * RANDOM) == 0)


def is_choice(answers: npt.ArrayLike) -> Mask:
    """Which answers are for choosing: a quarter of the random sample. They never train, judged or not.

    Once judged known, they choose the epoch and the score of a refresh where the holdout is of before a change. The last
    quarter of the random sample is for training.

    >>> round(float(is_choice(np.arange(100_000)).mean()), 3)
    0.025
    """
    return np.asarray(_hashed(answers) % np.uint64(4 * RANDOM) == RANDOM)


def _hashed(answers: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    """SplitMix64."""
    value = np.asarray(answers, dtype=np.int64).astype(np.uint64)
    with np.errstate(over="ignore"):
        value = value + np.uint64(0x9E3779B97F4A7C15)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return value ^ (value >> np.uint64(31))


def known_part(judged: Judged, chosen: Mask) -> Part | None:
    """The examples judged known of some answers (a mask over all that are judged), in the order of the answers."""
    if judged.known is None:
        return None
    places = np.flatnonzero(chosen[judged.class_ >= 0])
    return Part(judged.known, torch.from_numpy(places)) if len(places) else None


@dataclass(frozen=True)
class JudgedCounts:
    """How many answers people have judged, by what they serve.

    Attributes:
        evidence: known ones of the random sample that measure, calibrate and compare.
        choice: known ones of the random sample that choose.
        fresh: known ones of the random sample that train.
        chosen: known ones that were chosen by their scores, and train as labelled examples.
        unknown: those judged unknown.
        random_unknown: how many of these are of the random sample.
        newest: when the newest known one of the random sample was answered; None if there is none.
    """

    evidence: int
    choice: int
    fresh: int
    chosen: int
    unknown: int
    random_unknown: int
    newest: float | None

    @property
    def random(self) -> int:
        """All known ones of the random sample."""
        return self.evidence + self.choice + self.fresh

    @classmethod
    def of(cls, judged: Judged, since: int = 0) -> "JudgedCounts":
        """Those of all judgements, or of those about answers from an id on."""
        known, random, evidence = judged.class_ >= 0, is_random(judged.answer), is_evidence(judged.answer)
        choice, later = is_choice(judged.answer), judged.answer >= since
        times = judged.answered[known & random & later]
        return cls(
            evidence=int(np.sum(known & evidence & later)),
            choice=int(np.sum(known & choice & later)),
            fresh=int(np.sum(known & random & ~evidence & ~choice & later)),
            chosen=int(np.sum(known & ~random & later)),
            unknown=int(np.sum(~known & later)),
            random_unknown=int(np.sum(~known & random & later)),
            newest=float(np.nanmax(times)) if np.isfinite(times).any() else None,
        )
