"""The score of WOODS-alt: the logit of its OOD head."""

from typing import ClassVar

from torch import Tensor

from wildood.models.classifier import Outputs
from wildood.models.heads import OodHead
from wildood.scores.score import About, Score


class HeadScore(Score):
    """g(x) on the classifier's features.

    >>> import torch
    >>> HeadScore(features=8)(Outputs(torch.zeros(2, 3), torch.zeros(2, 8))).shape
    torch.Size([2])
    """

    about: ClassVar[About] = About(
        "Katz-Samuels et al., Training OOD Detectors in their Natural Habitats, 2022", features=True
    )

    def __init__(self, features: int, hidden: int = 300) -> None:
        super().__init__(features=features, hidden=hidden)
        self.head = OodHead(features, hidden)

    def forward(self, outputs: Outputs) -> Tensor:
        """g(x) for each example."""
        logit: Tensor = self.head(outputs.features_or_refuse())
        return logit
