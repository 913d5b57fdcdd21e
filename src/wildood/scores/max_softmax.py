"""The maximum softmax probability of Hendrycks & Gimpel (2017)."""

from typing import ClassVar

from torch import Tensor

from wildood.models.classifier import Outputs
from wildood.scores.score import About, Score


class MaxSoftmax(Score):
    """s(x) = -max_k softmax(f(x))_k.

    >>> import torch
    >>> MaxSoftmax()(Outputs(torch.tensor([[9.0, 0.0], [0.1, 0.0]]))).argmax().item()
    1
    """

    about: ClassVar[About] = About("Hendrycks & Gimpel, A Baseline for Detecting Misclassified and OOD Examples, 2017")

    def __init__(self) -> None:
        super().__init__()  # no settings: a misspelt one must not be taken in silence

    def forward(self, outputs: Outputs) -> Tensor:
        """Minus the probability of the most probable class, for each example."""
        return -outputs.logits.softmax(dim=1).amax(dim=1)
