"""Which answers are a random sample that people judge, and what the known ones among them say of known traffic."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import ks_2samp

from wildood.data.sources import Part
from wildood.evaluate.metrics import flat_scores
from wildood.habitat.answers import Judged

RANDOM = 10  # one answer of so many is in the random sample
FIRST_LOOK = 16  # judged examples; the next looks are at twice as many each
ERROR = 0.05
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
    challenger. The other half of the random sample is for training.

    >>> round(float(is_evidence(np.arange(100_000)).mean()), 2)
    0.05
    """
    return np.asarray(_hashed(answers) % np.uint64(2 * RANDOM) == 0)


def _hashed(answers: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    """SplitMix64."""
    value = np.asarray(answers, dtype=np.int64).astype(np.uint64)
    with np.errstate(over="ignore"):
        value = value + np.uint64(0x9E3779B97F4A7C15)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return value ^ (value >> np.uint64(31))


def known_part(judged: Judged, chosen: Mask) -> Part | None:
    """The examples judged known of some answers (a mask over all that are judged), in the order of their judgement."""
    if judged.known is None:
        return None
    known = np.flatnonzero(judged.class_ >= 0)  # the order of the source
    places = np.flatnonzero(chosen[known])
    places = places[np.argsort(judged.time[known][places], kind="stable")]
    return Part(judged.known, torch.from_numpy(places)) if len(places) else None


def known_evidence(judged: Judged, after: int = 0) -> Part | None:
    """The examples judged known that are evidence, of answers with an id after this one."""
    return known_part(judged, is_evidence(judged.answer) & (judged.answer > after))


@dataclass(frozen=True)
class JudgedCounts:
    """How many answers people have judged, by what they serve.

    Attributes:
        evidence: known ones of the random sample that measure, calibrate and compare.
        fresh: known ones of the random sample that train.
        chosen: known ones that were chosen by their scores, and train as labelled examples.
        unknown: those judged unknown.
        random_unknown: how many of these are of the random sample.
        newest: when the newest known one of the random sample was answered; None if there is none.
    """

    evidence: int
    fresh: int
    chosen: int
    unknown: int
    random_unknown: int
    newest: float | None

    @classmethod
    def of(cls, judged: Judged) -> "JudgedCounts":
        """Those of all judgements."""
        known, random, evidence = judged.class_ >= 0, is_random(judged.answer), is_evidence(judged.answer)
        times = judged.answered[known & random]
        return cls(
            evidence=int(np.sum(known & evidence)),
            fresh=int(np.sum(known & random & ~evidence)),
            chosen=int(np.sum(known & ~random)),
            unknown=int(np.sum(~known)),
            random_unknown=int(np.sum(~known & random)),
            newest=float(np.nanmax(times)) if np.isfinite(times).any() else None,
        )


@dataclass(frozen=True)
class KnownDrift:
    """Whether the scores of known traffic have changed since the holdout.

    Attributes:
        p_value: of the hypothesis that they have not, corrected for the number of looks.
        examples: how many judged examples there are.
        looked_at: how many of them the last look was at.
        error: the probability that an unchanged distribution is ever said to have changed.

    >>> KnownDrift(p_value=0.001, examples=70, looked_at=64).found
    True
    """

    p_value: float
    examples: int
    looked_at: int
    error: float = ERROR

    @property
    def found(self) -> bool:
        """Whether they have changed."""
        return self.p_value <= self.error

    def __str__(self) -> str:
        if not self.looked_at:
            return f"not tested: {self.examples} of the {FIRST_LOOK} judged known examples that the first look needs"
        result = "known scores have changed since the holdout" if self.found else "no change of known scores is found"
        return f"{result} (p = {self.p_value:.2g} over all looks, {self.looked_at} judged known examples)"


def known_drift(holdout_scores: npt.ArrayLike, known_scores: npt.ArrayLike) -> KnownDrift:
    """Test whether judged known examples, in the order of their judgement, have the scores of the holdout.

    A two-sample Kolmogorov-Smirnov test looks at the first 16, 32, 64, ... of them. Look k may err with probability error /
    (k (k + 1)), and these sum to `error` over all looks that will ever be made. That holds although all looks share one
    holdout, because the probabilities of errors add up whatever depends on what. The p-value is the smallest k (k + 1) p_k.

    >>> rng = np.random.default_rng(0)
    >>> print(known_drift(rng.normal(size=500), rng.normal(size=100) + 1))
    known scores have changed since the holdout (p = ... over all looks, 64 judged known examples)
    """
    known = np.asarray(known_scores, dtype=np.float64).reshape(-1)
    holdout = flat_scores(holdout_scores, "holdout")
    known = np.where(np.isfinite(known), known, np.finfo(np.float64).max)  # above all others, as a detector counts them
    p_value, look, count = 1.0, 1, FIRST_LOOK
    while count <= len(known):
        p_value = min(p_value, look * (look + 1) * float(ks_2samp(holdout, known[:count]).pvalue))
        look, count = look + 1, 2 * count
    return KnownDrift(p_value, len(known), count // 2 if look > 1 else 0)
