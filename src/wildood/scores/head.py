"""The score of WOODS-alt: the logit of its OOD head."""

from typing import ClassVar

from torch import Tensor

from wildood.models.heads import OodHead
from wildood.models.outputs import Outputs
from wildood.scores.score import Score


class HeadScore(Score):
    """g(x) on the classifier's features.

    >>> import torch
    >>> HeadScore(features=8)(Outputs(torch.zeros(2, 3), torch.zeros(2, 8))).shape
    torch.Size([2])
    """

    uses_features: ClassVar[bool] = True

    def __init__(self, features: int, hidden: int = 300) -> None:
        super().__init__(features=features, hidden=hidden)
        self.head = OodHead(features, hidden)

    def forward(self, outputs: Outputs) -> Tensor:
        """g(x) for each example."""
        if outputs.features is None:
            raise ValueError("HeadScore needs features: give the classifier a tap")
        logit: Tensor = self.head(outputs.features)
        return logit
