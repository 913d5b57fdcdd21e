"""Generalized ODIN (Hsu et al., 2020), DeConf-C: trained on ID data alone, from scratch or from a trained classifier."""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import nn

from wildood.data.sampling import seeded
from wildood.evaluate.thresholds import check_alpha
from wildood.methods.objective import Batch, Objective, Start, Terms
from wildood.methods.schedule import Schedule
from wildood.models.classifier import Classifier
from wildood.models.heads import DeConfHead
from wildood.scores.godin import GodinScore
from wildood.scores.perturbation import check_epsilon
from wildood.settings import check_fields


@dataclass(frozen=True)
class Godin:
    """Cross-entropy of logits h / g, where h are cosines and g learns how much to trust them; scored by h alone.

    The head takes the place of the classifier's last layer. Its schedule is that of a classifier from scratch.

    Attributes:
        epsilon: the size of the step on the input, on the raw scale from 0 to 1; None to have it chosen, on ID data.
        alpha: the false-alarm rate of the deployed threshold.

    >>> Godin().uses_wild, Godin().schedule().epochs
    (False, 100)
    """

    uses_features: ClassVar[bool] = True
    uses_wild: ClassVar[bool] = False

    epsilon: float | None = None
    alpha: float = 0.05

    def __post_init__(self) -> None:
        check_fields(self, "Godin: ", epsilon=check_epsilon, alpha=check_alpha)

    def schedule(self) -> Schedule:
        """That of a classifier from scratch."""
        return Schedule.pretraining()

    def objective(self, classifier: Classifier, start: Start) -> Objective:
        """The loss on this classifier, with a new head."""
        with seeded(start.seed, "head"):
            head = DeConfHead(start.features, start.classes).to(classifier.device)
        classifier.head = head
        return GodinObjective(self, classifier, head)


class GodinObjective(Objective):
    """CE(h / g) on labelled data; the score shares the directions of h with the head."""

    def __init__(self, method: Godin, classifier: Classifier, head: DeConfHead) -> None:
        score = GodinScore(**head.settings, epsilon=method.epsilon)
        score.directions = head.directions
        super().__init__(classifier, score)
        self.directions = head.directions

    def forward(self, batch: Batch) -> Terms:
        """The loss of a batch; no constraints."""
        labelled, _ = self.outputs(batch)
        return Terms(F.cross_entropy(labelled.logits, batch.labels), {})

    def without_decay(self) -> list[nn.Parameter]:
        """The directions of h: a cosine does not change with their length, and decay would only make them shorter."""
        return [self.directions]
