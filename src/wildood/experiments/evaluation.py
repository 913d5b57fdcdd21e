"""One detector on sets of examples: its decisions, metrics with intervals, and whether its promised rate still holds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wildood.data.fingerprint import ExampleHashes, role_of, role_text
from wildood.data.images import Images
from wildood.data.sources import ArraySource, Source
from wildood.data.validation import all_labels, check_labels, has_labels, id_source, unlabelled_source
from wildood.detect.detector import Detector, Promise
from wildood.errors import InputError
from wildood.evaluate.binomial import hypergeometric_tail
from wildood.evaluate.intervals import Estimate, Share, fpr_interval, in_percent, percentile_interval, resample
from wildood.evaluate.metrics import Metrics, all_metrics

CONFIDENCE = 0.95  # of every interval
RESAMPLES = 1000
Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Verdict = Literal["no promise", "cannot be told", "holds unless", "holds", "not contradicted", "above", "broken"]


@dataclass(frozen=True, eq=False)
class Decisions:
    """The decisions of a detector on some examples.

    Attributes:
        scores: higher = more OOD.
        classes: the predicted classes, of rejected examples too.
        rejected: which examples are rejected.
        margins: the score less the threshold, that of the predicted class if each has one; above 0 it is rejected.
    """

    scores: Floats
    classes: npt.NDArray[np.int64]
    rejected: Mask
    margins: Floats

    @classmethod
    def of(cls, detector: Detector, scores: npt.NDArray[Any], classes: npt.NDArray[np.int64]) -> "Decisions":
        """The decisions on examples with these scores and predicted classes, at the detector's threshold."""
        each = detector.class_thresholds
        threshold = np.asarray(detector.threshold if each is None else each[classes], dtype=np.float64)
        with np.errstate(invalid="ignore"):  # the difference of two infinities
            margins = np.where(np.isfinite(scores), scores.astype(np.float64) - threshold, np.inf)
        return Decisions(scores.astype(np.float64), classes, ~detector.accepts(scores, classes), margins)

    @property
    def accepted(self) -> Mask:
        """Which examples are accepted."""
        return ~self.rejected

    @property
    def mistakes_if_ood(self) -> npt.NDArray[np.intp]:
        """The indices of the accepted examples, the most confident first."""
        return _ordered(self.accepted, self.scores)

    @property
    def mistakes_if_id(self) -> npt.NDArray[np.intp]:
        """The indices of the rejected examples, the most confident first."""
        return _ordered(self.rejected, -self.scores)


@dataclass(frozen=True, eq=False)
class SetDecisions(Decisions):
    """The decisions on a whole set.

    Attributes:
        name: what the set is called.
        source: its examples.
        labels: their classes; None without labels.
        role_of: the role that this very set had in making the detector; empty if none.
    """

    name: str
    source: Source
    labels: npt.NDArray[np.int64] | None = None
    role_of: str = ""

    @classmethod
    def asked(cls, detector: Detector, name: str, data: Any, *, labelled: bool = True) -> "SetDecisions":
        """Apply the detector to a set; an error names the set. Without `labelled`, its labels are ignored."""
        try:
            source = id_source(data, name) if labelled else unlabelled_source(data, name)
            labels = _labels(source) if labelled else None
            if labels is not None:
                check_labels(torch.from_numpy(labels), name, _class_count(detector))
            decisions = Decisions.of(detector, *detector.score_and_classify(source))
        except InputError as error:
            message = str(error).removeprefix("x: ")
            raise InputError(message if message.startswith(name) else f"{name}: {message}") from error
        return cls(**vars(decisions), name=name, source=source, labels=labels, role_of=role_of(detector.record, source))

    @property
    def where(self) -> str:
        """The files that the examples came from, as the user named them; without files, the name of the set."""
        return (self.source.where if isinstance(self.source, Images) else "") or self.name

    @property
    def files(self) -> Sequence[str]:
        """The file of each example; empty if they did not come from files."""
        return self.source.names if isinstance(self.source, Images) else ()

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the labels; empty if they have none."""
        return self.source.classes if isinstance(self.source, Images) else ()


def _labels(source: Source) -> npt.NDArray[np.int64] | None:
    """Every label of a source; None if it has none."""
    if not isinstance(source, ArraySource):
        return all_labels(source).numpy() if has_labels(source) else None
    labels = source.labels.cpu().numpy() if isinstance(source.labels, Tensor) else source.labels
    return None if labels is None else labels.astype(np.int64)


def _class_count(detector: Detector) -> int:
    return int(detector.predict_proba(detector.example.blank(1)).shape[1])


def _ordered(mask: Mask, order: Floats) -> npt.NDArray[np.intp]:
    """The indices where the mask is true, sorted by `order`; ties keep their order."""
    numbers = np.flatnonzero(mask)
    return numbers[np.argsort(order[numbers], kind="stable")]


@dataclass(frozen=True)
class PromiseCheck:
    """Whether a promised false-alarm rate still holds.

    Attributes:
        verdict: in a word or two: "broken" if the rate on known ID examples is above the promise and the luck of the
            holdout's draw does not explain that; "above" if it might.
        says: the verdict in a sentence.
        rate: of false alarms, measured on examples known to be ID.
        by_luck: the p-value of the hypothesis that these examples are drawn like the holdout.
        unless_above: for "holds unless", the share of unknown traffic up to which the promise holds.
        worst_class: of a promise by class, the predicted class with the strongest evidence against it.
    """

    verdict: Verdict
    says: str
    rate: Share | None = None
    by_luck: float | None = None
    unless_above: float | None = None
    worst_class: int | None = None


def check_on_known(detector: Detector, known: Decisions, confidence: float, role_of: str = "") -> PromiseCheck:
    """Compare the rate on ID examples that nothing has trained on with the promised one.

    Given the threshold, the number of false alarms is binomial. But a threshold from few examples may be too low by the
    luck of their draw, which a promise "on average over holdouts" allows. The promise is called broken only if luck does
    not explain the rate; a promise that is kept is called broken in at most 1 - confidence of all draws.

    A promise by class is judged by the rate in each predicted class; with k classes, each interval has the confidence
    1 - (1 - confidence) / k. Examples that had a role in making the detector (`role_of`) are no evidence.
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
    examples = f"{promise.examples} holdout examples"
    verdict: Verdict
    if high <= promise.alpha:
        verdict, says = "holds", f"the {word} holds"
    elif low <= promise.alpha < value:
        verdict, says = "not contradicted", f"above the {word}, but not by more than so few examples may show by chance"
    elif low <= promise.alpha:
        verdict, says = "not contradicted", f"nothing speaks against the {word}"
    elif luck is None:
        verdict, says = "above", f"the {word} is missed: calibrate on examples that the classifier has not seen"
    elif luck <= 1 - confidence:
        verdict = "broken"
        says = f"the {word} looks broken; ID data is no longer like the {examples} (p = {luck:.2g}): calibrate on newer ones"
    else:
        verdict, why = "above", f"the luck of drawing {examples} may explain it (p = {luck:.2g})"
        says = f"more than the {word}, but {why}: calibrate on more of them"
    return PromiseCheck(verdict, f"{measured}: {says}", rate, luck, worst_class=worst)


def check_on_traffic(
    promise: Promise | None, rejected: Share | None, confidence: float, id_option: str = "--id"
) -> PromiseCheck:
    """Check the promise on unlabelled traffic alone.

    If a share pi of the traffic is OOD, P(rejected) >= (1 - pi) P(false alarm): with U the upper limit of the share
    rejected, the false-alarm rate is at most U / (1 - pi), and at most alpha as long as pi <= 1 - U / alpha. Nothing
    follows from more rejections than alpha: they may all be OOD. The confidence is that of the limits; `id_option` is what
    the message asks to give instead.

    >>> rejected = Share.of((60, 4000), confidence=0.95)
    >>> print(check_on_traffic(Promise(alpha=0.05, examples=500, unseen=True), rejected, confidence=0.95).says)
    the promise of at most 5 % holds on this traffic at 95 % confidence, unless more than 61.5 % of it is unknown
    """
    if promise is None or not promise.unseen:
        return PromiseCheck("no promise", "nothing was promised: the threshold does not rest on unseen examples")
    # Unlabelled traffic tells the rate over all classes only.
    most = f"the promise of {_most(replace(promise, by_class=False))}" + (" over all classes" if promise.by_class else "")
    if rejected is not None and rejected.high <= promise.alpha:
        unless = 1 - rejected.high / promise.alpha
        sure = f"at {100 * confidence:g} % confidence"
        says = f"{most} holds on this traffic {sure}, unless more than {in_percent(unless)} of it is unknown"
        return PromiseCheck("holds unless", says, unless_above=unless)
    says = f"whether {most} still holds cannot be told from unlabelled traffic: give recent ID examples with {id_option}"
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
    holdout, each = detector.holdout_scores, detector.class_thresholds
    assert holdout is not None  # noqa: S101 - there is no promise without them
    groups = [(detector.threshold, holdout, known.scores)]
    if each is not None:
        groups = [
            (float(threshold), holdout[detector.holdout_classes == number], known.scores[known.classes == number])
            for number, threshold in enumerate(each)
        ]
    return min(1.0, len(groups) * min(_tail(*group) for group in groups))


def _by_class(known: Decisions, confidence: float) -> tuple[int, list[Share]]:
    """The predicted class with the strongest evidence against the promise, and the rate of each class, its rate first."""
    classes = np.unique(known.classes)
    confidence = 1 - (1 - confidence) / len(classes)
    shares = [(int(number), Share.of(known.rejected[known.classes == number], confidence)) for number in classes]
    shares.sort(key=lambda one: (-one[1].low, -one[1].value))
    return shares[0][0], [share for _, share in shares]


def _name(detector: Detector, number: int) -> str:
    name = detector.class_name(number)
    return name if isinstance(name, str) else f"class {name}"


def _most(promise: Promise) -> str:
    return f"at most {100 * promise.alpha:g} %" + (" in each predicted class" if promise.by_class else "")


def _tail(threshold: float, holdout: npt.NDArray[Any], fresh: npt.NDArray[Any]) -> float:
    # With ties the rank that was fixed may be higher; a lower one gives a larger p-value.
    rank, accepted = min(int(np.sum(holdout < threshold)) + 1, len(holdout)), int(np.sum(fresh <= threshold))
    return hypergeometric_tail(rank, marked=len(holdout), drawn=rank + accepted, population=len(holdout) + len(fresh))


@dataclass(frozen=True)
class OodResult:
    """The metrics of a detector on one OOD set.

    Attributes:
        fpr95: the share of it that is accepted when 95 % of ID is accepted (ID is the positive class).
        aupr_in, aupr_out: the average precision with ID, with OOD as the positive class.
        caught: the share of it that is rejected at the deployed threshold.
        also_in_id: how many of its examples are in the ID set, too.
        role_of: the role that this very set had in making the detector; empty if none.
    """

    name: str
    examples: int
    fpr95: Estimate
    auroc: Estimate
    aupr_in: float
    aupr_out: float
    caught: Share
    also_in_id: int
    role_of: str = ""


@dataclass(frozen=True)
class Average:
    """The mean over the OOD sets, each of which counts as much as the others."""

    fpr95: Estimate
    auroc: Estimate
    aupr_in: float
    aupr_out: float
    caught: float


@dataclass(frozen=True)
class IdResult:
    """The metrics of a detector on the ID set.

    Attributes:
        accuracy: of the classifier, on rejected examples too; None without labels.
        accuracy_of_accepted: on those that are accepted; None without labels, or if there are none.
        false_alarms: the share that is rejected at the deployed threshold.
        classes_are: the labels; or what the classifier predicts where there are none, or where a rate is promised for each
            predicted class.
        role_of: the role that this very set had in making the detector; empty if none.
        unmatched_names: whether the classes have names here but none in the detector, so that their order numbers them.
    """

    name: str
    examples: int
    accuracy: Share | None
    accuracy_of_accepted: Share | None
    false_alarms: Share
    classes_are: Literal["true", "predicted"]
    false_alarms_by_class: dict[int, Share]
    role_of: str = ""
    unmatched_names: bool = False


@dataclass(frozen=True)
class Evaluation:
    """All numbers of a detector on an ID set and several OOD sets; `shifted`: on known classes that look different."""

    id: IdResult
    ood: tuple[OodResult, ...]
    average: Average
    resamples: int
    seed: int
    shifted: IdResult | None = None


def evaluate_decisions(
    known: SetDecisions,
    unknown: Sequence[SetDecisions],
    resamples: int = RESAMPLES,
    seed: int = 0,
    *,
    by_predicted: bool = False,
    shifted: SetDecisions | None = None,
) -> Evaluation:
    """The metrics of decisions on an ID set, several OOD sets and a shifted set, with a bootstrap's intervals.

    False alarms are counted by true class where there are labels, unless `by_predicted`.
    """
    drawn = resample(known.scores, [each.scores for each in unknown], resamples=resamples, seed=seed)
    metrics = [all_metrics(known.scores, each.scores) for each in unknown]
    accepted = [  # what FPR95 counts, as if its threshold were fixed
        Share.of((round(metric.fpr_at_tpr * len(each.scores)), len(each.scores)), CONFIDENCE)
        for metric, each in zip(metrics, unknown, strict=True)
    ]
    ood = [
        OodResult(
            name=each.name,
            examples=len(each.scores),
            fpr95=Estimate(metric.fpr_at_tpr, *fpr_interval(drawn.fpr95[:, [number]], [accepted[number]], CONFIDENCE)),
            auroc=_estimate(metric.auroc, drawn.auroc[:, number]),
            aupr_in=metric.aupr_in,
            aupr_out=metric.aupr_out,
            caught=_share(each.rejected),
            also_in_id=ExampleHashes(each.source).overlap(ExampleHashes(known.source)).shared,
            role_of=each.role_of,
        )
        for number, (each, metric) in enumerate(zip(unknown, metrics, strict=True))
    ]
    average = Average(
        fpr95=Estimate(_mean(metrics, "fpr_at_tpr"), *fpr_interval(drawn.fpr95, accepted, CONFIDENCE)),
        auroc=_estimate(_mean(metrics, "auroc"), drawn.auroc.mean(1)),
        aupr_in=_mean(metrics, "aupr_in"),
        aupr_out=_mean(metrics, "aupr_out"),
        caught=float(np.mean([result.caught.value for result in ood])),
    )
    on_id, *on_shifted = (_on_id(each, by_predicted=by_predicted) for each in (known, shifted) if each is not None)
    return Evaluation(on_id, tuple(ood), average, resamples, seed, *on_shifted)


def class_names(detector: Detector, known: SetDecisions) -> list[str]:
    """A name for each class of the model: the detector's own, or else the ID set's; its number where there is none."""
    names = detector.record.get("classes") or known.label_names
    return [names[number] if number < len(names) else str(number) for number in range(_class_count(detector))]


def _on_id(known: SetDecisions, *, by_predicted: bool) -> IdResult:
    labels = known.labels
    classes = known.classes if labels is None or by_predicted else labels
    right = None if labels is None else known.classes == labels
    return IdResult(
        name=known.name,
        examples=len(known.scores),
        accuracy=None if right is None else _share(right),
        accuracy_of_accepted=None if right is None or not known.accepted.any() else _share(right[known.accepted]),
        false_alarms=_share(known.rejected),
        classes_are="predicted" if labels is None or by_predicted else "true",
        false_alarms_by_class={int(each): _share(known.rejected[classes == each]) for each in np.unique(classes)},
        role_of=known.role_of,
    )


def _share(mask: Mask) -> Share:
    return Share.of(mask, CONFIDENCE)


def _estimate(value: float, resampled: Floats) -> Estimate:
    return Estimate(value, *percentile_interval(resampled, CONFIDENCE))


def _mean(metrics: Sequence[Metrics], name: str) -> float:
    return float(np.mean([getattr(each, name) for each in metrics]))
