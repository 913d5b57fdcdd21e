"""The maximum logit of Hendrycks et al. (2022)."""

from torch import Tensor

from wildood.models.classifier import Outputs
from wildood.scores.score import Score


class MaxLogit(Score):
    """s(x) = -max_k f_k(x), for logits f.

    >>> import torch
    >>> MaxLogit()(Outputs(torch.tensor([[9.0, 0.0], [0.1, 0.0]]))).argmax().item()
    1
    """

    paper = "Hendrycks et al., Scaling OOD Detection for Real-World Settings, 2022"

    def __init__(self) -> None:
        super().__init__()  # without settings, so that a misspelt one is refused

    def forward(self, outputs: Outputs) -> Tensor:
        """Minus the largest logit."""
        return -outputs.logits.amax(1)
