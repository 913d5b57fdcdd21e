"""Temperature scaling (Guo et al., 2017): the maximum softmax probability, calibrated on unseen data."""

import math

import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar
from torch import Tensor

from wildood.data.sources import Source
from wildood.data.validation import all_labels
from wildood.models.classifier import Classifier, Outputs, each_output
from wildood.scores.score import Needs, Score

LARGEST = 1e6  # temperature


class TemperatureScaling(Score):
    """s(x) = -max_k softmax(f(x) / T)_k, where T has the least cross-entropy on unseen ID examples.

    >>> TemperatureScaling().needs.unseen
    True
    """

    paper = "Guo et al., On Calibration of Modern Neural Networks, 2017"
    needs = Needs(unseen=True, labels=True)
    temperature: Tensor  # T

    def __init__(self) -> None:
        super().__init__()
        self.declare("temperature")

    def fit(self, classifier: Classifier, labelled: Source) -> None:
        """Find T."""
        logits = each_output(classifier, labelled, lambda outputs: outputs.logits)
        found, _ = least_cross_entropy(logits, all_labels(labelled))
        self.temperature = torch.tensor(found).to(classifier.device)

    def forward(self, outputs: Outputs) -> Tensor:
        """Minus the largest probability."""
        return -(outputs.logits / self.temperature).softmax(1).amax(1)


def least_cross_entropy(logits: Tensor, labels: Tensor) -> tuple[float, float]:
    """The temperature with the least cross-entropy, from 1 / LARGEST to LARGEST, and that cross-entropy.

    It is smoothed as if one more example were wrong: without an error among them, no temperature would be too small.

    >>> logits = F.one_hot(torch.arange(100) % 4, 4) * 5.0
    >>> labels = torch.where(torch.arange(100) < 90, torch.arange(100) % 4, 0)
    >>> [round(least_cross_entropy(logits * scale, labels)[0] / scale, 2) for scale in (0.1, 10)]
    [1.45, 1.45]
    """
    smoothing, logits = 1 / (1 + len(labels)), logits.double()

    def loss(log_temperature: float) -> float:
        return float(F.cross_entropy(logits / math.exp(log_temperature), labels, label_smoothing=smoothing))

    limit = math.log(LARGEST)
    best = minimize_scalar(loss, bounds=(-limit, limit), method="bounded")
    return math.exp(best.x), float(best.fun)
