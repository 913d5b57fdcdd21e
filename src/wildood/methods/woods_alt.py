"""WOODS-alt: the same constrained problem with a separate OOD head and the hinge loss (the paper's Appendix A.2).

minimise    1/m Σ_i max(1 - g(x~_i), 0)
subject to  1/n Σ_j max(1 + g(x_j), 0)      <= alpha
            1/n Σ_j L_cls(f(x_j), y_j)      <= tau

What is minimised has a price for changed answers on wild data besides (`Answers`); as published, it has none.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from wildood.data.sampling import seeded
from wildood.methods.distillation import Answers
from wildood.methods.objective import Batch, Duals, Objective, Start, Terms
from wildood.methods.woods import Woods
from wildood.models.classifier import Classifier, Outputs
from wildood.models.whitening import Whitening
from wildood.scores.head import HeadScore


@dataclass(frozen=True)
class WoodsAlt(Woods):
    """An OOD head g on the penultimate features instead of the energy; the settings are those of `Woods`.

    The head starts at random, with g near 0 on all data: the hinge of the ID constraint starts near 1, and with a multiplier
    of 0 its penalty alone makes the acting multiplier about 1. From there the multiplier has further to go than that of
    `Woods` (to 2.6 on digits), so that it moves faster.

    >>> WoodsAlt().duals().multipliers, WoodsAlt().uses_features
    ({'false_alarm': 0.0, 'classification': 0.0}, True)
    """

    uses_features: ClassVar[bool] = True

    mu2: float = 0.3

    def objective(self, classifier: Classifier, start: Start) -> Objective:
        """The constrained problem on this classifier, with a new head."""
        return WoodsAltObjective(self, classifier, start)

    def duals(self, *, priced: bool = True) -> Duals:
        """Those of `Woods`, with the false-alarm constraint's multiplier from 0."""
        duals = super().duals(priced=priced)
        return replace(duals, multipliers={**duals.multipliers, "false_alarm": 0.0})


class WoodsAltObjective(Objective):
    """Hinge of the head's logit: max(1 - g, 0) on wild data, max(1 + g, 0) <= alpha on labelled data."""

    def __init__(self, method: WoodsAlt, classifier: Classifier, start: Start) -> None:
        with seeded(start.seed, "head"):
            score = HeadScore(start.features).to(classifier.device)
        super().__init__(classifier, score, method.duals())
        self.answers = None if method.published else Answers(classifier)
        # The head takes what the last layer takes, if the tap is there.
        tapped = classifier.tap is not None and classifier.tap.side == "input"
        matrix = None if start.moments is None or not tapped or method.published else start.moments.matrix()
        if matrix is not None:
            self.whitening = Whitening(score.head.layers[0].get_parameter("weight"), matrix)
        self.alpha = method.alpha
        self.tau = method.tau_from(start)

    def forward(self, batch: Batch) -> Terms:
        """Mean hinge of the wild examples and the price of their answers, and the constraints on the labelled ones."""
        labelled, wild = self.outputs(batch)
        loss = F.relu(1 - self.score(wild)).mean() + self.price(batch, wild)
        return Terms(loss, self.constraints(labelled, batch.labels))

    def constraints(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        """Mean hinge - alpha, and cross-entropy - tau."""
        return {
            "false_alarm": F.relu(1 + self.score(outputs)).mean() - self.alpha,
            "classification": F.cross_entropy(outputs.logits, labels) - self.tau,
        }
