"""The maximum softmax probability of Hendrycks & Gimpel (2017)."""

from torch import Tensor

from wildood.models.classifier import Outputs
from wildood.scores.score import Score


class MaxSoftmax(Score):
    """s(x) = -max_k softmax(f(x))_k, for logits f.

    >>> import torch
    >>> MaxSoftmax()(Outputs(torch.tensor([[9.0, 0.0], [0.1, 0.0]]))).argmax().item()
    1
    """

    paper = "Hendrycks & Gimpel, A Baseline for Detecting Misclassified and OOD Examples, 2017"

    def __init__(self) -> None:
        super().__init__()  # without settings, so that a misspelt one is refused

    def forward(self, outputs: Outputs) -> Tensor:
        """Minus the largest probability."""
        return -outputs.logits.softmax(dim=1).amax(dim=1)
