"""ReAct (Sun, Guo, Li, 2021): the energy of rectified features."""

import numpy as np
import torch
from torch import Tensor

from wildood.data.sources import Source
from wildood.models.classifier import Classifier
from wildood.scores.labelled import labelled_features, warn_of_negative
from wildood.scores.shaping import ShapedScore
from wildood.settings import check_number


class ReAct(ShapedScore):
    """s(x) = E(W min(φ(x), c) + b), where W, b is the last layer and c a percentile of all features of the labelled data.

    >>> ReAct().percentile
    90.0
    """

    paper = "Sun et al., ReAct: Out-of-distribution Detection With Rectified Activations, 2021"
    level: Tensor  # c

    def __init__(self, percentile: float = 90.0) -> None:
        percentile = check_number(percentile, "ReAct: percentile", "a number above 0, up to 100", above=0, most=100)
        super().__init__(percentile=percentile)
        self.percentile = percentile
        self.declare("level")

    def fit(self, classifier: Classifier, labelled: Source) -> None:
        """Compute c, and copy the classifier's last layer."""
        super().fit(classifier, labelled)
        features = labelled_features(classifier, labelled, "ReAct")
        warn_of_negative(features, "ReAct")
        self.level = torch.tensor(float(np.percentile(features.numpy(), self.percentile))).to(self.weight.device)

    def shape(self, features: Tensor) -> Tensor:
        """The features, at most c."""
        return features.clamp(max=self.level)
