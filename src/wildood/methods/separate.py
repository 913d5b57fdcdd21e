"""Filter wild data, then learn from what the filter keeps: SAL (Du et al., ICLR 2024).

A filter looks at the wild data with the starting classifier and keeps what looks unknown. One learning stage follows, from
the same start: as published, or WOODS on what was kept.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, Self, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from wildood.data.sampling import seeded
from wildood.data.sources import Part, Source
from wildood.errors import InputError
from wildood.evaluate.thresholds import check_alpha
from wildood.methods.objective import Batch, Objective, Start, Terms
from wildood.methods.schedule import Schedule
from wildood.methods.woods import Woods
from wildood.models.classifier import Classifier, evaluating, forward_all, last_layer
from wildood.scores.head import HeadScore
from wildood.settings import check_choice, check_fields, check_flag, check_positive

Filter = Literal["sal"]
Learner = Literal["logistic", "woods"]
SHARE = 0.95  # of the labelled examples that SAL's threshold keeps


@dataclass(frozen=True)
class Separate:
    """A filter of wild data in front of one learning stage.

    Attributes:
        filter: "sal": how far the gradient of an example's cross-entropy is from the mean of its class, along the direction
            in which these differences of wild examples are longest.
        learner: what learns from the examples that were kept. "logistic", as published: cross-entropy on labelled data, and
            `weight` times the logistic loss of a linear head on the features, labelled against kept. "woods": `Woods()`,
            with the kept examples in the place of wild data.
        weight: of the logistic loss; SAL has 10.
        alpha: the false-alarm rate of the deployed threshold, and the level of the constraint of `Woods`.
        published_schedule: 100 epochs at lr 1e-3 along a cosine by default, instead of `Schedule()`; for "logistic".

    >>> Separate().weight, Separate.as_published().schedule().epochs
    (10.0, 100)
    """

    uses_features: ClassVar[bool] = True
    uses_wild: ClassVar[bool] = True

    filter: Filter = "sal"
    learner: Learner = "logistic"
    weight: float = 10.0
    alpha: float = 0.05
    published_schedule: bool = False

    def __post_init__(self) -> None:
        check_fields(
            self,
            "Separate: ",
            filter=partial(check_choice, choices=get_args(Filter)),
            learner=partial(check_choice, choices=get_args(Learner)),
            weight=check_positive,
            alpha=check_alpha,
            published_schedule=check_flag,
        )
        if self.learner == "woods" and (self.weight, self.published_schedule) != (10.0, False):
            raise InputError("Separate: weight and published_schedule are for learner='logistic': leave them out")

    @classmethod
    def as_published(cls) -> Self:
        """The learning stage with its published schedule.

        >>> Separate.as_published().learner
        'logistic'
        """
        return cls(published_schedule=True)

    def schedule(self) -> Schedule:
        """That of `Woods()`, so that they can be compared; or the published one."""
        if not self.published_schedule:
            return Schedule()
        same = {"decay": "cosine", "averaging": False, "clip": 0.0, "normalisation": "batch"}
        return Schedule(epochs=100, batch=128, lr=1e-3, **same)  # type: ignore[arg-type]

    def kept(self, classifier: Classifier, start: Start, wild: Source) -> Part:
        """The wild examples that the filter takes for unknown; `fit` trains on these alone.

        A filter that keeps none is refused: there is nothing to learn from.
        """
        last_layer(classifier, start.labelled.gather(torch.arange(2))[0])  # refuses other features
        threshold, of_wild = sal_distances(classifier, start.labelled, wild, start.classes)
        numbers = (of_wild > threshold).nonzero()[:, 0]
        if not len(numbers):
            raise InputError(
                f"the filter keeps none of {len(wild)} wild examples: none looks unlike labelled; give more, or Woods()"
            )
        return Part(wild, numbers)

    def objective(self, classifier: Classifier, start: Start) -> Objective:
        """The learning stage on this classifier."""
        if self.learner == "woods":
            return Woods(alpha=self.alpha).objective(classifier, start)
        with seeded(start.seed, "head"):
            score = HeadScore(start.features, hidden=0).to(classifier.device)
        return SeparateObjective(self, classifier, score)


class SeparateObjective(Objective):
    """CE(labelled) + weight · mean logistic loss of a linear head g(φ), labelled (g < 0) against kept (g > 0)."""

    def __init__(self, method: Separate, classifier: Classifier, score: HeadScore) -> None:
        super().__init__(classifier, score)
        self.weight = method.weight

    def forward(self, batch: Batch) -> Terms:
        """The loss of a batch; no constraints."""
        labelled, kept = self.outputs(batch)
        losses = torch.cat([F.softplus(self.score(labelled)), F.softplus(-self.score(kept))])
        return Terms(F.cross_entropy(labelled.logits, batch.labels) + self.weight * losses.mean(), {})


def sal_distances(classifier: Classifier, labelled: Source, wild: Source, classes: int) -> tuple[float, Tensor]:
    """SAL's threshold, and its quantity for each wild example: above the threshold it is taken for unknown.

    The gradient of cross-entropy with respect to row c of the last weight is (p_c - 1) φ, if c is the class of the example:
    no backward pass is needed. With ḡ_c its mean over labelled examples of class c, a wild example predicted as c has
    d = (p_c - 1) φ - ḡ_c. v_c is the first right singular vector of all d of class c, and the quantity is |<d, v_c>|. The
    threshold is its 95 % quantile on labelled examples, with the same v_c, for which c is the label. Where no wild example
    is predicted as c, labelled ones of c say nothing.
    """
    gradients = list(_gradients(classifier, labelled))
    means, counts = torch.zeros(classes, gradients[0][0].shape[1]), torch.zeros(classes)
    for gradient, label in gradients:
        means.index_add_(0, label, gradient)
        counts.index_add_(0, label, torch.ones(len(label)))
    means /= counts.clamp(min=1)[:, None]
    of_wild = [(gradient - means[label], label) for gradient, label in _gradients(classifier, wild, predicted=True)]
    differences, predicted = (torch.cat(each) for each in zip(*of_wild, strict=True))
    directions = torch.zeros_like(means)
    for number in range(classes):
        own = differences[predicted == number].double()
        if len(own):
            directions[number] = torch.linalg.eigh(own.T @ own).eigenvectors[:, -1].float()  # its last is the longest
    usual = torch.cat([_along(gradient - means[label], label, directions) for gradient, label in gradients])
    usual = usual[torch.cat([directions[label].any(1) for _, label in gradients])].sort().values
    if not len(usual):
        raise InputError("no wild example is predicted as a class of labelled: is wild like what the classifier meets?")
    threshold = usual[max(0, math.ceil(SHARE * len(usual)) - 1)]
    return float(threshold), _along(differences, predicted, directions)


def _gradients(classifier: Classifier, source: Source, *, predicted: bool = False) -> Iterator[tuple[Tensor, Tensor]]:
    """(p_c - 1) φ and c of each example, batch by batch: c is its label, or the predicted class."""
    with evaluating(classifier):
        for outputs, labels in forward_all(classifier, source):
            classes = outputs.logits.argmax(1) if predicted or labels is None else labels
            left = outputs.logits.softmax(1).gather(1, classes[:, None]) - 1
            yield (left * outputs.features_or_refuse()).cpu(), classes.cpu()


def _along(differences: Tensor, classes: Tensor, directions: Tensor) -> Tensor:
    return (differences * directions[classes]).sum(1).abs()
