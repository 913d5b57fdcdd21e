"""DICE (Sun & Li, 2022): the energy with the weights that contribute most, and without the others."""

import math
from typing import ClassVar

import torch
from torch import Tensor

from wildood.data.sources import Source
from wildood.models.classifier import Classifier, Outputs
from wildood.scores.energy import energy
from wildood.scores.labelled import labelled_features, warn_of_negative
from wildood.scores.shaping import ShapedScore, check_percentile
from wildood.settings import optional


class Dice(ShapedScore):
    """s(x) = E((M ⊙ W) φ(x) + b), where M keeps the weights of W, b whose contribution is above a percentile of all of them.

    The contribution of the weight W_kj is W_kj E φ_j, with the mean of the feature over labelled data. percentile = None has
    it chosen by wild acceptance.

    >>> Dice().percentile
    90.0
    """

    paper = "Sun & Li, DICE: Leveraging Sparsification for Out-of-Distribution Detection, 2022"
    grid: ClassVar = {"percentile": (10.0, 30.0, 50.0, 70.0, 90.0)}
    rank: Tensor  # of each weight by its contribution, the smallest being 0

    def __init__(self, percentile: float | None = 90.0) -> None:
        percentile = optional(check_percentile)(percentile, "Dice: percentile")
        super().__init__(percentile=percentile)
        self.percentile = percentile
        self.declare("rank")

    def fit(self, classifier: Classifier, labelled: Source) -> None:
        """Copy the last layer, and rank its weights."""
        super().fit(classifier, labelled)
        features = labelled_features(classifier, labelled, "Dice")
        warn_of_negative(features, "Dice")
        contribution = self.weight.cpu().double() * features.double().mean(0)
        order = contribution.flatten().argsort(stable=True)
        rank = torch.empty(len(order))
        rank[order] = torch.arange(len(order), dtype=rank.dtype)
        self.rank = rank.view_as(contribution).to(self.weight.device)

    def forward(self, outputs: Outputs) -> Tensor:
        """The energy of the masked layer's logits."""
        level = math.floor((self.rank.numel() - 1) * self.setting("percentile") / 100)
        masked = self.weight * (self.rank > level)
        return energy(torch.nn.functional.linear(outputs.features_or_refuse(), masked, self.bias))
