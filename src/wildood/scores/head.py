"""The score of WOODS-alt: the logit of its OOD head."""

from torch import Tensor

from wildood.models.classifier import Outputs
from wildood.models.heads import OodHead
from wildood.scores.score import Needs, Score


class HeadScore(Score):
    """s(x) = g(φ(x)), where g is the OOD head and φ(x) the features.

    >>> import torch
    >>> HeadScore(features=8)(Outputs(torch.zeros(2, 3), torch.zeros(2, 8))).shape
    torch.Size([2])
    """

    paper = "Katz-Samuels et al., Training OOD Detectors in their Natural Habitats, 2022"
    needs = Needs(features=True)

    def __init__(self, features: int, hidden: int = 300) -> None:
        super().__init__(features=features, hidden=hidden)
        self.head = OodHead(features, hidden)

    def forward(self, outputs: Outputs) -> Tensor:
        """The logit of the OOD head."""
        logit: Tensor = self.head(outputs.features_or_refuse())
        return logit
