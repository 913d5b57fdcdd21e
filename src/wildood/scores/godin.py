"""The score of Generalized ODIN (Hsu et al., 2020): the largest cosine of its decomposed head, after a step on the input."""

from typing import ClassVar

import torch
from torch import Tensor

from wildood.models.classifier import Outputs
from wildood.models.heads import cosines
from wildood.scores.perturbation import PerturbedScore
from wildood.scores.score import About


class GodinScore(PerturbedScore):
    """s(x) = -max_i h_i(x~) with h_i = cos(w_i, φ), the numerator of the head's logits.

    >>> score = GodinScore(features=2, classes=3, epsilon=0.0)
    >>> score(Outputs(torch.zeros(4, 3), torch.ones(4, 2))).shape
    torch.Size([4])
    """

    about: ClassVar[About] = About(
        "Hsu et al., Generalized ODIN: Detecting OOD Images without Learning from OOD Data, 2020",
        features=True,
        gradients=True,
    )
    epsilons = (0.0, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08)

    def __init__(self, features: int, classes: int, epsilon: float | None = None) -> None:
        super().__init__(epsilon=epsilon, features=features, classes=classes)
        self.directions = torch.nn.Parameter(torch.ones(classes, features))

    def forward(self, outputs: Outputs) -> Tensor:
        """Minus the largest cosine, for each example."""
        return -cosines(outputs.features_or_refuse(), self.directions).amax(1)
