"""Plain cross-entropy: a classifier without any wild data, in the same loop as everything else."""

import torch.nn.functional as F
from torch import Tensor

from wildood.methods.objective import Batch, Objective, Terms
from wildood.models.classifier import Classifier
from wildood.scores.energy import EnergyScore


class CrossEntropyObjective(Objective):
    """Mean cross-entropy of the labelled examples; no constraints.

    >>> import torch
    >>> objective = CrossEntropyObjective(Classifier(torch.nn.Linear(2, 4)))
    >>> objective(Batch(torch.zeros(3, 2), torch.tensor([0, 1, 2]))).constraints
    {}
    """

    def __init__(self, classifier: Classifier) -> None:
        super().__init__(classifier, EnergyScore())

    def forward(self, batch: Batch) -> Terms:
        """The mean loss of the batch."""
        labelled, _ = self.outputs(batch)
        loss: Tensor = F.cross_entropy(labelled.logits, batch.labels)
        return Terms(loss, {})
