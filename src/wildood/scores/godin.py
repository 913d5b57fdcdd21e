"""The score of Generalized ODIN (Hsu et al., 2020): the largest cosine of its decomposed head, on a perturbed input."""

from typing import ClassVar

import torch
from torch import Tensor

from wildood.models.classifier import Outputs
from wildood.models.heads import cosines
from wildood.scores.perturbation import PerturbedScore
from wildood.scores.score import Needs


class GodinScore(PerturbedScore):
    """s(x) = -max_i h_i(x~), where h_i = cos(w_i, φ) is the numerator of the head's logits and x~ the perturbed input.

    >>> score = GodinScore(features=2, classes=3, epsilon=0.0)
    >>> score(Outputs(torch.zeros(4, 3), torch.ones(4, 2))).shape
    torch.Size([4])
    """

    paper = "Hsu et al., Generalized ODIN: Detecting OOD Images without Learning from OOD Data, 2020"
    needs = Needs(features=True, gradients=True)
    grid: ClassVar = {"epsilon": (0.0, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08)}

    def __init__(self, features: int, classes: int, epsilon: float | None = None) -> None:
        super().__init__(epsilon=epsilon, features=features, classes=classes)
        self.directions = torch.nn.Parameter(torch.ones(classes, features))  # w_i, one row per class

    def forward(self, outputs: Outputs) -> Tensor:
        """Minus the largest cosine."""
        return -cosines(outputs.features_or_refuse(), self.directions).amax(1)
