"""One detector on test data: what it catches of each OOD set and what that costs, with an interval for each number."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from wildood.data.given import check_labels, labelled_source, unlabelled_source
from wildood.data.images import Images
from wildood.data.leaks import contents, found_in
from wildood.detect.detector import Detector
from wildood.errors import InputError
from wildood.evaluate.binomial import lower_limit, upper_limit
from wildood.evaluate.bootstrap import percentile_interval, resample
from wildood.evaluate.metrics import Metrics, all_metrics

CONFIDENCE = 0.95  # of every interval
RESAMPLES = 1000

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Estimate:
    """A metric, from 0 to 1, with its bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Share:
    """A share of counted examples, with its exact interval (Clopper-Pearson).

    >>> found = Share.of(np.array([True, False, False, False]))
    >>> found.value, round(found.low, 3), round(found.high, 3)
    (0.25, 0.006, 0.806)
    """

    value: float
    low: float
    high: float
    count: int
    examples: int

    @classmethod
    def of(cls, mask: Mask) -> "Share":
        """How much of a mask is true."""
        count, examples, outside = int(mask.sum()), len(mask), (1 - CONFIDENCE) / 2
        limits = lower_limit(count, examples, outside), upper_limit(count, examples, outside)
        return cls(count / examples, *limits, count, examples)


@dataclass(frozen=True, eq=False)
class Answers:
    """What a detector says of the examples of a set.

    Attributes:
        name: of the set.
        images: the examples, with labels where there are any.
        scores: higher = more OOD.
        classes: what the classifier says, even of rejected examples.
        accepted: which of them are not rejected.
    """

    name: str
    images: Images
    scores: npt.NDArray[np.float32]
    classes: npt.NDArray[np.int64]
    accepted: Mask

    @classmethod
    def of(cls, detector: Detector, name: str, images: Images) -> "Answers":
        """Ask the detector; what it cannot take is refused with the name of the set.

        >>> import wildood
        >>> x = np.random.default_rng(0).normal(size=(30, 2)).astype("float32")
        >>> detector = wildood.posthoc(torch.nn.Linear(2, 3), wildood.EnergyScore(), holdout=x, alpha=0.1)
        >>> int(Answers.of(detector, "holdout", Images(x)).accepted.sum())
        28
        """
        try:
            if images.labels is None:
                unlabelled_source(images.examples, name)
            else:
                labelled_source(images, name)
                outputs = detector.predict_proba(images.examples[:1]).shape[1]
                check_labels(torch.as_tensor(np.asarray(images.labels)), name, outputs)
            scores, classes = detector.score_and_classify(images)
        except InputError as error:
            said = str(error).removeprefix("x: ")
            raise InputError(said if said.startswith(name) else f"{name}: {said}") from error
        return cls(name, images, scores, classes, detector.accepts(scores, classes))

    @property
    def mistakes_if_ood(self) -> npt.NDArray[np.intp]:
        """The accepted examples, the most confident first."""
        return _where(self.accepted, self.scores)

    @property
    def mistakes_if_id(self) -> npt.NDArray[np.intp]:
        """The rejected examples, the most confident first."""
        return _where(~self.accepted, -self.scores)


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
    """

    name: str
    examples: int
    fpr95: Estimate
    auroc: Estimate
    aupr_in: float
    aupr_out: float
    caught: Share
    also_in_id: int


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
        classes_are: the labels, or what the classifier predicts where there are none.
        false_alarms_by_class: for each class that has examples, by its number.
    """

    name: str
    examples: int
    accuracy: Share | None
    accuracy_of_accepted: Share | None
    false_alarms: Share
    classes_are: Literal["true", "predicted"]
    false_alarms_by_class: dict[int, Share]


@dataclass(frozen=True)
class Evaluation:
    """All numbers of a detector on an ID set and several OOD sets."""

    id: IdResult
    ood: tuple[OodResult, ...]
    average: Average
    resamples: int
    seed: int


class Measured(NamedTuple):
    """A detector, what it answered, the numbers, and the names of its classes."""

    detector: Detector
    known: Answers
    unknown: Sequence[Answers]
    evaluation: Evaluation
    classes: Sequence[str]


def evaluate(known: Answers, unknown: Sequence[Answers], resamples: int = RESAMPLES, seed: int = 0) -> Evaluation:
    """Measure what a detector answered; the seed is that of the bootstrap.

    >>> import wildood
    >>> rng = np.random.default_rng(0)
    >>> x, far = rng.normal(size=(60, 2)).astype("float32"), rng.normal(size=(20, 2)).astype("float32") - 9
    >>> detector = wildood.posthoc(torch.nn.Linear(2, 3), wildood.EnergyScore(), holdout=x[:30], alpha=0.1)
    >>> given = [Answers.of(detector, "a", Images(x[30:])), Answers.of(detector, "b", Images(far))]
    >>> evaluate(given[0], given[1:]).ood[0].caught.examples
    20
    """
    drawn = resample(known.scores, [answers.scores for answers in unknown], resamples=resamples, seed=seed)
    metrics = [all_metrics(known.scores, answers.scores) for answers in unknown]
    ood = [
        OodResult(
            name=answers.name,
            examples=len(answers.scores),
            fpr95=_estimate(found.fpr_at_tpr, drawn.fpr95[:, number]),
            auroc=_estimate(found.auroc, drawn.auroc[:, number]),
            aupr_in=found.aupr_in,
            aupr_out=found.aupr_out,
            caught=Share.of(~answers.accepted),
            also_in_id=int(found_in(contents(answers.images), known.images).sum()),
        )
        for number, (answers, found) in enumerate(zip(unknown, metrics, strict=True))
    ]
    average = Average(
        fpr95=_estimate(_mean(metrics, "fpr_at_tpr"), drawn.fpr95.mean(1)),
        auroc=_estimate(_mean(metrics, "auroc"), drawn.auroc.mean(1)),
        aupr_in=_mean(metrics, "aupr_in"),
        aupr_out=_mean(metrics, "aupr_out"),
        caught=float(np.mean([result.caught.value for result in ood])),
    )
    return Evaluation(_on_id(known), tuple(ood), average, resamples, seed)


def class_names(detector: Detector, known: Answers) -> list[str]:
    """A name for each class of the model: the detector's own, or else the ID set's; its number where there is none."""
    names = detector.record.get("classes") or known.images.classes
    count = detector.predict_proba(known.images.examples[:1]).shape[1]
    return [names[number] if number < len(names) else str(number) for number in range(count)]


def _on_id(known: Answers) -> IdResult:
    labels = None if known.images.labels is None else np.asarray(known.images.labels)
    classes = known.classes if labels is None else labels
    right = None if labels is None else known.classes == labels
    return IdResult(
        name=known.name,
        examples=len(known.scores),
        accuracy=None if right is None else Share.of(right),
        accuracy_of_accepted=None if right is None or not known.accepted.any() else Share.of(right[known.accepted]),
        false_alarms=Share.of(~known.accepted),
        classes_are="predicted" if labels is None else "true",
        false_alarms_by_class={int(each): Share.of(~known.accepted[classes == each]) for each in np.unique(classes)},
    )


def _estimate(value: float, resampled: npt.NDArray[np.float64]) -> Estimate:
    return Estimate(value, *percentile_interval(resampled, CONFIDENCE))


def _mean(metrics: Sequence[Metrics], name: str) -> float:
    return float(np.mean([getattr(found, name) for found in metrics]))


def _where(mask: Mask, order: npt.NDArray[np.float32]) -> npt.NDArray[np.intp]:
    """The numbers of the examples where the mask is true, in this order; equal ones in their own."""
    numbers = np.flatnonzero(mask)
    return numbers[np.argsort(order[numbers], kind="stable")]
