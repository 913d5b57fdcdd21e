"""Whether a promised false-alarm rate still looks true: exactly, on examples known to be ID; modestly, on traffic alone."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from wildood.data.fingerprint import role_text
from wildood.detect.detector import Detector
from wildood.detect.promise import Promise
from wildood.evaluate.binomial import hypergeometric_tail
from wildood.evaluate.intervals import Share, in_percent
from wildood.experiments.decisions import Decisions

Verdict = Literal["no promise", "cannot be told", "holds unless", "holds", "not contradicted", "above", "broken"]


@dataclass(frozen=True)
class PromiseCheck:
    """What can be said about the promised false-alarm rate.

    Attributes:
        verdict: in a word or two: "broken" if the rate on known ID examples is above it, and the luck of the holdout's
            draw does not explain that; "above" if it might.
        says: in a sentence.
        rate: of false alarms, measured on examples known to be ID.
        by_luck: the p-value of the hypothesis that these examples are drawn like the holdout.
        unless_above: "holds unless" more than this share of the traffic is unknown.
        worst_class: of a promise by class, the number of the predicted class that speaks most against it.
    """

    verdict: Verdict
    says: str
    rate: Share | None = None
    by_luck: float | None = None
    unless_above: float | None = None
    worst_class: int | None = None


def check_on_known(detector: Detector, known: Decisions, confidence: float, role_of: str = "") -> PromiseCheck:
    """Compare the rate on ID examples that nothing has trained on with the one that was promised.

    Given the threshold, the number of false alarms is binomial. But a threshold from few examples may lie too low by
    the luck of their draw, which a promise "on average over holdouts" allows for, by class as well: it looks broken only
    if that is no excuse. Where it is kept, it looks broken in at most 1 - confidence of all draws.

    A promise by class is judged by what it is about, the rate among the examples of each predicted class: the limits of
    k classes have 1 - (1 - confidence) / k each. Examples that the detector was made from (`role_of`) say nothing of it.

    >>> import torch, wildood
    >>> detector = wildood.posthoc(torch.nn.Linear(1, 2), wildood.EnergyScore(), holdout=np.zeros((19, 1), dtype="f"))
    >>> detector.holdout_scores, detector.threshold = np.arange(19, dtype="f"), 18.0
    >>> [
    ...     check_on_known(detector, Decisions.of(detector, scores, np.zeros(200, int)), confidence=0.95).verdict
    ...     for scores in (np.arange(200) % 19, np.arange(200) % 21, np.arange(200) + 0.0)
    ... ]
    ['holds', 'above', 'broken']
    """
    promise, rate = detector.promise, Share.of(known.rejected, confidence)
    measured = f"{rate.text(confidence)} of the ID examples are rejected"
    if role_of:
        says = f"{measured}; these examples {role_text(role_of)}, so they say nothing of the promise: give others"
        return PromiseCheck("cannot be told", says, rate)
    if promise is None:
        return PromiseCheck("no promise", f"{measured}; nothing was promised", rate)
    rates, worst = [rate], None
    if promise.by_class:
        worst, rates = _by_class(known, confidence)
        measured += f", of those predicted as {_name(detector, worst)}, {rates[0].text(confidence)}"
    high, value = max(each.high for each in rates), max(each.value for each in rates)
    low = max(each.low for each in (rate, *rates))  # what holds in each class holds over all of them
    word = f"promise of {_most(promise)}" if promise.unseen else f"aim of {_most(promise)} (no promise)"
    luck = by_luck(detector, known) if promise.unseen else None
    found = partial(PromiseCheck, rate=rate, by_luck=luck, worst_class=worst)
    if high <= promise.alpha:
        return found("holds", f"{measured}: the {word} holds")
    if low <= promise.alpha < value:
        says = f"{measured}: above the {word}, but not by more than so few examples may show by chance"
        return found("not contradicted", says)
    if low <= promise.alpha:
        return found("not contradicted", f"{measured}: nothing speaks against the {word}")
    if luck is None:
        return found("above", f"{measured}: the {word} is missed: calibrate on examples that the classifier has not seen")
    if luck <= 1 - confidence:
        says = (
            f"{measured}: the {word} looks broken; ID data is no longer like the {promise.examples} holdout examples (p = "
            f"{luck:.2g}): calibrate on newer ones"
        )
        return found("broken", says)
    says = (
        f"{measured}: more than the {word}, but the luck of drawing {promise.examples} holdout examples may explain it (p = "
        f"{luck:.2g}): calibrate on more of them"
    )
    return found("above", says)


def check_on_traffic(promise: Promise | None, rejected: Share | None, confidence: float) -> PromiseCheck:
    """What unlabelled traffic alone says of the promise, if it may speak at all.

    If a share pi of it is OOD, P(rejected) >= (1 - pi) P(false alarm): with U the upper limit of the share rejected, the
    false-alarm rate is at most U / (1 - pi), and at most alpha as long as pi <= 1 - U / alpha. Nothing follows from more
    rejections than alpha: they may all be OOD. The confidence is that of the limits.

    >>> rejected = Share.of((60, 4000), confidence=0.95)
    >>> print(check_on_traffic(Promise(alpha=0.05, examples=500, unseen=True), rejected, confidence=0.95).says)
    the promise of at most 5 % holds on this traffic at 95 % confidence, unless more than 61.5 % of it is unknown
    """
    if promise is None or not promise.unseen:
        return PromiseCheck("no promise", "nothing was promised: the threshold does not rest on unseen examples")
    # A rate over all classes is all that unlabelled traffic speaks of.
    most = f"the promise of {_most(replace(promise, by_class=False))}" + (" over all classes" if promise.by_class else "")
    if rejected is not None and rejected.high <= promise.alpha:
        unless = 1 - rejected.high / promise.alpha
        sure = f"at {100 * confidence:g} % confidence"
        says = f"{most} holds on this traffic {sure}, unless more than {in_percent(unless)} of it is unknown"
        return PromiseCheck("holds unless", says, unless_above=unless)
    says = f"whether {most} still holds cannot be told from unlabelled traffic: give recent ID examples with --id"
    return PromiseCheck("cannot be told", says)


def by_luck(detector: Detector, known: Decisions) -> float:
    """The p-value of so many false alarms, or more, if these examples and the holdout are drawn alike.

    Then, of the n + m scores that meet one threshold, all orders are equally likely, so that the number of the m fresh ones
    at or below the k-th smallest of n has a hypergeometric tail; ties only add to it. Where each class has a threshold, it
    is the smallest such p-value times the number of classes.

    >>> import torch, wildood
    >>> detector = wildood.posthoc(torch.nn.Linear(1, 2), wildood.EnergyScore(), holdout=np.zeros((19, 1), dtype="f"))
    >>> detector.holdout_scores, detector.threshold = np.arange(19, dtype="f"), 18.0
    >>> known = Decisions.of(detector, np.array([5.0, 20.0]), np.zeros(2, int))
    >>> by_luck(detector, known)  # 2 / 21: the largest of all is one of these two
    0.0952...
    """
    held, each = detector.holdout_scores, detector.class_thresholds
    assert held is not None  # noqa: S101 - there is no promise without them
    groups = [(detector.threshold, held, known.scores)]
    if each is not None:
        groups = [
            (float(threshold), held[detector.holdout_classes == number], known.scores[known.classes == number])
            for number, threshold in enumerate(each)
        ]
    return min(1.0, len(groups) * min(_tail(*group) for group in groups))


def _by_class(known: Decisions, confidence: float) -> tuple[int, list[Share]]:
    """The predicted class that speaks most against the promise, and the rate of each, that of this one first."""
    classes = np.unique(known.classes)
    surely = 1 - (1 - confidence) / len(classes)
    shares = [(int(number), Share.of(known.rejected[known.classes == number], surely)) for number in classes]
    shares.sort(key=lambda one: (-one[1].low, -one[1].value))
    return shares[0][0], [share for _, share in shares]


def _name(detector: Detector, number: int) -> str:
    name = detector.class_name(number)
    return name if isinstance(name, str) else f"class {name}"


def _most(promise: Promise) -> str:
    return f"at most {100 * promise.alpha:g} %" + (" in each predicted class" if promise.by_class else "")


def _tail(threshold: float, held: npt.NDArray[Any], fresh: npt.NDArray[Any]) -> float:
    # With ties the rank that was fixed may be higher; a lower one gives a larger p-value.
    rank, accepted = min(int(np.sum(held < threshold)) + 1, len(held)), int(np.sum(fresh <= threshold))
    return hypergeometric_tail(rank, marked=len(held), drawn=rank + accepted, population=len(held) + len(fresh))
