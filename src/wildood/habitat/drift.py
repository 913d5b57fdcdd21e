"""Whether known traffic has changed, and which judged known examples are like those of today."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import ks_2samp

from wildood.data.sources import Part
from wildood.detect.detector import Detector, Scores
from wildood.evaluate.metrics import Floats, finite_scores, flat_scores
from wildood.habitat.answers import Integers, Judged
from wildood.habitat.judged import is_evidence

BLOCK = 16  # judged known examples that are compared, at least
STEP = 8  # between two looks
ERROR = 0.05
LEVEL = 0.01  # of the test whether older examples are like newer ones, at each doubling of their number
DOUBT = 0.001
MOST = 1000  # judged known examples that are scored: the newest


@dataclass(frozen=True)
class KnownDrift:
    """Whether the scores of known traffic have changed since the examples that set the threshold.

    Attributes:
        p_value: of the hypothesis that they have not, corrected for the number of tests.
        examples: how many judged examples there are.
        looked_at: how many of them there were at the last look.
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
            return f"not tested: {self.examples} of the {BLOCK} judged known examples that the first look needs"
        result = "known scores have changed since the calibration" if self.found else "no change of known scores is found"
        return f"{result} (p = {self.p_value:.2g} over all looks, {self.looked_at} judged known examples)"


def known_drift(
    holdout_scores: npt.ArrayLike, known_scores: npt.ArrayLike, answers: npt.ArrayLike | None = None, *, earlier: int = 0
) -> KnownDrift:
    """Test whether judged known examples, in the order of their judgement, have the scores of the holdout.

    A look is made at 16 examples and at every 8th from then on. It tests the newest 16, 32, 64, ... examples that there are
    by then, each by a two-sample Kolmogorov-Smirnov test: the newest find a change that comes late, the many find one that
    is small. Look k may err with probability error / (k (k + 1)), which its tests share. These sum to `error` over all
    looks that will ever be made, although all share one holdout: the probabilities of errors add up whatever depends on
    what. The p-value is the smallest of all, multiplied by k (k + 1) and the number of tests.

    Args:
        holdout_scores: of the examples that set the threshold.
        known_scores: of the judged known examples.
        answers: their ids, by which the newest are those with the largest; by default those judged last.
        earlier: how many examples were judged before these, a multiple of 8. Their looks are left out.

    >>> rng = np.random.default_rng(0)
    >>> print(known_drift(rng.normal(size=500), rng.normal(size=100) + 1))
    known scores have changed since the calibration (p = ... over all looks, 96 judged known examples)
    """
    known, holdout = finite_scores(known_scores).reshape(-1), flat_scores(holdout_scores, "holdout")
    order = np.arange(len(known)) if answers is None else np.asarray(answers)
    p_value, seen = 1.0, earlier + len(known)
    looks = max(0, seen // STEP - BLOCK // STEP + 1)
    for look in range(1, looks + 1):
        count = BLOCK + (look - 1) * STEP - earlier
        if count < BLOCK:
            continue
        newest_first = known[:count][np.argsort(-order[:count], kind="stable")]
        windows = [BLOCK << number for number in range(count.bit_length()) if BLOCK << number <= count]
        tests = ((count + earlier) // BLOCK).bit_length()
        smallest = min(float(ks_2samp(holdout, newest_first[:size]).pvalue) for size in windows)
        p_value = min(p_value, look * (look + 1) * tests * smallest)
    return KnownDrift(p_value, seen, BLOCK + (looks - 1) * STEP if looks else 0)


def count_alike(scores: npt.ArrayLike) -> int:
    """How many of the newest scores, of some in the order of time, are from a time without a change.

    Of the newest 32, 64, 128, ..., the newest 16, 32, 48, ... are compared with the others by Kolmogorov-Smirnov tests, as
    ADWIN compares all parts of a window. The first difference ends the time: it begins where the scores before and after
    differ most, and holds at least 16. Without a change, older scores are cut off with a probability of at most 1 % for
    each doubling.

    >>> rng = np.random.default_rng(0)
    >>> count_alike(rng.normal(size=300)), count_alike(np.append(rng.normal(size=300), rng.normal(size=50) + 2))
    (300, 50)
    """
    values = finite_scores(scores).reshape(-1)
    size = BLOCK
    while size < len(values):
        size *= 2
        window = values[-size:]
        newest = range(BLOCK, len(window), BLOCK)
        if len(newest) * min(ks_2samp(window[:-count], window[-count:]).pvalue for count in newest) <= LEVEL:
            return len(window) - _change(window)
    return len(values)


def _change(window: Floats) -> int:
    """Where the scores before and after differ most: the largest Kolmogorov-Smirnov statistic, by its standard error."""
    above = window[:, None] > np.unique(window)  # (scores, levels)
    before = np.cumsum(above, axis=0)[: 1 - BLOCK]
    count = np.arange(1, len(before) + 1)[:, None]
    after = above.sum(axis=0) - before
    rest = len(window) - count
    statistic = np.abs(before / count - after / rest).max(axis=1) * np.sqrt(count * rest)[:, 0]
    return int(statistic.argmax()) + 1


@dataclass(frozen=True, eq=False)
class KnownToday:
    """Judged known evidence, scored by a champion, and which of it is like known traffic of today.

    Attributes:
        answers: their ids, in this order: the newest `MOST` since the last change that was found earlier.
        examples: of these; None if there are none.
        scores: of these.
        classes: that the champion predicts.
        alike: how many of the newest are like those of today.
        since: answers with this id or a later one are of today; 0: all, no change has been found since the holdout.
        drift: whether known scores have changed since the champion's calibration; None if that cannot be tested.
        doubt: whether they may have: the newest, by themselves, differ from the champion's calibration.
    """

    answers: Integers
    examples: Part | None
    scores: Scores
    classes: Integers
    alike: int
    since: int
    drift: KnownDrift | None
    doubt: bool

    @classmethod
    def of(cls, judged: Judged, champion: Detector) -> "KnownToday":
        """What there is. A change that an earlier calibration or refresh has found cuts off what is older."""
        since, until = changed_at(champion), measured_until(champion)
        chosen = is_evidence(judged.answer) & (judged.class_ >= 0) & (judged.answer >= since)
        answers, times = judged.answer[chosen][-MOST:], judged.time[chosen][-MOST:]
        examples: Part | None = None
        scores, classes = np.empty(0, np.float32), np.empty(0, np.int64)
        if len(answers) and judged.known is not None:
            places = np.flatnonzero(chosen[judged.class_ >= 0])[-MOST:]
            examples = Part(judged.known, torch.from_numpy(places))
            scores, classes = champion.score_and_classify(examples)
        drift = None
        if champion.promise is not None and champion.promise.unseen and champion.holdout_scores is not None:
            order = np.argsort(times, kind="stable")
            order = order[answers[order] > until]
            left_out = int((chosen & (judged.answer > until)).sum()) - len(order)
            order = order[-left_out % STEP :]
            earlier = left_out + -left_out % STEP
            drift = known_drift(champion.holdout_scores, scores[order], answers[order], earlier=earlier)
        alike, doubt = count_alike(scores), False
        newest = scores[-alike:][answers[-alike:] > until]
        if drift is not None and len(newest) >= BLOCK:
            doubt = bool(ks_2samp(champion.holdout_scores, finite_scores(newest)).pvalue <= DOUBT)
        if drift is not None and drift.found:
            since = max(1, int(answers[-alike]))
        return cls(answers, examples, scores, classes, alike, since, drift, doubt)

    @property
    def like_now(self) -> Part | None:
        """The examples that are like those of today."""
        return self.newest(self.alike)

    def newest(self, count: int) -> Part | None:
        """The newest examples; None if there are none."""
        if self.examples is None or not count:
            return None
        return Part(self.examples.source, self.examples.indices[torch.arange(len(self.examples))[-count:]])


def changed_at(detector: Detector) -> int:
    """Known answers from this id on are like those of today, as far as it was known when the detector was made.

    0: no change has been found since the holdout.
    """
    return int(detector.record.get("habitat", {}).get("since", 0))


def measured_until(detector: Detector) -> int:
    """The id of the last evidence that set the detector's threshold; 0 if none did."""
    return int(detector.record.get("habitat", {}).get("measured", 0))
