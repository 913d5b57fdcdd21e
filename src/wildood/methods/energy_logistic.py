"""Energy with a logistic loss: what the rows "Energy (w/ OE)" of the WOODS paper's tables appear to be."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from wildood.evaluate.thresholds import check_alpha
from wildood.methods.objective import Batch, Objective, Start, Terms, check_weight
from wildood.methods.schedule import Schedule
from wildood.methods.woods import SigmoidLevel
from wildood.models.outputs import Classifier
from wildood.models.whitening import Whitening
from wildood.scores.energy import EnergyScore


@dataclass(frozen=True)
class EnergyLogistic:
    """Cross-entropy, and a logistic regression that tells labelled from wild data by their logsumexp.

    The released code takes w S + b as the logit of ID, with w > 0; here it is z = w S + b as in `Woods`, the logit of OOD,
    with w < 0 by construction and started from the classifier's energies: the same loss with both signs exchanged.

    Attributes:
        weight: lambda, of the logistic loss. The paper tries 0.1, 1 and 5; the released script 0.1, 0.5 and 5.
        alpha: the false-alarm rate of the deployed threshold.

    >>> EnergyLogistic().weight
    1.0
    """

    uses_features: ClassVar[bool] = False
    uses_wild: ClassVar[bool] = True

    weight: float = 1.0
    alpha: float = 0.05

    def __post_init__(self) -> None:
        check_weight(self.weight, "EnergyLogistic")
        check_alpha(self.alpha)

    def schedule(self) -> Schedule:
        """That of `Woods()`, so that they can be compared."""
        return Schedule()

    def objective(self, classifier: Classifier, start: Start) -> Objective:
        """The loss on this classifier, with w and b started from its energies."""
        return EnergyLogisticObjective(self, classifier, SigmoidLevel.from_start(start), start.whitening())


class EnergyLogisticObjective(Objective):
    """CE(labelled) + weight * mean over labelled and wild of -log σ(-z) and -log σ(z)."""

    def __init__(
        self, method: EnergyLogistic, classifier: Classifier, level: SigmoidLevel, whitening: Whitening | None = None
    ) -> None:
        super().__init__(classifier, EnergyScore(), whitening=whitening)
        self.level = level.to(classifier.device)
        self.weight = method.weight

    def forward(self, batch: Batch) -> Terms:
        """The loss of a batch; no constraints."""
        labelled, wild = self.outputs(batch)
        logistic = torch.cat([F.softplus(self.level(labelled.logits)), F.softplus(-self.level(wild.logits))]).mean()
        return Terms(F.cross_entropy(labelled.logits, batch.labels) + self.weight * logistic, {})

    def without_decay(self) -> list[nn.Parameter]:
        """Both w and b: decay would pull the slope to a flat sigmoid."""
        return list(self.level.parameters())

    def watch(self) -> dict[str, float]:
        """The slope and the bias."""
        return {"w": self.level.w.item(), "b": self.level.bias.item()}
