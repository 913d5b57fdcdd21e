"""ReAct (Sun, Guo, Li, 2021): the energy of rectified features."""

import numpy as np
import torch
from torch import Tensor

from wildood.data.sources import Source
from wildood.models.classifier import Classifier, Outputs, each_output, last_layer
from wildood.scores.energy import energy
from wildood.scores.score import Needs, Score
from wildood.settings import check_number


class ReAct(Score):
    """s(x) = E(W min(φ(x), c) + b), where W, b is the last layer and c a percentile of all features of the labelled data.

    >>> ReAct().percentile
    90.0
    """

    paper = "Sun et al., ReAct: Out-of-distribution Detection With Rectified Activations, 2021"
    needs = Needs(labelled=True, features=True)
    level: Tensor  # c
    weight: Tensor
    bias: Tensor

    def __init__(self, percentile: float = 90.0) -> None:
        percentile = check_number(percentile, "ReAct: percentile", "a number above 0, up to 100", above=0, most=100)
        super().__init__(percentile=percentile)
        self.percentile = percentile
        for name in ("level", "weight", "bias"):
            self.register_buffer(name, torch.empty(0))

    def fit(self, classifier: Classifier, labelled: Source) -> None:
        """Compute c, and copy the classifier's last layer."""
        self.weight, self.bias = last_layer(classifier, labelled.gather(torch.arange(1))[0])
        features = each_output(classifier, labelled, Outputs.features_or_refuse)
        self.level = torch.tensor(float(np.percentile(features.numpy(), self.percentile))).to(self.weight.device)

    def forward(self, outputs: Outputs) -> Tensor:
        """The energy of the rectified features."""
        rectified = outputs.features_or_refuse().clamp(max=self.level)
        return energy(torch.nn.functional.linear(rectified, self.weight, self.bias))
