"""Outlier Exposure (Hendrycks, Mazeika, Dietterich, 2019), with wild data in the place of outliers."""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from wildood.evaluate.thresholds import check_alpha
from wildood.methods.objective import Batch, Objective, Start, Terms
from wildood.methods.schedule import Schedule
from wildood.models.classifier import Classifier
from wildood.scores.max_softmax import MaxSoftmax
from wildood.settings import check_fields, check_positive


def uniform_cross_entropy(logits: Tensor) -> Tensor:
    """The cross-entropy from the uniform distribution to softmax(f): logsumexp f - mean_k f_k, for each example.

    >>> import torch
    >>> round(uniform_cross_entropy(torch.zeros(1, 4)).item(), 4)    # log 4: its least
    1.3863
    """
    return logits.logsumexp(1) - logits.mean(1)


@dataclass(frozen=True)
class OutlierExposure:
    """Cross-entropy on labelled data, and a pull of wild data towards the uniform distribution; scored by max-softmax.

    Attributes:
        weight: lambda, of the wild term. The original has 0.5; the WOODS paper tries 0.1, 0.5 and 1.
        alpha: the false-alarm rate of the deployed threshold.

    >>> OutlierExposure().weight
    0.5
    """

    uses_features: ClassVar[bool] = False
    uses_wild: ClassVar[bool] = True

    weight: float = 0.5
    alpha: float = 0.05

    def __post_init__(self) -> None:
        check_fields(self, "OutlierExposure: ", weight=check_positive, alpha=check_alpha)

    def schedule(self) -> Schedule:
        """That of `Woods()`, so that they can be compared."""
        return Schedule()

    def objective(self, classifier: Classifier, start: Start) -> Objective:  # noqa: ARG002 - a method is given both
        """The loss on this classifier."""
        return OutlierExposureObjective(self, classifier)


class OutlierExposureObjective(Objective):
    """CE(labelled) + weight * mean over wild of the cross-entropy to uniform."""

    def __init__(self, method: OutlierExposure, classifier: Classifier) -> None:
        super().__init__(classifier, MaxSoftmax())
        self.weight = method.weight

    def forward(self, batch: Batch) -> Terms:
        """The loss of a batch; no constraints."""
        labelled, wild = self.outputs(batch)
        loss = F.cross_entropy(labelled.logits, batch.labels) + self.weight * uniform_cross_entropy(wild.logits).mean()
        return Terms(loss, {})
