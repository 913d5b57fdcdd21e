"""Energy with a logistic loss: what the rows "Energy (w/ OE)" of the WOODS paper's tables appear to be."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Self, get_args

import torch
import torch.nn.functional as F
from torch import nn

from wildood.evaluate.thresholds import check_alpha
from wildood.methods.objective import Batch, Objective, Start, Terms
from wildood.methods.schedule import Schedule
from wildood.methods.woods import EnergyLogit, LogitStart, Preconditioning, no_preconditioner
from wildood.models.classifier import Classifier
from wildood.scores.energy import EnergyScore
from wildood.settings import check_choice, check_fields, check_flag, check_positive, optional


@dataclass(frozen=True)
class EnergyLogistic:
    """Cross-entropy, and a logistic regression that tells labelled from wild data by their logsumexp.

    The released code takes w S + b as the logit of ID, with w > 0; here it is z = w S + b as in `Woods`, the logit of OOD,
    with w < 0: the same loss with both signs exchanged. The paper does not say where w and b start. The released code draws
    them, in half of all runs with the wrong sign; here they start from the classifier's energies, with the right one, and do
    not decay.

    Attributes:
        weight: lambda, of the logistic loss. The paper tries 0.1, 1 and 5; the released script 0.1, 0.5 and 5.
        alpha: the false-alarm rate of the deployed threshold.
        logit_start: where w and b start, as in `Woods`.
        decay_logit: apply weight decay to w and b, too.
        precondition: train the last layer with the preconditioner of `Woods`, which no paper's method has; None trains it
            as it is.
        published_schedule: train for the published 100 epochs by default, instead of by `Schedule()`.

    >>> EnergyLogistic().weight
    1.0
    """

    uses_features: ClassVar[bool] = False
    uses_wild: ClassVar[bool] = True

    weight: float = 1.0
    alpha: float = 0.05
    logit_start: LogitStart = "quantile"
    decay_logit: bool = False
    precondition: Preconditioning | None = None
    published_schedule: bool = False

    def __post_init__(self) -> None:
        check_fields(
            self,
            "EnergyLogistic: ",
            weight=check_positive,
            alpha=check_alpha,
            logit_start=partial(check_choice, choices=get_args(LogitStart)),
            decay_logit=check_flag,
            precondition=optional(partial(check_choice, choices=get_args(Preconditioning))),
            published_schedule=check_flag,
        )

    @classmethod
    def as_published(cls, weight: float = 1.0) -> Self:
        """The released code: w and b drawn from U(-1, 1), and decayed like all weights.

        >>> EnergyLogistic.as_published(weight=5.0).schedule().epochs
        100
        """
        return cls(weight=weight, logit_start="random_signed", decay_logit=True, published_schedule=True)

    def schedule(self) -> Schedule:
        """That of `Woods()`, so that they can be compared; or the published 100 epochs."""
        return Schedule.as_published() if self.published_schedule else Schedule()

    def objective(self, classifier: Classifier, start: Start) -> Objective:
        """The loss on this classifier."""
        logit = EnergyLogit.from_start(self.logit_start, start, self.alpha)
        if logit.signed:  # drawn as the logit of ID: that of OOD has both signs exchanged
            logit = EnergyLogit(-logit.w.item(), -logit.bias.item(), signed=True)
        objective = EnergyLogisticObjective(self, classifier, logit)
        if self.precondition is not None:
            objective.precondition = start.precondition(shared=self.precondition == "shared")
            if objective.precondition is None:
                objective.derived = {"precondition": None}
                objective.warnings.append(no_preconditioner(self.precondition))
        return objective


class EnergyLogisticObjective(Objective):
    """CE(labelled) + weight * mean over labelled and wild of -log σ(-z) and -log σ(z)."""

    def __init__(self, method: EnergyLogistic, classifier: Classifier, logit: EnergyLogit) -> None:
        super().__init__(classifier, EnergyScore())
        self.logit = logit.to(classifier.device)
        self.weight, self.decay_logit = method.weight, method.decay_logit

    def forward(self, batch: Batch) -> Terms:
        """The loss of a batch; no constraints."""
        labelled, wild = self.outputs(batch)
        logistic = torch.cat([F.softplus(self.logit(labelled.logits)), F.softplus(-self.logit(wild.logits))]).mean()
        return Terms(F.cross_entropy(labelled.logits, batch.labels) + self.weight * logistic, {})

    def without_decay(self) -> list[nn.Parameter]:
        """Both w and b: decay would pull the slope to a flat sigmoid."""
        return [] if self.decay_logit else list(self.logit.parameters())

    def watch(self) -> dict[str, float]:
        """The slope and the bias."""
        return {"w": self.logit.w.item(), "b": self.logit.bias.item()}
