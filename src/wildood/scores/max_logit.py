"""The maximum logit of Hendrycks et al. (2022)."""

from typing import ClassVar

from torch import Tensor

from wildood.models.classifier import Outputs
from wildood.scores.score import About, Score


class MaxLogit(Score):
    """s(x) = -max_k f_k(x).

    >>> import torch
    >>> MaxLogit()(Outputs(torch.tensor([[9.0, 0.0], [0.1, 0.0]]))).argmax().item()
    1
    """

    about: ClassVar[About] = About("Hendrycks et al., Scaling OOD Detection for Real-World Settings, 2022")

    def __init__(self) -> None:
        super().__init__()  # no settings: a misspelt one must not be taken in silence

    def forward(self, outputs: Outputs) -> Tensor:
        """Minus the largest logit, for each example."""
        return -outputs.logits.amax(1)
