"""ReAct (Sun, Guo, Li, 2021): the energy of rectified features."""

from typing import ClassVar

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

    percentile = None has it chosen by wild acceptance: the best one depends on how many of the features are near 0.

    >>> ReAct().percentile
    90.0
    """

    paper = "Sun et al., ReAct: Out-of-distribution Detection With Rectified Activations, 2021"
    grid: ClassVar = {"percentile": (80.0, 85.0, 90.0, 95.0, 99.0)}
    level: Tensor  # c; one for each percentile of the grid where it is to be chosen

    def __init__(self, percentile: float | None = 90.0) -> None:
        if percentile is not None:
            expected = "a number above 0, up to 100, or None to have it chosen"
            percentile = check_number(percentile, "ReAct: percentile", expected, above=0, most=100)
        super().__init__(percentile=percentile)
        self.percentile = percentile
        self.declare("level")

    def fit(self, classifier: Classifier, labelled: Source) -> None:
        """Compute c, and copy the classifier's last layer."""
        super().fit(classifier, labelled)
        features = labelled_features(classifier, labelled, "ReAct")
        warn_of_negative(features, "ReAct")
        wanted = self.grid["percentile"] if self.percentile is None else self.percentile
        self.level = torch.as_tensor(np.percentile(features.numpy(), wanted), dtype=torch.float32).to(self.weight.device)

    def shape(self, features: Tensor) -> Tensor:
        """The features, at most c."""
        percentile = self.setting("percentile")
        level = self.level if self.level.ndim == 0 else self.level[self.grid["percentile"].index(percentile)]
        return features.clamp(max=level)
