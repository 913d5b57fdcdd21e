"""The energy of shaped features: what ReAct, SCALE, ASH and DICE have in common."""

from typing import Any

import torch
from torch import Tensor

from wildood.data.sources import Source
from wildood.models.classifier import Classifier, Outputs
from wildood.scores.energy import energy
from wildood.scores.labelled import layer_of
from wildood.scores.score import Needs, Score
from wildood.settings import check_number


class ShapedScore(Score):
    """s(x) = E(W g(φ(x)) + b), where W, b is the last layer, which `fit` copies, and g is `shape`."""

    needs = Needs(labelled=True, features=True)
    weight: Tensor  # W
    bias: Tensor  # b

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.declare("weight", "bias")

    def fit(self, classifier: Classifier, labelled: Source) -> None:
        """Copy the classifier's last layer."""
        self.weight, self.bias = layer_of(classifier, labelled)

    def shape(self, features: Tensor) -> Tensor:
        """g: the features as the last layer takes them."""
        raise NotImplementedError

    def forward(self, outputs: Outputs) -> Tensor:
        """The energy of the shaped features."""
        return energy(torch.nn.functional.linear(self.shape(outputs.features_or_refuse()), self.weight, self.bias))


def check_percentile(value: Any, name: str) -> float:
    """A percentile that leaves something above it."""
    return check_number(value, name, "a number above 0, below 100, or None to have it chosen", above=0, below=100)


def kept_count(features: int, percentile: float) -> int:
    """How many of so many features are above a percentile of them; at least one.

    >>> kept_count(64, 90.0), kept_count(3, 90.0)
    (6, 1)
    """
    return max(1, features - round(features * percentile / 100))
