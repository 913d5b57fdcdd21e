"""fDBD (Liu & Qin, 2024): the distance of the features to the decision boundaries of the predicted class."""

import torch
from torch import Tensor

from wildood.data.sources import Source
from wildood.models.classifier import Classifier, Outputs
from wildood.scores.labelled import LEAST_NORM, labelled_features, layer_of, mean_feature
from wildood.scores.score import Needs, Score


class Fdbd(Score):
    """s(x) = -mean over k ≠ y of |f_y - f_k| / |w_y - w_k|, divided by |φ(x) - μ|.

    y is the predicted class, w_k the weights of class k in the last layer, and μ the mean of the features φ of labelled
    data. |f_y - f_k| / |w_y - w_k| is how far φ must move to be of class k. Two classes with the same weights have no
    boundary, and the distance counts as 0.

    >>> Fdbd().needs.labels
    False
    """

    paper = "Liu & Qin, Fast Decision Boundary based Out-of-Distribution Detector, 2024"
    needs = Needs(labelled=True, features=True)
    centre: Tensor  # μ
    steepness: Tensor  # 1 / |w_y - w_k|

    def __init__(self) -> None:
        super().__init__()
        self.declare("centre", "steepness")

    def fit(self, classifier: Classifier, labelled: Source) -> None:
        """Compute μ and the distances between the weights of classes."""
        weight, _ = layer_of(classifier, labelled)
        self.centre = mean_feature(labelled_features(classifier, labelled, "Fdbd"), "Fdbd").to(weight.device)
        apart = torch.cdist(weight.double(), weight.double(), compute_mode="donot_use_mm_for_euclid_dist")
        self.steepness = torch.where(apart > 0, 1 / apart, 0.0).float()

    def forward(self, outputs: Outputs) -> Tensor:
        """Minus the mean distance to a boundary, relative to the distance to μ."""
        largest, predicted = outputs.logits.max(1, keepdim=True)
        distances = (largest - outputs.logits) * self.steepness[predicted.squeeze(1)]
        norms: Tensor = torch.linalg.vector_norm(outputs.features_or_refuse() - self.centre, dim=1).clamp(min=LEAST_NORM)
        to_boundary: Tensor = distances.sum(1) / max(1, outputs.logits.shape[1] - 1)
        return -to_boundary / norms
