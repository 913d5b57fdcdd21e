"""WOODS-alt: the same constrained problem with a separate OOD head and the hinge loss (the paper's Appendix A.2).

minimise    1/m Σ_i max(1 - g(x~_i), 0)
subject to  1/n Σ_j max(1 + g(x_j), 0)      <= alpha
            1/n Σ_j L_cls(f(x_j), y_j)      <= tau
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, Self, get_args

import torch.nn.functional as F
from torch import Tensor

from wildood.data.sampling import seeded
from wildood.errors import InputError
from wildood.methods.distillation import Distillation
from wildood.methods.objective import Batch, Objective, Precondition, Start, Terms
from wildood.methods.woods import ALGORITHM_1, DERIVED, FalseAlarmLoss, Preconditioning, Woods
from wildood.models.classifier import Classifier, Outputs
from wildood.models.moments import MEAN_SQUARE
from wildood.scores.head import HeadScore
from wildood.settings import check_choice

HeadStart = Literal["energy", "random"]
ALT_ALGORITHM_1: Final[dict[str, Any]] = ALGORITHM_1 | {"false_alarm_loss": "hinge", "head_start": "random"}


@dataclass(frozen=True)
class WoodsAlt(Woods):
    """An OOD head g on the penultimate features instead of the energy; the settings are those of `Woods`.

    The score is the head's output beside the energy of the classifier, in units of its spread, and the head starts at 0: so
    training starts from the energy, and adds to it. As published, the head starts at random, and there is no energy. The
    preconditioner is for the head's first layer, which has no direction to share. There is no w and no b, and the loss of
    false alarms is the hinge, as that of judged examples is.

    Attributes:
        head_start: "energy", or "random" as published.

    >>> WoodsAlt().duals().multipliers, WoodsAlt().uses_features
    ({'false_alarm': 1.0, 'classification': 0.0}, True)
    """

    uses_features: ClassVar[bool] = True

    false_alarm_loss: FalseAlarmLoss = "hinge"
    distillation: float | None = 1.0
    precondition: Preconditioning | None = "rows"
    precondition_scale: float = 0.1
    head_start: HeadStart = "energy"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.head_start, "WoodsAlt: head_start", get_args(HeadStart))
        if self.precondition == "shared":
            raise InputError("WoodsAlt: precondition is 'shared', but its head has one output: give 'rows' or None")
        if self.logit_start != "quantile" or self.decay_logit:
            raise InputError("WoodsAlt has no w and b: leave out logit_start and decay_logit")
        if self.margin:
            raise InputError("WoodsAlt has the hinge on wild data, which a margin would make stronger: leave out margin")
        if self.false_alarm_loss != "hinge":
            raise InputError("WoodsAlt has the hinge for false alarms: leave out false_alarm_loss")

    @classmethod
    def algorithm1(cls, gamma: float = 1.5, mu2: float = 1.0) -> Self:
        """The paper's Algorithm 1 with the loss of WOODS-alt.

        >>> WoodsAlt.algorithm1().precondition is None
        True
        """
        return cls(**ALT_ALGORITHM_1, gamma=gamma, mu2=mu2)

    @classmethod
    def as_published(cls, gamma: float = 1.5, mu2: float = 1.0) -> Self:
        """The released code: Algorithm 1 with one multiplier for both constraints.

        >>> WoodsAlt.as_published().shared_multiplier
        True
        """
        return cls(**ALT_ALGORITHM_1, gamma=gamma, mu2=mu2, shared_multiplier=True)

    def objective(self, classifier: Classifier, start: Start) -> Objective:
        """The constrained problem on this classifier, with a new head."""
        slope = 1 / start.spread if self.head_start == "energy" else 0.0
        with seeded(start.seed, "head"):
            score = HeadScore(start.features, slope=slope, bias=slope * start.quantile).to(classifier.device)
        layer = None if self.precondition is None else self._head_layer(score, classifier, start)
        objective = WoodsAltObjective(self.derived_for(layer), classifier, score, start, layer)
        if layer is None and self.precondition is not None:
            objective.warnings.append(
                "precondition='rows' needs the features of an nn.Linear that makes the logits: the head is trained without "
                "a preconditioner, and the detector may catch less (docs/method.md)"
            )
        return objective

    def _head_layer(self, score: HeadScore, classifier: Classifier, start: Start) -> Precondition | None:
        """The head's first layer in whitened coordinates, if it takes the features that the last layer takes."""
        if start.moments is None or classifier.tap is None or classifier.tap.side != "input":
            return None
        matrix = start.moments.matrix(self.precondition_scale * MEAN_SQUARE, start.wild)
        return None if matrix is None else Precondition(score.head.layers[0].get_parameter("weight"), matrix)


class WoodsAltObjective(Objective):
    """Hinge of the head's logit: max(1 - g, 0) on wild data, max(1 + g, 0) <= alpha on labelled data."""

    def __init__(
        self, method: WoodsAlt, classifier: Classifier, score: HeadScore, start: Start, layer: Precondition | None
    ) -> None:
        super().__init__(classifier, score, method.duals(), layer)
        self.alpha, self.tau = method.alpha, method.tau_from(start)
        self.judged_weight = method.judged_weight
        self.distillation = Distillation(classifier, method.distillation) if method.distillation else None
        self.derived = {"tau": self.tau, **{name: getattr(method, name) for name in DERIVED}}

    def forward(self, batch: Batch) -> Terms:
        """Mean hinge of the wild examples (plus distillation on them), and the constraints on the labelled ones."""
        labelled, wild = self.outputs(batch)
        loss = F.relu(1 - self.score(wild)).mean()
        if self.distillation is not None and batch.wild is not None:
            loss = loss + self.distillation(batch.wild, wild.logits)
        if batch.judged is not None and batch.is_ood is not None:
            side = 2 * batch.is_ood - 1
            loss = loss + self.judged_weight * F.relu(1 - side * self.score(self.judged_outputs(batch.judged))).mean()
        return Terms(loss, self.constraints(labelled, batch.labels))

    def constraints(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        """Mean hinge - alpha, and cross-entropy - tau."""
        return {
            "false_alarm": F.relu(1 + self.score(outputs)).mean() - self.alpha,
            "classification": F.cross_entropy(outputs.logits, labels) - self.tau,
        }
