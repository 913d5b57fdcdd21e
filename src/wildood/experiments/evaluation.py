"""One detector on test data: what it catches of each OOD set and what that costs, with an interval for each number."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from wildood.data.fingerprint import Content
from wildood.detect.detector import Detector
from wildood.evaluate.intervals import Estimate, Share, fpr_interval, percentile_interval, resample
from wildood.evaluate.metrics import Floats, Metrics, all_metrics
from wildood.experiments.decisions import Mask, SetDecisions
from wildood.experiments.promise_check import PromiseCheck, check_on_known

CONFIDENCE = 0.95  # of every interval
RESAMPLES = 1000


@dataclass(frozen=True)
class OodResult:
    """What is caught of one OOD set.

    Attributes:
        name: of the set.
        examples: how many it has.
        fpr95: the share of it that is accepted when 95 % of ID is accepted (ID is the positive class).
        auroc: the probability that one of its examples scores higher than an ID example.
        aupr_in: the average precision with ID as the positive class.
        aupr_out: the average precision with OOD as the positive class.
        caught: the share of it that is rejected at the deployed threshold.
        also_in_id: how many of its examples are in the ID set, too.
        role_of: what this very set was to the detector before; empty if it was nothing.
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
    """What the detector costs on ID data.

    Attributes:
        name: of the set.
        examples: how many it has.
        accuracy: of the classifier, on rejected examples too; None without labels.
        accuracy_of_accepted: on those that are accepted; None without labels, or if there are none.
        false_alarms: the share that is rejected at the deployed threshold.
        classes_are: the labels; or what the classifier predicts where there are none, or where a rate is promised for each
            predicted class.
        false_alarms_by_class: for each class that has examples, by its number.
        role_of: what this very set was to the detector before; empty if it was nothing.
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
    """All numbers of a detector on an ID set and several OOD sets."""

    id: IdResult
    ood: tuple[OodResult, ...]
    average: Average
    resamples: int
    seed: int


class Measured(NamedTuple):
    """A detector, what it answered, the numbers, what they say of its promise, and the names of its classes."""

    detector: Detector
    known: SetDecisions
    unknown: Sequence[SetDecisions]
    evaluation: Evaluation
    promise: PromiseCheck
    classes: Sequence[str]


def measure(
    detector: Detector, known: SetDecisions, unknown: Sequence[SetDecisions], resamples: int = RESAMPLES, seed: int = 0
) -> Measured:
    """`evaluate`, with all that a report of it needs.

    >>> import torch, wildood
    >>> from wildood.data.images import Images
    >>> x = np.random.default_rng(0).normal(size=(60, 2)).astype("float32")
    >>> detector = wildood.posthoc(torch.nn.Linear(2, 3), wildood.EnergyScore(), holdout=x[:30], alpha=0.1)
    >>> known, far = (SetDecisions.asked(detector, name, Images(some)) for name, some in (("a", x[30:]), ("b", x[:9] - 9)))
    >>> measure(detector, known, [far]).promise.rate.examples
    30
    """
    promise = check_on_known(detector, known, CONFIDENCE, known.role_of)
    by_class = detector.promise is not None and detector.promise.by_class
    found = evaluate(known, unknown, resamples, seed, by_predicted=by_class)
    unmatched = bool(known.images.classes) and not detector.record.get("classes")
    evaluation = replace(found, id=replace(found.id, unmatched_names=unmatched))
    return Measured(detector, known, unknown, evaluation, promise, class_names(detector, known))


def evaluate(
    known: SetDecisions,
    unknown: Sequence[SetDecisions],
    resamples: int = RESAMPLES,
    seed: int = 0,
    *,
    by_predicted: bool = False,
) -> Evaluation:
    """Measure what a detector answered; the seed is that of the bootstrap.

    False alarms are told by true class where there are labels, unless `by_predicted`.

    >>> import torch, wildood
    >>> from wildood.data.images import Images
    >>> rng = np.random.default_rng(0)
    >>> x, far = rng.normal(size=(60, 2)).astype("float32"), rng.normal(size=(20, 2)).astype("float32") - 9
    >>> detector = wildood.posthoc(torch.nn.Linear(2, 3), wildood.EnergyScore(), holdout=x[:30], alpha=0.1)
    >>> given = [SetDecisions.asked(detector, "a", Images(x[30:])), SetDecisions.asked(detector, "b", Images(far))]
    >>> evaluate(given[0], given[1:]).ood[0].caught.examples
    20
    """
    drawn = resample(known.scores, [answers.scores for answers in unknown], resamples=resamples, seed=seed)
    metrics = [all_metrics(known.scores, answers.scores) for answers in unknown]
    accepted = [_accepted_at_95(found, len(answers.scores)) for found, answers in zip(metrics, unknown, strict=True)]
    ood = [
        OodResult(
            name=answers.name,
            examples=len(answers.scores),
            fpr95=Estimate(found.fpr_at_tpr, *fpr_interval(drawn.fpr95[:, [number]], [accepted[number]], CONFIDENCE)),
            auroc=_estimate(found.auroc, drawn.auroc[:, number]),
            aupr_in=found.aupr_in,
            aupr_out=found.aupr_out,
            caught=_share(answers.rejected),
            also_in_id=Content(answers.images).overlap(Content(known.images)).shared,
            role_of=answers.role_of,
        )
        for number, (answers, found) in enumerate(zip(unknown, metrics, strict=True))
    ]
    average = Average(
        fpr95=Estimate(_mean(metrics, "fpr_at_tpr"), *fpr_interval(drawn.fpr95, accepted, CONFIDENCE)),
        auroc=_estimate(_mean(metrics, "auroc"), drawn.auroc.mean(1)),
        aupr_in=_mean(metrics, "aupr_in"),
        aupr_out=_mean(metrics, "aupr_out"),
        caught=float(np.mean([result.caught.value for result in ood])),
    )
    return Evaluation(_on_id(known, by_predicted=by_predicted), tuple(ood), average, resamples, seed)


def class_names(detector: Detector, known: SetDecisions) -> list[str]:
    """A name for each class of the model: the detector's own, or else the ID set's; its number where there is none."""
    names = detector.record.get("classes") or known.images.classes
    count = detector.predict_proba(known.images.examples[:1]).shape[1]
    return [names[number] if number < len(names) else str(number) for number in range(count)]


def _on_id(known: SetDecisions, *, by_predicted: bool) -> IdResult:
    labels = None if known.images.labels is None else np.asarray(known.images.labels)
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


def _accepted_at_95(found: Metrics, examples: int) -> Share:
    """What FPR95 counts, as if its threshold were fixed."""
    return Share.of((round(found.fpr_at_tpr * examples), examples), CONFIDENCE)


def _estimate(value: float, resampled: Floats) -> Estimate:
    return Estimate(value, *percentile_interval(resampled, CONFIDENCE))


def _mean(metrics: Sequence[Metrics], name: str) -> float:
    return float(np.mean([getattr(found, name) for found in metrics]))
