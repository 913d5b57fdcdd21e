"""What traffic says without labels: how much of it is unknown, whether the promise looks true, what to label first."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Literal

import numpy as np
import numpy.typing as npt

from wildood.data.fingerprint import NOT_FRESH, SEEN_HOLDOUT, role_text
from wildood.detect.detector import Detector
from wildood.evaluate.intervals import Share
from wildood.evaluate.mixture import FprByShare, UnknownShare, fpr_by_share, unknown_share
from wildood.evaluate.thresholds import p_values
from wildood.experiments.evaluation import Decisions, PromiseCheck, check_on_known, check_on_traffic

Floats = npt.NDArray[np.float64]
Why = Literal["just rejected", "just accepted", "highest score"]
Choice = tuple[int, Why]  # the number of an example, and why it was chosen
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.75, 1.0)  # the values of pi of the table of FPRs
UNTRUSTED = f"{SEEN_HOLDOUT}: calibrate it on unseen examples, or give some with --id"


@dataclass(frozen=True)
class Inspection:
    """What was found in traffic.

    Attributes:
        traffic: what the detector says of it.
        known: what it says of ID examples that nothing has trained on; None if there are none that can be trusted.
        known_name: what these are: "holdout" or "--id".
        untested: why the share of unknowns was not tested; empty if it was.
        unknown: what is known about that share; None if it was not tested.
        least_possible: a lower bound on that share that holds jointly with the band of the FPR: each of the two may fail
            with half of 1 - confidence. It is at most `unknown.bound`, which holds alone.
        rejected: the share of the traffic that is rejected.
        promise: whether the promised false-alarm rate still looks true.
        can_tell_fpr: whether the band of the FPR would hold.
        confidence: with which unknowns must be found, and of every limit.
    """

    traffic: Decisions
    known: Decisions | None
    known_name: str
    untested: str
    unknown: UnknownShare | None
    least_possible: float
    rejected: Share
    promise: PromiseCheck
    can_tell_fpr: bool
    confidence: float

    @property
    def found(self) -> bool:
        """Whether there is OOD at this confidence: where there is none, so in at most 1 - confidence of all draws."""
        return self.unknown is not None and self.unknown.bound > 0

    @property
    def p_values(self) -> Floats | None:
        """The conformal p-value of each example, where ID scores can be trusted."""
        if self.unknown is None or self.known is None:
            return None
        return p_values(self.traffic.scores, self.known.scores)

    def fpr(self, shares: npt.ArrayLike | None = None) -> FprByShare | None:
        """The share of OOD accepted for each pi that might be the true one, with its band.

        With probability `confidence` the true pi is possible and its FPR is in the band, both: each of them holds at
        (1 + confidence) / 2. A pi below `least_possible` is refuted, whatever the band would allow. The values of pi are
        `SHARES` and that bound unless others are passed.
        """
        if not self.can_tell_fpr or self.known is None or self.unknown is None:
            return None
        least = self.least_possible
        if shares is None:
            shares = sorted({*SHARES, *([least] if least > 0 else [])})
        curve = fpr_by_share(self.known.margins, self.traffic.margins, 0.0, shares, _half(self.confidence))
        return replace(curve, possible=curve.possible & (curve.share >= least), confidence=self.confidence)

    @property
    def says(self) -> str:
        """What is known about the share of unknowns, in one line."""
        if self.unknown is None:
            return f"whether any of this traffic is unknown was not tested: {self.untested}"
        compared = f"compared with {'the holdout' if self.known_name == 'holdout' else self.known_name}"
        unless = "; or its known part is no longer like that" if self.found else ""
        return f"{self.unknown}, {compared}{unless}"


def inspect_traffic(
    detector: Detector, traffic: Decisions, known: Decisions | None = None, *, confidence: float = 0.95, role_of: str = ""
) -> Inspection:
    """Inspect traffic by the scores that a detector gives it.

    Args:
        detector: it has a threshold, and the scores of its holdout.
        traffic: what it says of the traffic.
        known: what it says of ID examples that nothing has trained on; the holdout by default, if its examples were unseen.
        confidence: with which unknowns must be found, and of every limit.
        role_of: what this very traffic was to the detector before (`wildood.data.fingerprint`), if it was anything.

    >>> import torch, wildood
    >>> detector = wildood.posthoc(torch.nn.Linear(1, 2), wildood.EnergyScore(), holdout=np.zeros((99, 1), dtype="f"))
    >>> detector.holdout_scores, detector.threshold = np.arange(99, dtype="f"), 94.0
    >>> scores, classes = np.append(np.arange(99), [200] * 40), np.zeros(139, int)
    >>> print(inspect_traffic(detector, Decisions.of(detector, scores, classes)).says)
    at least ... % of the wild data is OOD at 95 % confidence (estimate ...; 99 ID and 139 wild scores), compared with
    the holdout; or its known part is no longer like that
    """
    name = "holdout" if known is None else "--id"
    reference = known if known is not None else _unseen_holdout(detector)
    untested = NOT_FRESH.format(role_text(role_of)) if role_of else "" if reference is not None else UNTRUSTED
    unknown, least = None, 0.0
    if reference is not None and not untested:
        unknown = unknown_share(reference.scores, traffic.scores, confidence)
        least = unknown_share(reference.scores, traffic.scores, _half(confidence)).bound
    rejected = Share.of(traffic.rejected, confidence)
    check = (
        check_on_traffic(detector.promise, None if role_of else rejected, confidence)
        if known is None
        else check_on_known(detector, known, confidence)
    )
    # The share accepted below thresholds of several classes is no order statistic of the holdout that set them.
    can_tell = unknown is not None and (known is not None or detector.class_thresholds is None)
    return Inspection(traffic, reference, name, untested, unknown, least, rejected, check, can_tell, confidence)


def most_ood(decided: Decisions, top: int) -> list[Choice]:
    """The highest scores, the highest first.

    >>> most_ood(Decisions(np.array([1.0, 9.0, 5.0]), *[np.zeros(3)] * 3), top=2)
    [(1, 'highest score'), (2, 'highest score')]
    """
    return _choices("highest score", np.argsort(-decided.scores, kind="stable"), top)


def borderline(decided: Decisions, top: int) -> list[Choice]:
    """The nearest above the threshold and the nearest below it, in turn.

    >>> margins = np.array([-9.0, 0.1, -0.2, 4.0])
    >>> borderline(Decisions(margins, np.zeros(4, int), margins > 0, margins), top=3)
    [(1, 'just rejected'), (2, 'just accepted'), (3, 'just rejected')]
    """
    return _in_turn([_just_rejected(decided, top), _just_accepted(decided, top)], top)


def label_first(decided: Decisions, top: int) -> list[Choice]:
    """What to label, the most useful first: the nearest above the threshold, the nearest below it, the highest, in turn.

    A label near the threshold says whether the threshold is right, and is worth most to the next fit; a few of the highest
    scores say whether they are unknown, or known data that has changed.

    >>> margins = np.array([-9.0, 0.1, -0.2, 4.0])
    >>> label_first(Decisions(margins, np.zeros(4, int), margins > 0, margins), top=3)
    [(1, 'just rejected'), (2, 'just accepted'), (3, 'highest score')]
    """
    return _in_turn([_just_rejected(decided, top), _just_accepted(decided, top), most_ood(decided, top)], top)


def _half(confidence: float) -> float:
    """The confidence of each of two statements that hold jointly with this one."""
    return (1 + confidence) / 2


def _unseen_holdout(detector: Detector) -> Decisions | None:
    scores, classes = detector.holdout_scores, detector.holdout_classes
    if detector.promise is None or not detector.promise.unseen or scores is None:
        return None
    return Decisions.of(detector, scores, np.zeros(len(scores), np.int64) if classes is None else classes)


def _just_rejected(decided: Decisions, top: int) -> list[Choice]:
    order = np.argsort(decided.margins, kind="stable")
    return _choices("just rejected", order[decided.rejected[order]], top)


def _just_accepted(decided: Decisions, top: int) -> list[Choice]:
    order = np.argsort(-decided.margins, kind="stable")
    return _choices("just accepted", order[~decided.rejected[order]], top)


def _choices(why: Why, numbers: npt.NDArray[np.intp], top: int) -> list[Choice]:
    return [(int(number), why) for number in numbers[:top]]


def _in_turn(queues: Iterable[list[Choice]], top: int) -> list[Choice]:
    """One of each queue after the other, none twice."""
    chosen: dict[int, Why] = {}
    for turn in zip_longest(*queues):
        for choice in turn:
            if choice is not None:
                chosen.setdefault(*choice)
    return list(chosen.items())[:top]
