"""Energy with a logistic loss: what the rows "Energy (w/ OE)" of the WOODS paper's tables appear to be."""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import nn

from wildood.evaluate.thresholds import check_alpha
from wildood.methods.objective import Batch, Objective, Start, Terms
from wildood.methods.schedule import Schedule
from wildood.methods.woods import SigmoidLevel, drawn_level
from wildood.models.classifier import Classifier
from wildood.scores.energy import EnergyScore
from wildood.settings import check_fields, check_flag, check_positive


@dataclass(frozen=True)
class EnergyLogistic:
    """Cross-entropy, and a logistic regression that tells labelled from wild data by their logsumexp.

    The released code takes w S + b as the logit of ID, with w > 0; here it is z = w S + b as in `Woods`, the logit of OOD,
    with w < 0: the same loss with both signs exchanged. The paper does not say where w and b start. The released code draws
    them, in half of all runs with the wrong sign; here they start from the classifier's energies, with the right one, and do
    not decay. Nothing else of `Woods` is in it: no preconditioner, no shared direction, no distillation.

    Attributes:
        weight: lambda, of the logistic loss. The paper tries 0.1, 1 and 5; the released script 0.1, 0.5 and 5.
        alpha: the false-alarm rate of the deployed threshold.
        published: what the released code does; use `EnergyLogistic.as_published()`.

    >>> EnergyLogistic().weight
    1.0
    """

    uses_features: ClassVar[bool] = False
    uses_wild: ClassVar[bool] = True

    weight: float = 1.0
    alpha: float = 0.05
    published: bool = False

    def __post_init__(self) -> None:
        check_fields(self, "EnergyLogistic: ", weight=check_positive, alpha=check_alpha, published=check_flag)

    @classmethod
    def as_published(cls, weight: float = 1.0) -> Self:
        """The released code: w and b drawn from U(-1, 1), and decayed like all weights.

        >>> EnergyLogistic.as_published(weight=5.0).schedule().epochs
        100
        """
        return cls(weight=weight, published=True)

    def schedule(self) -> Schedule:
        """That of `Woods()`, so that they can be compared; or the released 100 epochs."""
        return Schedule.as_published() if self.published else Schedule()

    def objective(self, classifier: Classifier, start: Start) -> Objective:
        """The loss on this classifier, with w and b started from its energies, or drawn."""
        if not self.published:
            return EnergyLogisticObjective(self, classifier, SigmoidLevel.from_start(start))
        w, b = drawn_level(start.seed)  # of the logit of ID: that of OOD has both signs exchanged
        return EnergyLogisticObjective(self, classifier, SigmoidLevel(-w, -b, signed=True))


class EnergyLogisticObjective(Objective):
    """CE(labelled) + weight * mean over labelled and wild of -log σ(-z) and -log σ(z)."""

    def __init__(self, method: EnergyLogistic, classifier: Classifier, level: SigmoidLevel) -> None:
        super().__init__(classifier, EnergyScore())
        self.level = level.to(classifier.device)
        self.weight = method.weight
        self.decay_all = method.published

    def forward(self, batch: Batch) -> Terms:
        """The loss of a batch; no constraints."""
        labelled, wild = self.outputs(batch)
        logistic = torch.cat([F.softplus(self.level(labelled.logits)), F.softplus(-self.level(wild.logits))]).mean()
        return Terms(F.cross_entropy(labelled.logits, batch.labels) + self.weight * logistic, {})

    def without_decay(self) -> list[nn.Parameter]:
        """Both w and b: decay would pull the slope to a flat sigmoid. As published, they decay."""
        return [] if self.decay_all else list(self.level.parameters())

    def watch(self) -> dict[str, float]:
        """The slope and the bias."""
        return {"w": self.level.w.item(), "b": self.level.bias.item()}
