"""NCI (Liu & Qin, 2025): how near the features are to the weights of the predicted class, and how large they are."""

from typing import ClassVar

import torch
from torch import Tensor

from wildood.data.sources import Source
from wildood.models.classifier import Classifier, Outputs
from wildood.scores.labelled import LEAST_NORM, labelled_features, layer_of, mean_feature
from wildood.scores.score import Needs, Score
from wildood.settings import check_number


class Nci(Score):
    """s(x) = -<w_y, φ(x) - μ> / |φ(x) - μ| - a |φ(x)|_1, where y is the predicted class.

    w_y are the weights of class y in the last layer, μ is the mean of the features φ of labelled data, and a the
    `norm_weight`: None to have it chosen by wild acceptance.

    >>> Nci().norm_weight
    0.0001
    """

    paper = "Liu & Qin, Detecting Out-of-Distribution Through the Lens of Neural Collapse, 2025"
    needs = Needs(labelled=True, features=True)
    grid: ClassVar = {"norm_weight": (0.0001, 0.001, 0.01, 0.1)}
    centre: Tensor  # μ
    weight: Tensor  # w, one row per class

    def __init__(self, norm_weight: float | None = 0.0001) -> None:
        expected = "a weight from 0 on, or None to have it chosen"
        if norm_weight is not None:
            norm_weight = check_number(norm_weight, "Nci: norm_weight", expected, least=0)
        super().__init__(norm_weight=norm_weight)
        self.norm_weight = norm_weight
        self.declare("centre", "weight")

    def fit(self, classifier: Classifier, labelled: Source) -> None:
        """Compute μ, and copy the weights of the last layer."""
        self.weight, _ = layer_of(classifier, labelled)
        self.centre = mean_feature(labelled_features(classifier, labelled, "Nci"), "Nci").to(self.weight.device)

    def forward(self, outputs: Outputs) -> Tensor:
        """Minus the proximity to the weights, and minus the norm."""
        features = outputs.features_or_refuse()
        centred = features - self.centre
        along: Tensor = (self.weight[outputs.logits.argmax(1)] * centred).sum(1)
        norms: Tensor = torch.linalg.vector_norm(centred, dim=1).clamp(min=LEAST_NORM)
        norm_weight: float = self.setting("norm_weight")
        return -along / norms - norm_weight * features.abs().sum(1)
